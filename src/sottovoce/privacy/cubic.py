"""The cubic and the quintic accountant: bits compared with Gaussian noise.

The privacy loss L of bits, whatever their logits, lies below that of a Gaussian of the same rho for
every sum h of functions (l - t)_+^k: E h(L) <= E h(N(mu^2/2, mu^2)). k = 3 if one neighbor's bits
are fair, k = 5 for any bits, in both directions, under replace-one as well; and for Laplace noise
on many coordinates, whose losses are bounded in the same way. The delta of an epsilon
is E (1 - e^(eps - L))_+, no such sum, but below one: for y > 0 and with g = k (e^y - 1) - y,

    (1 - e^(eps - l))_+ <= b (l - eps + g)_+^k,    b = e^-y (e^y - 1)^(1-k)/k^k,

with equality at l = eps + y. So delta <= b mu^k I(z) for the best y, z = (eps - g)/mu - mu/2, where
I(z) = E (Z - z)_+^k of a standard normal Z. At delta = 1e-5 cubes cost 2 to 3% in mu against
Gaussian noise and fifth powers 4%, where the Renyi bound costs 5 to 8%. The proofs are in
docs/privacy.md, sections 14 and 29.

Bits of seeds (`SeededBits`) have E h(loss) <= e^x E h(loss of such bits + x), x their excess, for
cubes: over a composition the excesses add up to X, and delta is e^X times that at eps - X.

References: Eaton 1974 and Pinelis 1994 (cubic comparison of signs with a Gaussian); Pinelis 2006
(fifth powers); the tilt, the shape of delta and its majorant are our own.
"""

import math
from collections.abc import Callable

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.errors import UnsupportedEventError
from sottovoce.privacy.accounting import register
from sottovoce.privacy.conversion import golden_section
from sottovoce.privacy.events import (
    BasicEvent,
    GaussianNoise,
    LaplaceNoise,
    OneBit,
    PrivacyEvent,
    Sampled,
    SeededBits,
    basic_counts,
)
from sottovoce.privacy.gaussian import least_epsilon

_PLACES = np.log(np.geomspace(1e-3, 8.0, 40))  # of y; any is sound
_FAR = 20.0  # from here on a series is close enough, and nothing cancels
_LEAST_RATE = 0.5  # below it, to count a sample as none has no use
_HOPELESS = 100.0  # an excess that leaves nothing to say
_ROUNDING = 2.0**-40  # of all that follows, on the private side


@register(summary="tilted fair bits, compared with Gaussian noise", turn=4)
class CubicAccountant:
    """For bits of which one neighbor's are fair, perhaps with Gaussian noise."""

    name = "cubic"

    def delta(self, event: PrivacyEvent, epsilon: float) -> float:
        return _delta(_total_mu(event, _fair_mu), _total_excess(event), epsilon)

    def epsilon(self, event: PrivacyEvent, delta: float) -> float:
        parameter_rules.delta(delta)
        mu, excess = _total_mu(event, _fair_mu), _total_excess(event)
        return least_epsilon(lambda epsilon: _delta(mu, excess, epsilon), delta)


@register(summary="bits of any logits and Laplace noise, compared with Gaussian noise", turn=4)
class QuinticAccountant:
    """For bits of which no neighbor's need be fair, Laplace noise, perhaps with Gaussian noise."""

    name = "quintic"

    def delta(self, event: PrivacyEvent, epsilon: float) -> float:
        return power_delta(_total_mu(event, _any_mu), epsilon, 5)

    def epsilon(self, event: PrivacyEvent, delta: float) -> float:
        parameter_rules.delta(delta)
        mu = _total_mu(event, _any_mu)
        return least_epsilon(lambda epsilon: power_delta(mu, epsilon, 5), delta)


def _delta(mu: float, excess: float, epsilon: float) -> float:
    """e^X times the cubic bound at eps - X."""
    if not excess < _HOPELESS:
        return 1.0
    return min(1.0, math.exp(excess) * power_delta(mu, epsilon - excess, 3))


def power_delta(mu: float, epsilon: float, power: int) -> float:
    """The least b mu^k I(z) over y, at most 1."""
    if not math.isfinite(mu):
        return 1.0

    def at(place: float) -> float:
        return log_bound(mu, epsilon, math.exp(place), power)

    values = [at(place) for place in _PLACES.tolist()]
    best = int(np.argmin(values))
    ends = _PLACES[max(0, best - 1)], _PLACES[min(len(_PLACES) - 1, best + 1)]
    _, least = golden_section(at, float(ends[0]), float(ends[1]), tolerance=1e-4)
    return math.exp(min(0.0, least, values[best]))


