"""The Renyi accountant: exact curves, sound bounds, additive composition."""

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from cases import denser, thinned
from dp_accounting import rdp
from exact_responses import exact_response_delta
from hypothesis import given, settings
from hypothesis import strategies as st
from some_events import pure, randomised_response

from sottovoce.core.adjacency import Adjacency
from sottovoce.privacy.divergences import finite_renyi
from sottovoce.privacy.events import (
    BasicEvent,
    Composed,
    FinitePair,
    GaussianNoise,
    NonPrivate,
    PrivacyEvent,
    RenyiCurve,
    Repeated,
    ZeroConcentrated,
)
from sottovoce.privacy.renyi import RenyiAccountant, renyi_divergence

ZERO_OUT = Adjacency.ZERO_OUT
ACCOUNTANT = RenyiAccountant()

# The conversion is exact for randomised response, so its float64 rounding can fall either way.
ROUNDING = 1e-14

orders = st.floats(1.01, 1e4)


def exact_response_divergence(epsilon: float, order: float) -> float:
    with mpmath.workdps(60):
        a, e = mpmath.mpf(order), mpmath.mpf(epsilon)
        moment = (mpmath.exp(a * e) + mpmath.exp((1 - a) * e)) / (1 + mpmath.exp(e))
        return float(mpmath.log(moment) / (a - 1))


@st.composite
def finite_pairs(draw: st.DrawFn) -> FinitePair:
    size = draw(st.integers(2, 5))

    def pmf() -> tuple[float, ...]:
        weights = draw(st.lists(st.integers(1, 1000), min_size=size, max_size=size))
        return tuple(weight / sum(weights) for weight in weights)

    return FinitePair(first=pmf(), second=pmf(), adjacency=ZERO_OUT)


amounts = st.floats(1e-3, 20.0)
basic_events: st.SearchStrategy[BasicEvent] = st.one_of(
    amounts.map(lambda mu: GaussianNoise(mu=mu, adjacency=ZERO_OUT)),
    amounts.map(lambda rho: ZeroConcentrated(rho=rho, adjacency=ZERO_OUT)),
    amounts.map(pure),
    finite_pairs(),
)


@pytest.mark.parametrize("mu", [0.05, 1.0, 4.0])
@pytest.mark.parametrize("order", [1.1, 2.0, 7.5])
def test_the_curve_of_gaussian_noise_is_the_integral_that_defines_it(
    mu: float, order: float
) -> None:
    with mpmath.workdps(30):
        centre = mpmath.mpf(order) * mu  # where p^a q^(1-a) peaks
        moment = mpmath.quad(
            lambda x: mpmath.npdf(x, mu) ** order * mpmath.npdf(x) ** (1 - mpmath.mpf(order)),
            [centre + step for step in (-16, -4, 0, 4, 16)],
        )
        expected = float(mpmath.log(moment) / (order - 1))
    event = GaussianNoise(mu=mu, adjacency=ZERO_OUT)
    assert renyi_divergence(event, order) == pytest.approx(expected, rel=1e-12, abs=0.0)


@given(rho=amounts, order=orders)
@settings(deadline=None)
def test_the_curve_of_zcdp_is_the_line_rho_times_order(rho: float, order: float) -> None:
    event = ZeroConcentrated(rho=rho, adjacency=ZERO_OUT)
    assert renyi_divergence(event, order) == order * rho


@given(epsilon=st.floats(1e-2, 100.0), order=orders)
@settings(deadline=None)
def test_the_curve_of_pure_dp_is_that_of_randomized_response_in_mpmath(
    epsilon: float, order: float
) -> None:
    expected = exact_response_divergence(epsilon, order)
    rounding = 1e-15 * (1.0 + order * epsilon) / (order - 1.0)
    assert renyi_divergence(pure(epsilon), order) == pytest.approx(
        expected, rel=1e-14, abs=rounding
    )


@given(epsilon=st.floats(1e-2, 30.0), order=orders)
@settings(deadline=None)
def test_pure_dp_and_the_finite_pair_of_randomized_response_have_one_curve(
    epsilon: float, order: float
) -> None:
    closed_form = renyi_divergence(pure(epsilon), order)
    enumerated = renyi_divergence(randomised_response(epsilon), order)
    rounding = 1e-15 * (1.0 + order * epsilon) / (order - 1.0)
    assert closed_form == pytest.approx(enumerated, rel=1e-13, abs=2.0 * rounding)


