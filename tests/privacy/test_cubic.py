"""Fair bits against tilted ones: the cubic bound is above every exact delta, and near the best."""

import itertools
import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sottovoce.adjacency import Adjacency
from sottovoce.channels.channel import Direct
from sottovoce.domains import L2Ball
from sottovoce.errors import ParameterError, UnsupportedEventError
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.privacy import accounting
from sottovoce.privacy.compositions import beside_others
from sottovoce.privacy.cubic import CubicAccountant, cubic_delta, log_bound
from sottovoce.privacy.divergences import finite_hockey_stick, gaussian_delta
from sottovoce.privacy.events import (
    Composed,
    GaussianNoise,
    OneBit,
    Repeated,
    Sampled,
    basic_counts,
)
from sottovoce.privacy.renyi import RenyiAccountant
from sottovoce.rounds.plan import charged_event

ZERO_OUT = Adjacency.ZERO_OUT
CUBIC = CubicAccountant()
SIGNS = np.array(list(itertools.product((-1.0, 1.0), repeat=3)))


def bits(mu: float, dimension: int) -> OneBit:
    return OneBit(shift=2.0 * mu, dimension=dimension, adjacency=ZERO_OUT, against_zero=True)


def both_deltas(tilts: np.ndarray, epsilon: float) -> float:
    """The exact delta of independent bits with these tilts against fair ones, by enumeration."""
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=len(tilts))))
    tilted = np.prod(1.0 / (1.0 + np.exp(-2.0 * signs * tilts)), axis=1)
    fair = np.full(len(signs), 0.5 ** len(tilts))
    return max(
        finite_hockey_stick(tilted, fair, epsilon), finite_hockey_stick(fair, tilted, epsilon)
    )


@given(
    st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=9),
    st.floats(0.0, 8.0),
)
def test_no_split_of_the_tilts_exceeds_the_bound(tilts: list[float], epsilon: float) -> None:
    mu = float(np.linalg.norm(tilts))
    if mu < 1e-6:
        return
    assert both_deltas(np.array(tilts), epsilon) <= cubic_delta(mu, epsilon) * (1 + 1e-12) + 1e-15


@pytest.mark.parametrize("dimension", [2, 5, 20, 100, 1000, 100_000])
@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0, 3.0])
def test_equal_tilts_lie_below_it_far_into_the_tail(dimension: int, mu: float) -> None:
    tilt = mu / math.sqrt(dimension)
    heads = np.arange(dimension + 1)
    losses = tilt * (2 * heads - dimension) - dimension * math.log(math.cosh(tilt))
    for epsilon in np.linspace(0.0, mu * mu / 2.0 + 7.0 * mu, 15):
        towards = stats.binom.pmf(heads, dimension, 1.0 / (1.0 + math.exp(-2.0 * tilt)))
        away = stats.binom.pmf(heads, dimension, 0.5)
        exact = max(
            float(towards @ -np.expm1(np.minimum(0.0, epsilon - losses))),
            float(away @ -np.expm1(np.minimum(0.0, epsilon + losses))),
        )
        assert exact <= cubic_delta(mu, epsilon)


def test_two_releases_chosen_by_what_was_seen_lie_below_it() -> None:
    """An adversary puts the second release's tilt where the first one's bits look bad."""
    generator = np.random.default_rng(5)
    for _ in range(200):
        first = generator.normal(size=3)
        first *= generator.uniform(0.1, 1.5) / np.linalg.norm(first)
        budget = float(generator.uniform(0.1, 1.5))
        mu = math.hypot(float(np.linalg.norm(first)), budget)
        seconds = generator.normal(size=(20, 3)) * generator.integers(0, 2, size=(20, 3))
        seconds[0] = 1.0
        lengths = np.linalg.norm(seconds, axis=1, keepdims=True)
        seconds *= generator.uniform(0.0, budget, size=(20, 1)) / np.maximum(lengths, 1e-9)
        laws = 1.0 / (1.0 + np.exp(-2.0 * SIGNS[None] * seconds[:, None])).prod(axis=2)
        for epsilon in (0.0, 0.5, 1.0, 2.0, 4.0):
            towards = away = 0.0
            for signs in SIGNS:
                chance = float(np.prod(1.0 / (1.0 + np.exp(-2.0 * signs * first))))
                # Whatever is the worst second release after what was seen.
                gaps = chance * laws - math.exp(epsilon) * 0.5**6
                towards += float(np.maximum(0.0, gaps).sum(axis=1).max())
                gaps = 0.5**6 - math.exp(epsilon) * chance * laws
                away += float(np.maximum(0.0, gaps).sum(axis=1).max())
            assert max(towards, away) <= cubic_delta(mu, epsilon)


