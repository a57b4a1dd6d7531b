import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Domain, L1Ball, L2Ball
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.coordinate_laws import AddedNoise
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.mechanisms.laplace import Laplace
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.noise.laws import ScalarStaircase as ScalarStaircase
from sottovoce.mechanisms.noise.laws import nu_for_variance
from sottovoce.mechanisms.noise.radial_staircase import radial_nu_for_variance
from sottovoce.mechanisms.release import ReleaseTerms
from sottovoce.mechanisms.staircase import Staircase
from sottovoce.privacy import accounting
from sottovoce.privacy.additive_noise import staircase_pair
from sottovoce.privacy.events import FinitePair, PrivacyEvent, PureDp, RenyiCurve, Repeated, Sampled

NUMBER = L2Ball(dimension=1, radius=1.0)
ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE


def _staircase(domain: Any, **changes: Any) -> Staircase:
    given = {"step_epsilon": 1.5, "nu": 0.3, "step_multiplier": 1.0, **changes}
    return Staircase(input_domain=domain, **given)


def test_a_number_is_charged_with_the_exact_law_of_its_loss() -> None:
    for domain in (NUMBER, L1Ball(dimension=1, radius=5.0, records=7)):
        assert _staircase(domain).privacy(ZERO_OUT) == staircase_pair(1.5, 0.3, 1.0, ZERO_OUT)
        wide = _staircase(domain, step_multiplier=2.0)
        assert wide.privacy(REPLACE_ONE) == staircase_pair(1.5, 0.3, 1.0, REPLACE_ONE)
        assert wide.privacy(ZERO_OUT) == staircase_pair(1.5, 0.3, 0.5, ZERO_OUT)


def test_each_step_begun_costs_its_epsilon() -> None:
    narrow = _staircase(NUMBER, step_multiplier=0.8)
    assert narrow.privacy(ZERO_OUT) == PureDp(epsilon=3.0, adjacency=ZERO_OUT)
    assert narrow.privacy(REPLACE_ONE) == PureDp(epsilon=4.5, adjacency=REPLACE_ONE)


def test_every_coordinate_of_a_box_is_a_release() -> None:
    box = Box(dimension=3, lower=-1.0, upper=1.0)
    mechanism = _staircase(box)
    assert mechanism.step == pytest.approx(2.0, rel=1e-11)
    each = staircase_pair(1.5, 0.3, 0.5, ZERO_OUT)
    assert mechanism.privacy(ZERO_OUT) == Repeated(event=each, count=3)
    other = mechanism.privacy(REPLACE_ONE)
    assert other == Repeated(event=staircase_pair(1.5, 0.3, 1.0, REPLACE_ONE), count=3)


def test_neighbors_that_rounding_puts_too_far_apart_stay_within_a_step() -> None:
    """Where the exact width of a box is above its float64, or a mean's rounding adds to a shift."""
    box = Box(dimension=1, lower=-0.1, upper=0.7)
    exact = Fraction(box.upper) - Fraction(box.lower)
    assert exact > Fraction(box.upper - box.lower)
    assert exact < Fraction(_staircase(box).step)
    ball = L1Ball(dimension=3, radius=0.3, records=7)
    assert Fraction(_staircase(ball).step) > Fraction(0.3) / 7 * (1 + Fraction(1, 2**45))
    assert _staircase(box).privacy(REPLACE_ONE) == Repeated(
        event=staircase_pair(1.5, 0.3, 1.0, REPLACE_ONE), count=1
    )


def _log_density(mechanism: Staircase, points: np.ndarray) -> np.ndarray:
    """Of the radial staircase, from its definition; the same constant everywhere."""
    radii = np.abs(points).sum(axis=-1) / mechanism.step
    whole = np.floor(radii)
    lower = radii - whole >= mechanism.nu
    return np.asarray(-mechanism.step_epsilon * (whole + lower))


@pytest.mark.parametrize("dimension", [2, 5])
@pytest.mark.parametrize("step_multiplier", [1.0, 2.0, 0.7])
def test_the_likelihood_ratio_of_vectors_is_within_the_charge(
    dimension: int, step_multiplier: float
) -> None:
    ball = L1Ball(dimension=dimension, radius=1.0)
    mechanism = _staircase(ball, step_multiplier=step_multiplier)
    generator = np.random.default_rng(5)
    outputs = generator.laplace(scale=2.0, size=(20_000, dimension))
    ends = [generator.laplace(size=dimension) for _ in range(20)]
    spikes = [sign * row for row in np.eye(dimension) for sign in (1.0, -1.0)]
    inputs = [v / np.abs(v).sum() for v in ends] + spikes
    logs = [_log_density(mechanism, outputs - one) for one in inputs]
    at_zero = [_log_density(mechanism, outputs)]
    for adjacency in Adjacency:
        event = mechanism.privacy(adjacency)
        assert isinstance(event, PureDp)
        largest = 0.0
        for one, two in itertools.product(logs, at_zero if adjacency is ZERO_OUT else logs):
            largest = max(largest, float(np.abs(one - two).max()))
        assert largest <= event.epsilon * (1.0 + 1e-12)
        assert largest > event.epsilon - mechanism.step_epsilon  # and no step less would do


