"""Sampled Gaussian noise between whole orders, against quadrature."""

import math

import mpmath
import pytest
from cases import denser

from sottovoce.adjacency import Adjacency
from sottovoce.privacy.accounting import find_accountant
from sottovoce.privacy.events import GaussianNoise, Repeated, Sampled
from sottovoce.privacy.sampled_gaussian import sampled_gaussian_log_excess


def exact_log_excess(mu: float, rate: float, order: float) -> mpmath.mpf:
    """log E_Q[y^a - 1 - a (y - 1)], which is log(E y^a - 1) without cancellation."""
    with mpmath.workdps(40):
        m, q, a = (mpmath.mpf(value) for value in (mu, rate, order))

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            less = q * (mpmath.exp(m * x - m * m / 2) - 1)
            return ((1 + less) ** a - 1 - a * less) * mpmath.npdf(x)

        ends = sorted([-20, -8, -4, -2, 0, 2, 4, 8, a * m / 2 + 1, a * m, a * m + 4, a * m + 25])
        return mpmath.log(mpmath.quad(integrand, ends))


def reverse_log_excess(mu: float, rate: float, order: float) -> mpmath.mpf:
    """The same for (Q || mix): E_Q[y^(1-a) - 1 - (1-a) (y - 1)], which theory says is smaller."""
    with mpmath.workdps(40):
        m, q, a = (mpmath.mpf(value) for value in (mu, rate, order))

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            less = q * (mpmath.exp(m * x - m * m / 2) - 1)
            return ((1 + less) ** (1 - a) - 1 - (1 - a) * less) * mpmath.npdf(x)

        return mpmath.log(mpmath.quad(integrand, [-25, -8, -4, -2, 0, 2, 4, 8, 25]))


@pytest.mark.parametrize("mu", denser([0.01, 0.2, 1.0, 3.0]))
@pytest.mark.parametrize("rate", [1e-4, 0.05, 0.5])
@pytest.mark.parametrize("order", [1.5, 4.3, 15.7, 31.5])
def test_it_is_never_below_the_integral(mu: float, rate: float, order: float) -> None:
    found = sampled_gaussian_log_excess(mu, rate, order)
    if order * mu > 16.0:
        assert math.isinf(found)  # left to the chords
        return
    above = found - exact_log_excess(mu, rate, order)
    assert above >= 0.0
    assert found >= reverse_log_excess(mu, rate, order)
    if mu >= 0.2 and rate >= 0.05:
        assert above < 0.01


@pytest.mark.parametrize(("stddev", "epsilon"), [(1.0, 4.746), (2.0, 1.490), (5.0, 0.488)])
def test_the_renyi_accountant_needs_no_whole_order(stddev: float, epsilon: float) -> None:
    gaussian = GaussianNoise(mu=1.0 / stddev, adjacency=Adjacency.ZERO_OUT)
    sampled = Sampled(event=gaussian, rate=0.05, scheme="poisson", hidden_by="own-records")
    found = find_accountant("renyi").epsilon(Repeated(event=sampled, count=150), 1e-5)
    assert found == pytest.approx(epsilon, rel=1e-3)
