"""Pure epsilon: the largest logarithm of a likelihood ratio between neighbors."""

import math
from functools import lru_cache
from typing import assert_never

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

_ROUNDING = 2.0**-48


@lru_cache(maxsize=1024)
def pure_epsilon(event: PrivacyEvent) -> float:
    """Return an epsilon such that the event is (epsilon, 0)-DP, rounded up.

    Pure epsilons add up over a composition. Let v be the vector by which neighbors differ, over d
    coordinates: for `LaplaceNoise` the difference of the inputs in units of the noise scale, for
    `OneBit` (independent random bits) the difference of the logits. Both have epsilon at most
    |v|_1 <= |v|_2 sqrt d <= shift sqrt d, where `shift` is the event's bound on |v|_2. An event
    with pure epsilon eps, on a Poisson or fixed-size sample at rate q, has log(1 + q (e^eps - 1)).

    Args:
        event: The privacy event.

    Returns:
        The bound; infinity if none is known (for example for Gaussian noise).

    Examples:
        >>> from sottovoce.core.adjacency import Adjacency
        >>> from sottovoce.privacy import PureDp, Repeated
        >>> event = Repeated(event=PureDp(epsilon=0.5, adjacency=Adjacency.ZERO_OUT), count=4)
        >>> round(pure_epsilon(event), 9)
        2.0
    """
    try:
        total = math.fsum(count * _basic(part) for part, count in basic_counts(event).items())
    except OverflowError:  # The count is beyond the range of float64.
        return math.inf
    return total * (1.0 + _ROUNDING)


def _basic(event: BasicEvent) -> float:
    match event:
        case PureDp():
            return event.epsilon
        case MetricDp():
            return event.pure().epsilon
        case FinitePair():
            return _largest_log_ratio(event.first, event.second)
        case FiniteTable():
            return max(_largest_log_ratio(first, second) for first, second in table_pairs(event))
        case LaplaceNoise():
            return event.shift * math.sqrt(event.dimension)  # |s|_1 <= |s|_2 sqrt d.
        case OneBit():
            # A logit that moves by s changes log P(bit) by at most |s|, and |s|_1 <= |s|_2 sqrt d.
            return event.shift * math.sqrt(event.dimension)
        case SeededBits():
            return event.largest_loss
        case SummedBits():
            return _basic(event.local())
        case Sampled():
            return _sampled(pure_epsilon(event.event), event.rate)
        case Shuffled():
            return pure_epsilon(event.event)  # Reordering is post-processing.
        case NonPrivate() | GaussianNoise() | SummedNoise() | ZeroConcentrated():
            return math.inf
        case RenyiCurve() | Allocated():
            return math.inf
        case _:
            assert_never(event)


def _sampled(epsilon: float, rate: float) -> float:
    """Return log(1 + q (e^eps - 1)), for zero-out and replace-one alike.

    Replace-one: ((1-q) N + q P)/((1-q) N + q P') with P <= e^eps min(N, P') is largest where
    N = P'. Zero-out is the case P' = N or P = N, and 1/(1 - q + q e^-eps) <= 1 - q + q e^eps.

    Reference: Balle, Barthe and Gaboardi 2018, theorems 8 and 9.
    """
    if epsilon > 600.0:  # e^epsilon would overflow; the bound without sampling is sound.
        return epsilon
    return min(epsilon, math.log1p(rate * math.expm1(epsilon)) * (1.0 + _ROUNDING))


def _largest_log_ratio(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    """Return the largest |log(p/q)|; infinite if an outcome has mass on one side only."""
    largest = 0.0
    for p, q in zip(first, second, strict=True):
        if p == q:
            continue
        if p == 0.0 or q == 0.0:
            return math.inf
        high, low = max(p, q), min(p, q)
        change = (high - low) / low
        # The quotient overflows if `low` is denormal.
        ratio = math.log1p(change) if change < 1e300 else math.log(high) - math.log(low)
        largest = max(largest, ratio)
    return largest * (1.0 + _ROUNDING)
