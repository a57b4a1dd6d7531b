import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from sottovoce.adjacency import Adjacency
from sottovoce.domains import Box, Domain, L1Ball, L2Ball
from sottovoce.errors import DomainError, ParameterError
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.mechanisms.laplace import Laplace
from sottovoce.mechanisms.staircase import Staircase
from sottovoce.noises.radial_staircase import radial_nu_for_variance
from sottovoce.noises.staircase import nu_for_variance
from sottovoce.privacy import accounting
from sottovoce.privacy.events import FinitePair, PureDp, Repeated
from sottovoce.privacy.staircase import staircase_pair
from sottovoce.randomness import SeededRandomness

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


def test_neighbours_that_rounding_puts_too_far_apart_stay_within_a_step() -> None:
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
    for adjacency in Adjacency:
        event = mechanism.privacy(adjacency)
        assert isinstance(event, PureDp)
        largest = 0.0
        others = [np.zeros(dimension)] if adjacency is ZERO_OUT else inputs
        for one, two in itertools.product(inputs, others):
            losses = _log_density(mechanism, outputs - one) - _log_density(mechanism, outputs - two)
            largest = max(largest, float(np.abs(losses).max()))
        assert largest <= event.epsilon * (1.0 + 1e-12)
        assert largest > event.epsilon - mechanism.step_epsilon  # and no step less would do


def test_many_coordinates_in_an_l2_ball_are_refused_and_what_to_use_is_named() -> None:
    with pytest.raises(ParameterError, match="'gaussian' or 'laplace', or clip in l1 or linf"):
        _staircase(L2Ball(dimension=2, radius=1.0))
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
    assert built.mean_absolute_noise < laplace.mean_absolute_noise


def test_calibration_resolves_nu_at_every_step() -> None:
    found = registry.find("staircase").calibrated(
        NUMBER,
        {"nu": "auto", "step_multiplier": 1.0},
        rounds=4,
        epsilon=2.0,
        delta=1e-5,
        event_of=registry.seen(ZERO_OUT),
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
            event_of=registry.seen(ZERO_OUT),
        )


def test_samples_on_a_box_have_the_law_s_moments() -> None:
    box = Box(dimension=40_000, lower=0.0, upper=1.0)
    mechanism = _staircase(box)
    noise = mechanism.encode(np.zeros(40_000), SeededRandomness(4).stream("a")).astype(float)
    assert abs(noise.mean()) < 6.0 * mechanism.noise_stddev / 200.0
    assert noise.std() == pytest.approx(mechanism.noise_stddev, rel=0.03)
    assert np.abs(noise).mean() == pytest.approx(mechanism.mean_absolute_noise, rel=0.03)


def test_the_mean_absolute_noise_of_the_others() -> None:
    ball = L2Ball(dimension=3, radius=2.0)
    gaussian = Gaussian(input_domain=ball, noise_multiplier=1.5)
    assert gaussian.mean_absolute_noise == pytest.approx(3.0 * math.sqrt(2.0 / math.pi))
    laplace = Laplace(input_domain=ball, noise_multiplier=1.5)
    assert laplace.mean_absolute_noise == pytest.approx(3.0)
