"""Renyi divergence of sums of bits over a few clients, by the laws that are worst.

The bits of the others are mixtures of those whose logits are at an end of [-Z, Z], and
e^((a-1) D_a) is jointly convex: only "j others at Z, the rest at -Z" matters, coordinate by
coordinate. For each j it is convex in the protected client's two probabilities too, so the corners
of a polygon around those that neighbors may have suffice (`finite_menus.bit_corners`). The fair
coins of `secure_sum` lose little for many clients, and up to 40% of epsilon for a few.

A coordinate that moves by s costs s^2. D_a grows with s, for the polygons are nested; so a cell
[u, u'] of costs has the option of cost u and the divergence at u'. In the first cell the sum counts
as the bit itself, D_a <= a s^2/8. Weak duality as in `envelope`.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.privacy.envelope import BUDGET_ROUNDING, RowPairs, envelope_bound
from sottovoce.privacy.events import SecureSum
from sottovoce.privacy.finite_menus import Bit, bit_corners, sums_of_others

MAX_CLIENTS = 6
MOST_CLIENTS = 16  # up to which a sum over `MAX_CLIENTS` of them may say more than fair coins do
_SPACING = 0.2  # of tangents, in logits
_FIRST = 2.0**-11  # of an equal share: where cells begin
# Ratios of cells: around an equal share and where a few coordinates take all, and elsewhere.
_FINE, _COARSE = 1.02, 1.15
_CELL_ERROR = 2.0**-45  # of a probability, a product of at most six
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class _Menu:
    """Ends of the cells of costs, and the laws of each right end's corners one after another."""

    ends: Vector
    laws: RowPairs  # corners by others by sums
    starts: NDArray[np.intp]  # of each cell's corners


@lru_cache(maxsize=16)
def _menu(event: SecureSum) -> _Menu:
    share = event.shift**2 / event.dimension
    widest = min(event.shift**2, (2.0 * event.logit_bound) ** 2) * (1.0 + BUDGET_ROUNDING)
    ends = [min(widest, _FIRST * share)]
    while ends[-1] < widest:
        near = 0.2 * share < ends[-1] < 8.0 * share or ends[-1] > widest / 64.0
        ends.append(min(widest, ends[-1] * (_FINE if near else _COARSE)))
    corners: list[tuple[Bit, Bit]] = []
    starts = []
    for end in ends[1:]:
        starts.append(len(corners))
        move = math.sqrt(end) * (1.0 + BUDGET_ROUNDING)
        found = bit_corners(move, event.logit_bound, _SPACING, against_zero=event.against_zero)
        corners += found
        if event.against_zero:  # else the other order is another pair of the menu
            corners += [(second, first) for first, second in found]
    others = np.array(sums_of_others(event.logit_bound, event.clients))
    bits = np.array(corners).reshape(-1, 2, 1, 2)  # corners, neighbors, others, values
    without, with_one = (np.pad(others, ((0, 0), ends)) for ends in ((0, 1), (1, 0)))
    laws = bits[..., :1] * without + bits[..., 1:] * with_one
    pairs = RowPairs.of(laws[:, 0], laws[:, 1])
    return _Menu(np.array(ends), pairs, np.array(starts, dtype=np.intp))


def small_sum_renyi(event: SecureSum, order: float) -> float:
    """D_a of the sums over at most `MAX_CLIENTS` clients, both directions, rounded up."""
    menu = _menu(event)
    costs, values = [menu.ends[0]], [order * menu.ends[0] / 8.0 * (1.0 + _ROUNDING)]
    if len(menu.starts):
        found = menu.laws.renyi(order, _CELL_ERROR).max(axis=-1)
        costs.extend(menu.ends[:-1])
        values.extend(np.maximum.reduceat(found, menu.starts))
    budget = event.shift**2 * (1.0 + BUDGET_ROUNDING)
    bound = envelope_bound(np.array(costs), np.array(values), budget, event.dimension)
    return bound * (1.0 + _ROUNDING)
