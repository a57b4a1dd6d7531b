"""The PLD accountant: never below what enumeration, binomials and integrals give, and close."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import mpmath
import numpy as np
import pytest
from cases import denser
from dp_accounting import dp_event, privacy_accountant
from dp_accounting.pld import pld_privacy_accountant
from exact_responses import binomial_delta, binomial_law
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import UnsupportedEventError
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.divergences import gaussian_delta
from sottovoce.privacy.events import (
    Composed,
    FinitePair,
    GaussianNoise,
    HiddenBy,
    MetricDp,
    NonPrivate,
    OneBit,
    PrivacyEvent,
    PureDp,
    RenyiCurve,
    Repeated,
    Sampled,
    SamplingScheme,
    Shuffled,
    SummedBits,
    ZeroConcentrated,
)
from sottovoce.privacy.gaussian_sums import gaussian_mu_of_sum
from sottovoce.privacy.loss_distributions import FFT_ROUNDING, transform_size
from sottovoce.privacy.pld import PldAccountant
from sottovoce.privacy.renyi import RenyiAccountant

ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
ACCOUNTANT = PldAccountant()
# mpmath's own: exact enumeration is compared with what float64 can say.
ROUNDING = 1e-12

Pmf = Sequence[Any]
deltas = st.sampled_from([0.3, 1e-2, 1e-5, 1e-12, 1e-30])


def gaussian(mu: float, adjacency: Adjacency = ZERO_OUT) -> GaussianNoise:
    return GaussianNoise(mu=mu, adjacency=adjacency)


def pure(epsilon: float, adjacency: Adjacency = ZERO_OUT) -> PureDp:
    return PureDp(epsilon=epsilon, adjacency=adjacency)


def sampled(
    event: PrivacyEvent,
    rate: float,
    scheme: SamplingScheme = "poisson",
    hidden_by: HiddenBy = "central-noise",
) -> Sampled:
    return Sampled(event=event, rate=rate, scheme=scheme, hidden_by=hidden_by)


def exact_delta(steps: Sequence[tuple[Pmf, Pmf]], epsilon: float) -> Any:
    """sum max(0, P - e^eps Q) over all outcomes of the product of the steps' pmfs."""
    with mpmath.workdps(50):
        factor, total = mpmath.exp(mpmath.mpf(epsilon)), mpmath.mpf(0)
        for cells in itertools.product(*(range(len(first)) for first, _ in steps)):
            p = mpmath.fprod(first[i] for (first, _), i in zip(steps, cells, strict=True))
            q = mpmath.fprod(second[i] for (_, second), i in zip(steps, cells, strict=True))
            total += max(mpmath.mpf(0), p - factor * q)
        return total


def mixture(rate: float, out: Pmf, present: Pmf) -> Pmf:
    with mpmath.workdps(50):
        q = mpmath.mpf(rate)
        return [(1 - q) * o + q * mpmath.mpf(p) for o, p in zip(out, present, strict=True)]


def covers(event: PrivacyEvent, steps: Sequence[tuple[Pmf, Pmf]], delta: float) -> bool:
    """The bounds at `delta` are nowhere below the exact ones."""
    epsilon = ACCOUNTANT.epsilon(event, delta)
    if math.isfinite(epsilon) and exact_delta(steps, epsilon) > delta * (1.0 + ROUNDING):
        return False
    at = min(2.0, epsilon) * 0.7
    return bool(ACCOUNTANT.delta(event, at) >= exact_delta(steps, at) * (1.0 - ROUNDING))


@st.composite
def finite_pairs(draw: st.DrawFn, zeros: bool = False) -> FinitePair:
    size = draw(st.integers(2, 4))
    weights = st.lists(
        st.integers(0, 6) if zeros else st.integers(1, 1000), min_size=size, max_size=size
    )

    def pmf() -> tuple[float, ...]:
        drawn = draw(weights.filter(lambda w: sum(w) > 0))
        return tuple(weight / sum(drawn) for weight in drawn)

    return FinitePair(first=pmf(), second=pmf(), adjacency=ZERO_OUT)


