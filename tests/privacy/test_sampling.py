"""Sampling: never below exact mixtures, never above the unsampled event, and the known figures."""

import itertools
import math
from typing import Any, get_args

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.privacy.divergences import finite_renyi
from sottovoce.privacy.events import (
    Composed,
    FinitePair,
    GaussianNoise,
    MetricDp,
    NonPrivate,
    OneBit,
    PrivacyEvent,
    PureDp,
    RenyiCurve,
    Repeated,
    Sampled,
    SamplingScheme,
    SummedBits,
    ZeroConcentrated,
)
from sottovoce.privacy.pure import pure_epsilon
from sottovoce.privacy.renyi import RenyiAccountant, renyi_divergence
from sottovoce.privacy.sampling import MAX_ORDER, sampled_renyi

ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
ORDERS = (1.2, 2.0, 2.5, 3.0, 5.0, 8.7, 20.0, 60.0)

rates = st.floats(1e-4, 1.0)


def sampled(event: PrivacyEvent, rate: float, scheme: SamplingScheme = "poisson") -> Sampled:
    return Sampled(event=event, rate=rate, scheme=scheme, hidden_by="central-noise")


def pmf(draw: st.DrawFn, size: int) -> Vector:
    logs = np.array(draw(st.lists(st.floats(-4.0, 4.0), min_size=size, max_size=size)))
    weights = np.exp(logs)
    return np.asarray(weights / weights.sum())


@st.composite
def laws(draw: st.DrawFn, count: int) -> list[Vector]:
    size = draw(st.integers(2, 4))
    return [pmf(draw, size) for _ in range(count)]


def exact(rate: float, base: Vector, first: Vector, second: Vector, order: float) -> float:
    """Larger of both directions between the mixtures of `first` and `second` into `base`."""
    with mpmath.workdps(30):
        q = mpmath.mpf(rate)

        def mixture(law: Vector) -> list[Any]:
            pairs = zip(law.tolist(), base.tolist(), strict=True)
            return [q * mpmath.mpf(x) + (1 - q) * mpmath.mpf(y) for x, y in pairs]

        def divergence(p: list[Any], q: list[Any]) -> Any:
            terms = (x**order * y ** (1 - order) for x, y in zip(p, q, strict=True))
            return mpmath.log(mpmath.fsum(terms)) / (order - 1)

        one, other = mixture(first), mixture(second)
        return float(max(divergence(one, other), divergence(other, one)))


@given(pair=laws(2), rate=rates, order=st.sampled_from(ORDERS))
@settings(max_examples=300)
def test_poisson_zero_out_covers_the_exact_mixture_in_both_directions(
    pair: list[Vector], rate: float, order: float
) -> None:
    with_it, without = pair
    base = FinitePair(first=tuple(with_it), second=tuple(without), adjacency=ZERO_OUT)
    bound = renyi_divergence(sampled(base, rate), order)
    # The pmfs sum to 1 within rounding only.
    assert bound >= exact(rate, without, with_it, without, order) - 1e-15


def widest(triple: list[tuple[float, ...]], order: float) -> float:
    return max(finite_renyi(p, q, order) for p in triple for q in triple if p is not q)


def hull_event(triple: list[Vector], *, pure: bool) -> PrivacyEvent:
    """An event whose curve covers every pair of the triple, both ways."""
    if pure:
        epsilon = max(float(np.max(np.abs(np.log(p / q)))) for p in triple for q in triple)
        return PureDp(epsilon=max(epsilon, 1e-6), adjacency=REPLACE_ONE)
    orders = tuple(float(order) for order in range(2, 65))
    laws = [tuple(law.tolist()) for law in triple]
    divergences = np.maximum.accumulate([widest(laws, order) for order in orders])
    return RenyiCurve(orders=orders, divergences=tuple(divergences.tolist()), adjacency=REPLACE_ONE)


@given(
    triple=laws(3),
    rate=rates,
    order=st.sampled_from(ORDERS),
    pure=st.booleans(),
    scheme=st.sampled_from(get_args(SamplingScheme)),
)
@settings(max_examples=150)
def test_replace_one_covers_every_triple_of_laws_within_the_curve(
    triple: list[Vector], rate: float, order: float, pure: bool, scheme: SamplingScheme
) -> None:
    left_out, one, other = triple
    event = sampled(hull_event(triple, pure=pure), rate, scheme)
    bound = renyi_divergence(event, order)
    assert bound >= exact(rate, left_out, one, other, order) - 1e-15


