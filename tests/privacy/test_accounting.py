"""The smallest sound bound, its winner's name, and what it must never be below."""

import math

import mpmath
import pytest
from exact_gaussians import exact_gaussian_delta
from exact_responses import exact_response_delta
from hypothesis import given, settings
from hypothesis import strategies as st
from some_events import smooth_events

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.display import show_epsilon, show_remaining
from sottovoce.core.errors import ParameterError
from sottovoce.privacy import accounting
from sottovoce.privacy.accounting import builtin_accountants, privacy_spent
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

ZERO_OUT = Adjacency.ZERO_OUT

ONE_OF_EACH: list[BasicEvent] = [
    GaussianNoise(mu=0.5, adjacency=ZERO_OUT),
    ZeroConcentrated(rho=0.1, adjacency=ZERO_OUT),
    PureDp(epsilon=1.0, adjacency=ZERO_OUT),
    FinitePair(first=(0.75, 0.25), second=(0.25, 0.75), adjacency=ZERO_OUT),
    RenyiCurve(orders=(2.0, 8.0, 32.0), divergences=(0.1, 0.5, 2.5), adjacency=ZERO_OUT),
]

over_events = pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda e: type(e).__name__)

events = smooth_events(st.floats(1e-2, 10.0))


@over_events
def test_the_smallest_bound_wins_and_is_named(event: BasicEvent) -> None:
    spent = privacy_spent(event, 1e-5)
    assert spent.epsilon == min(bound for _, bound in spent.bounds)
    assert dict(spent.bounds)[spent.accountant] == spent.epsilon
    assert accounting.epsilon(event, 1e-5) == spent.epsilon


@pytest.mark.parametrize(
    ("event", "supported", "winner"),
    [
        (ONE_OF_EACH[0], {"gaussian", "renyi", "zcdp"}, "gaussian"),
        (ONE_OF_EACH[2], {"renyi", "zcdp", "pld"}, "renyi"),
        (ONE_OF_EACH[3], {"renyi", "pld"}, "renyi"),
        (ONE_OF_EACH[4], {"renyi"}, "renyi"),
        (Composed(events=(ONE_OF_EACH[0], ONE_OF_EACH[2])), {"renyi", "zcdp", "pld"}, "pld"),
    ],
)
def test_every_accountant_that_supports_the_event_is_listed(
    event: PrivacyEvent, supported: set[str], winner: str
) -> None:
    spent = privacy_spent(event, 1e-5)
    assert {name for name, _ in spent.bounds} == supported
    assert spent.accountant == winner


def test_accountants_have_distinct_names() -> None:
    names = [accountant.name for accountant in builtin_accountants()]
    assert len(set(names)) == len(names)
    assert {"gaussian", "renyi", "zcdp", "cubic", "clones", "allocation", "pld"} <= set(names)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_result_carries_delta_and_adjacency(adjacency: Adjacency) -> None:
    spent = privacy_spent(PureDp(epsilon=1.0, adjacency=adjacency), 1e-7)
    assert spent.adjacency is adjacency
    assert spent.delta == 1e-7


def test_sigma_10_a_hundred_times_at_delta_1e_5_is_the_4_37718_of_our_check_values() -> None:
    event = Repeated(event=GaussianNoise(mu=0.1, adjacency=ZERO_OUT), count=100)
    assert accounting.epsilon(event, 1e-5) == pytest.approx(4.37718, abs=5e-6)


@pytest.mark.parametrize(
    ("rho", "epsilon", "half_a_digit"),
    [(0.01, 0.546, 5e-4), (0.1, 1.914, 5e-4), (1.0, 7.077, 5e-4), (10.0, 30.11, 5e-3)],
)
def test_zcdp_at_delta_1e_5_is_the_value_of_our_check_values(
    rho: float, epsilon: float, half_a_digit: float
) -> None:
    event = ZeroConcentrated(rho=rho, adjacency=ZERO_OUT)
    assert accounting.epsilon(event, 1e-5) == pytest.approx(epsilon, abs=half_a_digit)


@given(mu=st.floats(1e-3, 30.0), count=st.integers(1, 10_000), delta=st.floats(1e-12, 0.5))
@settings(deadline=None)
def test_epsilon_of_gaussian_compositions_is_never_below_the_exact_one(
    mu: float, count: int, delta: float
) -> None:
    event = Repeated(event=GaussianNoise(mu=mu, adjacency=ZERO_OUT), count=count)
    epsilon = accounting.epsilon(event, delta)
    with mpmath.workdps(60):
        total = mpmath.mpf(mu) * mpmath.sqrt(count)
    assert exact_gaussian_delta(total, epsilon) <= delta


@given(epsilon_each=st.floats(1e-3, 5.0), count=st.integers(1, 120), delta=st.floats(1e-12, 0.5))
@settings(deadline=None, max_examples=50)
def test_epsilon_of_pure_dp_is_never_below_exact_binomial_enumeration(
    epsilon_each: float, count: int, delta: float
) -> None:
    event = Repeated(event=PureDp(epsilon=epsilon_each, adjacency=ZERO_OUT), count=count)
    epsilon = accounting.epsilon(event, delta)
    # The conversion is exact for randomised response, so its float64 rounding can fall either way.
    not_below = epsilon + 1e-14 * (1.0 + epsilon)
    assert exact_response_delta(epsilon_each, count, not_below) <= delta