@given(pair=finite_pairs(), count=st.integers(1, 4), delta=deltas, data=st.data())
@settings(deadline=None, max_examples=15)
def test_finite_pairs_are_covered_whichever_order_each_step_has(
    pair: FinitePair, count: int, delta: float, data: st.DataObject
) -> None:
    orders = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    steps = [
        (pair.first, pair.second) if forward else (pair.second, pair.first) for forward in orders
    ]
    assert covers(Repeated(event=pair, count=count), steps, delta)


@given(pair=finite_pairs(zeros=True), count=st.integers(1, 3), delta=deltas)
@settings(deadline=None, max_examples=8)
def test_outcomes_that_one_side_never_has_are_covered(
    pair: FinitePair, count: int, delta: float
) -> None:
    event = Repeated(event=pair, count=count)
    assert covers(event, [(pair.first, pair.second)] * count, delta)
    assert covers(event, [(pair.second, pair.first)] * count, delta)


@pytest.mark.parametrize("second", [(1.0, 0.0, 0.0), (0.4, 0.0, 0.6), (0.2, 0.2, 0.6)])
def test_outcomes_that_one_side_never_has_are_all_that_an_infinite_epsilon_costs(
    second: tuple[float, ...],
) -> None:
    """.6 of one law lies outside of the other: delta falls to that, and not only to 1."""
    pair = FinitePair(first=(0.4, 0.6, 0.0), second=second, adjacency=ZERO_OUT)
    for count, outside in ((1, 0.6), (2, 1.0 - 0.4**2)):
        event = Repeated(event=pair, count=count)
        assert outside <= ACCOUNTANT.delta(event, 30.0) <= outside + 1e-9
        assert ACCOUNTANT.epsilon(event, outside + 0.02) < 2.0
        assert ACCOUNTANT.epsilon(event, outside - 0.02) == math.inf


@given(
    pair=finite_pairs(zeros=True),
    rate=st.floats(1e-4, 1.0),
    count=st.integers(1, 3),
    delta=deltas,
    swap=st.booleans(),
    reverse=st.booleans(),
)
@settings(deadline=None, max_examples=25)
def test_sampled_finite_pairs_are_covered_in_all_four_directions(
    pair: FinitePair, rate: float, count: int, delta: float, swap: bool, reverse: bool
) -> None:
    present, out = (pair.second, pair.first) if swap else (pair.first, pair.second)
    mixed = mixture(rate, out, present)
    step = (out, mixed) if reverse else (mixed, out)
    assert covers(Repeated(event=sampled(pair, rate), count=count), [step] * count, delta)


@st.composite
def three_laws(draw: st.DrawFn) -> tuple[float, list[list[float]]]:
    """Three pmfs, pairwise epsilon-DP, with that epsilon."""
    size = draw(st.integers(2, 3))
    weights = st.lists(st.integers(1, 50), min_size=size, max_size=size)
    laws = [[w / sum(drawn) for w in drawn] for drawn in (draw(weights) for _ in range(3))]
    ratios = [abs(math.log(p / q)) for a in laws for b in laws for p, q in zip(a, b, strict=True)]
    return max(max(ratios), 1e-3) * (1.0 + 1e-15), laws


@given(
    found=three_laws(),
    rate=st.floats(1e-3, 1.0),
    count=st.integers(1, 4),
    delta=deltas,
    scheme=st.sampled_from(["poisson", "fixed-size"]),
)
@settings(deadline=None, max_examples=25)
def test_replacing_a_sampled_contribution_is_covered_for_all_three_laws(
    found: tuple[float, list[list[float]]],
    rate: float,
    count: int,
    delta: float,
    scheme: SamplingScheme,
) -> None:
    epsilon, (out, one, other) = found
    event = Repeated(event=sampled(pure(epsilon, REPLACE_ONE), rate, scheme), count=count)
    step = (mixture(rate, out, one), mixture(rate, out, other))
    assert covers(event, [step] * count, delta)