def log_bound(mu: float, epsilon: float, y: float, power: int) -> float:
    """log(b mu^k I(z)) at one y, rounded up."""
    growth = math.expm1(y)
    z = (epsilon + y - power * growth) / mu - mu / 2.0
    # Rounding moves z by a part of all that cancels in it, and log I by at most |z| + 3 times that:
    # its slope is k I_(k-1)/I_k <= (z + sqrt(z^2 + 4k))/2.
    reach = (abs(epsilon) + y + power * growth) / mu + mu
    slack = _ROUNDING * (1.0 + reach * (abs(z) + 3.0))
    log_b = -y - power * math.log(power) - (power - 1.0) * math.log(growth)
    return log_b + power * math.log(mu) + _log_moment(z, power) + slack


def _log_moment(z: float, power: int) -> float:
    """log I(z), I(z) = E (Z - z)_+^k = p(z) phi(z) - z r(z) Phi(-z); not below it."""
    log_density = -z * z / 2.0 - math.log(2.0 * math.pi) / 2.0
    square = z * z
    if z >= _FAR:  # the integral of u^k phi(z + u), with e^(-u^2/2) <= 1 - u^2/2 + u^4/8
        first = (power + 1.0) * (power + 2.0) / square
        second = first * (power + 3.0) * (power + 4.0) / square
        series = math.log(math.factorial(power)) - (power + 1.0) * math.log(z)
        return log_density + series + math.log(1.0 - first / 2.0 + second / 8.0)
    from scipy.special import erfcx, ndtr

    if power == 3:
        p, r = square + 2.0, square + 3.0
    else:
        p, r = square * (square + 9.0) + 8.0, square * (square + 10.0) + 15.0
    if z <= 0.0:  # nothing cancels
        return math.log(math.exp(log_density) * p - z * r * ndtr(-z))
    mills = math.sqrt(math.pi / 2.0) * float(erfcx(z / math.sqrt(2.0)))
    return log_density + math.log(p - z * r * mills + 2.0**-48 * p)


def _total_mu(event: PrivacyEvent, mu_of: Callable[[BasicEvent], float]) -> float:
    """The mu of the Gaussian that all parts together are compared with."""
    parts = _unsampled_counts(event)
    if all(isinstance(part, GaussianNoise) for part in parts):
        raise UnsupportedEventError("the gaussian accountant is exact here; use gaussian")
    mus = [
        math.sqrt(count) * mu_of(part) if count < 2**1000 else math.inf
        for part, count in parts.items()
    ]
    if mu_of is _any_mu and all(
        getattr(part, "against_zero", isinstance(part, GaussianNoise)) for part in parts
    ):
        raise UnsupportedEventError("the cubic accountant is sharper here; use cubic")
    return math.hypot(*mus) * (1.0 + 2.0**-48)


def _unsampled_counts(event: PrivacyEvent) -> dict[BasicEvent, int]:
    """The parts, as if nothing were sampled: a secret sample gives away no more (convexity)."""
    counts: dict[BasicEvent, int] = {}
    for part, count in basic_counts(event).items():
        if isinstance(part, Sampled) and part.rate < _LEAST_RATE:
            raise UnsupportedEventError("a small sample is worth more; use moments or renyi")
        inner = basic_counts(part.event) if isinstance(part, Sampled) else {part: 1}
        for one, times in inner.items():
            counts[one] = counts.get(one, 0) + count * times
    return counts


def _total_excess(event: PrivacyEvent) -> float:
    """What choosing seeds adds to the losses of the bits, rounded up."""
    excesses = [
        float(min(count, 2**1000)) * part.excess
        for part, count in _unsampled_counts(event).items()
        if isinstance(part, SeededBits)
    ]
    return math.fsum(excesses) * (1.0 + 2.0**-48)


def _fair_mu(event: BasicEvent) -> float:
    match event:
        case GaussianNoise():
            return event.mu
        case OneBit() | SeededBits() if event.against_zero:
            return event.shift / 2.0  # a bit's two losses lie as far apart as its logit moves
        case _:
            raise UnsupportedEventError(
                "the cubic accountant is for bits against fair ones (OneBit with against_zero) and "
                f"GaussianNoise, got {type(event).__name__}; use quintic or renyi"
            )


def _any_mu(event: BasicEvent) -> float:
    match event:
        case GaussianNoise():
            return event.mu
        case OneBit():
            return event.shift / 2.0
        case LaplaceNoise():
            return event.shift  # a coordinate that moves by s scales has losses from -s to s
        case _:
            raise UnsupportedEventError(
                f"the quintic accountant is for OneBit, LaplaceNoise and GaussianNoise, got "
                f"{type(event).__name__}; use renyi"
            )