@pytest.mark.parametrize("rate", [1e-3, 0.01, 0.3])
@pytest.mark.parametrize("order", [2.0, 3.5, 16.0])
def test_a_sampled_gaussian_is_covered_in_both_directions(rate: float, order: float) -> None:
    event = sampled(GaussianNoise(mu=1.0, adjacency=ZERO_OUT), rate)
    bound = renyi_divergence(event, order)
    with mpmath.workdps(25):

        def ratio(x: Any) -> Any:
            return 1 - rate + rate * mpmath.exp(x - mpmath.mpf(1) / 2)

        # The trapezoid rule: what is integrated has no branch point within pi of the real line, so
        # that its error is about e^(pi^2/2 - 2 pi^2/step).
        step = mpmath.mpf(1) / 8
        points = [step * place for place in range(-15 * 8, (15 + math.ceil(order)) * 8)]
        for power in (order, 1.0 - order):
            mean = step * mpmath.fsum(mpmath.npdf(x) * ratio(x) ** power for x in points)
            assert bound >= float(mpmath.log(mean) / (order - 1)) * (1.0 - 1e-12)
    if order == 2.0:  # chi-square: exact
        assert bound == pytest.approx(math.log1p(rate**2 * math.expm1(1.0)), rel=1e-12)


@pytest.mark.parametrize(
    ("event", "epsilon"),
    [
        (GaussianNoise(mu=1.0, adjacency=ZERO_OUT), 2.1015),  # has its own curve between them
        (ZeroConcentrated(rho=0.5, adjacency=ZERO_OUT), 2.1078),
        (OneBit(shift=2.0, dimension=10, adjacency=ZERO_OUT), 1.9732),
        (OneBit(shift=2.0, dimension=1, adjacency=ZERO_OUT), 1.6536),
        (PureDp(epsilon=1.0, adjacency=ZERO_OUT), 1.3975),
    ],
)
def test_a_thousand_rounds_at_one_percent_cost_what_whole_orders_give(
    event: PrivacyEvent, epsilon: float
) -> None:
    rounds = Repeated(event=sampled(event, 0.01), count=1000)
    assert RenyiAccountant().epsilon(rounds, 1e-5) == pytest.approx(epsilon, abs=1e-4)


BASES: list[PrivacyEvent] = [
    GaussianNoise(mu=0.7, adjacency=REPLACE_ONE),
    PureDp(epsilon=0.3, adjacency=REPLACE_ONE),
    OneBit(shift=1.5, dimension=7, adjacency=REPLACE_ONE),
    RenyiCurve(orders=(2.0, 8.0, 32.0), divergences=(0.1, 0.5, 2.5), adjacency=REPLACE_ONE),
    Repeated(event=PureDp(epsilon=0.1, adjacency=REPLACE_ONE), count=3),
    NonPrivate(adjacency=REPLACE_ONE),
    GaussianNoise(mu=0.7, adjacency=ZERO_OUT),
    Composed(
        events=(GaussianNoise(mu=0.2, adjacency=ZERO_OUT), PureDp(epsilon=1.0, adjacency=ZERO_OUT))
    ),
    PureDp(epsilon=1e12, adjacency=ZERO_OUT),
]


@pytest.mark.parametrize("base", BASES, ids=lambda event: type(event).__name__)
def test_sampling_never_costs_more_and_grows_with_rate_and_order(base: PrivacyEvent) -> None:
    for order in (1.001, 1.9, 2.0, 7.3, 300.0, 9999.5, 1e6):
        unsampled = renyi_divergence(base, order)
        costs = [renyi_divergence(sampled(base, rate), order) for rate in (1e-5, 0.01, 0.5, 1.0)]
        assert all(0.0 <= cost <= unsampled for cost in costs)
        assert costs == sorted(costs)
        assert costs[-1] == unsampled
    curve = [renyi_divergence(sampled(base, 0.1), order) for order in np.geomspace(2, 2000, 40)]
    assert all(low <= high * (1 + 1e-9) for low, high in itertools.pairwise(curve))


