"""Sampled Gaussian noise between whole orders, against quadrature."""

import math

import mpmath
import pytest
from cases import denser, thinned

from sottovoce.core.adjacency import Adjacency
from sottovoce.privacy.accounting import find_accountant
from sottovoce.privacy.events import GaussianNoise, Repeated, Sampled
from sottovoce.privacy.sampling import sampled_gaussian_log_excess

STEP = 1.0 / 16.0  # of the trapezoid rule, between points of the real line


def log_excesses(mu: float, rate: float, order: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """log E_Q[y^p - 1 - p (y - 1)] for p = a and p = 1 - a: log(E y^p - 1) without cancellation.

    The first is the excess of (mix || Q), the second that of (Q || mix), which theory says is
    smaller. The trapezoid rule errs by about e^(d^2/2 - 2 pi d/STEP) where y^p has no branch point
    within d of the real line; the nearest is pi/mu away: below 1e-40 for mu up to 3.
    """
    with mpmath.workdps(40):
        m, q, a = (mpmath.mpf(value) for value in (mu, rate, order))
        sums = [mpmath.mpf(0), mpmath.mpf(0)]
        for place in range(-round(15 / STEP), round((15 + order * mu) / STEP)):
            x = place * mpmath.mpf(STEP)  # below -15, and 15 above the peak at a mu: e^(-112)
            less = q * mpmath.expm1(m * x - m * m / 2)
            density = STEP * mpmath.npdf(x)
            for side, power in enumerate((a, 1 - a)):
                sums[side] += ((1 + less) ** power - 1 - power * less) * density
        return mpmath.log(sums[0]), mpmath.log(sums[1])


def test_the_trapezoid_rule_is_the_integral() -> None:
    m, q, a = mpmath.mpf(3), mpmath.mpf(0.05), mpmath.mpf(4.3)
    with mpmath.workdps(30):

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            less = q * (mpmath.exp(m * x - m * m / 2) - 1)
            return ((1 + less) ** a - 1 - a * less) * mpmath.npdf(x)

        exact = mpmath.log(mpmath.quad(integrand, [-15, -4, 0, 4, 8, 12, 16, 20, 30]))
        assert abs(log_excesses(3.0, 0.05, 4.3)[0] - exact) < mpmath.mpf(10) ** -25


@pytest.mark.parametrize(
    ("mu", "rate", "order"),
    thinned(denser([0.01, 0.2, 1.0, 3.0]), [1e-4, 0.05, 0.5], [1.5, 4.3, 15.7, 31.5]),
)
def test_it_is_never_below_the_integral(mu: float, rate: float, order: float) -> None:
    found = sampled_gaussian_log_excess(mu, rate, order)
    if order * mu > 16.0:
        assert math.isinf(found)  # left to the chords
        return
    exact, reverse = log_excesses(mu, rate, order)
    above = found - exact
    assert above >= 0.0
    assert found >= reverse
    if mu >= 0.2 and rate >= 0.05:
        assert above < 0.01


@pytest.mark.parametrize(("stddev", "epsilon"), [(1.0, 4.746), (2.0, 1.490), (5.0, 0.488)])
def test_the_renyi_accountant_needs_no_whole_order(stddev: float, epsilon: float) -> None:
    gaussian = GaussianNoise(mu=1.0 / stddev, adjacency=Adjacency.ZERO_OUT)
    sampled = Sampled(event=gaussian, rate=0.05, scheme="poisson", hidden_by="own-records")
    found = find_accountant("renyi").epsilon(Repeated(event=sampled, count=150), 1e-5)
    assert found == pytest.approx(epsilon, rel=1e-3)
