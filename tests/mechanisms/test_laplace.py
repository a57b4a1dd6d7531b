import math

import numpy as np
import pytest

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, L1Ball, L2Ball
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms.laplace import Laplace
from sottovoce.privacy.events import LaplaceNoise, Repeated
from sottovoce.privacy.pure import pure_epsilon

L1 = L1Ball(dimension=128, radius=1.0)


@pytest.mark.parametrize(
    ("epsilon", "error"), [(1, 2.00e-4), (2, 5.00e-5), (3, 2.22e-5), (4, 1.25e-5), (5, 8.0e-6)]
)
def test_mean_estimation_over_ten_thousand_clients_has_the_published_error(
    epsilon: int, error: float
) -> None:
    mechanism = Laplace(input_domain=L1, noise_multiplier=1.0 / epsilon)
    assert pure_epsilon(mechanism.privacy(Adjacency.ZERO_OUT)) == pytest.approx(epsilon)
    law = mechanism.law(np.full(128, 1.0 / 128.0))
    assert float(np.mean(law.variance())) / 1e4 == pytest.approx(error, rel=5e-3)


def test_noise_and_charge_follow_the_domain() -> None:
    ball = Laplace(input_domain=L1Ball(dimension=3, radius=4.0, records=2), noise_multiplier=2.5)
    assert ball.noise_scale == 5.0
    assert ball.noise_stddev == pytest.approx(5.0 * math.sqrt(2.0))
    assert ball.privacy(Adjacency.REPLACE_ONE) == LaplaceNoise(
        shift=2 / 2.5, dimension=1, adjacency=Adjacency.REPLACE_ONE
    )
    euclidean = Laplace(input_domain=L2Ball(dimension=3, radius=4.0), noise_multiplier=2.0)
    assert euclidean.privacy(Adjacency.REPLACE_ONE) == LaplaceNoise(
        shift=1.0, dimension=3, adjacency=Adjacency.REPLACE_ONE
    )
    box = Laplace(input_domain=Box(dimension=3, lower=-1.0, upper=3.0), noise_multiplier=2.0)
    assert box.noise_scale == 8.0
    for adjacency, shift in ((Adjacency.REPLACE_ONE, 0.5), (Adjacency.ZERO_OUT, 3 / 8)):
        event = LaplaceNoise(shift=shift, dimension=1, adjacency=adjacency)
        assert box.privacy(adjacency) == Repeated(event=event, count=3)


def test_a_scalar_under_replace_one_needs_a_variance_of_eight_over_epsilon_squared() -> None:
    # Not 2/epsilon^2, which hides a value in [-1, 1] only against 0.
    box = Box(dimension=1, lower=-1.0, upper=1.0)
    mechanism = Laplace(input_domain=box, noise_multiplier=1.0 / 3.0)
    assert pure_epsilon(mechanism.privacy(Adjacency.REPLACE_ONE)) == pytest.approx(3.0)
    assert mechanism.law([0.5]).variance()[0] == pytest.approx(8.0 / 9.0)


def test_samples_have_the_law_s_mean_and_variance() -> None:
    ball = L1Ball(dimension=40_000, radius=1.0)
    mechanism = Laplace(input_domain=ball, noise_multiplier=2.0)
    noise = mechanism.encode(np.zeros(40_000), SeededRandomness(4).stream("a")).astype(float)
    assert abs(noise.mean()) < 7 * math.sqrt(8.0 / 40_000)
    # The fourth moment of Laplace noise is 24 b^4, so its square has variance 20 b^4.
    assert abs((noise**2).mean() - 8.0) < 7 * math.sqrt(20 * 16 / 40_000)


def test_float_noise_is_labeled() -> None:
    assert Laplace.sampling == "float"


@pytest.mark.parametrize("noise_multiplier", [0.0, -1.0, math.nan, math.inf, 1e13, 1e-6, "2"])
def test_a_noise_multiplier_that_is_none_is_refused(noise_multiplier: float) -> None:
    with pytest.raises(ParameterError, match="noise_multiplier"):
        Laplace(input_domain=L1, noise_multiplier=noise_multiplier)


def test_a_foreign_domain_and_values_outside_are_refused() -> None:
    with pytest.raises(ParameterError, match="L1Ball, an L2Ball or a Box"):
        Laplace(input_domain="ball", noise_multiplier=1.0)  # type: ignore[arg-type]
    mechanism = Laplace(input_domain=L1, noise_multiplier=1.0)
    with pytest.raises(DomainError, match="project"):
        mechanism.encode(np.ones(128), SeededRandomness(1).stream("a"))
