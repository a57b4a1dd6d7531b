"""Amplification by shuffling: one message hides among the messages of the other clients.

Clones (any eps0-DP local randomizer). n messages in random order are a post-processing of

    (A + B, C - A + 1 - B)  against  (A + 1 - B, C - A + B),
    C ~ Bin(n-1, e^-eps0),  A ~ Bin(C, 1/2),  B ~ Bernoulli(p),  p = e^eps0/(e^eps0 + 1).

C is the number of clones: other clients whose message is drawn as if they had one of the two inputs
of the protected client. The sum of both entries reveals C, so the laws are mixtures over a known
C = c. With x the first entry, and b and T the pmf and the upper tail of Bin(c, 1/2),

    e^loss = (p x + (1-p)(c+1-x)) / ((1-p) x + p (c+1-x))               (increasing in x)
    delta_c(eps) = alpha b(k-1) - (e^eps - 1) T(k),   alpha = p - e^eps (1-p),

where k is the smallest x with loss above eps. One more clone is one more fair coin, a
post-processing, so delta_c decreases with c, and c may be replaced by the lower end of a bucket.
The pair is symmetric and dominates in both directions, so it composes over rounds.

Reference: Feldman, McMillan and Talwar 2021, theorem 3.1 (the 2023 bound has an erratum and is not
used); docs/explanation/privacy.md, section 16. eps0 is between any two inputs, so a zero-out
epsilon counts twice.

Privacy blanket (bounded densities). n clients answer in a uniform, secret order. The law R of a
client's message, whatever its input and the messages before, satisfies lo <= dR/dQ <= hi against
one common law Q. This amplifies more: replacing one client's input is dominated, in both orders, by

    M ~ Bin(n-1, lo), known;   p = (1-lo)/(hi-lo);   (n0, n1) ~ Multinomial(M+1; p, p, 1-2p),
    L0 = lo + (hi-lo) n0/(M+1)   against   L1 = lo + (hi-lo) n1/(M+1),

as likelihoods over the law of (M, n0, n1). This requires hi + lo >= 2; a larger hi is always sound,
so hi is raised where necessary. Proof and conditions: docs/explanation/privacy.md, section 31.

How the blanket pair is computed. Given M and N = n0 + n1 ~ Bin(M+1, 2p), n0 is Bin(N, 1/2), and

    (L0, L1)/s,   s = lo + (hi-lo) N/(2(M+1)),   weight s under both laws,

is randomized response with odds 1 + (hi-lo) N/((M+1) lo) whose answer is added to N - 1 fair coins.
Fewer coins and larger odds only raise the profile, so N in a bucket [a, b] may have the coins of a
and the odds of b. A larger M averages over more places, which lowers the profile, so M is rounded
down to the lower end of a bucket. Losses are collected in cells, and the masses of a cell are split
onto its ends (connect the dots).

References: Balle, Bell, Gascon and Nissim 2019 (the privacy blanket); Su, Cheng and Wang 2025 (the
best decomposition). That it holds for adaptive questions, and the fixed worst pair, are our own.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError, UnsupportedEventError
from sottovoce.privacy.accounting import register
from sottovoce.privacy.binomial import (
    OUTSIDE,
    TAIL_ERROR,
    binomial_cdf,
    fair_pmf,
    lower_buckets,
    pmf_window,
)
from sottovoce.privacy.events import PrivacyEvent, Shuffled, basic_counts
from sottovoce.privacy.loss_distributions import connect_dots
from sottovoce.privacy.loss_pairs import PAIR_ACCURACY, AtomPair, LossPair
from sottovoce.privacy.pure import pure_epsilon

_CELLS = 2**13  # Cells of losses above 0, and as many below.
_LOG_OUTSIDE = 55.0  # Mass e^-55 of each law is not listed; it counts as an infinite loss.
_NEVER = math.exp(-_LOG_OUTSIDE)
# Buckets of M are a twelfth of its standard deviation wide. (largest mean of N, how many buckets
# are merged into one).
_MERGED = ((250.0, 1), (800.0, 2), (math.inf, 3))
_WIDTH = 4e-4  # Width of a bucket of N, relative to N.
_LEAST_STEP = 2.0**-22  # Above the error of the binomial laws.
_LEAST_MARGIN = 2.0**-20  # Smallest hi + lo - 2, so that 1 - 2p keeps many digits.


@dataclass(frozen=True, slots=True)
class BlanketPair:
    """The dominating pair of the privacy blanket, by its loss; it is its own reverse.

    It is for one shuffled release of n = `clients` messages in which one client's input is
    replaced: every client's message has a law R with lo <= dR/dQ <= hi against one common law Q.
    """

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
    """The masses of the cells of a grid, with the accuracy of binomial laws."""

    accuracy: ClassVar[float] = 4.0 * TAIL_ERROR


@lru_cache(maxsize=64)
def _atoms(lo: float, hi: float, clients: int) -> AtomPair:
    """Return the blanket pair on a grid of losses, rounded up."""
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
    """The losses of the blanket pair above 0, in cells; those below 0 are their mirror image."""

    def __init__(self, lo: float, hi: float, clients: int) -> None:
        self.lo, self.hi = lo, max(hi, 2.0 - lo + _LEAST_MARGIN)
        pairs = 2.0 * clients * lo * (1.0 - lo) / (self.hi - lo)
        merged = next(count for most, count in _MERGED if pairs <= most)
        ends, below = (array[::merged] for array in lower_buckets(clients - 1, lo))
        kept = max(0, int(np.searchsorted(below, _NEVER, side="right")) - 1)
        self.others = ends[kept:]  # Values of M.
        self.weights = np.diff(below[kept:], append=1.0)
        self.infinite = float(below[kept]) + _NEVER + 2.0 * OUTSIDE
        self._list_counts()
        self._list_coins()

    def _list_counts(self) -> None:
        """Compute the law of N for each M, on one set of buckets."""
        lo, hi = self.lo, self.hi
        chance = 2.0 * (1.0 - lo) / (hi - lo)
        rest = (hi - 2.0 + lo) / (hi - lo)
        outside = _LOG_OUTSIDE + math.log(hi)  # Likelihoods outside are at most hi.
        found = [pmf_window(int(m) + 1, chance, rest, outside) for m in self.others]
        start = min(first for first, _ in found)
        stop = max(first + len(pmf) for first, pmf in found)
        width = max(1, math.floor(_WIDTH * (start + stop) / 2.0)) if start > 0 else 1
        self.low = np.arange(start, stop, width)  # The ends a of the buckets.
        self.high = self.low + (width - 1)  # The ends b of the buckets.
        self.masses = np.zeros((len(self.others), len(self.low)))
        for row, m, (first, pmf) in zip(self.masses, self.others, found, strict=True):
            counts = first + np.arange(len(pmf))
            likelihood = lo + (hi - lo) * counts / (2.0 * (m + 1.0))
            places = (counts - start) // width
            row[:] = np.bincount(places, weights=pmf * likelihood, minlength=len(self.low))

    def _list_coins(self) -> None:
        """Compute Bin(a, 1/2) on its upper half for each a; the value in the middle counts half."""
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
        """Return L0 and L1 of these buckets and counts, with the odds of b."""
        coins = np.maximum(self.low[some], 1).astype(np.float64)[:, None]
        scale = (self.hi - self.lo) / (m + 1.0) * (self.high[some, None] / coins)
        counts = self.counts[some, which]
        return self.lo + scale * counts, self.lo + scale * (self.low[some, None] - counts)

    def cells(self) -> tuple[Vector, Vector]:
        """Return the masses under both laws of the losses in cells of `step` above 0."""
        largest, others = 0.0, self.others.tolist()
        for m, row in zip(others, self.masses, strict=True):
            first, second = self._likelihoods(m, _nonzero_range(row), slice(-1, None))
            largest = max(largest, float(np.max(first / second)))
        self.step = max(math.log(largest) * (1.0 + 2.0**-20) / _CELLS, _LEAST_STEP)
        laws = np.zeros((2, _CELLS))
        for m, weight, row in zip(others, self.weights.tolist(), self.masses, strict=True):
            some = _nonzero_range(row)
            first, second = self._likelihoods(m, some, slice(None))
            places = (np.log(first / second) * (1.0 / self.step)).astype(np.intp).ravel()
            scale = self.lo + (self.hi - self.lo) * self.high[some] / (2.0 * (m + 1.0))
            pmf = self.pmf[some] * (weight * row[some] / scale)[:, None]
            for law, likelihood in zip(laws, (first, second), strict=True):
                law += np.bincount(places, weights=(pmf * likelihood).ravel(), minlength=_CELLS)
        return laws[0], laws[1]


def _nonzero_range(masses: Vector) -> slice:
    """Return the range from the first to the last bucket with positive mass."""
    some = np.flatnonzero(masses)
    return slice(int(some[0]), int(some[-1]) + 1)


MAX_CLIENTS = 2**31
_ROUNDING = 2.0**-48
_LEAST = 1e-12  # A smaller eps0 counts as this.
# Above this eps0 there are practically no clones for any number of clients: e^-60 2^31 < 2e-17.
_NO_CLONES = 60.0


def shuffled_event(
    event: PrivacyEvent, clients: int, ratios: tuple[float, float] | None = None
) -> Shuffled:
    """Return the event of shuffling `clients` messages, each with the local guarantee `event`.

    `ratios` are those of `Shuffled`. `UnsupportedEventError` is raised if the local guarantee has
    no finite pure epsilon.
    """
    result = Shuffled(event=event, clients=clients, ratios=ratios)
    local_epsilon(result)
    return result


def local_epsilon(event: Shuffled) -> float:
    """Return eps0, a pure epsilon of one message between any two inputs; at least 1e-12.

    For an event under zero-out it is twice the event's pure epsilon, because two inputs are
    compared by way of zero. `UnsupportedEventError` is raised if the pure epsilon is infinite.
    """
    epsilon = pure_epsilon(event.event)
    if math.isinf(epsilon):
        names = sorted(
            {
                type(part).__name__
                for part in basic_counts(event.event)
                if pure_epsilon(part) == math.inf
            }
        )
        raise UnsupportedEventError(
            f"shuffling amplifies pure local guarantees only, and {' and '.join(names)} has no "
            "finite pure epsilon; use a mechanism that has one, such as 'mvu' or 'cldp'"
        )
    epsilon = max(epsilon, _LEAST)  # Messages that do not depend on the input have epsilon 0.
    return 2.0 * epsilon if event.adjacency == Adjacency.ZERO_OUT else epsilon


def shuffled_delta(eps0: float, clients: int, epsilon: float) -> float:
    """Return an upper bound on delta at `epsilon` for n shuffled messages of eps0-DP randomizers.

    n is `clients`. `eps0` is the pure epsilon of one message between any two inputs, and delta is
    that of replacing one client's input, in both directions, by the clones bound; 0 if `epsilon` is
    at least `eps0`. Arguments outside their range raise `ParameterError`.
    """
    parameter_rules.positive("eps0", eps0)
    parameter_rules.integer("clients", clients, low=1, high=MAX_CLIENTS)
    if not epsilon >= 0.0:
        raise ParameterError(f"epsilon must be at least 0, got {epsilon!r}")
    if epsilon >= eps0:
        return 0.0
    alpha = _alpha(eps0, epsilon)
    if eps0 > _NO_CLONES:  # e^epsilon may overflow.
        return min(1.0, alpha * (1.0 + _ROUNDING))
    buckets, below = _clone_buckets(eps0, clients)
    deltas = np.minimum.accumulate(_deltas(eps0, epsilon, alpha, buckets))
    # Summation by parts: every factor is at least 0 and rounded up.
    total = deltas[-1] + math.fsum(below[1:] * (deltas[:-1] - deltas[1:]))
    return min(1.0, alpha * (1.0 + _ROUNDING), float(total) * (1.0 + _ROUNDING))


def shuffled_epsilon(eps0: float, clients: int, delta: float) -> float:
    """Return the smallest epsilon, rounded up, at which `shuffled_delta` is at most `delta`.

    It is at least 0 and at most `eps0`, and holds in both directions.
    """
    parameter_rules.delta(delta)
    if shuffled_delta(eps0, clients, 0.0) <= delta:
        return 0.0
    low, high = 0.0, float(eps0)
    while high - low > 1e-10 * high:
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        above = shuffled_delta(eps0, clients, middle) > delta
        low, high = (middle, high) if above else (low, middle)
    return high


def _alpha(eps0: float, epsilon: float) -> float:
    """Return p - e^eps (1-p) = (1 - e^(eps - eps0))/(1 + e^-eps0), the delta without clones."""
    return -math.expm1(epsilon - eps0) / (1.0 + math.exp(-eps0))


def _deltas(eps0: float, epsilon: float, alpha: float, clones: Vector) -> Vector:
    """Return delta_c for each number of clones, rounded up."""
    from scipy.special import gammaln

    # beta/(alpha + beta) with beta = e^eps p - (1-p) and alpha + beta = (2p-1)(1 + e^eps).
    share = -math.expm1(-epsilon - eps0) / ((1.0 + math.exp(-epsilon)) * -math.expm1(-eps0))
    first = np.minimum(clones + 1.0, np.floor((clones + 1.0) * share) + 1.0)
    sizes = gammaln(clones + 1.0)
    logs = sizes - gammaln(first) - gammaln(clones - first + 2.0) - clones * math.log(2.0)
    point = alpha * np.exp(logs + 2.0**-49 * (sizes + clones + 20.0))
    # P(A >= k) = P(A <= c - k). An underflow to 0 is on the safe side, because it is subtracted.
    tail = binomial_cdf(clones - first, clones, 0.5)
    excess = point * (1.0 + 1e-12) - math.expm1(epsilon) * tail * (1.0 - TAIL_ERROR)
    return np.asarray(np.clip(excess, 0.0, alpha))


@lru_cache(maxsize=256)
def _clone_buckets(eps0: float, clients: int) -> tuple[Vector, Vector]:
    """Return the lower ends of the buckets of C, from 0, and upper bounds on P(C < end)."""
    return lower_buckets(clients - 1, math.exp(-eps0) if eps0 <= _NO_CLONES else 0.0)


@dataclass(frozen=True, slots=True)
class ClonesPair:
    """The dominating pair of the clones bound, by its loss; it is its own reverse.

    It is for one shuffled release of `clients` messages, each eps0-DP between any two inputs, in
    which one client's input is replaced.
    """

    eps0: float
    clients: int
    accuracy: ClassVar[float] = 4.0 * TAIL_ERROR  # Of binomial masses and their differences.

    def masses(self, edges: Vector) -> tuple[Vector, Vector]:
        ends, below = _clone_buckets(self.eps0, self.clients)
        first, second = np.zeros(len(edges) + 1), np.zeros(len(edges) + 1)
        for clones, weight in zip(ends.tolist(), np.diff(below, append=1.0).tolist(), strict=True):
            if weight > 0.0:
                p, q = _bucket_masses(self.eps0, int(clones), edges)
                first += weight * p
                second += weight * q
        return first, second

    def reverse(self) -> "ClonesPair":
        return self


def _bucket_masses(eps0: float, clones: int, edges: Vector) -> tuple[Vector, Vector]:
    """Return masses of the loss between the edges, for a known number of clones.

    Outcomes too unlikely to be listed have mass of at most `OUTSIDE`, which is added to the last
    bin.
    """
    lie = math.exp(-eps0) / (1.0 + math.exp(-eps0))
    start, pmf = fair_pmf(clones)
    with_one, with_none = np.append(0.0, pmf), np.append(pmf, 0.0)  # b(x-1) and b(x).
    inside = np.clip(edges, -eps0, eps0)
    # x at most (c+1) beta/(alpha + beta) have a loss below the edge. Rounded down, so that in
    # doubt a loss goes to the bin above the edge.
    share = np.expm1(-eps0 - np.abs(inside)) / ((1.0 + np.exp(-np.abs(inside))) * math.expm1(-eps0))
    share = np.where(inside < 0.0, 1.0 - share, share)
    last = np.floor((clones + 1.0) * share * (1.0 - _ROUNDING))
    last = np.where(edges >= eps0, clones + 1.0, np.where(edges < -eps0, -1.0, last))
    # The number of listed outcomes at or below each edge.
    upto = np.clip(last - start + 1.0, 0.0, len(with_one)).astype(np.int64)
    bounds = np.concatenate([[0], upto, [len(with_one)]])
    first = _sums_between((1.0 - lie) * with_one + lie * with_none, bounds)
    second = _sums_between(lie * with_one + (1.0 - lie) * with_none, bounds)
    first[-1] += OUTSIDE if start > 0 else 0.0
    return first, second


def _sums_between(pmf: Vector, bounds: NDArray[np.int64]) -> Vector:
    """Return the sums of the pmf between successive bounds, each to full relative precision."""
    low = np.concatenate([[0.0], np.cumsum(pmf)])
    high = np.concatenate([np.cumsum(pmf[::-1])[::-1], [0.0]])
    left = bounds[1:] <= len(pmf) // 2
    return np.asarray(
        np.where(left, low[bounds[1:]] - low[bounds[:-1]], high[bounds[:-1]] - high[bounds[1:]])
    )


def shuffled_pair(event: Shuffled) -> LossPair:
    """Return the dominating pair of one shuffled release, for composition over rounds.

    It is a `BlanketPair` if the event has `ratios` and that is expected to be tighter, else a
    `ClonesPair`; both are sound and dominate in both directions. With many clients (n) the privacy
    loss has a standard deviation of about sqrt(blanket_spread/n) or sqrt(clones_spread/n); the pair
    with the smaller one is used.
    """
    eps0 = local_epsilon(event)
    if event.ratios is not None:
        lo, hi = event.ratios
        blanket_spread = (1.0 - lo) * (max(hi, 2.0 - lo) - lo) / (2.0 * lo)
        clones_spread = math.exp(min(eps0, _NO_CLONES)) * math.tanh(eps0 / 2.0) ** 2
        if blanket_spread <= clones_spread:
            return BlanketPair(lo, hi, event.clients)
    return ClonesPair(eps0, event.clients)


@register(summary="amplification by shuffling", turn=5)
class ShufflingAccountant:
    """The clones bound for one shuffled release, computed without a grid of losses.

    The accountant named "clones". Its epsilon is never above the pure epsilon of one message
    without shuffling. Compositions, and messages without a finite pure epsilon, raise
    `UnsupportedEventError`.
    """

    name = "clones"

    def epsilon(self, event: PrivacyEvent, delta: float) -> float:
        single = _single_release(event)
        amplified = shuffled_epsilon(local_epsilon(single), single.clients, delta)
        return min(pure_epsilon(single), amplified)

    def delta(self, event: PrivacyEvent, epsilon: float) -> float:
        single = _single_release(event)
        eps0, pure = local_epsilon(single), pure_epsilon(single)
        local = _alpha(pure, epsilon) * (1.0 + _ROUNDING) if epsilon < pure else 0.0
        return min(local, shuffled_delta(eps0, single.clients, epsilon))


def _single_release(event: PrivacyEvent) -> Shuffled:
    """Return the single shuffled release that the event must be."""
    counts = basic_counts(event)
    part = next(iter(counts))
    if not isinstance(part, Shuffled) or sum(counts.values()) != 1:
        raise UnsupportedEventError(
            "the clones accountant bounds one shuffled release only; use renyi, or pld for "
            "compositions"
        )
    return part
