"""The cubic and the quintic accountant: bits compared with Gaussian noise.

Statement. Let L be the privacy loss of a composition of bits, and let mu be the parameter of
Gaussian noise with the same rho (rho = mu^2/2). For every sum h of functions (l - t)_+^k with
nonnegative coefficients,

    E h(L) <= E h(N(mu^2/2, mu^2)),

with k = 3 if the bits of one neighbor are fair (zero-out), in both directions, and k = 5 for any
logits, in both directions, also under replace-one. k = 5 holds as well for Laplace noise on many
coordinates, because its losses are bounded in the same way.

Delta at eps is E (1 - e^(eps - L))_+, which is not such a sum but is bounded by one. For y > 0 and
g = k (e^y - 1) - y,

    (1 - e^(eps - l))_+ <= b (l - eps + g)_+^k,    b = e^-y (e^y - 1)^(1-k)/k^k,

with equality at l = eps + y. So delta <= b mu^k I(z) for every y, with z = (eps - g)/mu - mu/2 and
I(z) = E (Z - z)_+^k for a standard normal Z; the smallest value over y is taken. At delta = 1e-5
the same guarantee costs 2 to 3% in mu against Gaussian noise with cubes and 4% with fifth powers,
where the Renyi bound costs 5 to 8%. Proofs: docs/explanation/privacy.md, sections 14 and 29.

Bits sent as seeds (`SeededBits`) satisfy E h(loss) <= e^x E h(loss of such bits + x) for cubes,
where x is their excess. Over a composition the excesses add up to X, and delta is e^X times the
bound at eps - X.

References: Eaton 1974 and Pinelis 1994 (cubic comparison of signs with a Gaussian); Pinelis 2006
(fifth powers). The tilted case, and the bound of delta by a power, are our own.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

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

_LOG_Y = np.log(np.geomspace(1e-3, 8.0, 40))  # Values of log y to try; every y is sound.
_FAR = 20.0  # From this z on a series is accurate enough and does not cancel.
_LEAST_RATE = 0.5  # Below this sampling rate a bound that ignores the sampling is not useful.
_LARGEST_EXCESS = 100.0  # Beyond it e^X makes the bound trivial.
_ROUNDING = 2.0**-40  # Relative rounding of the bound, added on the private side.


@register(summary="tilted fair bits, compared with Gaussian noise", turn=4)
class CubicAccountant:
    """The cubic accountant, for bits against fair bits, with or without Gaussian noise.

    It bounds delta by a comparison of the privacy loss with that of Gaussian noise (`power_delta`
    with power 3). It supports `OneBit` and `SeededBits` with `against_zero`, so zero-out only, also
    composed with `GaussianNoise`, but not `GaussianNoise` alone. Sampling at a rate of at least 1/2
    is ignored, which is sound; lower rates are not supported.
    """

    name = "cubic"

    def delta(self, event: PrivacyEvent, epsilon: float) -> float:
        return _cubic_delta(_total_mu(event, _fair_mu), _total_excess(event), epsilon)

    def epsilon(self, event: PrivacyEvent, delta: float) -> float:
        parameter_rules.delta(delta)
        mu, excess = _total_mu(event, _fair_mu), _total_excess(event)
        return least_epsilon(lambda epsilon: _cubic_delta(mu, excess, epsilon), delta)


@register(summary="bits of any logits and Laplace noise, compared with Gaussian noise", turn=4)
class QuinticAccountant:
    """The quintic accountant, for bits with any logits, Laplace noise and Gaussian noise.

    It bounds delta by a comparison of the privacy loss with that of Gaussian noise (`power_delta`
    with power 5), under both adjacencies. Sampling at a rate of at least 1/2 is ignored, which is
    sound; lower rates are not supported. Events that the cubic accountant supports are left to it,
    and `GaussianNoise` alone to the Gaussian one: both raise `UnsupportedEventError`.
    """

    name = "quintic"

    def delta(self, event: PrivacyEvent, epsilon: float) -> float:
        return power_delta(_total_mu(event, _any_mu), epsilon, 5)

    def epsilon(self, event: PrivacyEvent, delta: float) -> float:
        parameter_rules.delta(delta)
        mu = _total_mu(event, _any_mu)
        return least_epsilon(lambda epsilon: power_delta(mu, epsilon, 5), delta)


def _cubic_delta(mu: float, excess: float, epsilon: float) -> float:
    """Return e^X times the cubic bound at eps - X."""
    if not excess < _LARGEST_EXCESS:
        return 1.0
    return min(1.0, math.exp(excess) * power_delta(mu, epsilon - excess, 3))


def power_delta(mu: float, epsilon: float, power: int) -> float:
    """Return an upper bound on delta at `epsilon`, at most 1, by comparison with Gaussian noise.

    It holds for every privacy loss L with E (L - t)_+^k <= E (N(mu^2/2, mu^2) - t)_+^k at all t,
    where k = `power`, 3 or 5: the smallest bound of `log_bound` over y. It is 1 if mu is infinite.
    """
    if not math.isfinite(mu):
        return 1.0

    def at(log_y: float) -> float:
        return log_bound(mu, epsilon, math.exp(log_y), power)

    values = [_log_bound(mu, epsilon, term, power) for term in _terms_of_grid(power)]
    best = int(np.argmin(values))
    ends = _LOG_Y[max(0, best - 1)], _LOG_Y[min(len(_LOG_Y) - 1, best + 1)]
    _, least = golden_section(at, float(ends[0]), float(ends[1]), tolerance=1e-4)
    return math.exp(min(0.0, least, values[best]))


def log_bound(mu: float, epsilon: float, y: float, power: int) -> float:
    """Return the logarithm of an upper bound on delta at `epsilon`, for one y > 0, rounded up.

    The logarithm is natural. The bound is b mu^k I(z), with k = `power` (3 or 5),
    b = e^-y (e^y - 1)^(1-k)/k^k, z = (epsilon + y - k (e^y - 1))/mu - mu/2 and
    I(z) = E (Z - z)_+^k for a standard normal Z. At every y it holds for each privacy loss L with
    E (L - t)_+^k <= E (N(mu^2/2, mu^2) - t)_+^k at all t; N(mu^2/2, mu^2) is the loss of Gaussian
    noise with mu = sensitivity / standard deviation. The bound may exceed 1.
    """
    return _log_bound(mu, epsilon, _terms(y, power), power)


class _Terms(NamedTuple):
    """The terms of the bound for one y that depend on neither mu nor epsilon."""

    y: float
    growth: float  # k (e^y - 1)
    log_b: float


def _terms(y: float, power: int) -> _Terms:
    growth = math.expm1(y)
    log_b = -y - power * math.log(power) - (power - 1.0) * math.log(growth)
    return _Terms(y, power * growth, log_b)


@lru_cache
def _terms_of_grid(power: int) -> list[_Terms]:
    """Return the terms of every y that `power_delta` tries first; a bisection asks often."""
    return [_terms(math.exp(log_y), power) for log_y in _LOG_Y.tolist()]


def _log_bound(mu: float, epsilon: float, terms: _Terms, power: int) -> float:
    y, growth, log_b = terms
    z = (epsilon + y - growth) / mu - mu / 2.0
    # Rounding moves z by a fraction of the terms that cancel in it, and log I by at most |z| + 3
    # times as much, because its slope is k I_(k-1)/I_k <= (z + sqrt(z^2 + 4k))/2.
    reach = (abs(epsilon) + y + growth) / mu + mu
    slack = _ROUNDING * (1.0 + reach * (abs(z) + 3.0))
    return log_b + power * math.log(mu) + _log_moment(z, power) + slack


def _log_moment(z: float, power: int) -> float:
    """Return log I(z), or slightly more; I(z) = E (Z - z)_+^k = p(z) phi(z) - z r(z) Phi(-z)."""
    log_density = -z * z / 2.0 - math.log(2.0 * math.pi) / 2.0
    square = z * z
    if z >= _FAR:  # I(z) is the integral of u^k phi(z + u), and e^(-u^2/2) <= 1 - u^2/2 + u^4/8.
        first = (power + 1.0) * (power + 2.0) / square
        second = first * (power + 3.0) * (power + 4.0) / square
        series = math.log(math.factorial(power)) - (power + 1.0) * math.log(z)
        return log_density + series + math.log(1.0 - first / 2.0 + second / 8.0)
    erfcx, ndtr = _special()
    if power == 3:
        p, r = square + 2.0, square + 3.0
    else:
        p, r = square * (square + 9.0) + 8.0, square * (square + 10.0) + 15.0
    if z <= 0.0:  # Both terms are positive here.
        return math.log(math.exp(log_density) * p - z * r * ndtr(-z))
    mills = math.sqrt(math.pi / 2.0) * float(erfcx(z / math.sqrt(2.0)))
    return log_density + math.log(p - z * r * mills + 2.0**-48 * p)


@lru_cache
def _special() -> tuple[Callable[[float], float], Callable[[float], float]]:
    """Return `erfcx` and `ndtr` of scipy, which is imported when it is needed first."""
    from scipy.special import erfcx, ndtr

    return erfcx, ndtr


def _total_mu(event: PrivacyEvent, mu_of: Callable[[BasicEvent], float]) -> float:
    """Return the mu of the Gaussian noise that the whole composition is compared with."""
    parts = _unsampled_counts(event)
    if all(isinstance(part, GaussianNoise) for part in parts):
        raise UnsupportedEventError(
            "all parts are GaussianNoise, for which the gaussian accountant is exact; use gaussian"
        )
    mus = [
        math.sqrt(count) * mu_of(part) if count < 2**1000 else math.inf
        for part, count in parts.items()
    ]
    if mu_of is _any_mu and all(
        getattr(part, "against_zero", isinstance(part, GaussianNoise)) for part in parts
    ):
        raise UnsupportedEventError(
            "the bits of one neighbor are fair, so the cubic accountant is tighter; use cubic"
        )
    return math.hypot(*mus) * (1.0 + 2.0**-48)


def _unsampled_counts(event: PrivacyEvent) -> dict[BasicEvent, int]:
    """Return the parts as if nothing were sampled; by joint convexity that is an upper bound."""
    counts: dict[BasicEvent, int] = {}
    for part, count in basic_counts(event).items():
        if isinstance(part, Sampled) and part.rate < _LEAST_RATE:
            raise UnsupportedEventError(
                f"the cubic and quintic accountants ignore sampling, too loose at rate "
                f"{part.rate:g}; use moments or renyi"
            )
        inner = basic_counts(part.event) if isinstance(part, Sampled) else {part: 1}
        for one, times in inner.items():
            counts[one] = counts.get(one, 0) + count * times
    return counts


def _total_excess(event: PrivacyEvent) -> float:
    """Return the sum of the excesses of all seeded bits, rounded up."""
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
            return event.shift / 2.0  # The two losses of a bit differ by the move of its logit.
        case _:
            raise UnsupportedEventError(
                "the cubic accountant supports bits against fair ones (OneBit or SeededBits with "
                f"against_zero) and GaussianNoise, got {type(event).__name__} that is none of "
                "these; use renyi"
            )


def _any_mu(event: BasicEvent) -> float:
    match event:
        case GaussianNoise():
            return event.mu
        case OneBit():
            return event.shift / 2.0
        case LaplaceNoise():
            return event.shift  # A coordinate that moves by s scales has losses from -s to s.
        case _:
            raise UnsupportedEventError(
                f"the quintic accountant supports OneBit, LaplaceNoise and GaussianNoise, got "
                f"{type(event).__name__}; use renyi"
            )
