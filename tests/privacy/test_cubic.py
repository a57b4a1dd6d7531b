"""Fair bits against tilted ones: the cubic bound is above every exact delta, and near the best."""

import itertools
import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from cases import thinned
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import ParameterError, UnsupportedEventError
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.privacy import accounting
from sottovoce.privacy.compositions import drop_zero_reference
from sottovoce.privacy.cubic import CubicAccountant, QuinticAccountant, log_bound, power_delta
from sottovoce.privacy.divergences import finite_hockey_stick, gaussian_delta
from sottovoce.privacy.events import (
    Composed,
    GaussianNoise,
    LaplaceNoise,
    OneBit,
    PrivacyEvent,
    Repeated,
    Sampled,
    ZeroConcentrated,
    basic_counts,
)
from sottovoce.privacy.pld import PldAccountant
from sottovoce.privacy.renyi import RenyiAccountant
from sottovoce.protocol.channels.channel import Direct, terms_of

ZERO_OUT = Adjacency.ZERO_OUT
CUBIC, QUINTIC = CubicAccountant(), QuinticAccountant()
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
    assert (
        both_deltas(np.array(tilts), epsilon) <= power_delta(mu, epsilon, 3) * (1 + 1e-12) + 1e-15
    )


@pytest.mark.parametrize(
    ("dimension", "mu"), thinned([2, 5, 20, 100, 1000, 100_000], [0.05, 0.3, 1.0, 3.0])
)
def test_equal_tilts_lie_below_it_far_into_the_tail(dimension: int, mu: float) -> None:
    tilt = mu / math.sqrt(dimension)
    heads = np.arange(dimension + 1)
    losses = tilt * (2 * heads - dimension) - dimension * math.log(math.cosh(tilt))
    towards = stats.binom.pmf(heads, dimension, 1.0 / (1.0 + math.exp(-2.0 * tilt)))
    away = stats.binom.pmf(heads, dimension, 0.5)
    for epsilon in np.linspace(0.0, mu * mu / 2.0 + 7.0 * mu, 15):
        exact = max(
            float(towards @ -np.expm1(np.minimum(0.0, epsilon - losses))),
            float(away @ -np.expm1(np.minimum(0.0, epsilon + losses))),
        )
        assert exact <= power_delta(mu, epsilon, 3)


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
            assert max(towards, away) <= power_delta(mu, epsilon, 3)


def test_bits_next_to_gaussian_noise_lie_below_it() -> None:
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


@given(data=st.data(), epsilon=st.floats(0.0, 6.0), rounds=st.integers(1, 2))
def test_no_bits_of_any_logits_exceed_the_fifth_power_bound(
    data: st.DataObject, epsilon: float, rounds: int
) -> None:
    """Both orders; the second release's logits and moves are chosen by what was seen."""
    move = st.lists(st.floats(-1.5, 1.5), min_size=2, max_size=2)
    moves = [np.array(data.draw(move)) for _ in range(1 + 4 * (rounds - 1))]
    bases = [np.array(data.draw(st.lists(st.floats(-3, 3), min_size=2, max_size=2))) for _ in moves]
    first, second = pair_of(bases[0], moves[0])
    square = float(moves[0] @ moves[0])
    if rounds == 2:
        later = [pair_of(base, step) for base, step in zip(bases[1:], moves[1:], strict=True)]
        first = np.concatenate([p * law for p, (law, _) in zip(first, later, strict=True)])
        second = np.concatenate([q * law for q, (_, law) in zip(second, later, strict=True)])
        square += max(float(step @ step) for step in moves[1:])
    if square < 1e-12:
        return
    exact = max(
        finite_hockey_stick(first, second, epsilon), finite_hockey_stick(second, first, epsilon)
    )
    assert exact <= power_delta(math.sqrt(square), epsilon, 5) * (1 + 1e-12) + 1e-15


