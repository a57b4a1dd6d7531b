"""The laws' moments, quantiles and tails against mpmath."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.noise.laws import Noise, ScalarGaussian, ScalarLaplace, pi

LAWS: list[Noise] = [
    ScalarGaussian(stddev=1.0),
    ScalarGaussian(stddev=0.3),
    ScalarGaussian(stddev=7e5),
    ScalarLaplace(scale=1.0),
    ScalarLaplace(scale=1e-9),
    ScalarLaplace(scale=123.4),
]
every_law = pytest.mark.parametrize("noise", LAWS, ids=repr)


def precise_tail(noise: Noise, threshold: Fraction) -> mpmath.mpf:
    place = mpmath.mpf(threshold.numerator) / threshold.denominator
    if isinstance(noise, ScalarGaussian):
        return mpmath.erfc(place / mpmath.mpf(noise.stddev) / mpmath.sqrt(2)) / 2
    assert isinstance(noise, ScalarLaplace)
    return mpmath.exp(-place / mpmath.mpf(noise.scale)) / 2


def density(noise: Noise, place: float) -> mpmath.mpf:
    if isinstance(noise, ScalarGaussian):
        return mpmath.npdf(place, 0, noise.stddev)
    assert isinstance(noise, ScalarLaplace)
    return mpmath.exp(-abs(place) / mpmath.mpf(noise.scale)) / (2 * mpmath.mpf(noise.scale))


def unit(noise: Noise) -> float:
    return float(np.sqrt(noise.variance))


@every_law
@pytest.mark.parametrize("digits", [5, 66, 200, 400])
def test_the_survival_is_as_precise_as_asked_for(noise: Noise, digits: int) -> None:
    relative = [0, 1e-30, 1e-3, 0.1, 0.6744897501960817, 1.0, 2.5, 5.0, 11.0, 22.0, 30.0, 40.0, 1e4]
    for multiple in relative:
        threshold = Fraction(multiple * unit(noise)) + Fraction(1, 7) * Fraction(multiple)
        found = noise.survival(threshold, digits)
        with mpmath.workdps(digits + 60):
            error = abs(mpmath.mpf(str(found)) - precise_tail(noise, threshold))
            assert error <= mpmath.mpf(10) ** -digits


@every_law
def test_quantiles_have_the_relative_precision_that_the_sampler_reckons_with(noise: Noise) -> None:
    generator = np.random.default_rng(4)
    tails = np.concatenate(
        [
            generator.uniform(0.0, 0.5, 100),
            2.0 ** -generator.uniform(1.0, 64.0, 100),
            0.5 - 2.0 ** -generator.uniform(2.0, 53.0, 50),
        ]
    )
    found = noise.quantile(tails)
    assert (found >= 0.0).all()
    with mpmath.workdps(60):
        for tail, place in zip(tails.tolist(), found.tolist(), strict=True):
            # Where the tails at place (1 +- 2^-44) lie on both sides, the true quantile is between.
            low, high = (Fraction(place) * (1 + s * Fraction(1, 2**44)) for s in (-1, 1))
            assert precise_tail(noise, high) <= tail <= precise_tail(noise, low)
    assert noise.quantile(np.array([0.5])).tolist() == [0.0]


@every_law
def test_the_quantile_slope_is_the_largest_tail_over_density(noise: Noise) -> None:
    ratios = [
        float(precise_tail(noise, Fraction(t)) / density(noise, t))
        for t in np.linspace(0.0, 20.0 * unit(noise), 200).tolist()
    ]
    assert max(ratios) == pytest.approx(noise.quantile_slope, rel=1e-12)


@every_law
def test_float_tails_and_moments_are_the_law_s(noise: Noise) -> None:
    stddev = unit(noise)
    for place in np.linspace(0.0, 25.0 * stddev, 40).tolist():
        exact = float(precise_tail(noise, Fraction(place)))
        assert noise.tail(np.array([place]))[0] == pytest.approx(exact, rel=1e-12)

    def expected(function: object) -> float:
        points = [stddev * k for k in (0, 1, 2, 4, 8, 16, 32, 64)]
        integral = mpmath.quad(lambda t: 2 * density(noise, t) * function(t), points)  # type: ignore[operator]
        return float(integral)

    assert expected(lambda t: t**2) == pytest.approx(noise.variance, rel=1e-9)
    assert expected(lambda t: t) == pytest.approx(noise.mean_absolute, rel=1e-9)


@pytest.mark.parametrize("digits", [1, 15, 50, 1000])
def test_pi(digits: int) -> None:
    with mpmath.workdps(digits + 20):
        assert abs(mpmath.mpf(str(pi(digits))) - mpmath.pi) < mpmath.mpf(10) ** -digits


@pytest.mark.parametrize("wide", [0.0, -1.0, float("nan"), float("inf"), True])
def test_noise_of_no_width_is_refused(wide: float) -> None:
    with pytest.raises(ParameterError, match="stddev"):
        ScalarGaussian(stddev=wide)
    with pytest.raises(ParameterError, match="scale"):
        ScalarLaplace(scale=wide)