@given(mu=st.floats(0.05, 5.0), epsilon_each=st.floats(0.05, 3.0), delta=st.floats(1e-9, 0.1))
@settings(deadline=None, max_examples=30)
def test_epsilon_of_gaussian_noise_with_a_randomized_response_is_never_below_the_exact_one(
    mu: float, epsilon_each: float, delta: float
) -> None:
    event = Composed(
        events=(
            GaussianNoise(mu=mu, adjacency=ZERO_OUT),
            PureDp(epsilon=epsilon_each, adjacency=ZERO_OUT),
        )
    )
    epsilon = accounting.epsilon(event, delta)
    # Given the response, the loss of the pair is the Gaussian's shifted by +-epsilon_each.
    with mpmath.workdps(40):
        truth = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon_each)))
        exact = truth * exact_gaussian_delta(mu, epsilon - epsilon_each)
        exact += (1 - truth) * exact_gaussian_delta(mu, epsilon + epsilon_each)
    assert exact <= delta


@given(event=events, deltas=st.tuples(st.floats(1e-15, 0.5), st.floats(1e-15, 0.5)))
@settings(deadline=None, max_examples=40)
def test_a_smaller_delta_never_has_a_smaller_epsilon(
    event: BasicEvent, deltas: tuple[float, float]
) -> None:
    low, high = sorted(deltas)
    assert accounting.epsilon(event, low) >= accounting.epsilon(event, high) * (1.0 - 1e-9)


@given(event=events, counts=st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)))
@settings(deadline=None, max_examples=40)
def test_more_releases_never_cost_less(event: BasicEvent, counts: tuple[int, int]) -> None:
    few, many = (accounting.epsilon(Repeated(event=event, count=n), 1e-5) for n in sorted(counts))
    assert many >= few * (1.0 - 1e-9)


@given(event=events, another=events)
@settings(deadline=None, max_examples=40)
def test_a_further_release_never_costs_less(event: BasicEvent, another: BasicEvent) -> None:
    both = accounting.epsilon(Composed(events=(event, another)), 1e-5)
    assert both >= accounting.epsilon(event, 1e-5) * (1.0 - 1e-9)


def test_one_event_repeated_is_the_event_composed_with_itself() -> None:
    for event in ONE_OF_EACH:
        repeated = accounting.epsilon(Repeated(event=event, count=3), 1e-6)
        assert repeated == accounting.epsilon(Composed(events=(event, event, event)), 1e-6)


def test_all_shapes_together_have_a_finite_epsilon_by_the_renyi_accountant() -> None:
    spent = privacy_spent(Composed(events=tuple(ONE_OF_EACH)), 1e-5)
    assert math.isfinite(spent.epsilon)
    assert spent.accountant == "renyi"
    assert spent.epsilon > max(accounting.epsilon(event, 1e-5) for event in ONE_OF_EACH)


def test_a_release_without_a_guarantee_gives_infinite_epsilon() -> None:
    event = NonPrivate(adjacency=ZERO_OUT)
    for unbounded in (event, Composed(events=(*ONE_OF_EACH, event))):
        assert privacy_spent(unbounded, 1e-5).epsilon == math.inf


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, math.inf, True, "1e-5"])
def test_a_delta_that_is_none_is_refused(delta: float) -> None:
    with pytest.raises(ParameterError, match="delta must"):
        privacy_spent(ONE_OF_EACH[0], delta)
    with pytest.raises(ParameterError, match="delta must"):
        accounting.epsilon(ONE_OF_EACH[0], delta)


@over_events
@pytest.mark.parametrize("delta", [1e-300, 1.0 - 2.0**-53])
def test_the_extreme_deltas_that_are_allowed_give_a_number(event: BasicEvent, delta: float) -> None:
    assert accounting.epsilon(event, delta) >= 0.0


@given(st.floats(0.0, 1e9), st.integers(0, 6))
@settings(deadline=None, max_examples=500)
def test_a_printed_epsilon_is_never_below_the_true_one_nor_far_above(
    value: float, decimals: int
) -> None:
    shown = float(show_epsilon(value, decimals))
    assert value <= shown <= value + 10.0**-decimals + 1e-6 * value


@pytest.mark.parametrize(
    ("value", "decimals", "shown"),
    [
        (0.1, 4, "0.1000"),  # the float is a little above a tenth
        (0.2, 4, "0.2000"),
        (8.0, 2, "8.00"),
        (0.1 + 0.2, 4, "0.3001"),  # computed, and above 0.3: so is what is printed
        (0.10000000000000002, 4, "0.1001"),
        (0.09999999999, 4, "0.1000"),
        (1e-5, 4, "1.000e-5"),
        (1.0000000000000002e-05, 4, "1.001e-5"),
    ],
)
def test_an_epsilon_that_was_entered_is_printed_as_it_was(
    value: float, decimals: int, shown: str
) -> None:
    assert show_epsilon(value, decimals) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.3, "0.3000"), (0.29999999999999993, "0.2999"), (2.3, "2.3000")]
)
def test_what_is_left_is_printed_as_it_is_or_rounded_down(value: float, shown: str) -> None:
    assert show_remaining(value) == shown


def test_an_infinite_epsilon_is_called_so() -> None:
    assert show_epsilon(math.inf) == "infinite"


def test_what_was_spent_prints_as_a_sentence() -> None:
    spent = accounting.privacy_spent(GaussianNoise(mu=1.0, adjacency=Adjacency.ZERO_OUT), 1e-5)
    assert str(spent) == "epsilon = 4.3772 at delta = 1e-05 (zero-out, by the gaussian accountant)"