def pair_of(base: np.ndarray, move: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The laws of bits with half-logits `base` + `move`, and `base`."""
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=len(base))))
    first, second = (
        np.prod(1.0 / (1.0 + np.exp(-2.0 * signs * z)), axis=1) for z in (base + move, base)
    )
    return first, second


def test_laplace_noise_on_many_coordinates_is_covered_by_fifth_powers() -> None:
    """Exact loss laws of equal and unequal splits; nearer to them than the Renyi bound."""
    for shift, dimension in ((0.3, 1), (1.0, 3), (2.0, 40), (0.5, 400)):
        whole = LaplaceNoise(shift=shift, dimension=dimension, adjacency=ZERO_OUT)
        claimed = QuinticAccountant().epsilon(whole, 1e-5)
        for share in (1.0, 0.5):
            # half the square on one coordinate, or none
            first = shift * math.sqrt(1.0 - share)
            each = shift * math.sqrt(share / dimension)
            parts: list[PrivacyEvent] = [
                Repeated(
                    event=LaplaceNoise(shift=each, dimension=1, adjacency=ZERO_OUT),
                    count=dimension,
                )
            ]
            if first > 0.0:
                parts.append(LaplaceNoise(shift=first, dimension=1, adjacency=ZERO_OUT))
            exact = PldAccountant().epsilon(Composed(events=tuple(parts)), 1e-5)
            assert exact <= claimed * (1.0 + 1e-4)
        if dimension >= 400:
            assert claimed < RenyiAccountant().epsilon(whole, 1e-5)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.5, 2.07600), (1.0, 4.54900), (2.0, 10.36626)])
@pytest.mark.parametrize("adjacency", [ZERO_OUT, Adjacency.REPLACE_ONE])
def test_bits_of_any_logits_cost_four_percent_more_than_gaussian_noise(
    mu: float, epsilon: float, adjacency: Adjacency
) -> None:
    """A second implementation's values, at delta 1e-5; `shift` is twice mu, between neighbors."""
    event = OneBit(shift=2.0 * mu, dimension=10**6, adjacency=adjacency)
    assert QUINTIC.epsilon(event, 1e-5) == pytest.approx(epsilon, abs=1e-5)
    spent = accounting.privacy_spent(Repeated(event=event, count=1), 1e-5)
    assert spent.accountant == "quintic"
    beside = Composed(events=(event, GaussianNoise(mu=0.1, adjacency=adjacency)))
    assert QUINTIC.delta(beside, 1.0) == power_delta(math.hypot(mu, 0.1) * (1 + 2.0**-48), 1.0, 5)


@given(st.floats(-4.0, 4.0), st.floats(1e-2, 3.0), st.floats(-8.0, 8.0))
def test_the_lemma_of_fifth_powers_holds_at_every_base(
    base: float, move: float, place: float
) -> None:
    """E (L - t)_+^5 <= E (N(z^2/2, z^2) - t)_+^5 for one bit: the step of the induction."""
    (_, p), (_, q) = pair_of(np.array([base]), np.array([move]))
    losses = (math.log1p(-p) - math.log1p(-q), math.log(p) - math.log(q))
    threshold = move * move / 2.0 + place * move
    exact = sum(
        chance * max(0.0, loss - threshold) ** 5
        for chance, loss in zip((1.0 - p, p), losses, strict=True)
    )
    z = mpmath.mpf(place)
    polynomial = z * (z**4 + 10 * z**2 + 15)
    gaussian = (z**4 + 9 * z**2 + 8) * mpmath.npdf(z) - polynomial * mpmath.ncdf(-z)
    assert exact <= float(mpmath.mpf(move) ** 5 * gaussian) * (1.0 + 1e-9) + 1e-12


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


@given(st.floats(-8.0, 2.0), st.floats(1e-3, 8.0), st.floats(-30.0, 30.0), st.sampled_from([3, 5]))
def test_rounding_is_upward_around_every_cancellation(
    exponent: float, y: float, place: float, power: int
) -> None:
    mu = 10.0**exponent
    epsilon = power * math.expm1(y) - y + place * mu
    if epsilon >= 0.0:
        assert excess_of(mu, epsilon, y, power) >= 0.0


@given(st.floats(1e-3, 50.0), st.floats(-3.0, 60.0), st.floats(1e-3, 8.0), st.sampled_from([3, 5]))
def test_it_is_what_the_formula_says_in_60_digits(
    mu: float, place: float, y: float, power: int
) -> None:
    """log(b mu^k I(z)), never below, and hardly above but where I(z) nearly cancels."""
    epsilon = max(0.0, mu * mu / 2.0 + place * mu)
    z = (epsilon + y - power * math.expm1(y)) / mu - mu / 2.0
    reach = (epsilon + y + power * math.expm1(y)) / mu + mu
    allowed = 1e-6 + 2.0**-39 * (1.0 + reach * (abs(z) + 3.0))
    if z > 3.0:
        allowed += 1e-14 * z ** (2 * power) if z < 20.0 else 1e4 / z**6
    assert 0.0 <= excess_of(mu, epsilon, y, power) <= allowed


def excess_of(mu: float, epsilon: float, y: float, power: int = 3) -> float:
    """What `log_bound` has more than the formula, in 60 digits."""
    with mpmath.workdps(60):
        growth = mpmath.expm1(mpmath.mpf(y))
        z = (epsilon + mpmath.mpf(y) - power * growth) / mpmath.mpf(mu) - mpmath.mpf(mu) / 2
        before, moment = mpmath.ncdf(-z), mpmath.npdf(z) - z * mpmath.ncdf(-z)
        for k in range(2, power + 1):  # I_k = (k-1) I_(k-2) - z I_(k-1)
            before, moment = moment, (k - 1) * before - z * moment
        log_b = -y - power * mpmath.log(power) - (power - 1) * mpmath.log(growth)
        exact = log_b + power * mpmath.log(mu) + mpmath.log(moment)
        return float(mpmath.mpf(log_bound(mu, epsilon, y, power)) - exact)


@pytest.mark.parametrize("k", [3, 5])
def test_the_power_lies_above_what_delta_weighs(k: int) -> None:
    """(1 - e^-u)_+ <= b (u + g)_+^k with equality at y."""
    for y in np.geomspace(1e-3, 8.0, 30):
        b = math.exp(-y) * math.expm1(y) ** (1 - k) / k**k
        g = k * math.expm1(y) - y
        u = np.concatenate((np.linspace(0.0, 50.0, 5001), [y]))
        above = b * (u + g) ** k + np.expm1(-u)
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
    assert power_delta(mu, epsilon, 3) == pytest.approx(least, rel=1e-3)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 6.0, 10.0, 20.0])
