"""Calibration: meets the budget, barely, or says that nothing does."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import ParameterError
from sottovoce.privacy import accounting
from sottovoce.privacy.calibration import Direction, calibrate
from sottovoce.privacy.events import (
    GaussianNoise,
    NonPrivate,
    PrivacyEvent,
    PureDp,
    Repeated,
    ZeroConcentrated,
)

ZERO_OUT = Adjacency.ZERO_OUT


def hundred_gaussians(sigma: float) -> PrivacyEvent:
    return Repeated(event=GaussianNoise(mu=1.0 / sigma, adjacency=ZERO_OUT), count=100)


def zcdp_by_noise(sigma: float) -> PrivacyEvent:
    return ZeroConcentrated(rho=0.5 / sigma**2, adjacency=ZERO_OUT)


def zcdp_by_rho(rho: float) -> PrivacyEvent:
    return ZeroConcentrated(rho=rho, adjacency=ZERO_OUT)


def ten_pure(epsilon: float) -> PrivacyEvent:
    return Repeated(event=PureDp(epsilon=epsilon, adjacency=ZERO_OUT), count=10)


FAMILIES: list[tuple[Callable[[float], PrivacyEvent], Direction]] = [
    (hundred_gaussians, "larger"),
    (zcdp_by_noise, "larger"),
    (zcdp_by_rho, "smaller"),
    (ten_pure, "smaller"),
]

over_families = pytest.mark.parametrize(("event_at", "more_private"), FAMILIES)


@over_families
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 100.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_the_result_meets_the_budget_and_a_tenth_of_a_percent_less_noise_does_not(
    event_at: Callable[[float], PrivacyEvent],
    more_private: Direction,
    epsilon: float,
    delta: float,
) -> None:
    found = calibrate(event_at, epsilon=epsilon, delta=delta, more_private=more_private)
    less_private = found * (0.999 if more_private == "larger" else 1.001)
    assert accounting.epsilon(event_at(found), delta) <= epsilon
    assert accounting.epsilon(event_at(less_private), delta) > epsilon


@given(epsilon=st.floats(1e-3, 100.0), delta=st.floats(1e-12, 0.1))
@settings(deadline=None, max_examples=50)
def test_the_budget_is_met_exactly_not_up_to_a_tolerance(epsilon: float, delta: float) -> None:
    found = calibrate(hundred_gaussians, epsilon=epsilon, delta=delta, more_private="larger")
    assert accounting.epsilon(hundred_gaussians(found), delta) <= epsilon


def test_sigma_for_the_4_37718_of_our_check_values_is_10() -> None:
    found = calibrate(hundred_gaussians, epsilon=4.37718, delta=1e-5, more_private="larger")
    assert found == pytest.approx(10.0, rel=1e-5, abs=0.0)


def test_rho_for_the_7_077_of_our_check_values_is_1() -> None:
    found = calibrate(zcdp_by_rho, epsilon=7.077, delta=1e-5, more_private="smaller")
    assert found == pytest.approx(1.0, rel=2e-4, abs=0.0)


@over_families
def test_a_larger_budget_never_asks_for_more_noise(
    event_at: Callable[[float], PrivacyEvent], more_private: Direction
) -> None:
    found = [
        calibrate(event_at, epsilon=epsilon, delta=1e-6, more_private=more_private)
        for epsilon in (0.1, 0.5, 1.0, 4.0, 20.0)
    ]
    assert found == sorted(found, reverse=more_private == "larger")
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("more_private", ["larger", "smaller"])
def test_a_budget_that_no_parameter_meets_is_refused_with_the_budget_and_a_remedy(
    more_private: Direction,
) -> None:
    def without_guarantee(_: float) -> PrivacyEvent:
        return NonPrivate(adjacency=ZERO_OUT)

    with pytest.raises(
        ParameterError, match=r"epsilon 2 at delta 1e-05; ask for a larger epsilon or fewer rounds"
    ):
        calibrate(without_guarantee, epsilon=2.0, delta=1e-5, more_private=more_private)


def test_more_rounds_than_any_noise_can_hide_are_refused() -> None:
    def endless(sigma: float) -> PrivacyEvent:
        return Repeated(event=zcdp_by_noise(sigma), count=2**53)

    # rho = 2^53 / (2 * 1e16) = 0.45 even at the largest noise tried, so epsilon is above 1.
    with pytest.raises(
        ParameterError, match=r"not even the parameter 1e\+08, .* reaches epsilon 1 "
    ):
        calibrate(endless, epsilon=1.0, delta=1e-5, more_private="larger")


@pytest.mark.parametrize(("more_private", "end"), [("larger", 1e-4), ("smaller", 999.0)])
def test_where_every_parameter_meets_the_budget_the_least_private_one_is_taken(
    more_private: Direction, end: float
) -> None:
    def always_cheap(_: float) -> PrivacyEvent:
        return PureDp(epsilon=0.01, adjacency=ZERO_OUT)

    found = calibrate(always_cheap, epsilon=1.0, delta=1e-5, more_private=more_private)
    assert found == pytest.approx(end, rel=1e-12, abs=0.0)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 1e9, True])
def test_an_epsilon_that_is_none_is_refused_before_any_search(epsilon: float) -> None:
    with pytest.raises(ParameterError, match="epsilon must be a"):
        calibrate(hundred_gaussians, epsilon=epsilon, delta=1e-5, more_private="larger")


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan, math.inf, 1e9])
def test_a_delta_that_is_none_is_refused_before_any_search(delta: float) -> None:
    with pytest.raises(ParameterError, match="delta must lie strictly between 0 and 1"):
        calibrate(hundred_gaussians, epsilon=1.0, delta=delta, more_private="larger")


@pytest.mark.parametrize("guess", [1e-3, 5.0, 19.9, 19.94, 20.0, 100.0, 1e7])
@pytest.mark.parametrize("tolerance", [1e-7, 1e-3])
def test_a_guess_changes_nothing_but_the_way(guess: float, tolerance: float) -> None:
    found = calibrate(
        hundred_gaussians,
        epsilon=2.0,
        delta=1e-5,
        more_private="larger",
        relative_tolerance=tolerance,
        initial_guess=guess,
    )
    exact = calibrate(hundred_gaussians, epsilon=2.0, delta=1e-5, more_private="larger")
    assert accounting.epsilon(hundred_gaussians(found), 1e-5) <= 2.0
    assert found == pytest.approx(exact, rel=2.0 * tolerance)


@pytest.mark.parametrize("guess", [1e-8, 1.0, 900.0])
def test_a_guess_for_a_parameter_that_hides_more_when_smaller(guess: float) -> None:
    found = calibrate(
        ten_pure, epsilon=1.0, delta=1e-5, more_private="smaller", initial_guess=guess
    )
    exact = calibrate(ten_pure, epsilon=1.0, delta=1e-5, more_private="smaller")
    assert accounting.epsilon(ten_pure(found), 1e-5) <= 1.0
    assert found == pytest.approx(exact, rel=1e-6)


def test_a_guess_does_not_help_where_nothing_does() -> None:
    with pytest.raises(ParameterError, match="not even"):
        calibrate(
            lambda _: NonPrivate(adjacency=ZERO_OUT),
            epsilon=1.0,
            delta=1e-5,
            more_private="larger",
            initial_guess=1.0,
        )
