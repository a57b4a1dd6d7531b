"""Replace-one on a Poisson sample, where zero is the center of what a contribution may be.

Both neighbors are mixtures: with probability 1 - q the contribution is left out, which leaves the
law N of the rest, and with probability q it is there and moves N by at most half of what two
contributions lie apart. `SwappedPair` does not know that half, so it is far from tight.

Gaussian noise (docs/privacy.md, section 28). The worst neighbors are opposite: with
c = mu/2 the pair

    (1-q) N(0, 1) + q N(c, 1)    and    (1-q) N(0, 1) + q N(-c, 1)

dominates each round, in every dimension and in both orders, for it is its own mirror image.

Exponential families (same section). Let v = M t^2, where the Fisher information is at most M for
every tilt and a contribution tilts by at most t. For whole a >= 2, f(x) = (1-q+qx)^-(a-1) and any
p(x) = h/x + p0 + p1 x + p2 x^2 >= f(x) with h, p2 >= 0,

    e^((a-1) D_a) <= sum_j C(a,j) (1-q)^(a-j) q^j e^(j(j-1)v/2) max(G(e^-jv), G(e^jv)),
    G(w) = h e^v/w + p0 + p1 w + p2 e^v w^2.
"""

import decimal
import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import ClassVar

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.privacy.events import (
    GaussianNoise,
    OneBit,
    PrivacyEvent,
    Sampled,
    ZeroConcentrated,
    basic_counts,
)
from sottovoce.privacy.loss_pairs import PAIR_ACCURACY, normal_masses

# Beyond it e^(c^2/2) costs the digits that edges of the loss are promised to have.
LARGEST_CENTER = 30.0
_DIGITS = 60
_LARGEST_GROWTH = 300.0  # of a v: e^(jv) and its square stay within float64
_ROUNDING = 2.0**-46
_LEAST_RATE = 1e-9


@dataclass(frozen=True, slots=True)
class AntipodalPair:
    """Sampled Gaussian noise around c against the same around -c; c at most `LARGEST_CENTER`.

    loss(x) = log(1-q+q e^(cx - c^2/2)) - log(1-q+q e^(-cx - c^2/2)) is odd and grows with x, with
    the inverse x = (l/2 + asinh((1-q) e^(c^2/2) sinh(l/2)/q))/c.
    """

    center: float
    rate: float
    accuracy: ClassVar[float] = PAIR_ACCURACY

    def masses(self, edges: Vector) -> tuple[Vector, Vector]:
        """P and Q of the loss between the edges; see `LossPair`."""
        if not len(edges):
            return np.ones(1), np.ones(1)
        places = self._places(edges)
        # All laws on the same bins: what rounding does to an edge it does to both masses.
        left_out, up, down = (
            normal_masses(places, shift) for shift in (0.0, -self.center, self.center)
        )
        rest = (1.0 - self.rate) * left_out
        return rest + self.rate * up, rest + self.rate * down

    def _places(self, losses: Vector) -> Vector:
        """Where the loss has these values."""
        half = np.abs(losses) / 2.0
        log_odds = math.log1p(-self.rate) - math.log(self.rate) + self.center**2 / 2.0
        with np.errstate(over="ignore", divide="ignore"):
            log_sinh = np.where(
                half > 1.0, half + np.log1p(-np.exp(-2.0 * half)) - math.log(2.0), -np.inf
            )
            log_sinh = np.where(half <= 1.0, np.log(np.sinh(np.minimum(half, 1.0))), log_sinh)
            exponent = log_odds + log_sinh
            inverse = np.where(
                exponent > 20.0,  # asinh(u) = log(2u) to 2^-57
                exponent + math.log(2.0),
                np.arcsinh(np.exp(np.minimum(exponent, 20.0))),
            )
        return np.asarray(np.copysign((half + inverse) / self.center, losses))

    def reverse(self) -> "AntipodalPair":
        """The pair itself: x -> -x exchanges the two laws."""
        return self


def centered_square(event: Sampled) -> float | None:
    """v of a sampled release, the sum over its parts; None if a part is of another kind.

    Of several parts under one coin the later may follow the outcomes of the earlier, for which the
    theorem is proved for Gaussian noise only (there the worst step is always the same).

    Half the distance of neighbors on a Poisson sample. On one of fixed size a contribution takes
    the place of another, so the whole distance counts.
    """
    total, parts = 0.0, basic_counts(event.event)
    if sum(parts.values()) > 1 and not all(isinstance(part, GaussianNoise) for part in parts):
        return None
    for part, count in parts.items():
        square = _square_distance(part)
        if square is None:
            return None
        total += float(min(count, 2**1000)) * square
    return total / (4.0 if event.scheme == "poisson" else 1.0) * (1.0 + 2.0**-48)


def _square_distance(event: PrivacyEvent) -> float | None:
    """The square of M^(1/2) times the distance of the neighbors' tilts."""
    match event:
        case GaussianNoise(zero_centered=True):
            return event.mu**2
        case OneBit(zero_centered=True):
            return event.shift**2 / 4.0  # the tilt is half the logit, with M = 1
        case ZeroConcentrated(zero_centered=True):
            return 2.0 * event.rho
        case _:
            return None


def swapped_log_excess(square: float, rate: float, order: int) -> float:
    """The least log(e^((a-1) D_a) - 1) over some majorants; infinity where none is of use."""
    if not order * square <= _LARGEST_GROWTH or not rate < 1.0:
        return math.inf
    rate = max(rate, _LEAST_RATE)  # more is told at a larger rate
    return min(_log_excess(square, rate, order, one) for one in _majorants(square, rate, order - 1))