def test_it_is_nearer_to_gaussian_noise_than_the_renyi_bound(epsilon: float) -> None:
    """What they cost in mu at delta 1e-5: at most 3.1% here, at least 4.9% there."""

    def largest_mu(spent: object) -> float:
        low, high = 1e-3, 10.0
        for _ in range(22):
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


def test_it_is_refused_where_neither_neighbor_need_be_zero() -> None:
    with pytest.raises(ParameterError, match="zero-out"):
        OneBit(shift=1.0, dimension=3, adjacency=Adjacency.REPLACE_ONE, against_zero=True)
    plain = OneBit(shift=1.0, dimension=3, adjacency=ZERO_OUT)
    with pytest.raises(UnsupportedEventError, match="renyi"):
        CUBIC.epsilon(plain, 1e-5)
    sampled = Sampled(event=bits(1.0, 3), rate=0.1, scheme="poisson", hidden_by="own-records")
    with pytest.raises(UnsupportedEventError, match="moments"):
        CUBIC.epsilon(sampled, 1e-5)
    sampled = replace(sampled, rate=0.9)
    assert CUBIC.epsilon(sampled, 1e-5) == CUBIC.epsilon(bits(1.0, 3), 1e-5)  # sampled or not
    with pytest.raises(UnsupportedEventError, match="cubic"):
        QUINTIC.epsilon(sampled, 1e-5)
    with pytest.raises(UnsupportedEventError, match="renyi"):
        QUINTIC.epsilon(ZeroConcentrated(rho=1.0, adjacency=ZERO_OUT), 1e-5)
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
    charged = terms_of(Direct(), ZERO_OUT, record_sampling_rate=0.1)(mechanism)
    assert isinstance(charged, Sampled)
    alone = mechanism.privacy(ZERO_OUT)
    assert isinstance(alone, OneBit)
    assert charged.event == replace(alone, against_zero=False)
    flagged = Composed(events=(Repeated(event=bits(1.0, 3), count=2), bits(2.0, 3)))
    parts = basic_counts(drop_zero_reference(flagged))
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
