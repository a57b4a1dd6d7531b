"""The cubic accountant: fair bits that are tilted, compared with Gaussian noise.

The privacy loss L of such bits, whatever the tilts, lies below that of a Gaussian of the same rho
for every sum h of functions (l - t)_+^3: E h(L) <= E h(N(mu^2/2, mu^2)). The delta of an epsilon is
E (1 - e^(eps - L))_+, no such sum, but below one: for every y > 0 and with g = 3 (e^y - 1) - y,

    (1 - e^(eps - l))_+ <= b (l - eps + g)_+^3,    b = e^-y / (27 (e^y - 1)^2),

with equality at l = eps + y. So delta <= b mu^3 I(z) for the best y, z = (eps - g)/mu - mu/2, where
I(z) = E (Z - z)_+^3 of a standard normal Z. At delta = 1e-5 it costs 2 to 3% in mu against Gaussian
noise, where the Renyi bound costs 5 to 8%. The proof is in docs/privacy.md, section 14.

Bits of seeds (`SeededBits`) have E h(loss) <= e^x E h(loss of such bits + x), x their excess: over
a composition the excesses add up to X, and delta is e^X times that at eps - X.

References: Eaton 1974 and Pinelis 1994 (cubic comparison of signs with a Gaussian); the tilt, the
shape of delta and its majorant are our own.
"""

import math

import numpy as np

from sottovoce import parameter_rules
from sottovoce.errors import UnsupportedEventError
from sottovoce.privacy.accountant import register
from sottovoce.privacy.conversion import golden_section
from sottovoce.privacy.events import (
    BasicEvent,
    GaussianNoise,
    OneBit,
    PrivacyEvent,
    SeededBits,
    basic_counts,
)
from sottovoce.privacy.gaussian import least_epsilon

_PLACES = np.log(np.geomspace(1e-3, 8.0, 40))  # of y; any is sound
_FAR = 20.0  # from here on I(z) < 6 phi(z)/z^4 is close enough, and nothing cancels
_HOPELESS = 100.0  # an excess that leaves nothing to say
_ROUNDING = 2.0**-40  # of all that follows, on the private side


@register(summary="tilted fair bits, compared with Gaussian noise", turn=4)
class CubicAccountant:
    """For bits of which one neighbour's are fair, perhaps with Gaussian noise beside them."""

    name = "cubic"

    def delta(self, event: PrivacyEvent, epsilon: float) -> float:
        return _delta(_total_mu(event), _total_excess(event), epsilon)

    def epsilon(self, event: PrivacyEvent, delta: float) -> float:
        parameter_rules.delta(delta)
        mu, excess = _total_mu(event), _total_excess(event)
        return least_epsilon(lambda epsilon: _delta(mu, excess, epsilon), delta)


def _delta(mu: float, excess: float, epsilon: float) -> float:
    """e^X times the bound at eps - X."""
    if not excess < _HOPELESS:
        return 1.0
    return min(1.0, math.exp(excess) * cubic_delta(mu, epsilon - excess))


def cubic_delta(mu: float, epsilon: float) -> float:
    """The least b mu^3 I(z) over y, at most 1."""
    if not math.isfinite(mu):
        return 1.0

    def at(place: float) -> float:
        return log_bound(mu, epsilon, math.exp(place))

    values = [at(place) for place in _PLACES.tolist()]
    best = int(np.argmin(values))
    ends = _PLACES[max(0, best - 1)], _PLACES[min(len(_PLACES) - 1, best + 1)]
    _, least = golden_section(at, float(ends[0]), float(ends[1]), tolerance=1e-4)
    return math.exp(min(0.0, least, values[best]))


def log_bound(mu: float, epsilon: float, y: float) -> float:
    """log(b mu^3 I(z)) at one y, rounded up."""
    growth = math.expm1(y)
    z = (epsilon + y - 3.0 * growth) / mu - mu / 2.0
    # Rounding moves z by a part of all that cancels in it, and log I by at most |z| + 3 times that.
    reach = (abs(epsilon) + y + 3.0 * growth) / mu + mu
    slack = _ROUNDING * (1.0 + reach * (abs(z) + 3.0))
    log_b = -y - math.log(27.0) - 2.0 * math.log(growth)
    return log_b + 3.0 * math.log(mu) + _log_third_moment(z) + slack


def _log_third_moment(z: float) -> float:
    """log I(z), I(z) = E (Z - z)_+^3 = (z^2 + 2) phi(z) - z (z^2 + 3) Phi(-z); not below it."""
    log_density = -z * z / 2.0 - math.log(2.0 * math.pi) / 2.0
    if z >= _FAR:  # the integral of u^3 phi(z + u), without e^(-u^2/2) <= 1
        return log_density + math.log(6.0) - 4.0 * math.log(z)
    from scipy.special import erfcx, ndtr

    if z <= 0.0:  # nothing cancels
        return math.log(math.exp(log_density) * (z * z + 2.0) - z * (z * z + 3.0) * ndtr(-z))
    mills = math.sqrt(math.pi / 2.0) * float(erfcx(z / math.sqrt(2.0)))
    larger, smaller = z * z + 2.0, z * (z * z + 3.0) * mills
    return log_density + math.log(larger - smaller + 2.0**-48 * larger)


def _total_mu(event: PrivacyEvent) -> float:
    """The mu of the Gaussian that all parts together are compared with."""
    parts = basic_counts(event)
    if all(isinstance(part, GaussianNoise) for part in parts):
        raise UnsupportedEventError("the gaussian accountant is exact here; use gaussian")
    mus = [
        math.sqrt(count) * _mu(part) if count < 2**1000 else math.inf
        for part, count in parts.items()
    ]
    return math.hypot(*mus) * (1.0 + 2.0**-48)


def _total_excess(event: PrivacyEvent) -> float:
    """What choosing seeds adds to the losses of the bits, rounded up."""
    excesses = [
        float(min(count, 2**1000)) * part.excess
        for part, count in basic_counts(event).items()
        if isinstance(part, SeededBits)
    ]
    return math.fsum(excesses) * (1.0 + 2.0**-48)


def _mu(event: BasicEvent) -> float:
    match event:
        case GaussianNoise():
            return event.mu
        case OneBit() | SeededBits() if event.against_zero:
            return event.shift / 2.0  # a bit's two losses lie as far apart as its logit moves
        case _:
            raise UnsupportedEventError(
                "the cubic accountant is for bits against fair ones (OneBit with against_zero) and "
                f"GaussianNoise, got {type(event).__name__}; use renyi"
            )