@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.7])
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_replacing_is_tight_where_the_left_out_law_is_one_of_the_two(
    rate: float, delta: float
) -> None:
    # For a single release the curve q H(x) is attained by N = B.
    truth = 1.0 / (1.0 + math.exp(-1.0))
    event = sampled(pure(1.0, REPLACE_ONE), rate)
    epsilon = ACCOUNTANT.epsilon(event, delta)
    step = (mixture(rate, (1 - truth, truth), (truth, 1 - truth)), (1 - truth, truth))
    assert exact_delta([step], epsilon) <= delta
    if epsilon > 0.0:
        assert exact_delta([step], epsilon * (1.0 - 1e-4) - 1e-9) > delta


def exact_sampled_response(
    epsilon_each: float, rate: float, count: int, epsilon: float, away: bool
) -> Any:
    """The delta of sampled randomised responses, by the binomial of the outcomes."""
    with mpmath.workdps(50):
        truth = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon_each)))
        out = 1 - truth
        mixed = (1 - mpmath.mpf(rate)) * out + mpmath.mpf(rate) * truth
        p, q = (out, mixed) if away else (mixed, out)
        return binomial_delta(p, q, count, epsilon)


@pytest.mark.parametrize(
    ("rate", "count", "delta"),
    [(0.01, 1000, 1e-5), (0.3, 50, 1e-5), (0.01, 300, 1e-30), (0.9, 20, 1e-2), (1e-3, 200, 1e-9)],
)
def test_sampled_responses_are_within_1e_4_above_the_binomial(
    rate: float, count: int, delta: float
) -> None:
    epsilon = ACCOUNTANT.epsilon(Repeated(event=sampled(pure(1.0), rate), count=count), delta)

    def exact(at: float) -> Any:
        return max(exact_sampled_response(1.0, rate, count, at, away) for away in (True, False))

    assert exact(epsilon) <= delta
    assert exact(epsilon * (1.0 - 5e-5)) > delta


def test_a_thousand_sampled_responses_have_the_known_epsilon() -> None:
    event = Repeated(event=sampled(pure(1.0), 0.01), count=1000)
    assert 0.0 <= ACCOUNTANT.epsilon(event, 1e-5) - 1.278055 <= 1e-4


@pytest.mark.parametrize(
    ("mu", "rate", "count", "delta"),
    [
        (1.0, 0.01, 1000, 1e-5),
        (1.0, 0.01, 1000, 1e-8),
        (0.5, 0.5, 10, 1e-3),
        (1.0, 0.001, 10_000, 1e-6),
    ],
)
def test_sampled_gaussians_agree_with_dp_accounting(
    mu: float, rate: float, count: int, delta: float
) -> None:
    theirs = pld_privacy_accountant.PLDAccountant(
        privacy_accountant.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    theirs.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(1.0 / mu)), count)
    expected = theirs.get_epsilon(delta)
    epsilon = ACCOUNTANT.epsilon(Repeated(event=sampled(gaussian(mu), rate), count=count), delta)
    assert expected - 5e-4 <= epsilon <= expected * (1.0 + 5e-5)


def test_tiny_deltas_of_many_releases_are_between_one_large_loss_and_the_renyi_bound() -> None:
    # One release of a thousand has a loss above 10 with probability 1e-35 or so, two above 5.
    event = Repeated(event=sampled(gaussian(1.0), 0.01), count=1000)
    bound = ACCOUNTANT.delta(event, 10.0)
    assert 1e-36 < bound < 1e-32
    assert ACCOUNTANT.epsilon(event, bound) == pytest.approx(10.0, abs=1e-3)


def test_the_noise_for_epsilon_two_is_the_known_one() -> None:
    def epsilon(stddev: float) -> float:
        return ACCOUNTANT.epsilon(
            Repeated(event=sampled(gaussian(1.0 / stddev), 0.01), count=1000), 1e-5
        )

    assert epsilon(0.9592) <= 2.0 <= epsilon(0.9590)