def test_bits_beside_gaussian_noise_lie_below_it() -> None:
    """A bit and a Gaussian release: the loss is a mixture of two normals."""
    for tilt, mu in ((0.4, 0.3), (1.0, 0.5), (0.2, 1.0), (2.0, 0.1)):
        event = Composed(
            events=(bits(tilt, 1), GaussianNoise(mu=mu, adjacency=ZERO_OUT)),
        )
        for epsilon in (0.1, 0.5, 1.0, 2.0, 3.0):
            heads = 1.0 / (1.0 + math.exp(-2.0 * tilt))
            shift = math.log(math.cosh(tilt))
            towards = heads * gaussian_delta(mu, epsilon - tilt + shift)
            towards += (1.0 - heads) * gaussian_delta(mu, epsilon + tilt + shift)
            away = 0.5 * gaussian_delta(mu, epsilon - tilt - shift)
            away += 0.5 * gaussian_delta(mu, epsilon + tilt - shift)
            assert max(towards, away) <= CUBIC.delta(event, epsilon)


@given(st.floats(-6.0, 6.0), st.floats(-12.0, 12.0))
def test_the_lemma_each_bit_is_below_its_gaussian(tilt: float, place: float) -> None:
    """E (L - t)_+^3 <= E (N(a^2/2, a^2) - t)_+^3, in both directions."""
    size = abs(tilt)
    if size < 1e-3:
        return
    threshold = size * size / 2.0 + place * size
    centre = math.log(math.cosh(size))
    lose, win = -size - centre, size - centre
    chance = 1.0 / (1.0 + math.exp(-2.0 * size))

    def cube(value: float) -> float:
        return max(0.0, value - threshold) ** 3

    towards = chance * cube(win) + (1.0 - chance) * cube(lose)
    away = 0.5 * cube(-win) + 0.5 * cube(-lose)
    z = mpmath.mpf(place)
    gaussian = float(
        mpmath.mpf(size) ** 3 * ((z * z + 2) * mpmath.npdf(z) - z * (z * z + 3) * mpmath.ncdf(-z))
    )
    assert max(towards, away) <= gaussian * (1.0 + 1e-9) + 1e-12


def test_rounding_is_upward_also_where_much_cancels() -> None:
    """Large parts of z may cancel; these two came out below the truth once."""
    for mu, epsilon, y in (
        (1.229527709306449e-08, 6932.7325104790125, 7.746946001762387),
        (9.56e-8, 0.0020017, 1.0005e-3),
    ):
        assert excess_of(mu, epsilon, y) >= 0.0


@given(st.floats(-8.0, 2.0), st.floats(1e-3, 8.0), st.floats(-30.0, 30.0))
def test_rounding_is_upward_around_every_cancellation(
    exponent: float, y: float, place: float
) -> None:
    mu = 10.0**exponent
    epsilon = 3.0 * math.expm1(y) - y + place * mu
    if epsilon >= 0.0:
        assert excess_of(mu, epsilon, y) >= 0.0


