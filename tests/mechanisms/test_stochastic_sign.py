import math

import numpy as np
import pytest

from sottovoce.auditing.law_divergences import renyi_of
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, L1Ball, L2Ball
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms.stochastic_sign import StochasticSign
from sottovoce.privacy.renyi import renyi_divergence

BALL = L2Ball(dimension=4, radius=1.0)


def test_one_bit_decodes_to_the_noise_times_root_half_pi() -> None:
    mechanism = StochasticSign(
        input_domain=L2Ball(dimension=2, radius=4.0, records=2), noise_multiplier=3.0
    )
    assert mechanism.noise_stddev == 6.0
    assert mechanism.code_format().payload_bits(2) == 2
    magnitude = 6.0 * math.sqrt(math.pi / 2.0)
    assert mechanism.decode(np.array([0, 1], dtype=np.uint8)) == pytest.approx(
        [-magnitude, magnitude]
    )


def test_the_declared_bias_is_cubic() -> None:
    # sigma sqrt(pi/2) erf(x / (sigma sqrt 2)) = x - x^3/(6 sigma^2) + x^5/(40 sigma^4) - ...
    mechanism = StochasticSign(input_domain=BALL, noise_multiplier=2.0)
    values = np.array([0.2, -0.1, 0.5, 0.0])
    bias = mechanism.law(values).mean() - values
    assert bias == pytest.approx(-(values**3) / 24.0 + values**5 / 640.0, abs=1e-6)


def test_samples_follow_the_declared_mean() -> None:
    mechanism = StochasticSign(input_domain=BALL, noise_multiplier=1.0)
    values = np.array([0.9, -0.3, 0.1, 0.0])
    law = mechanism.law(values)
    randomness = SeededRandomness(5)
    samples = 4000
    total = np.zeros(4)
    for n in range(samples):
        total += mechanism.decode(mechanism.encode(values, randomness.stream(n)))
    errors = (total / samples - law.mean()) / np.sqrt(law.variance() / samples)
    assert np.abs(errors).max() < 7.0


def test_its_own_divergence_is_well_below_the_gaussian_s_it_is_charged_for() -> None:
    mechanism = StochasticSign(input_domain=L2Ball(dimension=1, radius=1.0), noise_multiplier=10.0)
    (exact,) = renyi_of(mechanism.law([1.0]), mechanism.law([0.0]), [2.0])
    charged = renyi_divergence(mechanism.privacy(Adjacency.ZERO_OUT), 2.0)
    assert exact / charged == pytest.approx(2.0 / math.pi, rel=0.01)


def test_float_noise_is_labeled() -> None:
    assert StochasticSign.sampling == "float"


@pytest.mark.parametrize(
    "domain", [L1Ball(dimension=4, radius=1.0), Box(dimension=4, lower=-1.0, upper=1.0)]
)
def test_only_a_euclidean_ball_will_do(domain: L1Ball | Box) -> None:
    with pytest.raises(ParameterError, match="L2Ball"):
        StochasticSign(input_domain=domain, noise_multiplier=1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("noise_multiplier", [0.0, -1.0, math.nan, math.inf])
def test_a_noise_multiplier_that_is_none_is_refused(noise_multiplier: float) -> None:
    with pytest.raises(ParameterError, match="noise_multiplier"):
        StochasticSign(input_domain=BALL, noise_multiplier=noise_multiplier)


def test_values_outside_are_refused() -> None:
    mechanism = StochasticSign(input_domain=BALL, noise_multiplier=1.0)
    with pytest.raises(DomainError, match="project"):
        mechanism.encode(np.ones(4), SeededRandomness(1).stream("a"))