@given(pair=finite_pairs(), order=orders)
@settings(deadline=None, max_examples=300)
def test_pure_dp_covers_every_finite_pair_with_that_likelihood_ratio(
    pair: FinitePair, order: float
) -> None:
    ratios = [abs(math.log(p / q)) for p, q in zip(pair.first, pair.second, strict=True)]
    if max(ratios) > 1e-3:
        # Equality holds for randomised response, so float64 decides: its exponents reach a * ratio.
        rounding = 1e-15 * (10.0 + order * max(ratios)) * order / (order - 1.0)
        bound = renyi_divergence(pure(max(ratios)), order)
        assert renyi_divergence(pair, order) <= bound + rounding


@pytest.mark.parametrize("epsilon", [1e3, 1e6, 1e12])
@pytest.mark.parametrize("order", [1.0001, 2.0, 1e9])
def test_a_huge_pure_epsilon_neither_overflows_nor_exceeds_itself(
    epsilon: float, order: float
) -> None:
    divergence = renyi_divergence(pure(epsilon), order)
    assert divergence == pytest.approx(epsilon, rel=1e-9, abs=0.0)
    assert divergence <= epsilon


@given(pair=finite_pairs(), order=orders)
@settings(deadline=None)
def test_a_finite_pair_is_accounted_in_both_directions(pair: FinitePair, order: float) -> None:
    swapped = FinitePair(first=pair.second, second=pair.first, adjacency=ZERO_OUT)
    divergence = renyi_divergence(pair, order)
    assert divergence == renyi_divergence(swapped, order)
    assert divergence >= finite_renyi(pair.first, pair.second, order)
    assert divergence >= finite_renyi(pair.second, pair.first, order)


def test_a_finite_pair_with_an_outcome_of_one_side_only_has_no_renyi_bound() -> None:
    event = FinitePair(first=(0.5, 0.5), second=(1.0, 0.0), adjacency=ZERO_OUT)
    assert ACCOUNTANT.epsilon(event, 1e-5) == math.inf
    assert ACCOUNTANT.delta(event, 1.0) == 1.0


@given(
    pair=finite_pairs(),
    known=st.sets(st.floats(1.05, 100.0), min_size=1, max_size=6).map(sorted),
    order=st.floats(1.05, 120.0),
)
@settings(deadline=None, max_examples=200)
def test_a_renyi_curve_bounds_the_divergence_between_and_below_its_orders(
    pair: FinitePair, known: list[float], order: float
) -> None:
    exact = [renyi_divergence(pair, a) for a in known]
    curve = RenyiCurve(orders=tuple(known), divergences=tuple(exact), adjacency=ZERO_OUT)
    bound = renyi_divergence(curve, order)
    assert bound >= renyi_divergence(pair, order) - 1e-14 * order / (order - 1.0)
    assert math.isinf(bound) == (order > known[-1])


def test_a_renyi_curve_is_exact_at_its_own_orders_and_steps_up_between() -> None:
    curve = RenyiCurve(orders=(2.0, 4.0, 8.0), divergences=(0.1, 0.3, 0.9), adjacency=ZERO_OUT)
    found = [renyi_divergence(curve, order) for order in (1.5, 2.0, 3.0, 4.0, 4.1, 8.0, 8.1)]
    assert found == [0.1, 0.1, 0.3, 0.3, 0.9, 0.9, math.inf]


@given(
    pair=finite_pairs(),
    known=st.sets(st.floats(1.05, 1e4), min_size=1, max_size=6).map(sorted),
    delta=st.floats(1e-12, 0.1),
)
@settings(deadline=None, max_examples=30)
def test_a_renyi_curve_never_gives_less_epsilon_than_the_pair_it_came_from(
    pair: FinitePair, known: list[float], delta: float
) -> None:
    exact = tuple(renyi_divergence(pair, a) for a in known)
    curve = RenyiCurve(orders=tuple(known), divergences=exact, adjacency=ZERO_OUT)
    assert ACCOUNTANT.epsilon(curve, delta) >= ACCOUNTANT.epsilon(pair, delta) * (1.0 - 1e-9)


@given(
    parts=st.lists(st.tuples(basic_events, st.integers(1, 10**6)), min_size=1, max_size=4),
    order=orders,
)
@settings(deadline=None)
def test_the_curve_of_a_composition_is_the_sum_of_its_parts_curves(
    parts: list[tuple[BasicEvent, int]], order: float
) -> None:
    composed = Composed(events=tuple(Repeated(event=e, count=n) for e, n in parts))
    total = math.fsum(n * renyi_divergence(e, order) for e, n in parts)
    assert renyi_divergence(composed, order) == pytest.approx(total, rel=1e-14, abs=0.0)


