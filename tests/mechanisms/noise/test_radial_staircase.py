"""The staircase of the L1 norm, against sums over its rings in mpmath."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import SeededRandomness, open_uniforms
from sottovoce.mechanisms.noise.laws import ScalarStaircase, nu_for_variance
from sottovoce.mechanisms.noise.radial_staircase import (
    RadialStaircase,
    least_epsilon,
    radial_nu_for_variance,
)


def _noise(epsilon: float, nu: float, dimension: int, step: float = 1.0) -> RadialStaircase:
    return RadialStaircase(step=step, epsilon=epsilon, nu=nu, dimension=dimension)


def _ring_moments(epsilon: float, nu: float, dimension: int) -> tuple[float, float]:
    """E|X|_1 and E|X|_1^2 from the density's own rings: r^(d-1) times a level, integrated."""
    with mpmath.workdps(60):
        d, sums = dimension, [mpmath.mpf(0)] * 3
        for k in range(math.ceil((d + 15 * math.sqrt(d) + 90) / epsilon) + 3):
            edges = (mpmath.mpf(k), k + mpmath.mpf(nu), mpmath.mpf(k + 1))
            for level, low, high in ((k, *edges[:2]), (k + 1, *edges[1:])):
                density = mpmath.exp(-level * mpmath.mpf(epsilon))
                for p in range(3):
                    sums[p] += density * (high ** (d + p) - low ** (d + p)) / (d + p)
        return float(sums[1] / sums[0]), float(sums[2] / sums[0])


@pytest.mark.parametrize(
    ("epsilon", "nu", "dimension"),
    [(1.0, 0.4, 1), (0.3, 0.2, 3), (1.0, 0.4, 8), (6.0, 0.7, 5), (40.0, 0.05, 4), (20.0, 0.3, 60)],
)
def test_moments_are_those_of_the_rings(epsilon: float, nu: float, dimension: int) -> None:
    noise = _noise(epsilon, nu, dimension, step=2.0)
    first, second = _ring_moments(epsilon, nu, dimension)
    assert noise.mean_absolute == pytest.approx(2.0 * first / dimension, rel=1e-12)
    variance = 4.0 * second * 2.0 / (dimension * (dimension + 1.0))
    assert noise.variance == pytest.approx(variance, rel=1e-12)


def test_in_one_dimension_it_is_the_scalar_staircase() -> None:
    for epsilon in (0.2, 1.0, 5.0, 100.0):
        nu = radial_nu_for_variance(epsilon, 1)
        assert nu == nu_for_variance(epsilon)
        number = ScalarStaircase(step=3.0, epsilon=epsilon, nu=nu)
        radial = _noise(epsilon, nu, 1, step=3.0)
        assert radial.variance == pytest.approx(number.variance, rel=1e-12)
        assert radial.mean_absolute == pytest.approx(number.mean_absolute, rel=1e-12)


@pytest.mark.parametrize("dimension", [1000, 10**6])
def test_in_many_dimensions_the_moments_are_those_of_laplace_noise(dimension: int) -> None:
    """Up to (1 + 4 pi^2/epsilon^2)^(-(d+1)/2), by Poisson summation: nothing here."""
    noise = _noise(0.5, 0.3, dimension)
    assert noise.mean_absolute == pytest.approx(2.0, rel=1e-11)
    assert noise.variance == pytest.approx(8.0, rel=1e-11)


def test_the_gain_over_laplace_is_the_waves_of_poisson_summation() -> None:
    epsilon, nu, d = 4.0, 0.1, 6
    turns = 2.0j * math.pi * np.arange(1, 200)
    sums = [
        1.0 + 2.0 * float(np.sum(np.exp(turns * nu) / (1.0 + turns / epsilon) ** (p + 1)).real)
        for p in (d, d + 2)
    ]
    ratio = _noise(epsilon, nu, d).variance / (2.0 / epsilon**2)
    assert ratio == pytest.approx(sums[1] / sums[0], rel=1e-12)
    assert abs(ratio - 1.0) > 0.01


@pytest.mark.parametrize(("epsilon", "dimension"), [(2.0, 2), (8.0, 3), (30.0, 8), (100.0, 5)])
def test_no_other_nu_has_less_variance(epsilon: float, dimension: int) -> None:
    best = _noise(epsilon, radial_nu_for_variance(epsilon, dimension), dimension).variance
    grid = np.concatenate([np.geomspace(1e-9, 0.1, 200), np.linspace(0.1, 0.999, 300)])
    others = [_noise(epsilon, float(nu), dimension).variance for nu in grid]
    assert best <= min(others) * (1.0 + 1e-9)
    assert best < 2.0 / epsilon**2  # less than Laplace noise


@pytest.mark.parametrize(("epsilon", "nu", "dimension"), [(1.0, 0.4, 2), (4.0, 0.2, 5)])
def test_samples_fall_into_the_rings_and_in_all_directions(
    epsilon: float, nu: float, dimension: int
) -> None:
    noise = _noise(epsilon, nu, dimension, step=0.5)
    words = SeededRandomness(7).stream("rings").words(20_000 * (dimension + 2))
    uniforms = open_uniforms(words).reshape(20_000, dimension + 2)
    samples = np.stack([noise.sample(row) for row in uniforms]) / 0.5
    radii = np.abs(samples).sum(axis=1)
    levels = np.floor(radii + 1.0 - nu).astype(int)
    count = 4 if epsilon > 2.0 else 14
    edges = np.concatenate(([0.0], np.arange(200) + nu))
    masses = np.exp(-epsilon * np.arange(200)) * np.diff(edges**dimension)
    masses /= masses.sum()
    observed = np.bincount(np.minimum(levels, count), minlength=count + 1)
    expected = np.append(masses[:count], masses[count:].sum()) * len(samples)
    assert stats.chisquare(observed, expected).pvalue > 1e-6
    # Within a ring the volume grows like r^d, whichever ring it is.
    low, high = edges[levels] ** dimension, edges[levels + 1] ** dimension
    places = (radii**dimension - low) / (high - low)
    assert stats.kstest(places, "uniform").pvalue > 1e-6
    # A coordinate's share of the L1 norm is Beta(1, d - 1), with a fair sign.
    shares = samples[:, 0] / radii
    assert stats.kstest(np.abs(shares), stats.beta(1, dimension - 1).cdf).pvalue > 1e-6
    assert abs(np.mean(shares > 0.0) - 0.5) < 5.0 * 0.5 / math.sqrt(len(samples))


def test_a_million_coordinates_can_be_drawn() -> None:
    noise = _noise(1.0, 0.4, 10**6)
    uniforms = open_uniforms(SeededRandomness(8).stream("many").words(10**6 + 2))
    sample = noise.sample(uniforms)
    # |X|_1 is 1e6 in the mean, 1e3 its standard deviation, as for a Gamma(1e6).
    assert abs(float(np.abs(sample).sum()) - 1e6) < 7e3
    assert float(sample.var()) == pytest.approx(noise.variance, rel=0.03)


def test_steps_too_small_to_hold_are_refused_and_laplace_is_named() -> None:
    for dimension in (2, 10**6):
        least = least_epsilon(dimension)
        assert _noise(least * 1.0001, 0.5, dimension).variance > 0.0
        with pytest.raises(ParameterError, match="laplace"):
            _noise(least * 0.999, 0.5, dimension)
