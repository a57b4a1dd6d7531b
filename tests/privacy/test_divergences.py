"""Exact divergences against mpmath, exact enumeration and the definition as an integral."""

import itertools
import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from exact_gaussians import exact_gaussian_delta
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.privacy.divergences import (
    finite_hockey_stick,
    finite_renyi,
    gaussian_delta,
    log_sum_exp,
)

Pmf = tuple[float, ...]


@st.composite
def pmf_pairs(draw: st.DrawFn, *, zeros: bool = False) -> tuple[Pmf, Pmf]:
    size = draw(st.integers(1, 6))
    weight = st.integers(0 if zeros else 1, 10**6)

    def pmf() -> Pmf:
        weights = draw(st.lists(weight, min_size=size, max_size=size).filter(any))
        return tuple(w / sum(weights) for w in weights)

    return pmf(), pmf()


def exact_renyi(first: Pmf, second: Pmf, order: float) -> Any:
    with mpmath.workdps(60):
        a = mpmath.mpf(order)
        terms = [
            mpmath.mpf(p) ** a * mpmath.mpf(q) ** (1 - a)
            for p, q in zip(first, second, strict=True)
            if p > 0
        ]
        return mpmath.log(mpmath.fsum(terms)) / (a - 1)


def formula_rounding(mu: float, epsilon: float) -> float:
    """What float64 can lose in Balle and Wang's formula, relative to delta.

    A logarithm of Phi(-x) is x^2/2 and more, and carries that many roundings; the difference of two
    exponentials that are nearly equal magnifies them by 1/(1 - lower/upper), about (1 + x)/mu.
    """
    x = mu / 2.0 + epsilon / mu
    return 2.0**-50 * (1.0 + x * x + epsilon) * (1.0 + (1.0 + x) / mu)


@given(pair=pmf_pairs(), order=st.floats(1.01, 1e6))
@settings(deadline=None, max_examples=200)
def test_finite_renyi_agrees_with_mpmath(pair: tuple[Pmf, Pmf], order: float) -> None:
    exact = float(exact_renyi(*pair, order))
    assert finite_renyi(*pair, order) == pytest.approx(
        max(0.0, exact), rel=1e-12, abs=1e-14 * order / (order - 1.0)
    )


@given(pair=pmf_pairs(zeros=True), order=st.floats(1.01, 1e3))
@settings(deadline=None)
def test_finite_renyi_is_infinite_exactly_where_the_support_is_not_covered(
    pair: tuple[Pmf, Pmf], order: float
) -> None:
    uncovered = any(p > 0.0 and q == 0.0 for p, q in zip(*pair, strict=True))
    assert math.isinf(finite_renyi(*pair, order)) == uncovered


@given(pair=pmf_pairs(), orders=st.tuples(st.floats(1.01, 1e4), st.floats(1.01, 1e4)))
@settings(deadline=None)
def test_finite_renyi_grows_with_the_order(
    pair: tuple[Pmf, Pmf], orders: tuple[float, float]
) -> None:
    low, high = sorted(orders)
    rounding = 1e-14 * low / (low - 1.0)
    assert finite_renyi(*pair, low) <= finite_renyi(*pair, high) + rounding


@given(pair=pmf_pairs(), order=st.floats(1.01, 1e4))
@settings(deadline=None)
def test_finite_renyi_lies_between_0_and_the_largest_log_ratio(
    pair: tuple[Pmf, Pmf], order: float
) -> None:
    largest = max(math.log(p) - math.log(q) for p, q in zip(*pair, strict=True))
    assert 0.0 <= finite_renyi(*pair, order) <= max(0.0, largest) + 1e-14 * order / (order - 1.0)


def test_finite_renyi_of_order_2_is_the_log_of_one_plus_chi_square() -> None:
    p, q = (0.2, 0.3, 0.5), (0.4, 0.4, 0.2)
    chi_square = sum((a - b) ** 2 / b for a, b in zip(p, q, strict=True))
    assert finite_renyi(p, q, 2.0) == pytest.approx(math.log1p(chi_square), rel=1e-14, abs=0.0)


