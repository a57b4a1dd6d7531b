"""The Renyi accountant: every event has a bound on its Renyi divergences, and these add up."""

import bisect
import math
from collections.abc import Mapping
from typing import assert_never

from sottovoce.privacy.accounting import register
from sottovoce.privacy.additive_noise import laplace_renyi
from sottovoce.privacy.conversion import delta_from_renyi, epsilon_from_renyi
from sottovoce.privacy.divergences import finite_renyi, one_bit_renyi
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
    table_pairs,
)
from sottovoce.privacy.gaussian_sums import gaussian_mu_of_sum
from sottovoce.privacy.pure import pure_epsilon
from sottovoce.privacy.sampling import sampled_renyi
from sottovoce.privacy.secure_sum import NODES, secure_sum_renyi
from sottovoce.privacy.shuffling import local_epsilon


def renyi_divergence(event: PrivacyEvent, order: float) -> float:
    """Return an upper bound on D_a of the event in both directions; over a composition it adds.

    D_a is the Renyi divergence of order a = `order` > 1 between the laws P and Q of two neighbors:
    the bound holds for D_a(P || Q) and D_a(Q || P). Infinity if no finite bound is known at this
    order. `UnsupportedEventError` is raised for a `Shuffled` event without a finite pure epsilon.

    Reference: Mironov 2017, proposition 1 (adaptive composition).
    """
    return _total(basic_counts(event), order)


def _total(counts: Mapping[BasicEvent, int], order: float) -> float:
    return math.fsum(count * _basic(event, order) for event, count in counts.items())


def _basic(event: BasicEvent, order: float) -> float:
    match event:
        case NonPrivate():
            return math.inf
        case GaussianNoise():
            return order * event.mu**2 / 2.0
        case LaplaceNoise():
            return laplace_renyi(event.shift, event.dimension, order)
        case ZeroConcentrated():
            return order * event.rho
        case PureDp():
            return _randomized_response(event.epsilon, order)
        case MetricDp():
            return _basic(event.pure(), order)
        case FinitePair():
            return max(
                finite_renyi(event.first, event.second, order),
                finite_renyi(event.second, event.first, order),
            )
        case FiniteTable():
            return max(finite_renyi(first, second, order) for first, second in table_pairs(event))
        case RenyiCurve():
            above = bisect.bisect_left(event.orders, order)
            return event.divergences[above] if above < len(event.orders) else math.inf
        case OneBit():
            return one_bit_renyi(event.shift, event.dimension, order)
        case SeededBits():
            bits = one_bit_renyi(event.shift, event.dimension, order)
            truncated = bits + event.excess * order / (order - 1.0)
            return min(truncated, _randomized_response(event.largest_loss, order))
        case SummedBits():
            return secure_sum_renyi(event, order)
        case SummedNoise():
            return order * gaussian_mu_of_sum(event) ** 2 / 2.0
        case Sampled():
            # Any bound on the likelihood ratio holds as well; it is tighter at large orders.
            return min(
                sampled_renyi(event, order, renyi_divergence),
                _randomized_response(pure_epsilon(event), order),
            )
        case Allocated():
            # A mixture over the steps, each of which is one release; D_a is quasi-convex.
            return _basic(event.event, order)
        case Shuffled():
            local_epsilon(event)  # Raises if the local event has no finite pure epsilon.
            return renyi_divergence(event.event, order)
        case _:
            assert_never(event)


def _randomized_response(epsilon: float, order: float) -> float:
    """Return D_a of binary randomized response, which dominates every epsilon-DP pair.

        e^((a-1) D_a) = (e^(a eps) + e^((1-a) eps)) / (1 + e^eps)

    Reference: Kairouz, Oh and Viswanath 2015, theorem 2.3 (every epsilon-DP pair is post-processing
    of randomized response).
    """
    if math.isinf(epsilon):
        return math.inf
    half, other = order * epsilon / 2.0, (order - 1.0) * epsilon / 2.0
    if half + other > 20.0:
        high, low = order * epsilon, (1.0 - order) * epsilon
        numerator = high + math.log1p(math.exp(low - high))
        denominator = epsilon + math.log1p(math.exp(-epsilon))
        return min(epsilon, (numerator - denominator) / (order - 1.0))
    # The ratio is cosh((2a-1) eps/2)/cosh(eps/2), which is
    # 1 + 2 sinh(a eps/2) sinh((a-1) eps/2)/cosh(eps/2): accurate for small epsilon.
    excess = 2.0 * math.sinh(half) * math.sinh(other) / math.cosh(epsilon / 2.0)
    return min(epsilon, math.log1p(excess) / (order - 1.0))


@register(summary="Rényi divergences, added up and converted", turn=2)
class RenyiAccountant:
    """The Renyi accountant: divergences added up and converted at the best real order.

    It handles every event except `Shuffled` ones without a finite pure epsilon.
    """

    name = "renyi"

    def epsilon(self, event: PrivacyEvent, delta: float) -> float:
        counts = basic_counts(event)
        return epsilon_from_renyi(lambda order: _total(counts, order), delta, _stated_orders(event))

    def delta(self, event: PrivacyEvent, epsilon: float) -> float:
        counts = basic_counts(event)
        return delta_from_renyi(lambda order: _total(counts, order), epsilon, _stated_orders(event))


def _stated_orders(event: PrivacyEvent) -> set[float]:
    """Return the orders at which curves are known; at other orders they are only bounded."""
    orders: set[float] = set()
    for part in basic_counts(event):
        if isinstance(part, RenyiCurve):
            orders.update(part.orders)
        elif isinstance(part, Sampled):
            orders.update(_stated_orders(part.event))
        elif isinstance(part, SummedBits):
            orders.update(NODES)
    return orders
