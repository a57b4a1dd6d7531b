"""Amplification by shuffling: one message hides among the clones that others send.

For every eps0-DP randomiser, n messages in random order are a post-processing of

    (A + B, C - A + 1 - B)  against  (A + 1 - B, C - A + B),
    C ~ Bin(n-1, e^-eps0),  A ~ Bin(C, 1/2),  B ~ Bernoulli(p),  p = e^eps0/(e^eps0 + 1).

The sum of both entries gives C away, so the laws are mixtures over a known C = c. With x the first
entry and b, T pmf and upper tail of Bin(c, 1/2),

    e^loss = (p x + (1-p)(c+1-x)) / ((1-p) x + p (c+1-x))               (increasing in x)
    delta_c(eps) = alpha b(k-1) - (e^eps - 1) T(k),   alpha = p - e^eps (1-p),

k the least x with loss above eps. One more clone is one more fair coin, a post-processing, so
delta_c falls with c: c may be replaced by the lower end of a bucket. The pair is symmetric, it
dominates in both directions, and so it composes.

Reference: Feldman, McMillan and Talwar 2021, theorem 3.1 (the 2023 bound has an erratum and is not
used). eps0 is between any two inputs, so a zero-out epsilon counts twice.
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
from sottovoce.privacy.accountant import register
from sottovoce.privacy.binomial import OUTSIDE, TAIL_ERROR, binomial_cdf, fair_pmf, lower_buckets
from sottovoce.privacy.blanket import BlanketPair
from sottovoce.privacy.events import PrivacyEvent, Shuffled, basic_counts
from sottovoce.privacy.loss_pairs import LossPair
from sottovoce.privacy.pure import pure_epsilon

MAX_CLIENTS = 2**31
_ROUNDING = 2.0**-48
_LEAST = 1e-12  # an eps0 below it counts as this
# Above this no clone exists at any number of clients: e^-60 2^31 < 2e-17.
_NO_CLONES = 60.0


def shuffled(
    event: PrivacyEvent, clients: int, ratios: tuple[float, float] | None = None
) -> Shuffled:
    """The event of shuffling `clients` messages; refuses what shuffling does not amplify."""
    result = Shuffled(event=event, clients=clients, ratios=ratios)
    local_epsilon(result)
    return result


def local_epsilon(event: Shuffled) -> float:
    """eps0: the pure epsilon of one message between any two inputs."""
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
            f"shuffling amplifies pure local guarantees only; {' and '.join(names)} has none: "
            "use a mechanism with a pure epsilon such as 'mvu' or 'cldp'"
        )
    epsilon = max(epsilon, _LEAST)  # of messages that tell nothing
    return 2.0 * epsilon if event.adjacency == Adjacency.ZERO_OUT else epsilon


def shuffled_delta(eps0: float, clients: int, epsilon: float) -> float:
    """A delta at `epsilon` for n messages of eps0-DP randomisers, in both directions."""
    parameter_rules.positive("eps0", eps0)
    parameter_rules.integer("clients", clients, low=1, high=MAX_CLIENTS)
    if not epsilon >= 0.0:
        raise ParameterError(f"epsilon must be at least 0, got {epsilon!r}")
    if epsilon >= eps0:
        return 0.0
    alpha = _alpha(eps0, epsilon)
    if eps0 > _NO_CLONES:  # e^epsilon may overflow
        return min(1.0, alpha * (1.0 + _ROUNDING))
    buckets, below = _clone_buckets(eps0, clients)
    deltas = np.minimum.accumulate(_deltas(eps0, epsilon, alpha, buckets))
    # Summed by parts: every factor is at least 0 and rounded up.
    total = deltas[-1] + math.fsum(below[1:] * (deltas[:-1] - deltas[1:]))
    return min(1.0, alpha * (1.0 + _ROUNDING), float(total) * (1.0 + _ROUNDING))


def shuffled_epsilon(eps0: float, clients: int, delta: float) -> float:
    """The least epsilon, rounded up, with shuffled_delta at most `delta`; at most eps0."""
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
    """p - e^eps (1-p) = (1 - e^(eps - eps0))/(1 + e^-eps0), also the delta without clones."""
    return -math.expm1(epsilon - eps0) / (1.0 + math.exp(-eps0))


def _deltas(eps0: float, epsilon: float, alpha: float, clones: Vector) -> Vector:
    """delta_c for each number of clones, rounded up."""
    from scipy.special import gammaln

    # beta/(alpha + beta) with beta = e^eps p - (1-p) and alpha + beta = (2p-1)(1 + e^eps).
    share = -math.expm1(-epsilon - eps0) / ((1.0 + math.exp(-epsilon)) * -math.expm1(-eps0))
    first = np.minimum(clones + 1.0, np.floor((clones + 1.0) * share) + 1.0)
    sizes = gammaln(clones + 1.0)
    logs = sizes - gammaln(first) - gammaln(clones - first + 2.0) - clones * math.log(2.0)
    point = alpha * np.exp(logs + 2.0**-49 * (sizes + clones + 20.0))
    # P(A >= k) = P(A <= c - k); one that underflows is nothing, which is on the safe side.
    tail = binomial_cdf(clones - first, clones, 0.5)
    excess = point * (1.0 + 1e-12) - math.expm1(epsilon) * tail * (1.0 - TAIL_ERROR)
    return np.asarray(np.clip(excess, 0.0, alpha))


@lru_cache(maxsize=256)
def _clone_buckets(eps0: float, clients: int) -> tuple[Vector, Vector]:
    """Lower ends of the buckets of C, from 0, and an upper bound on P(C < end) for each."""
    return lower_buckets(clients - 1, math.exp(-eps0) if eps0 <= _NO_CLONES else 0.0)


@dataclass(frozen=True, slots=True)
class ClonesPair:
    """The dominating pair by its loss; it is its own reverse."""

    eps0: float
    clients: int
    accuracy: ClassVar[float] = 4.0 * TAIL_ERROR  # of binomial masses and of their differences

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
    """Masses of the loss between the edges, for a known number of clones.

    Outcomes too far out to be listed are as good as certain: `OUTSIDE` in the last bin covers them.
    """
    lie = math.exp(-eps0) / (1.0 + math.exp(-eps0))
    start, pmf = fair_pmf(clones)
    with_one, with_none = np.append(0.0, pmf), np.append(pmf, 0.0)  # b(x-1) and b(x)
    inside = np.clip(edges, -eps0, eps0)
    # (c+1) beta/(alpha + beta) at each edge: losses of x at most that lie below it. Rounded down,
    # so that a loss goes to the bin above rather than to the one below.
    share = np.expm1(-eps0 - np.abs(inside)) / ((1.0 + np.exp(-np.abs(inside))) * math.expm1(-eps0))
    share = np.where(inside < 0.0, 1.0 - share, share)
    last = np.floor((clones + 1.0) * share * (1.0 - _ROUNDING))
    last = np.where(edges >= eps0, clones + 1.0, np.where(edges < -eps0, -1.0, last))
    # How many of the listed outcomes lie at or below each edge.
    upto = np.clip(last - start + 1.0, 0.0, len(with_one)).astype(np.int64)
    bounds = np.concatenate([[0], upto, [len(with_one)]])
    first = _between((1.0 - lie) * with_one + lie * with_none, bounds)
    second = _between(lie * with_one + (1.0 - lie) * with_none, bounds)
    first[-1] += OUTSIDE if start > 0 else 0.0
    return first, second


def _between(pmf: Vector, bounds: NDArray[np.int64]) -> Vector:
    """Sums of the pmf between successive bounds, each to full relative precision."""
    low = np.concatenate([[0.0], np.cumsum(pmf)])
    high = np.concatenate([np.cumsum(pmf[::-1])[::-1], [0.0]])
    left = bounds[1:] <= len(pmf) // 2
    return np.asarray(
        np.where(left, low[bounds[1:]] - low[bounds[:-1]], high[bounds[:-1]] - high[bounds[1:]])
    )


def shuffled_pair(event: Shuffled) -> LossPair:
    """The dominating pair of one shuffled release, for composition over rounds.

    Both pairs are sound. With many clients one message's loss has about the standard deviation
    sqrt(blanket_spread/n) or sqrt(clones_spread/n): the smaller one is taken.
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
    """The clones bound for one shuffled release, computed without a grid of losses."""

    name = "clones"

    def epsilon(self, event: PrivacyEvent, delta: float) -> float:
        single = _single(event)
        amplified = shuffled_epsilon(local_epsilon(single), single.clients, delta)
        return min(pure_epsilon(single), amplified)

    def delta(self, event: PrivacyEvent, epsilon: float) -> float:
        single = _single(event)
        eps0, pure = local_epsilon(single), pure_epsilon(single)
        local = _alpha(pure, epsilon) * (1.0 + _ROUNDING) if epsilon < pure else 0.0
        return min(local, shuffled_delta(eps0, single.clients, epsilon))


def _single(event: PrivacyEvent) -> Shuffled:
    """The one shuffled release that the event is."""
    counts = basic_counts(event)
    part = next(iter(counts))
    if not isinstance(part, Shuffled) or sum(counts.values()) != 1:
        raise UnsupportedEventError(
            "the clones accountant bounds one shuffled release; compositions need pld or renyi"
        )
    return part