def test_finite_renyi_of_a_huge_order_is_the_largest_log_ratio() -> None:
    assert finite_renyi((0.9, 0.1), (0.3, 0.7), 1e12) == pytest.approx(
        math.log(3.0), rel=1e-11, abs=0.0
    )


def test_finite_renyi_does_not_overflow_where_probabilities_are_tiny() -> None:
    first, second = (1.0 - 1e-300, 1e-300), (1e-300, 1.0 - 1e-300)
    # p^50 q^-49 with p = 1 and q = 1e-300, and its logarithm over 49
    expected = 300.0 * math.log(10.0)
    assert finite_renyi(first, second, 50.0) == pytest.approx(expected, rel=1e-14, abs=0.0)


@given(
    pair=pmf_pairs(zeros=True),
    epsilon=st.floats(0.0, 20.0),
)
@settings(deadline=None, max_examples=200)
def test_the_hockey_stick_is_the_largest_excess_over_all_events(
    pair: tuple[Pmf, Pmf], epsilon: float
) -> None:
    # The definition of (epsilon, delta)-DP: every event of every size, enumerated.
    first, second = ([Fraction(p) for p in pmf] for pmf in pair)
    with mpmath.workdps(40):
        factor = Fraction(mpmath.nstr(mpmath.exp(mpmath.mpf(epsilon)), 35))
    outcomes = range(len(first))
    events = itertools.chain.from_iterable(
        itertools.combinations(outcomes, size) for size in range(len(first) + 1)
    )
    excesses = (
        sum((first[j] - factor * second[j] for j in event), Fraction(0)) for event in events
    )
    delta = float(max(excesses))
    assert finite_hockey_stick(*pair, epsilon) == pytest.approx(delta, rel=1e-13, abs=1e-14)


def test_the_hockey_stick_at_epsilon_0_is_the_total_variation_distance() -> None:
    assert finite_hockey_stick((0.1, 0.2, 0.7), (0.3, 0.3, 0.4), 0.0) == pytest.approx(0.3)


def test_the_hockey_stick_of_randomized_response_ends_at_its_epsilon() -> None:
    p = 1.0 / (1.0 + math.exp(-1.5))
    pair = ((p, 1.0 - p), (1.0 - p, p))
    assert finite_hockey_stick(*pair, 1.5) == pytest.approx(0.0, abs=1e-15)
    # Murtagh and Vadhan 2016: delta = (e^eps0 - e^eps)/(1 + e^eps0) in between.
    expected = (math.exp(1.5) - math.exp(0.7)) / (1.0 + math.exp(1.5))
    assert finite_hockey_stick(*pair, 0.7) == pytest.approx(expected, rel=1e-14, abs=0.0)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 700.0, 1e6])
def test_mass_that_the_second_law_lacks_is_delta_at_every_epsilon(epsilon: float) -> None:
    assert finite_hockey_stick((0.25, 0.75), (0.0, 1.0), epsilon) == 0.25


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        ([-math.inf, 0.0], 0.0),
        ([-math.inf, -math.inf], -math.inf),
        ([1000.0, 1000.0], 1000.0 + math.log(2.0)),
        ([-1000.0, -1000.0], -1000.0 + math.log(2.0)),
        ([math.inf, 0.0], math.inf),
        ([3.0], 3.0),
    ],
)
def test_log_sum_exp_of_extreme_logs(logs: list[float], expected: float) -> None:
    assert log_sum_exp(np.array(logs)) == pytest.approx(expected, rel=1e-15, abs=0.0)


