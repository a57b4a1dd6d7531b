import numpy as np
import pytest

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms.gaussian import Gaussian


def test_noise_multiplier_is_noise_stddev_over_clip_norm() -> None:
    mechanism = Gaussian(input_domain=L2Ball(dimension=2, radius=4.0), noise_multiplier=2.5)
    assert mechanism.noise_stddev == 10.0
    assert mechanism.privacy(Adjacency.ZERO_OUT).mu == pytest.approx(1 / 2.5)
    assert mechanism.privacy(Adjacency.REPLACE_ONE).mu == pytest.approx(2 / 2.5)


def test_float_noise_is_labeled() -> None:
    assert Gaussian.sampling == "float"


def test_noise_of_different_clients_is_independent() -> None:
    mechanism = Gaussian(input_domain=L2Ball(dimension=20000, radius=1.0), noise_multiplier=1.0)
    randomness = SeededRandomness(0)
    first, second = (mechanism.encode(np.zeros(20000), randomness.stream(c)) for c in (1, 2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.04