def test_beyond_the_largest_whole_order_the_unsampled_curve_serves() -> None:
    event = sampled(GaussianNoise(mu=1e-3, adjacency=ZERO_OUT), 0.01)
    assert sampled_renyi(event, MAX_ORDER + 0.5, renyi_divergence) == renyi_divergence(
        event.event, MAX_ORDER + 0.5
    )
    assert sampled_renyi(event, MAX_ORDER, renyi_divergence) < renyi_divergence(
        event.event, MAX_ORDER
    )


def test_a_curve_that_fails_is_infinite_not_small() -> None:
    def broken(event: PrivacyEvent, order: float) -> float:
        if order > 5.0:
            raise OverflowError
        return order

    event = sampled(GaussianNoise(mu=1.0, adjacency=ZERO_OUT), 0.01)
    with pytest.raises(OverflowError):  # the accountant takes this for infinity
        sampled_renyi(event, 6.0, broken)
    assert 0.0 < sampled_renyi(event, 5.0, broken) < 5.0
    assert sampled_renyi(event, 4.5, lambda _, order: math.nan) != 0.0


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, math.nan, math.inf])
def test_rates_outside_zero_to_one_are_refused(rate: float) -> None:
    with pytest.raises(ParameterError):
        sampled(PureDp(epsilon=1.0, adjacency=ZERO_OUT), rate)


# --- pure epsilon


@given(pair=laws(2), rate=rates)
@settings(max_examples=100)
def test_pure_epsilon_covers_sampled_ratios(pair: list[Vector], rate: float) -> None:
    with_it, without = pair
    base = FinitePair(first=tuple(with_it), second=tuple(without), adjacency=ZERO_OUT)
    largest = float(np.max(np.abs(np.log(with_it / without))))
    # The quotient rounds here, by 2^-53 or so of 1.
    assert largest - 2.0**-51 <= pure_epsilon(base) <= largest * (1 + 1e-9) + 1e-15
    mixture = rate * with_it + (1.0 - rate) * without
    assert np.max(np.abs(np.log(mixture / without))) <= pure_epsilon(sampled(base, rate)) + 1e-15


def test_pure_epsilons_add_up_and_are_infinite_where_there_is_none() -> None:
    bit = OneBit(shift=0.5, dimension=16, adjacency=ZERO_OUT)
    sums = SummedBits(shift=0.5, dimension=16, logit_bound=3.0, clients=10, adjacency=ZERO_OUT)
    metric = MetricDp(epsilon=0.5, metric="l1", distance=2.0, adjacency=ZERO_OUT)
    both = Composed(events=(Repeated(event=bit, count=3), metric))
    assert pure_epsilon(both) == pytest.approx(7.0)
    assert pure_epsilon(both) >= 7.0
    assert pure_epsilon(sums) == pure_epsilon(bit)
    assert pure_epsilon(sampled(PureDp(epsilon=1.0, adjacency=ZERO_OUT), 0.01)) == pytest.approx(
        math.log1p(0.01 * math.expm1(1.0))
    )
    for event in (
        GaussianNoise(mu=1.0, adjacency=ZERO_OUT),
        ZeroConcentrated(rho=1.0, adjacency=ZERO_OUT),
        NonPrivate(adjacency=ZERO_OUT),
        FinitePair(first=(1.0, 0.0), second=(0.5, 0.5), adjacency=ZERO_OUT),
        Composed(events=(metric, GaussianNoise(mu=1.0, adjacency=ZERO_OUT))),
    ):
        assert pure_epsilon(event) == math.inf
    many = Repeated(event=Repeated(event=metric, count=2**53), count=2**53)
    assert pure_epsilon(Repeated(event=many, count=2**53)) > 1e40


@pytest.mark.parametrize("order", [1.0, 0.5, -1.0, math.nan])
def test_orders_up_to_one_are_refused(order: float) -> None:
    with pytest.raises(ParameterError):
        renyi_divergence(sampled(PureDp(epsilon=1.0, adjacency=ZERO_OUT), 0.5), order)
