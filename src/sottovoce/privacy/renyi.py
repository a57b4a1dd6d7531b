"""The Renyi accountant: every event has a Renyi curve, and curves add up."""

import bisect
import math
from typing import assert_never

from sottovoce.privacy.conversion import delta_from_renyi, epsilon_from_renyi
from sottovoce.privacy.divergences import finite_renyi
from sottovoce.privacy.events import (
    BasicEvent,
    FinitePair,
    GaussianNoise,
    NonPrivate,
    PrivacyEvent,
    PureDp,
    RenyiCurve,
    ZeroConcentrated,
    basic_counts,
)


def renyi_divergence(event: PrivacyEvent, order: float) -> float:
    """An upper bound on D_a of the event, both directions; composition adds.

    Reference: Mironov 2017, proposition 1 (adaptive composition).
    """
    return math.fsum(count * _basic(event, order) for event, count in basic_counts(event).items())


def _basic(event: BasicEvent, order: float) -> float:
    match event:
        case NonPrivate():
            return math.inf
        case GaussianNoise():
            return order * event.mu**2 / 2.0
        case ZeroConcentrated():
            return order * event.rho
        case PureDp():
            return _randomised_response(event.epsilon, order)
        case FinitePair():
            return max(
                finite_renyi(event.first, event.second, order),
                finite_renyi(event.second, event.first, order),
            )
        case RenyiCurve():
            above = bisect.bisect_left(event.orders, order)
            return event.divergences[above] if above < len(event.orders) else math.inf
        case _:
            assert_never(event)


def _randomised_response(epsilon: float, order: float) -> float:
    """D_a of binary randomised response, which dominates every epsilon-DP pair.

    e^((a-1) D_a) = (e^(a eps) + e^((1-a) eps)) / (1 + e^eps)

    Reference: Kairouz, Oh and Viswanath 2015, theorem 2.3 (post-processing of randomised response).
    """
    high, low = order * epsilon, (1.0 - order) * epsilon
    numerator = high + math.log1p(math.exp(low - high))
    denominator = epsilon + math.log1p(math.exp(-epsilon))
    return min(epsilon, (numerator - denominator) / (order - 1.0))


class RenyiAccountant:
    """Renyi curves, added up and converted at the best real order."""

    name = "renyi"

    def epsilon(self, event: PrivacyEvent, delta: float) -> float:
        return epsilon_from_renyi(lambda order: renyi_divergence(event, order), delta)

    def delta(self, event: PrivacyEvent, epsilon: float) -> float:
        return delta_from_renyi(lambda order: renyi_divergence(event, order), epsilon)
