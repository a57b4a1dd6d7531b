"""The Gaussian accountant: exact for compositions of Gaussian noise.

Secure sums count as Gaussian noise that dominates them (`gaussian_sums`).

n releases of Gaussian noise with mu_1 ... mu_n are together exactly one release with
mu = sqrt(sum mu_i^2), whose delta is known in closed form (`divergences.gaussian_delta`).

Reference: Dong, Roth and Su 2022, corollary 3.3; Balle and Wang 2018, theorem 8.
"""

import math
from collections.abc import Callable

from sottovoce.core import parameter_rules
from sottovoce.core.errors import UnsupportedEventError
from sottovoce.core.parameter_rules import MAX_EPSILON
from sottovoce.privacy.accounting import register
from sottovoce.privacy.divergences import gaussian_delta
from sottovoce.privacy.events import (
    BasicEvent,
    GaussianNoise,
    PrivacyEvent,
    SummedBits,
    SummedNoise,
    basic_counts,
)
from sottovoce.privacy.gaussian_sums import gaussian_mu_of_sum

_LARGEST_EPSILON = 1e3 * MAX_EPSILON


def total_mu(event: PrivacyEvent) -> float:
    """Return the mu of a composition of Gaussian noise: sqrt(sum mu_i^2) over all releases.

    A secure sum counts as Gaussian noise that dominates it. Any other event raises
    `UnsupportedEventError`.
    """
    # A count beyond the range of float64 counts as infinite.
    return math.hypot(
        *(
            math.sqrt(count) * _mu(part) if count < 2**1000 else math.inf
            for part, count in basic_counts(event).items()
        )
    )


def _mu(part: BasicEvent) -> float:
    match part:
        case GaussianNoise():
            return part.mu
        case SummedBits() | SummedNoise():
            return gaussian_mu_of_sum(part)
        case _:
            raise UnsupportedEventError(
                f"the gaussian accountant handles GaussianNoise and secure sums only, got "
                f"{type(part).__name__}; use renyi (Gaussian noise of the same rho may understate "
                "its epsilon)"
            )


@register(summary="exact for Gaussian noise; secure sums as noise above them", turn=1)
class GaussianAccountant:
    """The Gaussian accountant: the exact (epsilon, delta) of Gaussian noise.

    It supports compositions of `GaussianNoise`, `SummedBits` and `SummedNoise`, under both
    adjacencies, and rounds up. Secure sums count as Gaussian noise that dominates them, so for them
    it is an upper bound.
    """

    name = "gaussian"

    def delta(self, event: PrivacyEvent, epsilon: float) -> float:
        return gaussian_delta(total_mu(event), epsilon)

    def epsilon(self, event: PrivacyEvent, delta: float) -> float:
        return gaussian_epsilon(total_mu(event), delta)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon, rounded up, at which the delta of mu-GDP is at most `delta`.

    mu-GDP is Gaussian noise with means mu standard deviations apart. Infinity for an infinite mu,
    or if epsilon would exceed 2^19.
    """
    parameter_rules.delta(delta)
    if math.isinf(mu):
        return math.inf
    return least_epsilon(lambda epsilon: gaussian_delta(mu, epsilon), delta)


def least_epsilon(
    delta_at: Callable[[float], float], delta: float, precision: float = 1e-12
) -> float:
    """Return the smallest epsilon >= 0, rounded up, with delta_at(epsilon) <= `delta`.

    `delta_at` must not increase. `precision` is the relative width at which the bisection stops.
    Infinity if there is no such epsilon up to 2^19.
    """
    if delta_at(0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while not delta_at(high) <= delta:
        low, high = high, 2.0 * high
        if high > _LARGEST_EPSILON:
            return math.inf
    while high - low > precision * high:
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        low, high = (low, middle) if delta_at(middle) <= delta else (middle, high)
    return high * (1.0 + 1e-9)  # More than the rounding of log_ndtr, on the safe side.
