"""Steps of Bellman's recursion: V before a release from V after it, on a grid of log A.

See `privacy.bellman`. The values on the grid are upper bounds of V, and every step keeps them so:
the recursion is monotone in V.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.privacy.divergences import log_sum_exp, one_bit_renyi
from sottovoce.privacy.events import OneBit, SummedBits
from sottovoce.privacy.finite_menus import Pair, bit_pairs, sum_pairs

MAX_WORK = 8e8  # Multiplications; about two seconds.
ROUNDING = 2.0**-46  # Relative rounding of laws, ratios and sums, added on the private side.
_CELLS = (180, 10)  # Number of cells of the budget, and how many more for each coordinate.
_LEAST_CELLS = 16  # Fewest cells for each coordinate.


@dataclass(frozen=True, slots=True)
class BellmanGrid:
    """The grid points A = e^(i step), i = -below, ..., above, where A stands for e^epsilon."""

    step: float
    below: int
    above: int

    @property
    def size(self) -> int:
        """Number of grid points."""
        return self.below + 1 + self.above

    def start(self) -> Vector:
        """Return V_0(A) = (1 - A)_+, the delta without any release, at the grid points.

        Its kink A = 1 is one of them.
        """
        logs = np.arange(-self.below, self.above + 1) * self.step
        return np.asarray(np.maximum(0.0, -np.expm1(logs)))

    def padded(self, values: Vector) -> Vector:
        """Return `values`, bounds on V(A) at the grid points, extended on both sides of the grid.

        The last axis gets `size` points on the left, on the chord to V(0) = 1, and `size` + 1 on
        the right, with the last value. Both are upper bounds, because V is convex and decreases.
        """
        decay = np.exp(-self.step * np.arange(self.size, 0, -1))
        left = 1.0 - (1.0 - values[..., :1]) * decay * (1.0 - ROUNDING)
        right = np.broadcast_to(values[..., -1:], (*values.shape[:-1], self.size + 1))
        return np.concatenate([left, values, right], axis=-1)


@dataclass(frozen=True, slots=True)
class Letters:
    """One pair of laws on a grid.

    For each outcome x ("letter") of a pair (P, Q): the grid points between which A Q(x)/P(x) lies,
    as an offset `places` into an array that `BellmanGrid.padded` extended, and the `weights`
    (lower, upper) of these two points, which sum to P(x), rounded up.
    """

    places: tuple[int, ...]
    weights: tuple[tuple[float, float], ...]
    infinite: float  # P-mass of the outcomes with Q = 0, or with a ratio beyond the grid.

    @classmethod
    def of(cls, pair: Pair, grid: BellmanGrid) -> "Letters":
        """Return the outcomes of a pair of pmfs (P, Q) on the grid; rounding can only raise V."""
        places, weights, infinite = [], [], 0.0
        for p, q in zip(*pair, strict=True):
            if not p > 0.0:
                continue
            move = math.log(q) - math.log(p) if q > 0.0 else -math.inf
            move -= ROUNDING * (1.0 + abs(move))  # V decreases, so a smaller A can only add.
            if move < -grid.size * grid.step:
                infinite += p  # V is at most 1.
                continue
            place = min(math.floor(move / grid.step), grid.size - 1)
            share = min(1.0, math.expm1(move - place * grid.step) / math.expm1(grid.step))
            share = max(0.0, share)
            places.append(grid.size + place)
            up = p * (1.0 + ROUNDING)
            weights.append((up * (1.0 - share), up * share))
        return cls(tuple(places), tuple(weights), infinite * (1.0 + ROUNDING))

    def mean(self, padded: Vector, size: int) -> Vector:
        """Return an upper bound on sum_x P(x) V(A Q(x)/P(x)) at each of the `size` grid points A.

        `padded` holds upper bounds on V, extended by `BellmanGrid.padded`.
        """
        total = np.full((*padded.shape[:-1], size), self.infinite)
        buffer = np.empty_like(total)
        for place, (low, high) in zip(self.places, self.weights, strict=True):
            for at, weight in ((place, low), (place + 1, high)):
                np.multiply(padded[..., at : at + size], weight, out=buffer)
                total += buffer
        return total


class BellmanStep(Protocol):
    """One release of a composition in one direction, with the choices of the adversary."""

    def log_moment(self, order: float, *, reverse: bool) -> float:
        """Return an upper bound on (a-1) D_a of the finite losses; it is used to plan the grid.

        D_a is the Renyi divergence of order a = `order`: of (P || Q), with `reverse` of (Q || P),
        the largest over the choices of the adversary.
        """
        ...

    @property
    def draws(self) -> int:
        """Number of roundings to the grid in one release: one for each coordinate or table."""
        ...

    def work(self, grid: BellmanGrid) -> float:
        """Return the approximate number of multiplications for one release on this grid."""
        ...

    def value_before(self, values: Vector, grid: BellmanGrid) -> Vector:
        """Return upper bounds on V before the release, given those after it, on the grid.

        V(A) is the largest sup P - A Q of all releases still to come.
        """
        ...


@dataclass(frozen=True)
class Menu:
    """A release for which the adversary picks one of finitely many pairs of pmfs (P, Q)."""

    pairs: tuple[Pair, ...]
    draws = 1

    def log_moment(self, order: float, *, reverse: bool) -> float:
        ways = self._reversed if reverse else self._logs
        moments = [log_sum_exp(order * p + (1.0 - order) * q) for p, q in ways if len(p)]
        return max(moments, default=0.0)

    @cached_property
    def _logs(self) -> list[tuple[Vector, Vector]]:
        found = []
        for pair in self.pairs:
            first, second = np.array(pair[0]), np.array(pair[1])
            both = (first > 0.0) & (second > 0.0)
            found.append((np.log(first[both]), np.log(second[both])))
        return found

    @cached_property
    def _reversed(self) -> list[tuple[Vector, Vector]]:
        return [(q, p) for p, q in self._logs]

    def work(self, grid: BellmanGrid) -> float:
        return 2.0 * grid.size * sum(len(first) for first, _ in self.pairs)

    def value_before(self, values: Vector, grid: BellmanGrid) -> Vector:
        padded = grid.padded(values)
        menu = _letters(self.pairs, grid)
        return np.asarray(np.maximum.reduce([one.mean(padded, grid.size) for one in menu]))


@dataclass(frozen=True, slots=True)
class Coordinates:
    """The coordinates of one release of bits or sums of bits, which share a budget.

    A coordinate whose logit moves by s between neighbors spends s^2, and all coordinates together
    spend at most shift^2; the adversary divides this budget (not a privacy budget). A coordinate
    that spends nothing has two equal laws.
    """

    event: OneBit | SummedBits

    @property
    def draws(self) -> int:
        return self.event.dimension

    def log_moment(self, order: float, *, reverse: bool) -> float:  # noqa: ARG002 - bounds both
        return (order - 1.0) * one_bit_renyi(self.event.shift, self.event.dimension, order)

    def pairs(self, move: float) -> tuple[Pair, ...]:
        """Return pairs of pmfs (P, Q) of a coordinate whose logit moves by at most `move`.

        No other pair that is possible for it is worse than all of them. If the event is against
        zero, the law with the contribution is P; the other order is not covered.
        """
        match self.event:
            case OneBit():
                return bit_pairs(move)
            case SummedBits():
                return sum_pairs(
                    move,
                    self.event.logit_bound,
                    self.event.clients,
                    spacing=0.06 if self.event.dimension == 1 else 0.25,
                    against_zero=self.event.against_zero,
                )

    def cells(self, grid: BellmanGrid) -> int:
        """Return the number of cells into which the budget shift^2 is divided.

        There are fewer where more would take too long; the bound is then less tight.
        """
        dimension = self.event.dimension
        count = _CELLS[0] + _CELLS[1] * dimension
        while self._work(count, grid) > MAX_WORK and count > _LEAST_CELLS * dimension:
            count -= count // 8
        return count

    def work(self, grid: BellmanGrid) -> float:
        return self._work(self.cells(grid), grid)

    def _work(self, cells: int, grid: BellmanGrid) -> float:
        dimension = self.event.dimension
        typical = self.event.shift / math.sqrt(dimension)
        letters = 2.0 * grid.size * sum(len(first) for first, _ in self.pairs(typical))
        if dimension == 1:
            return letters
        layers = sum(
            sum(cells - bottom for _, bottom in _cells(cells, n)) for n in range(2, dimension)
        )
        return letters * (layers + 2 * cells)

    def value_before(self, values: Vector, grid: BellmanGrid) -> Vector:
        dimension, shift = self.event.dimension, self.event.shift * (1.0 + ROUNDING)
        cells = self.cells(grid)

        def menu(spent: int) -> tuple[Letters, ...]:
            return _letters(self.pairs(shift * math.sqrt(spent / cells)), grid)

        def best(spent: int, padded: Vector) -> Vector:
            means = [letters.mean(padded, grid.size) for letters in menu(spent)]
            return means[0] if len(means) == 1 else np.maximum.reduce(means)

        padded = grid.padded(values)
        if dimension == 1:
            return best(cells, padded)
        # The last coordinate spends the whole rest of the budget.
        layer = np.stack([values, *(best(spent, padded) for spent in range(1, cells + 1))])
        for left in range(2, dimension + 1):
            whole = left < dimension
            padded, layer = grid.padded(layer), layer.copy()
            if not whole:
                layer = layer[-1:]
            for top, bottom in _cells(cells, left):
                rows = padded[1 : cells - bottom + 1] if whole else padded[cells - bottom, None]
                reached = layer[bottom + 1 :] if whole else layer
                np.maximum(reached, best(top, rows), out=reached)
        return np.asarray(layer[-1])


@lru_cache(maxsize=64)
def _cells(count: int, left: int) -> tuple[tuple[int, int], ...]:
    """Return (top, bottom) of the cells with `left` coordinates to come.

    Cells are wider at amounts that a coordinate would rarely spend.
    """
    found, bottom = [], 0
    while bottom < count:
        beyond = max(0.0, bottom - 1.6 * count / left)
        top = min(count, bottom + 1 + int(beyond * 0.15))
        found.append((top, bottom))
        bottom = top
    return tuple(found)


@lru_cache(maxsize=1024)
def _letters(pairs: tuple[Pair, ...], grid: BellmanGrid) -> tuple[Letters, ...]:
    return tuple(Letters.of(pair, grid) for pair in pairs)