@pytest.mark.parametrize("away", [True, False])
@pytest.mark.parametrize(("rate", "epsilon"), [(0.1, 0.3), (0.5, 2.0), (0.01, 1.5)])
def test_one_sampled_gaussian_has_the_closed_form_in_mpmath(
    rate: float, epsilon: float, away: bool
) -> None:
    mu = 1.5
    with mpmath.workdps(40):
        q, x = mpmath.mpf(rate), mpmath.exp(mpmath.mpf(epsilon))

        def curve(level: Any) -> Any:
            e = mpmath.log(level)
            return mpmath.ncdf(mu / 2 - e / mu) - level * mpmath.ncdf(-mu / 2 - e / mu)

        towards = q * curve((x - 1 + q) / q)
        scale = 1 - (1 - q) * x
        backwards = scale * curve(q * x / scale) if scale > 0 else mpmath.mpf(0)
    exact = backwards if away else towards
    bound = ACCOUNTANT.delta(sampled(gaussian(mu), rate), epsilon)
    assert exact <= bound
    assert bound <= max(towards, backwards) * (1.0 + 1e-4)


@given(
    mus=st.lists(st.floats(0.01, 3.0), min_size=1, max_size=3),
    delta=st.sampled_from([0.1, 1e-5, 1e-12, 1e-50]),
)
@settings(deadline=None, max_examples=20)
def test_gaussians_next_to_a_response_of_nearly_nothing_are_the_exact_gaussian(
    mus: list[float], delta: float
) -> None:
    event = Composed(events=(*(gaussian(mu) for mu in mus), pure(1e-9)))
    epsilon, mu = ACCOUNTANT.epsilon(event, delta), math.hypot(*mus)
    assert gaussian_delta(mu, epsilon) <= delta * (1.0 + 1e-9)
    if epsilon > 0.0:
        assert gaussian_delta(mu, epsilon * (1.0 - 1e-4) - 1e-7) > delta * (1.0 - 1e-6)


@given(
    epsilons=st.lists(st.floats(0.05, 3.0), min_size=2, max_size=4),
    rate=st.floats(0.01, 1.0),
    delta=deltas,
    reverse=st.booleans(),
)
@settings(deadline=None, max_examples=15)
def test_a_release_of_several_responses_is_composed_before_it_is_sampled(
    epsilons: list[float], rate: float, delta: float, reverse: bool
) -> None:
    event = sampled(Composed(events=tuple(pure(epsilon) for epsilon in epsilons)), rate)
    with mpmath.workdps(50):
        truths = [1 / (1 + mpmath.exp(-mpmath.mpf(epsilon))) for epsilon in epsilons]
        cells = list(itertools.product(*((truth, 1 - truth) for truth in truths)))
        flipped = itertools.product(*((1 - truth, truth) for truth in truths))
        present = [mpmath.fprod(cell) for cell in cells]
        out = [mpmath.fprod(cell) for cell in flipped]
    mixed = mixture(rate, out, present)
    steps = [(out, mixed) if reverse else (mixed, out)]
    assert covers(event, steps, delta)
    epsilon = ACCOUNTANT.epsilon(event, delta)
    other = [(mixed, out) if reverse else (out, mixed)]
    if epsilon > 0.0:
        at = epsilon * (1.0 - 3e-3) - 1e-7  # two or three roundings up, of a part in 4096
        assert max(exact_delta(steps, at), exact_delta(other, at)) > delta


