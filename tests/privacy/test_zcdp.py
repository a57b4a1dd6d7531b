"""The zCDP accountant: rho adds up, and is never tighter than the Renyi curve it summarises."""

import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from some_events import smooth_events

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import UnsupportedEventError
from sottovoce.privacy.events import (
    BasicEvent,
    Composed,
    FinitePair,
    GaussianNoise,
    NonPrivate,
    PrivacyEvent,
    PureDp,
    RenyiCurve,
    Repeated,
    ZeroConcentrated,
)
from sottovoce.privacy.renyi import RenyiAccountant, renyi_divergence
from sottovoce.privacy.zcdp import ZcdpAccountant, total_rho

ZERO_OUT = Adjacency.ZERO_OUT
ACCOUNTANT = ZcdpAccountant()

amounts = st.floats(1e-3, 20.0)
events_with_a_rho = smooth_events(amounts)


@pytest.mark.parametrize(
    ("rho", "epsilon", "half_a_digit"),
    [(0.01, 0.546, 5e-4), (0.1, 1.914, 5e-4), (1.0, 7.077, 5e-4), (10.0, 30.11, 5e-3)],
)
def test_epsilon_at_delta_1e_5_is_the_value_of_our_check_values(
    rho: float, epsilon: float, half_a_digit: float
) -> None:
    event = ZeroConcentrated(rho=rho, adjacency=ZERO_OUT)
    assert ACCOUNTANT.epsilon(event, 1e-5) == pytest.approx(epsilon, abs=half_a_digit)


@pytest.mark.parametrize(
    ("rho", "exact"), [(0.01, 0.497), (0.1, 1.760), (1.0, 6.572), (10.0, 28.37)]
)
def test_epsilon_is_never_below_the_worst_exact_one_bit_epsilon_of_our_check_values(
    rho: float, exact: float
) -> None:
    assert ACCOUNTANT.epsilon(ZeroConcentrated(rho=rho, adjacency=ZERO_OUT), 1e-5) >= exact


def test_rho_of_each_event_that_has_one() -> None:
    assert total_rho(GaussianNoise(mu=0.5, adjacency=ZERO_OUT)) == 0.125
    assert total_rho(ZeroConcentrated(rho=0.3, adjacency=ZERO_OUT)) == 0.3
    assert total_rho(PureDp(epsilon=0.5, adjacency=ZERO_OUT)) == 0.125
    assert total_rho(PureDp(epsilon=5.0, adjacency=ZERO_OUT)) == 5.0


@given(epsilon=st.floats(1e-3, 50.0), order=st.floats(1.001, 1e6))
@settings(deadline=None, max_examples=300)
def test_the_rho_of_pure_dp_covers_randomized_response_at_every_order(
    epsilon: float, order: float
) -> None:
    with mpmath.workdps(50):
        a, e = mpmath.mpf(order), mpmath.mpf(epsilon)
        moment = (mpmath.exp(a * e) + mpmath.exp((1 - a) * e)) / (1 + mpmath.exp(e))
        exact = mpmath.log(moment) / (a - 1)
        assert a * total_rho(PureDp(epsilon=epsilon, adjacency=ZERO_OUT)) >= exact * (1 - 1e-15)


@given(event=events_with_a_rho, order=st.floats(1.01, 1e6))
@settings(deadline=None)
def test_the_line_rho_times_order_is_never_below_the_renyi_curve(
    event: BasicEvent, order: float
) -> None:
    rounding = 1e-14 * order / (order - 1.0)
    assert order * total_rho(event) >= renyi_divergence(event, order) * (1.0 - 1e-14) - rounding


@given(parts=st.lists(st.tuples(events_with_a_rho, st.integers(1, 10**6)), min_size=1, max_size=4))
@settings(deadline=None)
def test_rho_of_a_composition_is_the_sum_of_its_parts(parts: list[tuple[BasicEvent, int]]) -> None:
    composed = Composed(events=tuple(Repeated(event=e, count=n) for e, n in parts))
    total = math.fsum(n * total_rho(e) for e, n in parts)
    assert total_rho(composed) == pytest.approx(total, rel=1e-14, abs=0.0)


@given(parts=st.lists(events_with_a_rho, min_size=1, max_size=3), delta=st.floats(1e-12, 0.1))
@settings(deadline=None, max_examples=50)
def test_epsilon_is_never_below_that_of_the_renyi_accountant(
    parts: list[BasicEvent], delta: float
) -> None:
    event = Composed(events=tuple(parts))
    tighter = RenyiAccountant().epsilon(event, delta)
    assert ACCOUNTANT.epsilon(event, delta) >= tighter * (1.0 - 1e-9)


@given(rho=st.floats(1e-4, 50.0), delta=st.floats(1e-12, 1e-2))
@settings(deadline=None, max_examples=50)
def test_the_delta_at_the_epsilon_of_a_delta_is_no_larger(rho: float, delta: float) -> None:
    event = ZeroConcentrated(rho=rho, adjacency=ZERO_OUT)
    assert ACCOUNTANT.delta(event, ACCOUNTANT.epsilon(event, delta)) <= delta * (1.0 + 1e-6)


@pytest.mark.parametrize(
    "event",
    [
        FinitePair(first=(0.5, 0.5), second=(0.4, 0.6), adjacency=ZERO_OUT),
        RenyiCurve(orders=(2.0,), divergences=(0.1,), adjacency=ZERO_OUT),
    ],
)
def test_an_event_without_a_rho_is_refused_by_name_alone_and_in_company(
    event: PrivacyEvent,
) -> None:
    company = Composed(events=(PureDp(epsilon=1.0, adjacency=ZERO_OUT), event))
    for unsupported in (event, company):
        with pytest.raises(UnsupportedEventError, match=f"{type(event).__name__}; use renyi"):
            ACCOUNTANT.epsilon(unsupported, 1e-5)
        with pytest.raises(UnsupportedEventError, match=f"{type(event).__name__}; use renyi"):
            ACCOUNTANT.delta(unsupported, 1.0)


def test_a_release_without_a_guarantee_has_infinite_epsilon_and_delta_1() -> None:
    event = NonPrivate(adjacency=ZERO_OUT)
    assert ACCOUNTANT.epsilon(event, 1e-5) == math.inf
    assert ACCOUNTANT.delta(event, 1e6) == 1.0
