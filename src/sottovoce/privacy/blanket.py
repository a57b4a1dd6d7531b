"""Amplification by shuffling, for messages whose densities are bounded against one common law.

n clients answer in a uniform, secret order. The law R of a client's message, whatever its input and
the messages before, has lo <= dR/dQ <= hi against one law Q. Replacing one client's input is then
dominated, in both orders, by

    M ~ Bin(n-1, lo), known;   p = (1-lo)/(hi-lo);   (n0, n1) ~ Multinomial(M+1; p, p, 1-2p),
    L0 = lo + (hi-lo) n0/(M+1)   against   L1 = lo + (hi-lo) n1/(M+1),

likelihoods over the law of (M, n0, n1). It needs hi + lo >= 2; a larger hi is always sound, so hi
is raised where it is not. docs/privacy.md, section 31, has the proof and the conditions.

How it is computed. Given M and N = n0 + n1 ~ Bin(M+1, 2p) the count n0 is Bin(N, 1/2), and

    (L0, L1)/s,   s = lo + (hi-lo) N/(2(M+1)),   weight s under both laws,

is randomized response with odds 1 + (hi-lo) N/((M+1) lo) whose answer hides among N - 1 fair coins.
Fewer coins and larger odds only raise it, so N in a bucket [a, b] may have the coins of a and the
odds of b. A larger M is a mean over more places, which lowers it: M is rounded down to a bucket's
end. Losses are collected in cells, and a cell's masses are split onto its ends (connect the dots).
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.privacy.binomial import OUTSIDE, TAIL_ERROR, lower_buckets, pmf_window
from sottovoce.privacy.loss_distributions import connect_dots
from sottovoce.privacy.loss_pairs import PAIR_ACCURACY, AtomPair

_CELLS = 2**13  # of losses above 0, as many below
_LOG_OUTSIDE = 55.0  # what is not listed of each law; it counts as an infinite loss
_NEVER = math.exp(-_LOG_OUTSIDE)
# Buckets of M are a twelfth of its standard deviation wide; so many become one, by the mean of N.
_MERGED = ((250.0, 1), (800.0, 2), (math.inf, 3))
_WIDTH = 4e-4  # of a bucket of N, relative to N
_LEAST_STEP = 2.0**-22  # above what binomial laws err by
_LEAST_ROOM = 2.0**-20  # of hi + lo - 2, so that 1 - 2p has many digits


@dataclass(frozen=True, slots=True)
class BlanketPair:
    """The dominating pair by its loss; it is its own reverse."""

    lo: float
    hi: float
    clients: int
    accuracy: ClassVar[float] = PAIR_ACCURACY

    def masses(self, edges: Vector) -> tuple[Vector, Vector]:
        return _atoms(self.lo, self.hi, self.clients).masses(edges)

    def reverse(self) -> "BlanketPair":
        return self


@dataclass(frozen=True, slots=True, eq=False)
class _CellPair(AtomPair):
    """Masses of the cells of a grid, with the accuracy of binomial laws."""

    accuracy: ClassVar[float] = 4.0 * TAIL_ERROR


@lru_cache(maxsize=64)
def _atoms(lo: float, hi: float, clients: int) -> AtomPair:
    """The pair on a grid of losses, rounded up."""
    blanket = _Blanket(lo, hi, clients)
    first, second = blanket.cells()
    step, size = blanket.step, len(first)
    centers = (np.arange(-size, size, dtype=np.float64) + 0.5) * step
    cells = _CellPair(centers, np.append(second[::-1], first), np.append(first[::-1], second))
    law = connect_dots(cells, np.arange(-size, size + 1, dtype=np.float64) * step)
    q = law.masses * np.exp(-law.losses)
    rest = max(0.0, 1.0 - float(np.sum(q)))
    return AtomPair(
        np.concatenate(([-math.inf], law.losses, [math.inf])),
        np.concatenate(([0.0], law.masses, [law.infinite + blanket.infinite])),
        np.concatenate(([rest], q, [0.0])),
    )


class _Blanket:
    """Losses of the pair above 0, in cells; those below are their mirror image."""

    def __init__(self, lo: float, hi: float, clients: int) -> None:
        self.lo, self.hi = lo, max(hi, 2.0 - lo + _LEAST_ROOM)
        pairs = 2.0 * clients * lo * (1.0 - lo) / (self.hi - lo)
        merged = next(count for most, count in _MERGED if pairs <= most)
        ends, below = (array[::merged] for array in lower_buckets(clients - 1, lo))
        kept = max(0, int(np.searchsorted(below, _NEVER, side="right")) - 1)
        self.others = ends[kept:]  # M
        self.weights = np.diff(below[kept:], append=1.0)
        self.infinite = float(below[kept]) + _NEVER + 2.0 * OUTSIDE
        self._windows()
        self._coins()

    def _windows(self) -> None:
        """The law of N for each M, on one grid of buckets."""
        lo, hi = self.lo, self.hi
        chance = 2.0 * (1.0 - lo) / (hi - lo)
        rest = (hi - 2.0 + lo) / (hi - lo)
        outside = _LOG_OUTSIDE + math.log(hi)  # the likelihood of what is outside is at most hi
        found = [pmf_window(int(m) + 1, chance, rest, outside) for m in self.others]
        start = min(first for first, _ in found)
        stop = max(first + len(pmf) for first, pmf in found)
        width = max(1, math.floor(_WIDTH * (start + stop) / 2.0)) if start > 0 else 1
        self.low = np.arange(start, stop, width)  # a
        self.high = self.low + (width - 1)  # b
        self.masses = np.zeros((len(self.others), len(self.low)))
        for row, m, (first, pmf) in zip(self.masses, self.others, found, strict=True):
            counts = first + np.arange(len(pmf))
            likelihood = lo + (hi - lo) * counts / (2.0 * (m + 1.0))
            places = (counts - start) // width
            row[:] = np.bincount(places, weights=pmf * likelihood, minlength=len(self.low))

    def _coins(self) -> None:
        """Bin(a, 1/2) on its upper half, for each a; what lies in the middle counts half."""
        coins = self.low.astype(np.float64)[:, None]
        reach = math.ceil(6.25 * math.sqrt(float(self.low[-1]))) + 1
        self.counts = np.ceil(coins / 2.0) + np.arange(reach + 1)
        x = self.counts[:, :-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.where(x < coins, np.log1p((coins - 1.0 - 2.0 * x) / (x + 1.0)), -np.inf)
        pmf = np.exp(np.cumsum(np.pad(steps, ((0, 0), (1, 0))), axis=1))
        pmf[self.low % 2 == 0, 0] /= 2.0
        self.pmf = pmf / (2.0 * pmf.sum(axis=1, keepdims=True))
        self.counts = np.minimum(self.counts, coins)

    def _likelihoods(self, m: float, some: slice, which: slice) -> tuple[Vector, Vector]:
        """L0 and L1 of these buckets and counts, with the odds of b."""
        coins = np.maximum(self.low[some], 1).astype(np.float64)[:, None]
        scale = (self.hi - self.lo) / (m + 1.0) * (self.high[some, None] / coins)
        counts = self.counts[some, which]
        return self.lo + scale * counts, self.lo + scale * (self.low[some, None] - counts)

    def cells(self) -> tuple[Vector, Vector]:
        """First-law and second-law masses of losses in cells of `step` above 0."""
        largest, others = 0.0, self.others.tolist()
        for m, row in zip(others, self.masses, strict=True):
            first, second = self._likelihoods(m, _listed(row), slice(-1, None))
            largest = max(largest, float(np.max(first / second)))
        self.step = max(math.log(largest) * (1.0 + 2.0**-20) / _CELLS, _LEAST_STEP)
        laws = np.zeros((2, _CELLS))
        for m, weight, row in zip(others, self.weights.tolist(), self.masses, strict=True):
            some = _listed(row)
            first, second = self._likelihoods(m, some, slice(None))
            places = (np.log(first / second) * (1.0 / self.step)).astype(np.intp).ravel()
            scale = self.lo + (self.hi - self.lo) * self.high[some] / (2.0 * (m + 1.0))
            pmf = self.pmf[some] * (weight * row[some] / scale)[:, None]
            for law, likelihood in zip(laws, (first, second), strict=True):
                law += np.bincount(places, weights=(pmf * likelihood).ravel(), minlength=_CELLS)
        return laws[0], laws[1]


def _listed(masses: Vector) -> slice:
    """From the first to the last bucket that has any mass."""
    some = np.flatnonzero(masses)
    return slice(int(some[0]), int(some[-1]) + 1)