def test_many_responses_in_one_sampled_release_are_covered_by_their_binomial() -> None:
    # d coordinates of a table: the count of truths is binomial under either law.
    count, each, rate, delta = 300, 0.1, 0.05, 1e-6
    event = sampled(Repeated(event=pure(each), count=count), rate)
    epsilon = ACCOUNTANT.epsilon(event, delta)
    with mpmath.workdps(50):
        truth = 1 / (1 + mpmath.exp(-mpmath.mpf(each)))
        present, out = (binomial_law(p, count) for p in (truth, 1 - truth))
    mixed = mixture(rate, out, present)
    for step in ((mixed, out), (out, mixed)):
        assert exact_delta([step], epsilon) <= delta
    assert exact_delta([(mixed, out)], epsilon * (1.0 - 1e-3)) > delta


def test_different_parts_compose_to_at_least_each_and_at_most_their_sum() -> None:
    parts = (
        Repeated(event=sampled(gaussian(1.0), 0.05), count=20),
        Repeated(event=sampled(pure(1.0), 0.1), count=10),
        Repeated(event=pure(0.1), count=5),
        gaussian(0.3),
    )
    together = ACCOUNTANT.epsilon(Composed(events=parts), 1e-5)
    assert together > max(ACCOUNTANT.epsilon(part, 1e-5) for part in parts[:3])
    assert together < RenyiAccountant().epsilon(Composed(events=parts), 1e-5)


@given(
    epsilons=st.lists(st.floats(0.05, 2.0), min_size=2, max_size=3),
    rates=st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3),
    delta=deltas,
)
@settings(deadline=None, max_examples=8)
def test_compositions_of_different_sampled_responses_are_covered_and_close(
    epsilons: list[float], rates: list[float], delta: float
) -> None:
    event = Composed(
        events=tuple(
            sampled(pure(epsilon), rate) for epsilon, rate in zip(epsilons, rates, strict=False)
        )
    )
    steps = []
    for epsilon, rate in zip(epsilons, rates, strict=False):
        truth = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        out = [1 - truth, truth]
        steps.append((mixture(rate, out, [truth, 1 - truth]), out))
    back = [(second, first) for first, second in steps]
    found = ACCOUNTANT.epsilon(event, delta)
    assert max(exact_delta(steps, found), exact_delta(back, found)) <= delta * (1.0 + ROUNDING)
    if found > 0.0:
        at = found * (1.0 - 1e-4) - 1e-7
        assert max(exact_delta(steps, at), exact_delta(back, at)) > delta


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_epsilon_grows_with_the_count_and_the_rate_and_falls_with_delta(
    adjacency: Adjacency,
) -> None:
    def epsilon(count: int, rate: float, delta: float) -> float:
        event = sampled(gaussian(1.0, adjacency), rate)
        return ACCOUNTANT.epsilon(Repeated(event=event, count=count), delta)

    for values in (
        [epsilon(count, 0.05, 1e-5) for count in (1, 2, 5, 20, 100)],
        [epsilon(20, rate, 1e-5) for rate in (1e-3, 0.05, 0.5, 0.99, 1.0)],
        [epsilon(20, 0.05, delta) for delta in (0.1, 1e-3, 1e-7, 1e-20, 1e-100)],
    ):
        assert values == sorted(values)
        assert all(math.isfinite(value) for value in values)


@pytest.mark.parametrize("count", [10**8, 10**12, 2**53])
def test_huge_counts_give_a_sound_bound_or_infinity(count: int) -> None:
    # Each response alone has a loss of mean eps tanh(eps/2): that many cannot be below it.
    event = Repeated(event=pure(1e-3), count=count)
    epsilon = ACCOUNTANT.epsilon(event, 1e-5)
    assert epsilon >= count * 1e-3 * math.tanh(0.5e-3)


@pytest.mark.parametrize("epsilon_each", [1e-6, 1e-3, 30.0, 500.0, 999.0])
@pytest.mark.parametrize("delta", [1e-300, 1e-12, 1e-5])
def test_one_response_of_any_size_is_covered_and_within_a_part_in_1e4(
    epsilon_each: float, delta: float
) -> None:
    epsilon = ACCOUNTANT.epsilon(pure(epsilon_each), delta)
    with mpmath.workdps(1000):
        truth = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon_each)))
        exact = mpmath.log((truth - mpmath.mpf(delta)) / (1 - truth))
        assert exact <= epsilon <= max(exact, 0) * (1.0 + 1e-4) or exact <= 0.0 == epsilon