def _product_renyi(mechanism: Staircase, shifts: list[float], order: float) -> float:
    """D_a between noise and noise shifted by `shifts`: summed over every box of equal densities."""
    noise, log_masses = mechanism.noise, np.zeros(1)
    assert isinstance(noise, ScalarStaircase)
    steps = np.arange(math.ceil(36.0 / noise.epsilon))[:, None]  # beyond lies a mass of e^-36
    levels = (steps + np.array([0.0, noise.nu])).ravel() * noise.step
    for shift in shifts:
        around = np.concatenate([levels, -levels])
        edges = np.unique(np.concatenate([around, around + shift]))
        middles = (edges[1:] + edges[:-1]) / 2.0
        first, second = _log_density_of(noise, middles), _log_density_of(noise, middles - shift)
        along = np.log(np.diff(edges)) + order * first + (1.0 - order) * second
        log_masses = np.add.outer(log_masses, along).ravel()
    return float(np.logaddexp.reduce(log_masses)) / (order - 1.0)


def _log_density_of(noise: ScalarStaircase, points: np.ndarray) -> np.ndarray:
    places = np.abs(points) / noise.step
    whole = np.floor(places)
    b = math.exp(-noise.epsilon)
    top = (1.0 - b) / (2.0 * noise.step * (noise.nu + b * (1.0 - noise.nu)))
    return np.asarray(math.log(top) - noise.epsilon * (whole + (places - whole >= noise.nu)))


@pytest.mark.parametrize(("dimension", "order"), [(2, 2.0), (2, 8.0), (3, 3.0)])
@pytest.mark.parametrize("nu", [0.1, 0.45])
def test_the_charge_of_an_l2_ball_covers_products_and_the_equal_split_attains_it(
    dimension: int, order: float, nu: float
) -> None:
    mechanism = _staircase(
        L2Ball(dimension=dimension, radius=2.0, records=4), nu=nu, step_epsilon=3.0
    )
    event = mechanism.privacy(ZERO_OUT)
    assert isinstance(event, RenyiCurve)
    claimed = dict(zip(event.orders, event.divergences, strict=True))[order]
    generator = np.random.default_rng(3)
    shifts = [np.eye(dimension)[0], *np.abs(generator.normal(size=(3, dimension)))]
    splits = [0.5 * shift / np.linalg.norm(shift) for shift in shifts]
    exact = [_product_renyi(mechanism, split.tolist(), order) for split in splits]
    assert max(exact) <= claimed
    equal = _product_renyi(mechanism, [0.5 / math.sqrt(dimension)] * dimension, order)
    assert equal == pytest.approx(claimed, rel=1e-9)


def test_beyond_one_step_an_l2_ball_is_charged_for_each_step_begun() -> None:
    ball = L2Ball(dimension=2, radius=1.0)
    narrow = _staircase(ball, step_multiplier=0.3)
    event = narrow.privacy(ZERO_OUT)
    assert isinstance(event, PureDp)
    assert event.epsilon == 1.5 * (2 + 5)  # sqrt 2/.3 is 4.7
    for split in ([1.0, 0.0], [math.sqrt(0.5)] * 2, [0.91, 0.4]):
        assert _product_renyi(narrow, split, 40.0) < event.epsilon
    assert isinstance(_staircase(ball).privacy(REPLACE_ONE), PureDp)
    assert isinstance(_staircase(ball, step_multiplier=2.0).privacy(REPLACE_ONE), RenyiCurve)


def _own_records(event: PrivacyEvent, rate: float) -> Sampled:
    return Sampled(event=event, rate=rate, scheme="poisson", hidden_by="own-records")


@pytest.mark.parametrize(("dimension", "least", "most"), [(10**3, 60, 80), (10**6, 1900, 2500)])
@pytest.mark.parametrize("rate", [1.0, 0.05])
def test_an_l2_ball_costs_the_root_of_the_dimension_also_on_samples(
    dimension: int, least: float, most: float, rate: float
) -> None:
    ball = L2Ball(dimension=dimension, radius=1.0)

    def event_of(mechanism: Mechanism) -> PrivacyEvent:
        event = mechanism.privacy(ZERO_OUT)
        return event if rate == 1.0 else _own_records(event, rate)

    spread = {}
    settings = {"staircase": {"nu": "auto", "step_multiplier": 1.0}, "gaussian": {}}
    for kind, given in settings.items():
        registration = registry.find(kind)
        found = registration.calibrated(
            ball, given, rounds=20, epsilon=4.0, delta=1e-5, event_of=event_of
        )
        built = registration.build(ball, found)
        assert isinstance(built, Staircase | Gaussian)
        event = Repeated(event=event_of(built), count=20)
        assert 3.9 < accounting.epsilon(event, 1e-5) <= 4.0
        spread[kind] = built.noise_stddev
    assert least < (spread["staircase"] / spread["gaussian"]) ** 2 < most