@given(st.floats(1e-3, 50.0), st.floats(-3.0, 60.0), st.floats(1e-3, 8.0))
def test_it_is_what_the_formula_says_in_60_digits(mu: float, place: float, y: float) -> None:
    """log(b mu^3 I(z)), never below, and hardly above but where I(z) is bounded by 6 phi(z)/z^4."""
    epsilon = max(0.0, mu * mu / 2.0 + place * mu)
    z = (epsilon + y - 3.0 * math.expm1(y)) / mu - mu / 2.0
    reach = (epsilon + y + 3.0 * math.expm1(y)) / mu + mu
    allowed = 0.03 if z >= 19.9 else 1e-6 + 2.0**-39 * (1.0 + reach * (abs(z) + 3.0))
    assert 0.0 <= excess_of(mu, epsilon, y) <= allowed


def excess_of(mu: float, epsilon: float, y: float) -> float:
    """What `log_bound` has more than the formula, in 60 digits."""
    with mpmath.workdps(60):
        growth = mpmath.expm1(mpmath.mpf(y))
        z = (epsilon + mpmath.mpf(y) - 3 * growth) / mpmath.mpf(mu) - mpmath.mpf(mu) / 2
        third = (z * z + 2) * mpmath.npdf(z) - z * (z * z + 3) * mpmath.ncdf(-z)
        log_b = -y - mpmath.log(27) - 2 * mpmath.log(growth)
        exact = log_b + 3 * mpmath.log(mu) + mpmath.log(third)
        return float(mpmath.mpf(log_bound(mu, epsilon, y)) - exact)


def test_the_cubic_lies_above_what_delta_weighs() -> None:
    """(1 - e^-u)_+ <= b (u + g)_+^3 with equality at y."""
    for y in np.geomspace(1e-3, 8.0, 30):
        b = math.exp(-y) / (27.0 * math.expm1(y) ** 2)
        g = 3.0 * math.expm1(y) - y
        u = np.concatenate((np.linspace(0.0, 50.0, 5001), [y]))
        above = b * (u + g) ** 3 + np.expm1(-u)
        assert above.min() >= -1e-12
        assert above[-1] == pytest.approx(0.0, abs=1e-12)


def test_the_bound_is_an_expectation_of_that_cubic() -> None:
    mu, epsilon = 0.7, 3.0
    x = np.linspace(mu * mu / 2.0 - 12.0 * mu, mu * mu / 2.0 + 12.0 * mu, 20_001)
    weights = stats.norm.pdf(x, mu * mu / 2.0, mu) * (x[1] - x[0])
    least = math.inf
    for y in np.geomspace(0.01, 3.0, 300):
        b = math.exp(-y) / (27.0 * math.expm1(y) ** 2)
        start = epsilon + y - 3.0 * math.expm1(y)
        least = min(least, float(weights @ (b * np.maximum(0.0, x - start) ** 3)))
    assert cubic_delta(mu, epsilon) == pytest.approx(least, rel=1e-3)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 6.0, 10.0, 20.0])
def test_it_is_nearer_to_gaussian_noise_than_the_renyi_bound(epsilon: float) -> None:
    """What they cost in mu at delta 1e-5: at most 3.1% here, at least 4.9% there."""

    def largest_mu(spent: object) -> float:
        low, high = 1e-3, 10.0
        for _ in range(40):
            middle = (low + high) / 2.0
            low, high = (middle, high) if spent(middle) <= epsilon else (low, middle)  # type: ignore[operator]
        return low

    by_cubic = largest_mu(lambda mu: CUBIC.epsilon(bits(mu, 10**9), 1e-5))
    by_renyi = largest_mu(lambda mu: RenyiAccountant().epsilon(bits(mu, 10**9), 1e-5))
    exact = largest_mu(
        lambda mu: accounting.epsilon(GaussianNoise(mu=mu, adjacency=ZERO_OUT), 1e-5)
    )
    assert by_renyi < by_cubic < exact
    assert exact / by_cubic < 1.031
    assert exact / by_renyi > 1.049


def test_epsilon_is_where_delta_falls_to_its_target() -> None:
    event = Repeated(event=bits(0.2, 1000), count=7)
    epsilon = CUBIC.epsilon(event, 1e-6)
    assert CUBIC.delta(event, epsilon) <= 1e-6
    assert CUBIC.delta(event, epsilon * (1 - 1e-6)) > 1e-6


