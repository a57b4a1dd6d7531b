"""The zCDP accountant: one number (rho) for each event, added up.

Up to rounding it is never tighter than the Renyi accountant. It exists because rho is often quoted.
"""

import math
from typing import assert_never

from sottovoce.core.errors import UnsupportedEventError
from sottovoce.privacy.accounting import register
from sottovoce.privacy.conversion import delta_from_renyi, epsilon_from_renyi
from sottovoce.privacy.events import (
    Allocated,
    BasicEvent,
    FinitePair,
    FiniteTable,
    GaussianNoise,
    LaplaceNoise,
    MetricDp,
    NonPrivate,
    OneBit,
    PrivacyEvent,
    PureDp,
    RenyiCurve,
    Sampled,
    SeededBits,
    Shuffled,
    SummedBits,
    SummedNoise,
    ZeroConcentrated,
    basic_counts,
)
from sottovoce.privacy.gaussian_sums import gaussian_mu_of_sum


def total_rho(event: PrivacyEvent) -> float:
    """Return the rho of a composition, the sum over its parts (Bun and Steinke 2016, lemma 2.3).

    The event is rho-zCDP: its Renyi divergences are D_a <= rho a at every order a > 1, in both
    directions. Infinity if a part has no finite rho; `UnsupportedEventError` is raised for a part
    whose rho is not known, such as a sample.
    """
    try:
        return math.fsum(count * _basic(event) for event, count in basic_counts(event).items())
    except OverflowError:  # The count is beyond the range of float64.
        return math.inf


def _basic(event: BasicEvent) -> float:
    match event:
        case NonPrivate():
            return math.inf
        case GaussianNoise():
            return event.mu**2 / 2.0
        case LaplaceNoise():
            return event.shift**2 / 2.0  # D_a <= a shift^2/2, see `privacy.additive_noise`.
        case ZeroConcentrated():
            return event.rho
        case PureDp():
            # D_a <= a eps^2/2 (Bun and Steinke 2016, proposition 3.3), and D_a <= eps <= a eps.
            return min(event.epsilon**2 / 2.0, event.epsilon)
        case MetricDp():
            return _basic(event.pure())
        case OneBit():
            return event.shift**2 / 8.0
        case SummedBits():
            return min(_basic(event.local()), gaussian_mu_of_sum(event) ** 2 / 2.0)
        case SummedNoise():
            return gaussian_mu_of_sum(event) ** 2 / 2.0
        case Allocated():
            return _basic(event.event)  # A mixture over the steps, and D_a is quasi-convex.
        case FinitePair() | FiniteTable() | RenyiCurve() | SeededBits() | Sampled() | Shuffled():
            raise UnsupportedEventError(
                f"the zcdp accountant has no rho for {type(event).__name__}; use renyi"
            )
        case _:
            assert_never(event)


@register(summary="zero-concentrated privacy, one number (rho) added up", turn=3)
class ZcdpAccountant:
    """The zCDP accountant: rho added up and converted at the best real order.

    Up to rounding it is never tighter than the Renyi accountant, and it supports fewer events.
    """

    name = "zcdp"

    def epsilon(self, event: PrivacyEvent, delta: float) -> float:
        rho = total_rho(event)
        return epsilon_from_renyi(lambda order: order * rho, delta)

    def delta(self, event: PrivacyEvent, epsilon: float) -> float:
        rho = total_rho(event)
        return delta_from_renyi(lambda order: order * rho, epsilon)
