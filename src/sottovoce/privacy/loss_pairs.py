"""Ordered pairs of laws, given by the laws of their privacy loss, for the PLD accountant.

A pair (P, Q) matters only through its privacy profile H(x) = sup over events of P - x Q, for
x = e^eps > 0. It dominates a release if its profile is nowhere below that of two neighbors.

Reference: Zhu, Dong and Wang 2022 (dominating pairs, their composition and sampling).
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, Protocol

import numpy as np

from sottovoce.core.domains import Vector

# Relative accuracy of `LossPair.masses`, unless a pair states another one.
PAIR_ACCURACY = 2.0**-40
# Edges close to log(1 - rate) lose accuracy. Above this rate a release counts as not sampled.
MAX_SAMPLING_RATE = 0.999


class LossPair(Protocol):
    """An ordered pair (P, Q) that dominates a release, given by the laws of its loss log(dP/dQ).

    A mass is wrong by at most `accuracy` of itself, an edge by at most accuracy (1 + |edge|); the
    accountant rounds up by more than that.
    """

    accuracy: ClassVar[float]

    def __hash__(self) -> int: ...  # Results for a pair are cached.

    def masses(self, edges: Vector) -> tuple[Vector, Vector]:
        """Return the P and Q masses of the loss in (-inf, e_0], (e_0, e_1], ..., (e_last, inf].

        The loss is log(dP/dQ). The edges e_i increase; there may be none. There is one more mass
        than edges. Infinite losses are included: +inf (outcomes of P only) in the last bin, -inf
        (outcomes of Q only) in the first, so that each law has all of its mass.
        """
        ...

    def reverse(self) -> "LossPair":
        """Return (Q, P), the pair of the other direction."""
        ...


@dataclass(frozen=True, slots=True)
class GaussianPair:
    """The pair P = N(mu, 1), Q = N(0, 1), which is its own reverse.

    The loss log(dP/dQ) is N(mu^2/2, mu^2) under P and N(-mu^2/2, mu^2) under Q.
    """

    mu: float
    accuracy: ClassVar[float] = PAIR_ACCURACY

    def masses(self, edges: Vector) -> tuple[Vector, Vector]:
        if not len(edges):
            return np.ones(1), np.ones(1)
        standard = edges / self.mu - self.mu / 2.0
        # Both laws use the same bins, so that rounding an edge affects both masses alike.
        return normal_masses(standard, 0.0), normal_masses(standard, self.mu)

    def reverse(self) -> "GaussianPair":
        return self


def normal_masses(edges: Vector, shift: float) -> Vector:
    """Return masses of a standard normal between edges + shift, each accurate relative to itself.

    There is one more mass than edges, of which there must be at least one: the first and the last
    mass are those below and above all edges. A bin that is narrow compared with the scale of the
    density is integrated (8-point Gauss-Legendre, exact to 2^-50 for exponents that change by at
    most 1), because the difference of two cdf values would cancel.
    """
    from scipy.special import ndtr

    low, high = edges[:-1] + shift, edges[1:] + shift
    middle, width = (edges[:-1] + edges[1:]) / 2.0 + shift, np.diff(edges)
    right = low > 0.0  # There ndtr would be close to 1.
    inner = np.where(right, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
    narrow = width * (1.0 + np.abs(middle)) <= 1.0
    inner[narrow] = _integrate_normal(middle[narrow], width[narrow])
    ends = ndtr(np.array([edges[0] + shift, -(edges[-1] + shift)]))
    return np.concatenate((ends[:1], np.maximum(0.0, inner), ends[1:]))


@lru_cache(maxsize=1)
def _gauss_legendre() -> tuple[Vector, Vector]:
    return np.polynomial.legendre.leggauss(8)


def _integrate_normal(middle: Vector, width: Vector) -> Vector:
    """Return the integrals of the standard normal density over middle -+ width/2."""
    nodes, weights = _gauss_legendre()
    # e^(-(m+t)^2/2) = e^(-m^2/2) e^(-t (m + t/2)): the second factor is near 1.
    total = np.zeros_like(middle)
    for node, weight in zip(nodes, weights, strict=True):
        step = node * width / 2.0
        total += weight * np.exp(-step * (middle + step / 2.0))
    density: Vector = np.exp(-0.5 * middle * middle) / math.sqrt(2.0 * math.pi)
    return density * total * width / 2.0


@dataclass(frozen=True, slots=True)
class LogisticBitPair:
    """The dominating pair of one bit whose logit moves by at most s = `shift`, over all logits.

    Its profile H(x) = sup P - x Q is (e^(s/2) - sqrt x)^2/(e^s - 1) for e^-s <= x <= e^s, the
    supremum over z of sigma(z + s) - x sigma(z), sigma(z) = 1/(1 + e^-z). Under P the loss l has
    density e^(l/2)/(4 sinh(s/2)) on [-s, s], under Q e^-l times that. It is its own reverse.
    """

    shift: float
    accuracy: ClassVar[float] = PAIR_ACCURACY

    def masses(self, edges: Vector) -> tuple[Vector, Vector]:
        ends = np.concatenate(
            ([-self.shift], np.clip(edges, -self.shift, self.shift), [self.shift])
        )
        low, high = ends[:-1], ends[1:]
        part = -np.expm1((low - high) / 2.0) / -math.expm1(-self.shift)
        return part * np.exp((high - self.shift) / 2.0), part * np.exp((-low - self.shift) / 2.0)

    def reverse(self) -> "LogisticBitPair":
        return self


@dataclass(frozen=True, slots=True)
class LaplacePair:
    """The pair P = Laplace(0, 1), Q = Laplace(s, 1), s = `shift`, which is its own reverse.

    The loss of an outcome y is s for y < 0, s - 2y for y in [0, s], and -s for y > s. The profile
    sup P - x Q is 1 - min(1, x, sqrt(x e^-s)). Under P the loss l has density e^((l-s)/2)/4 between
    -s and s, mass 1/2 at s and e^-s/2 at -s; under Q the same with the sign of the loss reversed.
    """

    shift: float
    accuracy: ClassVar[float] = PAIR_ACCURACY

    def masses(self, edges: Vector) -> tuple[Vector, Vector]:
        s = self.shift
        ends = np.concatenate(([-s], np.clip(edges, -s, s), [s]))
        low, high = ends[:-1], ends[1:]
        part = -np.expm1((low - high) / 2.0) / 2.0
        first, second = part * np.exp((high - s) / 2.0), part * np.exp((-low - s) / 2.0)
        for loss, p, q in ((-s, math.exp(-s) / 2.0, 0.5), (s, 0.5, math.exp(-s) / 2.0)):
            place = int(np.searchsorted(edges, loss, side="left"))
            first[place] += p
            second[place] += q
        return first, second

    def reverse(self) -> "LaplacePair":
        return self


@dataclass(frozen=True, slots=True, eq=False)
class AtomPair:
    """A pair (P, Q) with finitely many losses log(dP/dQ).

    Attributes:
        losses: The losses, increasing; the first may be -inf, the last +inf.
        first: Their masses under P.
        second: Their masses under Q.
    """

    losses: Vector
    first: Vector
    second: Vector
    accuracy: ClassVar[float] = PAIR_ACCURACY

    def masses(self, edges: Vector) -> tuple[Vector, Vector]:
        bins = np.searchsorted(edges, self.losses, side="left")
        size = len(edges) + 1
        first, second = (
            np.bincount(bins, weights=law, minlength=size).astype(np.float64, copy=False)
            for law in (self.first, self.second)
        )
        return first, second

    def reverse(self) -> "AtomPair":
        return AtomPair(-self.losses[::-1], self.second[::-1], self.first[::-1])


@lru_cache(maxsize=256)
def randomized_response(epsilon: float) -> AtomPair:
    """Return binary randomized response, which dominates every epsilon-DP pair in both orders.

    Its losses are -epsilon and epsilon, with P masses 1/(1 + e^epsilon) and 1/(1 + e^-epsilon).

    Reference: Kairouz, Oh and Viswanath 2015, theorem 2.3.
    """
    lie = math.exp(-epsilon) / (1.0 + math.exp(-epsilon))
    truth = 1.0 / (1.0 + math.exp(-epsilon))
    return AtomPair(np.array([-epsilon, epsilon]), np.array([lie, truth]), np.array([truth, lie]))


def symmetric_pair(first: tuple[float, ...], second: tuple[float, ...]) -> AtomPair:
    """Return the smallest pair that dominates both (P, Q) and (Q, P), for two pmfs.

    P is `first` and Q is `second`, over the same outcomes. The pair is needed because an adaptive
    composition may use P for one neighbor in one step and for the other neighbor in a later step,
    which neither order alone covers.
    """
    return upper_pair(((first, second), (second, first)))


@lru_cache(maxsize=256)
def upper_pair(pairs: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...]) -> AtomPair:
    """Return the smallest pair that dominates each of several pairs of pmfs.

    Its profile H(x) = sup P - x Q is the maximum of their profiles, which is convex, so it is the
    profile of a pair: at a kink x where the slope rises by q, Q has mass q and P has x q. Computed
    in rational numbers; only the last step rounds (to nearest). `pairs` must not be empty.
    """
    points = _corners(*pairs[0])
    for pair in pairs[1:]:
        points = _maximum(points, _corners(*pair))
    slopes = [*_slopes(points), Fraction(0)]
    rises = [after - before for before, after in pairwise(slopes)]
    atoms = [(x, q) for (x, _), q in zip(points[1:], rises, strict=True) if q > 0]
    rest = max(Fraction(0), 1 - sum((q for _, q in atoms), Fraction(0)))
    return AtomPair(
        np.array([-math.inf] + [_log(x) for x, _ in atoms] + [math.inf]),
        np.array([0.0] + [float(x * q) for x, q in atoms] + [float(points[-1][1])]),
        np.array([float(rest)] + [float(q) for _, q in atoms] + [0.0]),
    )


# The corners of a convex, piecewise linear profile from x = 0 on; it is constant after the last.
_Points = list[tuple[Fraction, Fraction]]


def _corners(first: tuple[float, ...], second: tuple[float, ...]) -> _Points:
    """Return the corners of H(x) = sum max(0, p - x q) of two pmfs, exactly."""
    exact = [(Fraction(p), Fraction(q)) for p, q in zip(first, second, strict=True)]
    p_above, q_above = sum((p for p, q in exact if q == 0), Fraction(0)), Fraction(0)
    points: _Points = []
    for kink, p, q in sorted(((p / q, p, q) for p, q in exact if q > 0 and p > 0), reverse=True):
        if not points or kink < points[-1][0]:
            points.append((kink, p_above - kink * q_above))
        p_above, q_above = p_above + p, q_above + q
    points.append((Fraction(0), p_above))
    return points[::-1]


def _maximum(one: _Points, two: _Points) -> _Points:
    """Return the corners of the maximum of two profiles."""
    knots = sorted({x for x, _ in one} | {x for x, _ in two})
    ones, twos = _values(one, knots), _values(two, knots)
    points: _Points = []
    for i, x in enumerate(knots):
        points.append((x, max(ones[i], twos[i])))
        if i + 1 < len(knots):
            gap, after = ones[i] - twos[i], ones[i + 1] - twos[i + 1]
            if gap * after < 0:  # The profiles cross between the two knots.
                part = gap / (gap - after)
                at = x + part * (knots[i + 1] - x)
                points.append((at, ones[i] + part * (ones[i + 1] - ones[i])))
    slopes = [*_slopes(points), Fraction(0)]
    bends = [after != before for before, after in pairwise(slopes)]
    return [points[0], *(point for point, bend in zip(points[1:], bends, strict=True) if bend)]


def _slopes(points: _Points) -> list[Fraction]:
    return [(high[1] - low[1]) / (high[0] - low[0]) for low, high in pairwise(points)]


def _values(points: _Points, knots: list[Fraction]) -> list[Fraction]:
    """Return the profile at increasing knots that include its own corners."""
    slopes, values, at = [*_slopes(points), Fraction(0)], [], 0
    for x in knots:
        while at + 1 < len(points) and points[at + 1][0] <= x:
            at += 1
        values.append(points[at][1] + slopes[at] * (x - points[at][0]))
    return values


def _log(x: Fraction) -> float:
    if abs(x - 1) < Fraction(1, 2):
        return math.log1p(float(x - 1))
    return math.log(x.numerator) - math.log(x.denominator)  # The ratio itself could overflow.


@dataclass(frozen=True, slots=True)
class SampledPair:
    """((1-q) Q + q P, Q): a contribution with law P is sampled at rate q, otherwise the law is Q.

    (P, Q) is `base` and q is `rate`. loss = log(1 - q + q e^l), which increases with the loss l of
    (P, Q), from log(1 - q) up. The profile at 1 - q + q x is q H(x), where H(x) = sup P - x Q, so
    sampling preserves domination.
    """

    base: LossPair
    rate: float
    accuracy: ClassVar[float] = PAIR_ACCURACY

    def masses(self, edges: Vector) -> tuple[Vector, Vector]:
        reached = edges[edges > math.log1p(-self.rate)]
        first, second = self.base.masses(_unsampled(reached, self.rate))
        # All losses lie above the other edges, also a base loss of -inf, which is finite here.
        nothing = np.zeros(len(edges) - len(reached))
        mixed = (1.0 - self.rate) * second + self.rate * first
        return np.concatenate((nothing, mixed)), np.concatenate((nothing, second))

    def reverse(self) -> "SampledAwayPair":
        return SampledAwayPair(self.base.reverse(), self.rate)


@dataclass(frozen=True, slots=True)
class SampledAwayPair:
    """(P, (1-q) P + q Q): the other direction, where the second neighbor has the contribution.

    (P, Q) is `base`; the contribution has law Q and is sampled at rate q = `rate`, otherwise the
    law is P. loss = -log(1 - q + q e^-l), where l is the loss of (P, Q), from -inf up to -log(1-q).
    With H(x) = sup P - x Q the profile at x < 1/(1-q) is (1 - (1-q) x) H(z) at
    z = q x/(1 - (1-q) x), beyond it 0, so sampling preserves domination.
    """

    base: LossPair
    rate: float
    accuracy: ClassVar[float] = PAIR_ACCURACY

    def masses(self, edges: Vector) -> tuple[Vector, Vector]:
        reached = edges[edges < -math.log1p(-self.rate)]
        first, second = self.base.masses(-_unsampled(-reached, self.rate))
        nothing = np.zeros(len(edges) - len(reached))
        mixed = (1.0 - self.rate) * first + self.rate * second
        return np.concatenate((first, nothing)), np.concatenate((mixed, nothing))

    def reverse(self) -> SampledPair:
        return SampledPair(self.base.reverse(), self.rate)


def _unsampled(losses: Vector, rate: float) -> Vector:
    """Return the base loss l with log(1 - q + q e^l) = loss, for losses above log(1 - q)."""
    small = np.minimum(losses, 1.0)  # expm1 of large losses would overflow.
    ratio = np.maximum(np.expm1(small) / rate, -1.0 + 2.0**-53)
    large = np.maximum(losses, 1.0)
    beyond = large + np.log1p(-(1.0 - rate) * np.exp(-large)) - math.log(rate)
    return np.where(losses <= 1.0, np.log1p(ratio), beyond)


@dataclass(frozen=True, slots=True)
class SwappedPair:
    """The pair of a sampled release under replace-one adjacency: both laws are mixtures.

    `base` is a symmetric pair (its own reverse, up to rounding) with the profile
    H(x) = sup P - x Q, and q is `rate`. Let N be the law without the contribution and A, B the laws
    with the two contributions, all pairs of which have profiles of at most H. With
    M = (1-q) N + q A, M' = (1-q) N + q B, x >= 1, x' = 1 + q (x - 1) and b = x'/x,

        M - x' M' = q [(1-b) (A - x N) + b (A - x B)],    so  sup M - x' M' <= q H(x).

    The same holds for M' and M, and for x' < 1 it follows from h(x') = 1 - x' + x' h(1/x') between
    every profile h and that of the reverse. Because the base is symmetric, this is the profile of
    `SampledPair` for x' >= 1 and of `SampledAwayPair` for x' < 1: losses above 0 come from the
    first, losses below 0 from the second. The rest, P(l=0) + (1-q) (P(l>0) - Q(l>0)) >= 0, is the
    same for both laws and has loss 0.

    Reference: Balle, Barthe and Gaboardi 2018, theorem 2 (advanced joint convexity).
    """

    base: LossPair
    rate: float
    accuracy: ClassVar[float] = PAIR_ACCURACY

    def masses(self, edges: Vector) -> tuple[Vector, Vector]:
        below, above, zero = edges[edges < 0.0], edges[edges > 0.0], np.zeros(1)
        lower = SampledAwayPair(self.base, self.rate).masses(np.concatenate((below, zero)))
        upper = SampledPair(self.base, self.rate).masses(np.concatenate((zero, above)))
        rest = 1.0 - float(np.sum(lower[0][:-1])) - float(np.sum(upper[0][1:]))
        # A base that is rounded up has mass above 1, which would make the losses below 0 too
        # small; the excess is added at loss 0.
        excess = sum(max(0.0, float(np.sum(law)) - 1.0) for law in lower)
        atom = max(0.0, rest) + excess + 2.0 * PAIR_ACCURACY
        at_zero = len(edges) - len(above) - int(np.any(edges == 0.0))
        laws = []
        for low, high in zip(lower, upper, strict=True):
            law = np.zeros(len(edges) + 1)
            law[: len(below) + 1] += low[:-1]
            law[len(edges) - len(above) :] += high[1:]
            law[at_zero] += atom
            laws.append(law)
        return laws[0], laws[1]

    def reverse(self) -> "SwappedPair":
        return self
