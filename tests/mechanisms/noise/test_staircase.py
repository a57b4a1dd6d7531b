"""Staircase noise against its density, integrated by mpmath level by level."""

import math
from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.noise.laws import ScalarStaircase, nu_for_mean_absolute, nu_for_variance

CASES = [(0.05, 0.3), (0.5, 0.45), (1.0, 0.8), (3.0, 0.1), (10.0, 0.6)]
EPSILONS = (1e-12, 1e-6, 0.01, 1.0, 4.0, 30.0, 500.0)


def _density_at_zero(epsilon: float, nu: float) -> mpmath.mpf:
    b = mpmath.exp(-mpmath.mpf(epsilon))
    return (1 - b) / (2 * (nu + b * (1 - mpmath.mpf(nu))))


def _levels(epsilon: float, nu: float) -> list[tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf]]:
    """(from, to, density) of |X|, from 0 to where e^-80 of the mass is left."""
    top = _density_at_zero(epsilon, nu) * 2
    found = []
    for k in range(math.ceil(80.0 / epsilon) + 1):
        middle = k + mpmath.mpf(nu)
        found.append((mpmath.mpf(k), middle, top * mpmath.exp(-k * mpmath.mpf(epsilon))))
        found.append((middle, mpmath.mpf(k + 1), top * mpmath.exp(-(k + 1) * mpmath.mpf(epsilon))))
    return found


def _moment(epsilon: float, nu: float, power: int) -> float:
    p = power + 1
    levels = _levels(epsilon, nu)
    return float(mpmath.fsum(d * (high**p - low**p) / p for low, high, d in levels))


@pytest.mark.parametrize(("epsilon", "nu"), CASES)
def test_moments_are_those_of_the_density(epsilon: float, nu: float) -> None:
    noise = ScalarStaircase(step=2.5, epsilon=epsilon, nu=nu)
    assert _moment(epsilon, nu, 0) == pytest.approx(1.0, rel=1e-14)
    assert noise.mean_absolute == pytest.approx(2.5 * _moment(epsilon, nu, 1), rel=1e-13)
    assert noise.variance == pytest.approx(6.25 * _moment(epsilon, nu, 2), rel=1e-13)


def test_moments_at_epsilon_one_are_the_known_ones() -> None:
    noise = ScalarStaircase(step=1.0, epsilon=1.0, nu=nu_for_mean_absolute(1.0))
    assert noise.mean_absolute == pytest.approx(0.959517, abs=5e-7)
    assert noise.variance == pytest.approx(1.919682, abs=5e-7)
    # Geng and Viswanath: the least mean amplitude is e^(eps/2)/(e^eps - 1).
    assert noise.mean_absolute == pytest.approx(math.exp(0.5) / math.expm1(1.0), rel=1e-14)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 12.0])
def test_each_nu_is_the_best_of_its_kind(epsilon: float) -> None:
    """Numeric minimisation finds no better one, and a step to either side is worse."""

    def variance(nu: float) -> float:
        return ScalarStaircase(step=1.0, epsilon=epsilon, nu=nu).variance

    def amplitude(nu: float) -> float:
        return ScalarStaircase(step=1.0, epsilon=epsilon, nu=nu).mean_absolute

    for measure, best in (
        (variance, nu_for_variance(epsilon)),
        (amplitude, nu_for_mean_absolute(epsilon)),
    ):
        found = minimize_scalar(measure, bounds=(1e-9, 1.0 - 1e-9), method="bounded")
        assert measure(best) <= found.fun * (1.0 + 1e-12)
        assert measure(best * 0.99) > measure(best) < measure(best * 1.01)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_best_nus_are_accurate_for_tiny_and_large_epsilon(epsilon: float) -> None:
    with mpmath.workdps(450):
        b = mpmath.exp(-mpmath.mpf(epsilon))
        exact = float((mpmath.cbrt(b * (1 + b) / 2) - b) / (1 - b))
    assert nu_for_variance(epsilon) == pytest.approx(exact, rel=1e-12)
    assert 0.0 < nu_for_mean_absolute(epsilon) < nu_for_variance(epsilon) < 0.5


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("nu", [0.02, 0.5, 0.95])
def test_quantiles_and_survival_are_the_exact_ones(epsilon: float, nu: float) -> None:
    noise = ScalarStaircase(step=3.0, epsilon=epsilon, nu=nu)
    tails = np.array([0.5 - 2.0**-53, 0.5 - 1e-9, 0.49, 0.3, 0.25, 0.1, 1e-4, 1e-12, 2.0**-54])
    for tail, found in zip(tails, noise.quantile(tails), strict=True):
        with mpmath.workdps(450):
            exact = _exact_quantile(epsilon, nu, mpmath.mpf(float(tail)))
            assert abs(mpmath.mpf(float(found)) / 3 / exact - 1) < mpmath.mpf(2) ** -40
            at = Fraction(int(mpmath.floor(exact * 10**400)), 10**400) * 3
        assert abs(noise.survival(at, 50) - Decimal(float(tail))) < Decimal("1e-50")
    assert noise.quantile(np.array([0.5]))[0] == 0.0
    assert noise.survival(Fraction(0), 40) == Decimal("0.5")


def _exact_quantile(epsilon: float, nu: float, tail: mpmath.mpf) -> mpmath.mpf:
    """By walking down the two pieces of the step that holds the tail, in 450 digits."""
    b = mpmath.exp(-mpmath.mpf(epsilon))
    c = (1 - b) / (2 * (nu + b * (1 - mpmath.mpf(nu))))
    k = mpmath.floor(-mpmath.log(2 * tail) / mpmath.mpf(epsilon))
    left = mpmath.mpf("0.5") - tail / b**k
    return k + (left / c if left <= c * nu else nu + (left - c * nu) / (b * c))


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"nu": 0.0}, "nu"), ({"nu": 1.0}, "strictly"), ({"epsilon": 1e-13}, "1e-12"),
     ({"epsilon": 501.0}, "no_privacy"), ({"step": 0.0}, "step")],
)  # fmt: skip
def test_parameters_that_make_no_law_are_refused(change: dict[str, float], reason: str) -> None:
    with pytest.raises(ParameterError, match=reason):
        ScalarStaircase(**{"step": 1.0, "epsilon": 1.0, "nu": 0.4, **change})