def test_what_counts_is_the_smallest_of_all_bounds() -> None:
    spent = accounting.privacy_spent(bits(0.7, 1000), 1e-5)
    assert spent.accountant == "cubic"
    assert {"renyi", "zcdp", "cubic"} <= {name for name, _ in spent.bounds}


def test_it_is_refused_where_neither_neighbour_need_be_zero() -> None:
    with pytest.raises(ParameterError, match="zero-out"):
        OneBit(shift=1.0, dimension=3, adjacency=Adjacency.REPLACE_ONE, against_zero=True)
    plain = OneBit(shift=1.0, dimension=3, adjacency=ZERO_OUT)
    with pytest.raises(UnsupportedEventError, match="renyi"):
        CUBIC.epsilon(plain, 1e-5)
    sampled = Sampled(event=bits(1.0, 3), rate=0.1, scheme="poisson", hidden_by="own-records")
    with pytest.raises(UnsupportedEventError, match="renyi"):
        CUBIC.epsilon(sampled, 1e-5)
    with pytest.raises(UnsupportedEventError, match="gaussian"):
        CUBIC.epsilon(GaussianNoise(mu=1.0, adjacency=ZERO_OUT), 1e-5)


def test_a_mean_of_records_is_not_compared_with_zero() -> None:
    """At sample level the other records tilt both neighbours' bits."""
    own = GaussHermite(input_domain=L2Ball(dimension=4, radius=1.0), noise_multiplier=1.0, levels=2)
    mean = GaussHermite(
        input_domain=L2Ball(dimension=4, radius=1.0, records=5), noise_multiplier=1.0, levels=2
    )
    events = own.privacy(ZERO_OUT), mean.privacy(ZERO_OUT), own.privacy(Adjacency.REPLACE_ONE)
    assert [isinstance(one, OneBit) and one.against_zero for one in events] == [True, False, False]


def test_a_message_with_sampled_records_is_not_compared_with_zero() -> None:
    """One record is expected, and more may come."""
    mechanism = GaussHermite(
        input_domain=L2Ball(dimension=4, radius=1.0), noise_multiplier=1.0, levels=2
    )
    charged = charged_event(Direct(), mechanism, ZERO_OUT, 0.1)
    assert isinstance(charged, Sampled)
    alone = mechanism.privacy(ZERO_OUT)
    assert isinstance(alone, OneBit)
    assert charged.event == replace(alone, against_zero=False)
    flagged = Composed(events=(Repeated(event=bits(1.0, 3), count=2), bits(2.0, 3)))
    parts = basic_counts(beside_others(flagged))
    assert [isinstance(part, OneBit) and part.against_zero for part in parts] == [False, False]


def test_the_flag_is_true_or_false() -> None:
    with pytest.raises(ParameterError, match="true or false"):
        OneBit(shift=1.0, dimension=3, adjacency=ZERO_OUT, against_zero=1)  # type: ignore[arg-type]


def test_between_tilted_bits_the_comparison_fails() -> None:
    """Why fairness is asked for: E (L - t)_+^3 of a bit that is tilted either way is larger."""
    shift, logit = 0.5, -0.35  # P(1) = sigma(logit) against sigma(logit - shift)
    p, q = (1.0 / (1.0 + math.exp(-z)) for z in (logit, logit - shift))
    win, lose = math.log(p / q), math.log((1.0 - p) / (1.0 - q))
    mu = shift / 2.0
    worst = 0.0
    for place in np.linspace(-2.0, 2.0, 401):
        threshold = mu * mu / 2.0 + place * mu
        exact = p * max(0.0, win - threshold) ** 3 + (1 - p) * max(0.0, lose - threshold) ** 3
        third = (place**2 + 2) * stats.norm.pdf(place) - place * (place**2 + 3) * stats.norm.sf(
            place
        )
        worst = max(worst, exact - mu**3 * third)
    assert worst > 0.0