@given(parts=st.lists(basic_events, min_size=1, max_size=5), data=st.data())
@settings(deadline=None, max_examples=50)
def test_order_and_nesting_of_a_composition_do_not_change_epsilon(
    parts: list[BasicEvent], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(parts))
    cut = data.draw(st.integers(1, len(parts)))
    flat = Composed(events=tuple(parts))
    nested: PrivacyEvent = Composed(
        events=(Composed(events=tuple(shuffled[:cut])), *shuffled[cut:])
    )
    first, second = ACCOUNTANT.epsilon(flat, 1e-5), ACCOUNTANT.epsilon(nested, 1e-5)
    assert first == pytest.approx(second, rel=1e-12, abs=0.0)


@pytest.mark.parametrize(
    ("epsilon_each", "count", "delta"),
    thinned(denser([0.01, 0.1, 1.0, 3.0]), [1, 2, 10, 100, 1000], [1e-3, 1e-5, 1e-10]),
)
def test_epsilon_of_randomized_responses_is_never_below_exact_binomial_enumeration(
    epsilon_each: float, count: int, delta: float
) -> None:
    for event in (pure(epsilon_each), randomised_response(epsilon_each)):
        epsilon = ACCOUNTANT.epsilon(Repeated(event=event, count=count), delta)
        not_below = epsilon + ROUNDING * (1.0 + epsilon)
        assert exact_response_delta(epsilon_each, count, not_below) <= delta


@pytest.mark.parametrize("epsilon_each", [0.01, 0.3, 2.0])
@pytest.mark.parametrize("count", [1, 30, 300])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 10.0])
def test_delta_of_randomized_responses_is_never_below_exact_binomial_enumeration(
    epsilon_each: float, count: int, epsilon: float
) -> None:
    exact = exact_response_delta(epsilon_each, count, epsilon)
    for event in (pure(epsilon_each), randomised_response(epsilon_each)):
        assert ACCOUNTANT.delta(Repeated(event=event, count=count), epsilon) >= exact


def test_epsilon_of_a_thousand_small_responses_is_within_a_tenth_of_exact() -> None:
    # A sound bound may be loose; this one would be useless if it were basic composition (100).
    epsilon = ACCOUNTANT.epsilon(Repeated(event=pure(0.1), count=1000), 1e-5)
    assert exact_response_delta(0.1, 1000, epsilon) <= 1e-5
    assert exact_response_delta(0.1, 1000, epsilon / 1.1) > 1e-5


@given(epsilon=st.floats(1e-2, 50.0), count=st.integers(1, 1000), delta=st.floats(1e-12, 0.1))
@settings(deadline=None, max_examples=50)
def test_pure_dp_never_costs_more_than_basic_composition(
    epsilon: float, count: int, delta: float
) -> None:
    total = ACCOUNTANT.epsilon(Repeated(event=pure(epsilon), count=count), delta)
    largest_excess = 1e9  # of the orders tried: beyond it lies only the infinite one
    assert total <= count * epsilon * (1.0 + 1e-12) - math.log(delta) / largest_excess


@pytest.mark.parametrize("noise_multiplier", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("count", [1, 100, 5000])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_gaussian_compositions_agree_with_the_rdp_accountant_of_dp_accounting(
    noise_multiplier: float, count: int, delta: float
) -> None:
    dense = [1.0 + excess for excess in np.geomspace(1e-3, 1e5, 2000)]
    theirs = rdp.RdpAccountant(orders=dense)
    theirs.compose(dp_accounting.GaussianDpEvent(noise_multiplier), count)
    event = GaussianNoise(mu=1.0 / noise_multiplier, adjacency=ZERO_OUT)
    ours = ACCOUNTANT.epsilon(Repeated(event=event, count=count), delta)
    assert ours == pytest.approx(theirs.get_epsilon(delta), rel=1e-4, abs=0.0)
    assert ours <= theirs.get_epsilon(delta) * (1.0 + 1e-9)


def test_a_release_without_a_guarantee_is_infinite_alone_and_in_company() -> None:
    event = NonPrivate(adjacency=ZERO_OUT)
    company = Composed(events=(pure(0.1), Repeated(event=event, count=5)))
    for unbounded in (event, company):
        assert renyi_divergence(unbounded, 2.0) == math.inf
        assert ACCOUNTANT.epsilon(unbounded, 1e-5) == math.inf
        assert ACCOUNTANT.delta(unbounded, 100.0) == 1.0


@given(event=basic_events, delta=st.floats(1e-12, 1e-2))
@settings(deadline=None, max_examples=50)
def test_the_delta_at_the_epsilon_of_a_delta_is_no_larger(event: BasicEvent, delta: float) -> None:
    epsilon = ACCOUNTANT.epsilon(event, delta)
    # A rounding of epsilon is magnified by the order, at most 1e9, in the logarithm of delta.
    rounding = 1e9 * 2.0**-46 * (1.0 + epsilon)
    assert ACCOUNTANT.delta(event, epsilon) <= delta * (1.0 + rounding)