@pytest.mark.parametrize(
    "event",
    [
        gaussian(1e-12),
        gaussian(1e6),
        pure(1e-300),
        pure(1e9),
        Repeated(event=pure(0.5), count=2**53),
        Repeated(event=Repeated(event=gaussian(1e-3), count=2**53), count=2**53),
    ],
)
@pytest.mark.parametrize("rate", [1e-300, 0.5, 1.0])
def test_extreme_parameters_neither_warn_nor_fail(event: PrivacyEvent, rate: float) -> None:
    for delta in (1e-300, 1e-5, 0.9):
        assert ACCOUNTANT.epsilon(sampled(event, rate), delta) >= 0.0
    for epsilon in (0.0, 1.0, 1e5):
        assert 0.0 <= ACCOUNTANT.delta(sampled(event, rate), epsilon) <= 1.0


def test_deltas_close_to_one_need_no_epsilon() -> None:
    event = Repeated(event=sampled(gaussian(1.0), 0.01), count=100)
    assert ACCOUNTANT.epsilon(event, 0.999) == 0.0
    assert ACCOUNTANT.delta(event, 0.0) < 0.2


def test_many_bits_are_dominated_by_a_gaussian() -> None:
    bits = OneBit(shift=1.0, dimension=50, adjacency=ZERO_OUT)
    mu = math.sqrt(2.0 * math.pi) / 4.0
    one, two = (
        ACCOUNTANT.epsilon(Repeated(event=sampled(part, 0.1), count=30), 1e-5)
        for part in (bits, gaussian(mu))
    )
    assert one == pytest.approx(two, rel=1e-9)
    assert gaussian_delta(mu, ACCOUNTANT.epsilon(bits, 1e-5)) <= 1e-5 * (1.0 + 1e-9)
    assert ACCOUNTANT.delta(bits, 1.0) == pytest.approx(gaussian_delta(mu, 1.0), rel=1e-9)


@pytest.mark.parametrize("shift", denser([0.01, 1.0, 9.0]))
@pytest.mark.parametrize("part", [0.0, 0.3, 0.99])
def test_one_bit_has_the_worst_delta_over_all_logits(shift: float, part: float) -> None:
    epsilon = part * shift
    worst = (math.exp(shift / 2.0) - math.exp(epsilon / 2.0)) ** 2 / math.expm1(shift)
    bit = OneBit(shift=shift, dimension=1, adjacency=ZERO_OUT)
    assert worst * (1.0 - 1e-12) <= ACCOUNTANT.delta(bit, epsilon) <= worst * (1.0 + 1e-2)


def test_shuffled_rounds_compose() -> None:
    event = Shuffled(event=PureDp(epsilon=1.0, adjacency=Adjacency.REPLACE_ONE), clients=1000)
    once, often = (
        ACCOUNTANT.epsilon(Repeated(event=event, count=count), 1e-6) for count in (1, 50)
    )
    assert once == pytest.approx(0.1825, abs=1e-3)
    assert 4.0 * once < often < 50.0 * once


def test_metric_privacy_counts_as_that_of_the_farthest_neighbors() -> None:
    metric = MetricDp(epsilon=0.5, metric="l2", distance=2.0, adjacency=ZERO_OUT)
    assert ACCOUNTANT.epsilon(Repeated(event=metric, count=9), 1e-5) == ACCOUNTANT.epsilon(
        Repeated(event=pure(1.0), count=9), 1e-5
    )


def test_a_release_without_a_guarantee_has_none_unless_it_is_seldom_sampled() -> None:
    bare = NonPrivate(adjacency=ZERO_OUT)
    assert ACCOUNTANT.epsilon(Composed(events=(bare, pure(1.0))), 0.5) == math.inf
    assert ACCOUNTANT.delta(bare, 10.0) == 1.0
    assert ACCOUNTANT.epsilon(sampled(bare, 0.1), 0.05) == math.inf
    assert ACCOUNTANT.epsilon(sampled(bare, 0.1), 0.11) < 0.2


