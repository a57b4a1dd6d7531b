"""Conversion from Renyi divergences to (epsilon, delta).

A mechanism with Renyi divergence D_a of order a > 1 is (epsilon, delta)-DP with

    epsilon = D_a + log((a - 1)/a) - (log delta + log a)/(a - 1).

This holds at every order, so the minimum over any set of orders is sound; the set only decides how
tight the result is.

Reference: Canonne, Kamath and Steinke 2020, proposition 12 (Balle et al. 2020, theorem 21).
"""

import math
from collections.abc import Callable, Iterable

import numpy as np

RenyiFunction = Callable[[float], float]

_GRID = np.geomspace(1e-4, 1e9, 131)  # Values of a - 1.
_ROUNDING = 2.0**-48  # Relative rounding of the sums below, added on the private side.
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


def epsilon_at_order(divergence: float, order: float, delta: float) -> float:
    """Return an epsilon at `delta` of a release whose Renyi divergence is at most `divergence`.

    With a = `order` > 1 and D_a <= `divergence` in both directions it is
    D_a + log((a - 1)/a) - (log delta + log a)/(a - 1), not rounded up and possibly negative;
    infinity if the divergence is infinite or NaN.
    """
    if not math.isfinite(divergence):
        return math.inf
    excess = order - 1.0
    # log((a - 1)/a) as log1p(-1/a) is accurate for large orders too.
    return divergence + math.log1p(-1.0 / order) - (math.log(delta) + math.log(order)) / excess


def log_delta_at_order(divergence: float, order: float, epsilon: float) -> float:
    """Return log delta at `epsilon` of a release whose Renyi divergence is at most `divergence`.

    The formula of `epsilon_at_order`, solved for delta and rounded up. The result may be above 0,
    where it says nothing; infinity if the divergence is infinite or NaN.
    """
    if not math.isfinite(divergence):
        return math.inf
    excess = order - 1.0
    rounding = _ROUNDING * (divergence + epsilon + 1.0 / order)
    return excess * (divergence - epsilon + rounding + math.log1p(-1.0 / order)) - math.log(order)


def epsilon_from_renyi(renyi: RenyiFunction, delta: float, orders: Iterable[float] = ()) -> float:
    """Return the smallest epsilon, at least 0, over a refined set of real orders and `orders`.

    `renyi` returns, for an order a > 1, an upper bound on the Renyi divergence D_a in both
    directions; orders at which it overflows or is NaN are left out. `orders` are further orders to
    try. The result, `epsilon_at_order` at the best order and rounded up, is an epsilon of the
    release at `delta`; infinity if no order gives a finite one.
    """

    def cannot_improve(order: float, epsilon: float, best: float) -> bool:
        # D_a does not decrease with a, and beyond order 2 the formula subtracts at most log 4
        # from it, so no larger order can be better.
        divergence = epsilon + math.log(delta) / (order - 1.0)
        return order > 2.0 and divergence - math.log(4.0) > max(best, 0.0)

    least = _minimum(
        lambda order: epsilon_at_order(renyi(order), order, delta), orders, cannot_improve
    )
    return max(0.0, least + _ROUNDING * (1.0 + abs(least)))


def delta_from_renyi(renyi: RenyiFunction, epsilon: float, orders: Iterable[float] = ()) -> float:
    """Return the smallest delta, at most 1, over a refined set of real orders and `orders`.

    `renyi` returns, for an order a > 1, an upper bound on the Renyi divergence D_a in both
    directions. The result, from `log_delta_at_order` at the best order, is a delta of the release
    at `epsilon`; 1 if no order gives less.
    """
    log_delta = _minimum(
        lambda order: log_delta_at_order(renyi(order), order, epsilon), orders, lambda *_: False
    )
    return math.exp(min(0.0, log_delta))


def _minimum(
    bound: Callable[[float], float],
    orders: Iterable[float],
    cannot_improve: Callable[[float, float, float], bool],
) -> float:
    """Return the smallest value of `bound` over a set of orders.

    The set: the given orders, a grid, a golden section search around its best point, and the
    integer orders next to the result, where curves that are known at integers have kinks. The grid
    ends where `cannot_improve(order, value, least)`, because large orders can take long.
    """
    given = min((_value(bound, order) for order in orders), default=math.inf)
    values: list[float] = []
    for order in (1.0 + _GRID).tolist():
        values.append(_value(bound, order))
        if cannot_improve(order, values[-1], min(values)):
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
    """Return a place near a minimum of `function`, and the smallest value that was evaluated.

    The place is the middle of the last interval, at most `tolerance` wide, within [`left`,
    `right`]; the function need not have been evaluated there. It finds a local minimum.
    """
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
    """Return the bound, or infinity if its computation fails: that can only enlarge the epsilon."""
    try:
        value = bound(order)
    except (OverflowError, ValueError, FloatingPointError):
        return math.inf
    return math.inf if math.isnan(value) else value