@given(st.lists(st.floats(-700.0, 700.0), min_size=1, max_size=8))
@settings(deadline=None)
def test_log_sum_exp_agrees_with_mpmath(logs: list[float]) -> None:
    with mpmath.workdps(40):
        exact = float(mpmath.log(mpmath.fsum(mpmath.exp(mpmath.mpf(v)) for v in logs)))
    assert log_sum_exp(np.array(logs)) == pytest.approx(exact, rel=1e-14, abs=1e-14)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.1, 0.05), (1.0, 0.0), (1.0, 3.0), (5.0, 12.0)])
def test_gaussian_delta_is_the_integral_that_defines_it(mu: float, epsilon: float) -> None:
    # The integral of max(0, p - e^eps q), for p = N(mu, 1) and q = N(0, 1).
    with mpmath.workdps(30):
        start = mpmath.mpf(epsilon) / mu + mpmath.mpf(mu) / 2
        delta = mpmath.quad(
            lambda x: mpmath.npdf(x, mu) - mpmath.exp(epsilon) * mpmath.npdf(x),
            [start, start + 2, start + 6, start + 20],
        )
    assert gaussian_delta(mu, epsilon) == pytest.approx(float(delta), rel=1e-12, abs=0.0)


@pytest.mark.parametrize("mu", np.geomspace(0.1, 50.0, 30))
def test_gaussian_delta_is_at_most_1e_12_below_and_1e_11_above_mpmath_where_mu_is_not_tiny(
    mu: float,
) -> None:
    for epsilon in [0.0, *np.geomspace(1e-6, 100.0, 80)]:
        exact = exact_gaussian_delta(mu, epsilon)
        if exact > 1e-12:
            assert exact * (1 - 1e-12) <= gaussian_delta(mu, epsilon) <= exact * (1 + 1e-11)


@pytest.mark.parametrize("mu", np.geomspace(1e-3, 50.0, 40))
def test_gaussian_delta_is_never_below_mpmath_by_more_than_its_formula_rounds(mu: float) -> None:
    for epsilon in [0.0, *np.geomspace(1e-6, 100.0, 80)]:
        exact = exact_gaussian_delta(mu, epsilon)
        if exact > 1e-290:  # below, float64 underflows
            shortfall = float(1 - mpmath.mpf(gaussian_delta(mu, epsilon)) / exact)
            assert shortfall <= formula_rounding(mu, epsilon), (mu, epsilon)


@given(mu=st.floats(1e-3, 50.0), epsilons=st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 100.0)))
@settings(deadline=None)
def test_gaussian_delta_falls_with_epsilon(mu: float, epsilons: tuple[float, float]) -> None:
    low, high = sorted(epsilons)
    tolerance = 1.0 + formula_rounding(mu, low) + formula_rounding(mu, high)
    assert gaussian_delta(mu, high) <= gaussian_delta(mu, low) * tolerance


@pytest.mark.parametrize("mu", [1e-8, 1e-12, 1e-16, 1e-18])
def test_gaussian_delta_of_a_vanishing_mu_errs_upwards_or_not_at_all(mu: float) -> None:
    # 2 Phi(mu/2) - 1 at epsilon 0; below float64's resolution only an upper bound is left.
    with mpmath.workdps(60):
        exact = 2 * mpmath.ncdf(mpmath.mpf(mu) / 2) - 1
        relative_rounding = 2.0**-52 / mu
        assert gaussian_delta(mu, 0.0) >= exact * (1 - min(relative_rounding, 0.5))


def test_a_huge_ratio_at_next_to_no_mass_does_not_hide_the_rest() -> None:
    """Found by a reader: the sum is 1 and a little, so its rounding is absolute."""
    tiny = 1e-300
    p = np.array([0.5 + 1e-9, 0.5 - 1e-9, 1.36 * tiny])
    q = np.array([0.5, 0.5, tiny])
    with mpmath.workdps(60):
        exact = (
            mpmath.log(
                mpmath.fsum(
                    mpmath.mpf(x) ** 100 * mpmath.mpf(y) ** -99 for x, y in zip(p, q, strict=True)
                )
            )
            / 99
        )
    assert finite_renyi(p, q, 100.0) >= exact
