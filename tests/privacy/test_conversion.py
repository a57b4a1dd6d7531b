"""From Renyi divergences to (epsilon, delta): soundness, optimality, failures."""

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from cases import denser
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.privacy.conversion import (
    delta_from_renyi,
    epsilon_at_order,
    epsilon_from_renyi,
    log_delta_at_order,
)
from sottovoce.privacy.divergences import finite_hockey_stick, finite_renyi


def linear(rho: float) -> Callable[[float], float]:
    """The curve of rho-zCDP."""
    return lambda order: order * rho


def least_epsilon_of_zcdp(rho: float, delta: float) -> float:
    """The formula's least value over all real orders a = 1 + t, in mpmath.

    Its derivative is rho + (log delta + log(1 + t))/t^2, so the minimum is the one root of
    rho t^2 + log(1 + t) = log(1/delta).
    """
    with mpmath.workdps(40):
        r, log_inverse = mpmath.mpf(rho), -mpmath.log(mpmath.mpf(delta))
        low, high = mpmath.mpf(0), mpmath.sqrt(log_inverse / r)
        for _ in range(120):
            middle = (low + high) / 2
            beyond = r * middle**2 + mpmath.log1p(middle) > log_inverse
            low, high = (low, middle) if beyond else (middle, high)
        a = 1 + high
        return float(r * a + mpmath.log(high / a) + (log_inverse - mpmath.log(a)) / high)


@pytest.mark.parametrize(
    ("rho", "epsilon", "half_a_digit"),
    [(0.01, 0.546, 5e-4), (0.1, 1.914, 5e-4), (1.0, 7.077, 5e-4), (10.0, 30.11, 5e-3)],
)
def test_zcdp_conversion_gives_the_values_of_our_check_values_at_delta_1e_5(
    rho: float, epsilon: float, half_a_digit: float
) -> None:
    assert epsilon_from_renyi(linear(rho), 1e-5) == pytest.approx(epsilon, abs=half_a_digit)


@pytest.mark.parametrize("rho", [1e-6, 1e-3, 0.1, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-12, 1e-100])
def test_the_search_finds_the_least_epsilon_over_all_real_orders(rho: float, delta: float) -> None:
    least = least_epsilon_of_zcdp(rho, delta)
    assert epsilon_from_renyi(linear(rho), delta) == pytest.approx(
        max(0.0, least), rel=1e-9, abs=0.0
    )


@given(
    weights=st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), min_size=2, max_size=5),
    order=st.floats(1.001, 1e3),
    delta=st.floats(1e-9, 0.5),
)
@settings(deadline=None, max_examples=300)
def test_every_order_gives_a_sound_epsilon_for_finite_laws(
    weights: list[tuple[int, int]], order: float, delta: float
) -> None:
    totals = [sum(column) for column in zip(*weights, strict=True)]
    first = [w[0] / totals[0] for w in weights]
    second = [w[1] / totals[1] for w in weights]
    epsilon = epsilon_at_order(finite_renyi(first, second, order), order, delta)
    # An epsilon below 0 is stronger than (0, delta)-DP, and must be as true.
    assert finite_hockey_stick(first, second, epsilon) <= delta * (1.0 + 1e-9)


@given(divergence=st.floats(0.0, 100.0), order=st.floats(1.01, 1e6), delta=st.floats(1e-100, 0.999))
@settings(deadline=None)
def test_the_delta_of_an_order_is_the_inverse_of_its_epsilon(
    divergence: float, order: float, delta: float
) -> None:
    epsilon = epsilon_at_order(divergence, order, delta)
    rounding = 1e-14 * order * (1.0 + abs(epsilon) + divergence)
    log_delta = log_delta_at_order(divergence, order, epsilon)
    assert log_delta == pytest.approx(math.log(delta), rel=1e-12, abs=rounding)


@pytest.mark.parametrize("order", denser([1.5, 2.0, 17.0, 1000.0]))
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_one_order_gives_the_epsilon_of_dp_accounting(order: float, delta: float) -> None:
    theirs, _ = rdp_privacy_accountant.compute_epsilon([order], [0.3], delta)
    assert epsilon_at_order(0.3, order, delta) == pytest.approx(float(theirs), rel=1e-12, abs=0.0)