def test_only_noise_of_single_coordinates_can_be_drawn_for_each() -> None:
    for domain in (L2Ball(dimension=4, radius=1.0), Box(dimension=4, lower=0.0, upper=1.0)):
        mechanism = _staircase(domain)
        noise = ScalarStaircase(step=mechanism.step, epsilon=1.5, nu=0.3)
        assert mechanism.coordinate_law() == AddedNoise(noise=noise)
    with pytest.raises(ParameterError, match=r"one draw for all coordinates.*'packed'"):
        _staircase(L1Ball(dimension=2, radius=1.0)).coordinate_law()


def test_other_domains_are_refused() -> None:
    with pytest.raises(ParameterError, match="L1Ball"):
        _staircase("ball")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"step_epsilon": 0.0}, "step_epsilon"),
        ({"step_epsilon": 501.0}, "no_privacy"),
        ({"nu": 1.0}, "nu"),
        ({"nu": "auto"}, "nu"),
        ({"step_multiplier": 1e-6}, "step_multiplier"),
        ({"step_multiplier": math.nan}, "step_multiplier"),
    ],
)
def test_parameters_out_of_range_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ParameterError, match=reason):
        _staircase(NUMBER, **change)


def test_values_outside_are_refused() -> None:
    with pytest.raises(DomainError, match="project"):
        _staircase(NUMBER).encode([1.5], SeededRandomness(1).stream("a"))


@pytest.mark.parametrize(
    ("domain", "best"),
    [
        (NUMBER, nu_for_variance(4.0)),
        (Box(dimension=9, lower=0.0, upper=1.0), nu_for_variance(4.0)),
        (L1Ball(dimension=3, radius=1.0), radial_nu_for_variance(4.0, 3)),
    ],
)
def test_auto_is_the_nu_of_least_variance(domain: Domain, best: float) -> None:
    given = {"step_epsilon": 4.0, "nu": "auto", "step_multiplier": 1.0}
    built = registry.find("staircase").build(domain, given)
    assert isinstance(built, Staircase)
    assert built.nu == best
    law = built.law(domain.project(np.zeros(domain.dimension)))
    assert law.variance() == pytest.approx(built.noise_stddev**2)
    # One shot of pure noise: less variance than Laplace noise of the same epsilon.
    laplace = Laplace(input_domain=domain, noise_multiplier=0.25)  # type: ignore[arg-type]
    assert built.noise_stddev < laplace.noise_stddev


def test_calibration_resolves_nu_at_every_step() -> None:
    found = registry.find("staircase").calibrated(
        NUMBER,
        {"nu": "auto", "step_multiplier": 1.0},
        rounds=4,
        epsilon=2.0,
        delta=1e-5,
        event_of=ReleaseTerms(adjacency=ZERO_OUT),
    )
    assert found["nu"] == nu_for_variance(found["step_epsilon"])
    event = registry.find("staircase").build(NUMBER, found).privacy(ZERO_OUT)
    assert isinstance(event, FinitePair)
    assert 1.9999 < accounting.epsilon(Repeated(event=event, count=4), 1e-5) <= 2.0


def test_calibration_in_many_dimensions_stays_where_noise_can_be_drawn() -> None:
    ball = L1Ball(dimension=1000, radius=1.0)
    with pytest.raises(ParameterError, match="not even"):
        registry.find("staircase").calibrated(
            ball,
            {"nu": 0.5, "step_multiplier": 1.0},
            rounds=10**8,
            epsilon=0.5,
            delta=1e-5,
            event_of=ReleaseTerms(adjacency=ZERO_OUT),
        )


def test_samples_on_a_box_have_the_law_s_moments() -> None:
    box = Box(dimension=40_000, lower=0.0, upper=1.0)
    mechanism = _staircase(box)
    noise = mechanism.encode(np.zeros(40_000), SeededRandomness(4).stream("a")).astype(float)
    assert abs(noise.mean()) < 6.0 * mechanism.noise_stddev / 200.0
    assert noise.std() == pytest.approx(mechanism.noise_stddev, rel=0.03)
    assert np.abs(noise).mean() == pytest.approx(mechanism.noise.mean_absolute, rel=0.03)
