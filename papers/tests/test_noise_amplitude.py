"""Expected absolute sums against closed forms, exact convolutions and samples."""

import itertools
import math

import numpy as np
import pytest

from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.noise.laws import (
    Noise,
    ScalarGaussian,
    ScalarLaplace,
    ScalarStaircase,
    nu_for_mean_absolute,
    nu_for_variance,
)
from sottovoce_papers.noise_amplitude import distance_bound, expected_distance, mean_absolute_sum


@pytest.mark.parametrize("rounds", [1, 2, 3, 50, 10_000])
@pytest.mark.parametrize("stddev", [1e-3, 2.5])
def test_gaussian_noise_grows_with_the_root_of_the_rounds(rounds: int, stddev: float) -> None:
    exact = stddev * math.sqrt(2.0 * rounds / math.pi)
    assert mean_absolute_sum(ScalarGaussian(stddev=stddev), rounds) == pytest.approx(
        exact, rel=1e-8
    )


@pytest.mark.parametrize(("rounds", "exact"), [(1, 1.0), (2, 1.5), (3, 1.875), (4, 2.1875)])
def test_laplace_noise_has_these_closed_forms(rounds: int, exact: float) -> None:
    """2 T/4^T C(2T, T): the sum is the difference of two Gamma(T) variables."""
    assert exact == pytest.approx(2.0 * rounds * math.comb(2 * rounds, rounds) / 4.0**rounds)
    assert mean_absolute_sum(ScalarLaplace(scale=3.0), rounds) == pytest.approx(
        3.0 * exact, rel=1e-8
    )


def _exact_pair_of_staircases(noise: ScalarStaircase) -> float:
    """E|X + Y| = 4 integral_0^inf S(t) (1 - S(t)) dt for S = P(X > t), exact on each level.

    E|X - Y| = 2 integral F (1 - F), and X + Y has the law of X - Y. S is linear on each level, so
    Simpson's rule is exact there.
    """
    total = 0.0
    edges = [k + part for k in range(math.ceil(50.0 / noise.epsilon)) for part in (0.0, noise.nu)]
    for low, high in itertools.pairwise(edges):
        at = noise.step * np.array([low, (low + high) / 2.0, high])
        tail = noise.tail(at)
        total += (at[2] - at[0]) / 6.0 * float((tail * (1.0 - tail)) @ np.array([1.0, 4.0, 1.0]))
    return 4.0 * total


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 5.0, 12.0])
def test_two_staircases_agree_with_the_integral_over_their_levels(epsilon: float) -> None:
    noise = ScalarStaircase(step=2.0, epsilon=epsilon, nu=nu_for_variance(epsilon))
    exact = _exact_pair_of_staircases(noise)
    assert mean_absolute_sum(noise, 2) == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize("rounds", [3, 20])
@pytest.mark.parametrize("epsilon", [0.3, 4.0])
def test_sums_of_staircases_agree_with_samples(rounds: int, epsilon: float) -> None:
    noise = ScalarStaircase(step=1.0, epsilon=epsilon, nu=nu_for_mean_absolute(epsilon))
    uniforms = np.random.default_rng(6).random((200_000, rounds)) - 0.5
    samples = np.copysign(noise.quantile(0.5 - np.abs(uniforms)), uniforms)
    sums = np.abs(samples.sum(axis=1))
    error = float(sums.std()) / math.sqrt(len(sums))
    assert abs(float(sums.mean()) - mean_absolute_sum(noise, rounds)) < 5.0 * error


@pytest.mark.parametrize(
    "noise",
    [
        ScalarGaussian(stddev=1.0),
        ScalarLaplace(scale=1.0),
        ScalarStaircase(step=1.0, epsilon=1.0, nu=0.4),
    ],
)
def test_the_triangle_inequality_is_far_off_after_many_rounds(noise: Noise) -> None:
    ratios = []
    for rounds in (1, 4, 100, 10_000):
        exact, bound = (
            measure(noise, rounds, 7) for measure in (expected_distance, distance_bound)
        )
        assert exact <= bound * (1.0 + 1e-9)
        ratios.append(bound / exact)
    assert ratios[0] == pytest.approx(1.0)
    # In the end as sqrt(T) E|X|/(sqrt(Var) sqrt(2/pi)).
    limit = noise.mean_absolute * math.sqrt(math.pi / 2.0 / noise.variance)
    assert ratios[3] == pytest.approx(100.0 * limit, rel=1e-3)


@pytest.mark.parametrize(
    ("noise", "exact", "printed"),
    [
        (ScalarGaussian(stddev=1.0), 7.979, 79.79),
        (ScalarLaplace(scale=1.0), 11.27, 100.0),
        (ScalarStaircase(step=1.0, epsilon=1.0, nu=nu_for_mean_absolute(1.0)), 11.04, 130.6),
    ],
)
def test_theorems_3_8_and_9_of_udp_fl_print_ten_times_the_distance_of_a_hundred_rounds(
    noise: Noise, exact: float, printed: float
) -> None:
    """Theorem 8 is that of its proof; theorem 3 is wrong for one round, too."""
    assert mean_absolute_sum(noise, 100) == pytest.approx(exact, rel=5e-4)
    if isinstance(noise, ScalarStaircase):
        b = math.exp(-1.0)
        one_round = (noise.nu**2 + b - b * noise.nu**2 + b) / (1.0 - b)
    else:
        one_round = noise.mean_absolute
    assert 100.0 * one_round == pytest.approx(printed, rel=5e-4)


def test_rounds_must_be_a_positive_integer() -> None:
    with pytest.raises(ParameterError, match="rounds"):
        mean_absolute_sum(ScalarLaplace(scale=1.0), 0)