@pytest.mark.parametrize("rho", [0.01, 0.1, 1.0, 10.0])
def test_the_search_is_never_above_dp_accounting_over_its_default_orders(rho: float) -> None:
    orders = np.array(rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
    theirs, _ = rdp_privacy_accountant.compute_epsilon(orders, rho * orders, 1e-5)
    ours = epsilon_from_renyi(linear(rho), 1e-5)
    assert ours <= theirs * (1.0 + 1e-12)
    assert ours >= 0.99 * theirs


@given(rho=st.floats(1e-4, 100.0), delta=st.floats(1e-12, 0.1))
@settings(deadline=None, max_examples=50)
def test_the_delta_at_the_epsilon_of_a_delta_is_that_delta(rho: float, delta: float) -> None:
    epsilon = epsilon_from_renyi(linear(rho), delta)
    again = delta_from_renyi(linear(rho), epsilon)
    if epsilon > 0.0:
        assert again == pytest.approx(delta, rel=1e-6, abs=0.0)
    else:  # the bound was below 0 and is reported as 0: the delta there is smaller still
        assert again <= delta


@given(rho=st.floats(1e-4, 100.0), deltas=st.tuples(st.floats(1e-15, 0.5), st.floats(1e-15, 0.5)))
@settings(deadline=None, max_examples=50)
def test_a_smaller_delta_never_has_a_smaller_epsilon(
    rho: float, deltas: tuple[float, float]
) -> None:
    low, high = sorted(deltas)
    epsilon = epsilon_from_renyi(linear(rho), low)
    assert epsilon >= epsilon_from_renyi(linear(rho), high) * (1.0 - 1e-12)


def test_no_divergence_at_all_costs_no_epsilon() -> None:
    assert epsilon_from_renyi(lambda _: 0.0, 1e-5) == 0.0


def test_epsilon_is_never_below_0_and_delta_never_above_1() -> None:
    assert epsilon_from_renyi(linear(1e-12), 0.9) == 0.0
    assert delta_from_renyi(linear(1e6), 0.0) == 1.0


def test_an_infinite_divergence_gives_infinite_epsilon_and_delta_1() -> None:
    assert epsilon_at_order(math.inf, 2.0, 1e-5) == math.inf
    assert epsilon_from_renyi(lambda _: math.inf, 1e-5) == math.inf
    assert delta_from_renyi(lambda _: math.inf, 1e6) == 1.0


@pytest.mark.parametrize("error", [OverflowError, ValueError, FloatingPointError])
def test_a_numerical_failure_at_every_order_gives_infinity(error: type[Exception]) -> None:
    def broken(order: float) -> float:
        raise error(order)

    assert epsilon_from_renyi(broken, 1e-5) == math.inf
    assert delta_from_renyi(broken, 1.0) == 1.0


def test_not_a_number_at_every_order_gives_infinity() -> None:
    assert epsilon_from_renyi(lambda _: math.nan, 1e-5) == math.inf
    assert delta_from_renyi(lambda _: math.nan, 1.0) == 1.0


def test_a_delta_or_epsilon_that_is_not_a_number_gives_no_guarantee() -> None:
    assert epsilon_from_renyi(linear(1.0), math.nan) == math.inf
    assert delta_from_renyi(linear(1.0), math.nan) == 1.0


@pytest.mark.parametrize("failure", [math.nan, math.inf])
def test_a_failure_at_some_orders_can_only_raise_epsilon(failure: float) -> None:
    def patchy(order: float) -> float:
        return 0.1 * order if order < 5.0 else failure

    limited = epsilon_from_renyi(patchy, 1e-5)
    # The best order of rho = 0.1 is about 11, so the last good order is the best that is left.
    assert limited == pytest.approx(epsilon_at_order(0.5, 5.0, 1e-5), rel=1e-9, abs=0.0)
    assert limited > epsilon_from_renyi(linear(0.1), 1e-5)


def test_a_curve_that_is_known_at_one_order_only_is_used_there() -> None:
    def known_up_to_2(order: float) -> float:
        return 0.7 if order <= 2.0 else math.inf

    expected = epsilon_at_order(0.7, 2.0, 1e-5)
    assert epsilon_from_renyi(known_up_to_2, 1e-5) == pytest.approx(expected, rel=1e-6, abs=0.0)


def test_a_pure_guarantee_is_found_at_the_largest_orders() -> None:
    # D_a <= eps at every order: epsilon is eps itself, up to log(1/delta)/1e9.
    epsilon = epsilon_from_renyi(lambda _: 0.25, 1e-5)
    assert epsilon <= 0.25
    assert epsilon == pytest.approx(0.25, abs=1e-4)
