"""Menus of pairs of pmfs: the possible laws of two neighbors in one small release.

Every function returns the vertices of a convex set of pairs that contains all possible ones.
sum_x P(x) V(A Q(x)/P(x)) is convex in the pair for every convex V, so no pair inside the set is
worse than all vertices. In each pair the law with the contribution comes first.
"""

import itertools
import math
from functools import lru_cache

import numpy as np

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.privacy.events import FiniteTable

Pmf = tuple[float, ...]
Pair = tuple[Pmf, Pmf]
Bit = tuple[float, float]  # Probabilities of 0 and 1.

_MAX_LETTERS = 20_000  # Outcomes in all pairs of a table together.
_MAX_TANGENTS = 65


def is_small(table: FiniteTable) -> bool:
    """Return whether the pairs of the table's rows are few enough to be listed.

    They are if all pairs of `sampled_table_pairs`, with those of equal pmfs that it leaves out,
    together have at most 20,000 outcomes.
    """
    rows = len(table.rows)
    absent = rows if table.zero is None else 1
    others = rows if table.adjacency == Adjacency.REPLACE_ONE else 1
    return absent * others * rows * len(table.rows[0]) <= _MAX_LETTERS


@lru_cache(maxsize=64)
def sampled_table_pairs(table: FiniteTable, rate: float) -> tuple[Pair, ...]:
    """Return the pairs of pmfs of two neighbors: a table's rows, Poisson-sampled at `rate`.

    A row that is sampled is mixed with the row of zero: rate row + (1 - rate) zero. Zero-out: each
    such mixture against the row of zero, in this order. Replace-one: any two mixtures in both
    orders. If the row of zero is not known, each row in turn takes its place, because it is a
    mixture of the rows. Pairs of equal pmfs are left out unless there are no others.
    """
    if table.zero is None:
        absent = table.rows if rate < 1.0 else table.rows[:1]
    else:
        absent = (table.rows[table.zero],)
    # Pairs that differ only in the order of their outcomes are listed once.
    pairs: dict[tuple[tuple[float, float], ...], Pair] = {}
    for zero in absent:
        present = [_mixed(rate, row, zero) for row in table.rows]
        if table.adjacency == Adjacency.ZERO_OUT:
            found = [(row, zero) for row in present]
        else:
            found = list(itertools.permutations(present, 2))
        pairs |= {tuple(sorted(zip(p, q, strict=True))): (p, q) for p, q in found if p != q}
    return tuple(pairs.values()) or ((absent[0], absent[0]),)


def _mixed(rate: float, present: Pmf, absent: Pmf) -> Pmf:
    if rate == 1.0:
        return present
    return tuple((1.0 - rate) * a + rate * p for p, a in zip(present, absent, strict=True))


@lru_cache(maxsize=4096)
def bit_pairs(move: float) -> tuple[Pair, ...]:
    """Return the pair of a bit with logit `move` and a fair bit, each as its P(0) and P(1).

    No bit whose logit is within `move` of 0 is worse, against a fair bit that comes second: smaller
    moves are mixtures of `move` and -`move`, and -`move` gives the same pair with 0 and 1
    exchanged.
    """
    return ((_bit(move), (0.5, 0.5)),)


@lru_cache(maxsize=1024)
def sum_pairs(
    move: float, logit_bound: float, clients: int, *, spacing: float, against_zero: bool
) -> tuple[Pair, ...]:
    """Return pairs of pmfs for the sum of a protected bit and the bits of `clients` - 1 others.

    No pair that two neighbors may have is worse than all of these. All logits lie within
    `logit_bound` of 0, so each of the others' bits is a mixture of bits with logits at the ends of
    the bound. The protected client's logit moves by at most `move`; its probabilities of a 1 are
    (p, p') with p > p', and the other order is the same with 0 and 1 exchanged. With `against_zero`
    p' = 1/2 is that of the law without the contribution, which comes second; pairs in which it
    comes first are then not covered. `spacing` is that of the tangents in `bit_corners`, in logits.
    """
    corners = bit_corners(move, logit_bound, spacing, against_zero=against_zero)
    menu = []
    for others in sums_of_others(logit_bound, clients):
        menu += [(_plus_bit(others, first), _plus_bit(others, second)) for first, second in corners]
    return tuple(menu)


def sums_of_others(logit_bound: float, clients: int) -> list[Vector]:
    """Return the pmfs of the sum of `clients` - 1 bits with logits at the ends of the bound.

    The i-th pmf is that of i bits with logit `logit_bound` and the others with -`logit_bound`.
    """
    laws = []
    for ups in range(clients):
        law = np.ones(1)
        for other in range(clients - 1):
            law = np.convolve(law, _bit(logit_bound if other < ups else -logit_bound))
        laws.append(law)
    return laws


def _plus_bit(others: Vector, bit: Bit) -> Pmf:
    """Return the law of others + bit, by the probabilities of 0 and 1 of the bit."""
    return tuple(np.convolve(others, bit).tolist())


def bit_corners(
    move: float, bound: float, spacing: float, *, against_zero: bool
) -> list[tuple[Bit, Bit]]:
    """Return the corners (p, p') of a polygon around all p >= p' that two neighbors may have.

    p and p' are the neighbors' probabilities of a 1; each is returned as (P(0), P(1)). Both logits
    lie within `bound` of 0 and differ by at most `move`; with `against_zero` p' = 1/2, and there is
    one corner. `spacing` is that of the tangents, in logits; fewer tangents give a larger polygon,
    which is sound.

    Logits that differ by `move` have odds that differ by the factor r = e^move, so the region is
    bounded by p = r p'/(1 + (r-1) p'), which is concave in p'. The polygon consists of tangents to
    this curve and of the edges of the box of logits. With d = 2 + (r-1)(x+y), the tangents at p' =
    x and p' = y meet at

        p = r (x + y)/d,    p' = (x + y + 2 (r-1) x y)/d.
    """
    if against_zero:
        reach = min(move, bound)
        return [(_bit(reach), (0.5, 0.5))]
    if move >= 2.0 * bound:
        return [(_bit(bound), _bit(-bound))]
    count = min(_MAX_TANGENTS, 2 + int((2.0 * bound - move) / spacing))
    growth, tangents = math.expm1(move), np.linspace(-bound, bound - move, count).tolist()
    corners = [(_bit(z + move), _bit(z)) for z in (tangents[0], tangents[-1])]
    for (no_x, x), (no_y, y) in itertools.pairwise(_bit(z) for z in tangents):
        d = 2.0 + growth * (x + y)
        first = ((no_x + no_y) / d, (growth + 1.0) * (x + y) / d)
        crossed = growth * (x * no_y + no_x * y)
        second = ((no_x + no_y + crossed) / d, (x + y + 2.0 * growth * x * y) / d)
        corners.append((first, second))
    return corners


def _bit(logit: float) -> Bit:
    return _sigmoid(-logit), _sigmoid(logit)


def _sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-logit)) if logit > -700.0 else math.exp(logit)