@pytest.mark.parametrize(
    "event",
    [
        ZeroConcentrated(rho=0.1, adjacency=ZERO_OUT),
        RenyiCurve(orders=(2.0,), divergences=(0.1,), adjacency=ZERO_OUT),
        sampled(ZeroConcentrated(rho=0.1, adjacency=ZERO_OUT), 0.1),
        sampled(Composed(events=(pure(1.0), ZeroConcentrated(rho=1.0, adjacency=ZERO_OUT))), 0.1),
    ],
)
def test_events_without_a_pair_are_left_to_renyi(event: PrivacyEvent) -> None:
    with pytest.raises(UnsupportedEventError, match="use renyi"):
        ACCOUNTANT.epsilon(event, 1e-5)


def test_gaussians_alone_are_left_to_the_exact_accountant() -> None:
    with pytest.raises(UnsupportedEventError, match="use gaussian"):
        ACCOUNTANT.epsilon(Repeated(event=gaussian(1.0), count=3), 1e-5)
    sums = SummedBits(shift=1.0, dimension=2, logit_bound=1.0, clients=9, adjacency=ZERO_OUT)
    with pytest.raises(UnsupportedEventError, match="use gaussian"):
        ACCOUNTANT.epsilon(Composed(events=(sums, gaussian(1.0))), 1e-5)


def test_a_secure_sum_beside_other_events_counts_as_gaussian_noise() -> None:
    sums = SummedBits(shift=1.0, dimension=2, logit_bound=0.1, clients=9, adjacency=ZERO_OUT)
    noise = gaussian(gaussian_mu_of_sum(sums))
    found, same = (
        ACCOUNTANT.epsilon(Composed(events=(part, pure(0.5))), 1e-5) for part in (sums, noise)
    )
    assert found == pytest.approx(same, rel=1e-9)


def test_sampled_releases_are_won_by_pld() -> None:
    spent = privacy_spent(Repeated(event=sampled(gaussian(1.0), 0.01), count=1000), 1e-5)
    assert spent.accountant == "pld"
    assert np.isclose(spent.epsilon, 1.8282, atol=2e-4)


@pytest.mark.parametrize("least", [1, 2, 3, 5, 9, 11, 100, 1000, 1025, 1173073])
def test_transforms_are_large_enough_and_hardly_larger(least: int) -> None:
    size = transform_size(least)
    assert size % 2 == 0
    assert max(2, least) <= size <= max(2.0, 4.0 / 3.0 * least + 1.0)


@pytest.mark.parametrize(
    "least",
    [250, 312, 375, *(pytest.param(n, marks=pytest.mark.slow) for n in (1000, 1250, 1500))],
)
def test_transforms_round_no_more_than_is_charged_for(least: int) -> None:
    """Against the sums themselves, in long double, forward and back."""
    size = transform_size(least)
    generator = np.random.default_rng(size)
    values = generator.exponential(size=size) * (generator.random(size) < 0.3)
    places = np.arange(size, dtype=np.int64)
    turns = np.longdouble(8.0) * np.arctan(np.longdouble(1.0)) / size
    exact = np.zeros(size // 2 + 1, dtype=np.clongdouble)
    for frequency in range(size // 2 + 1):
        angles = turns * (places * frequency % size).astype(np.longdouble)
        exact[frequency] = np.sum(values * np.cos(angles)) - 1j * np.sum(values * np.sin(angles))
    found = np.fft.rfft(values)
    allowed = FFT_ROUNDING * np.log2(2 * size)
    worst = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    assert worst <= allowed
    back = np.fft.irfft(found, size)
    assert np.linalg.norm(back - values) <= 2.0 * allowed * np.linalg.norm(values)