@dataclass(frozen=True, slots=True)
class _Majorant:
    """p(x) = h/x + p0 + p1 x + p2 x^2, its coefficients rounded up, and p - 1 at 1."""

    h: float
    p0: float
    p1: float
    p2: float


@lru_cache(maxsize=4096)
def _majorants(square: float, rate: float, power: int) -> tuple[_Majorant, ...]:
    """Some p >= (1-q+qx)^-n on x > 0; how good they are does not matter for soundness."""
    with decimal.localcontext(prec=_DIGITS):
        found = list(_by_tangent(rate, power))
        found += _by_interpolation(math.sqrt(square), rate, power)
    return tuple(found)


def _rounded_up(value: Decimal) -> float:
    """The next float64 that is not below."""
    nearest = float(value)
    return nearest if Decimal(nearest) >= value else math.nextafter(nearest, math.inf)


def _majorant(h: Decimal, p0: Decimal, p1: Decimal, p2: Decimal) -> _Majorant:
    # Larger coefficients give a larger p, for x > 0.
    return _Majorant(*(_rounded_up(value) for value in (h, p0, p1, p2)))


def _by_tangent(rate: float, power: int) -> Iterator[_Majorant]:
    """The parabola through f(0), tangent to f at c: f has a negative third derivative."""
    q = Decimal(rate)
    at_zero = (1 - q) ** -power
    for c in (Decimal("1.1"), Decimal("1.3"), Decimal("1.6")):
        y = 1 - q + q * c
        value, slope = y**-power, -power * q * y ** (-power - 1)
        p2 = (at_zero - value + c * slope) / c**2
        yield _majorant(Decimal(0), at_zero, slope - 2 * p2 * c, p2)


def _by_interpolation(step: float, rate: float, power: int) -> Iterator[_Majorant]:
    """x p(x) is the cubic that meets x f(x) twice at x1 and twice at x2.

    (x f)'''' has the sign of (n-1) q x - 4 (1-q), so x p - x f >= 0 up to t = 4 (1-q)/((n-1) q)
    wherever x2 <= t. Beyond, p grows from t on and f falls.
    """
    q = Decimal(rate)
    limit = None if power == 1 else 4 * (1 - q) / ((power - 1) * q)
    for low, high in ((1.2, 1.0), (0.7, 0.7), (1.2, 0.5), (2.0, 1.5)):
        x1, x2 = Decimal(math.exp(-low * step)), Decimal(math.exp(high * step))
        if limit is not None and x2 > limit:
            continue
        ends = []
        for x in (x1, x2):
            y = 1 - q + q * x
            f, slope = y**-power, -power * q * y ** (-power - 1)
            ends.append((x * f, f + x * slope))
        (g1, s1), (g2, s2) = ends
        gap = x2 - x1
        if gap <= 0:
            continue
        # Newton's form at x1, x1, x2, x2
        chord = (g2 - g1) / gap
        second = (chord - s1) / gap
        third = (s2 - 2 * chord + s1) / gap**2
        # g1 + s1 (x-x1) + second (x-x1)^2 + third (x-x1)^2 (x-x2)
        h = g1 - s1 * x1 + second * x1**2 - third * x1**2 * x2
        p0 = s1 - 2 * second * x1 + third * (x1**2 + 2 * x1 * x2)
        p1 = second - third * (2 * x1 + x2)
        p2 = third
        grows = limit is None or -h / limit**2 + p1 + 2 * p2 * limit >= 0
        if h >= 0 and p2 >= 0 and grows:
            yield _majorant(h, p0, p1, p2)


def _log_excess(square: float, rate: float, order: int, p: _Majorant) -> float:
    """log of the sum less 1, which is the sum of C(a,j) (1-q)^(a-j) q^j (e^(j(j-1)v/2) G - 1).

    No term is negative: G is convex and at least 1 at 1. Each is right relatively to its parts.
    """
    from scipy.special import gammaln

    j = np.arange(order + 1, dtype=np.float64)
    growth = math.exp(square) * (1.0 + 2.0**-50)
    with decimal.localcontext(prec=_DIGITS):
        at_one = sum(map(Decimal, (p.p0, p.p1))) + (Decimal(p.h) + Decimal(p.p2)) * Decimal(growth)
        start = _rounded_up(at_one - 1)  # G(1) - 1
    above = np.zeros(order + 1)
    for sign in (-1.0, 1.0):
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows ends as infinity
            parts = (
                p.h * growth * np.expm1(-sign * j * square),
                p.p1 * np.expm1(sign * j * square),
                p.p2 * growth * np.expm1(2.0 * sign * j * square),
            )
            change = sum(parts) + 2.0**-48 * sum(map(np.abs, parts))
            above = np.maximum(above, start + change)
    exponents = j * (j - 1.0) * square / 2.0
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        direct = np.log(np.expm1(np.minimum(exponents, 40.0)) * (1.0 + above) + above)
        logs = np.where(exponents > 40.0, exponents + np.log1p(above), direct)
    sizes = float(gammaln(order + 1.0))
    logs += sizes - gammaln(j + 1.0) - gammaln(order - j + 1.0)
    logs += j * math.log(rate) + (order - j) * math.log1p(-rate)
    top = float(np.max(logs))
    if not math.isfinite(top):
        return math.inf
    slack = _ROUNDING * (4.0 * sizes + 2.0 * order * abs(math.log(rate)) + 1000.0)
    slack += _ROUNDING * float(exponents[-1])
    return top + math.log(float(np.sum(np.exp(logs - top)))) + slack
