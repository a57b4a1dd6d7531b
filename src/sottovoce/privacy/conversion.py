"""From Renyi divergences to (epsilon, delta).

At every order a > 1,

    epsilon = D_a + log((a - 1)/a) - (log delta + log a)/(a - 1)

is sound, so the least over any set of orders is; the set only decides how tight it is.

Reference: Canonne, Kamath and Steinke 2020, proposition 12 (Balle et al. 2020, theorem 21).
"""

import math
from collections.abc import Callable, Iterable

import numpy as np

RenyiFunction = Callable[[float], float]

_GRID = np.geomspace(1e-4, 1e9, 131)  # values of a - 1
_ROUNDING = 2.0**-48  # of the sums below, added on the private side
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


def epsilon_at_order(divergence: float, order: float, delta: float) -> float:
    """The epsilon that one order gives; infinity where the divergence is."""
    if not math.isfinite(divergence):
        return math.inf
    excess = order - 1.0
    # log(1 - 1/order) is log1p(-1/order): exact for large orders too.
    return divergence + math.log1p(-1.0 / order) - (math.log(delta) + math.log(order)) / excess


def log_delta_at_order(divergence: float, order: float, epsilon: float) -> float:
    """The logarithm of the delta that one order gives."""
    if not math.isfinite(divergence):
        return math.inf
    excess = order - 1.0
    rounding = _ROUNDING * (divergence + epsilon + 1.0 / order)
    return excess * (divergence - epsilon + rounding + math.log1p(-1.0 / order)) - math.log(order)


def epsilon_from_renyi(renyi: RenyiFunction, delta: float, orders: Iterable[float] = ()) -> float:
    """The least epsilon over a dense, refined set of real orders and `orders`, never below 0."""

    def hopeless(order: float, epsilon: float, best: float) -> bool:
        # D_a grows with a, and no order beyond 2 takes more than log 4 from it.
        divergence = epsilon + math.log(delta) / (order - 1.0)
        return order > 2.0 and divergence - math.log(4.0) > max(best, 0.0)

    least = _minimum(lambda order: epsilon_at_order(renyi(order), order, delta), orders, hopeless)
    return max(0.0, least + _ROUNDING * (1.0 + abs(least)))


def delta_from_renyi(renyi: RenyiFunction, epsilon: float, orders: Iterable[float] = ()) -> float:
    """The least delta over a dense, refined set of real orders and `orders`, never above 1."""
    log_delta = _minimum(
        lambda order: log_delta_at_order(renyi(order), order, epsilon), orders, lambda *_: False
    )
    return math.exp(min(0.0, log_delta))


def _minimum(
    bound: Callable[[float], float],
    orders: Iterable[float],
    hopeless: Callable[[float, float, float], bool],
) -> float:
    """Least value of `bound`: given orders, a grid, golden section around its best point, and the
    whole orders next to what that finds, where curves that are known at those have kinks.

    The grid ends where `hopeless(order, value, least)`: large orders can take long.
    """
    given = min((_value(bound, order) for order in orders), default=math.inf)
    values: list[float] = []
    for order in (1.0 + _GRID).tolist():
        values.append(_value(bound, order))
        if hopeless(order, values[-1], min(values)):
            break
    best = int(np.argmin(values))
    left = math.log(_GRID[max(0, best - 1)])
    right = math.log(_GRID[min(len(_GRID) - 1, best + 1)])
    place, least = golden_section(lambda at: _value(bound, 1.0 + math.exp(at)), left, right)
    middle = math.floor(1.0 + math.exp(place))
    whole = (_value(bound, float(order)) for order in range(max(2, middle - 2), middle + 4))
    return min(given, values[best], least, *whole)


def golden_section(
    function: Callable[[float], float], left: float, right: float, tolerance: float = 1e-10
) -> tuple[float, float]:
    """A place near a minimum, and the least value that was seen."""
    low, high = right - _GOLDEN * (right - left), left + _GOLDEN * (right - left)
    at_low, at_high = function(low), function(high)
    least = min(at_low, at_high)
    while right - left > tolerance:
        if at_low < at_high:
            right, high, at_high = high, low, at_low
            low = right - _GOLDEN * (right - left)
            at_low = function(low)
        else:
            left, low, at_low = low, high, at_high
            high = left + _GOLDEN * (right - left)
            at_high = function(high)
        least = min(least, at_low, at_high)
    return (left + right) / 2.0, least


def _value(bound: Callable[[float], float], order: float) -> float:
    """A numerical failure is infinity: it can only make the reported epsilon larger."""
    try:
        value = bound(order)
    except (OverflowError, ValueError, FloatingPointError):
        return math.inf
    return math.inf if math.isnan(value) else value
