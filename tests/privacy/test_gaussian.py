"""The Gaussian accountant: exact, from the safe side."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from cases import denser
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import UnsupportedEventError
from sottovoce.privacy.events import (
    Composed,
    FinitePair,
    GaussianNoise,
    NonPrivate,
    PrivacyEvent,
    PureDp,
    RenyiCurve,
    Repeated,
    ZeroConcentrated,
)
from sottovoce.privacy.gaussian import GaussianAccountant, total_mu
from sottovoce.privacy.renyi import RenyiAccountant

ZERO_OUT = Adjacency.ZERO_OUT
ACCOUNTANT = GaussianAccountant()


def noise(mu: float) -> GaussianNoise:
    return GaussianNoise(mu=mu, adjacency=ZERO_OUT)


def exact_delta(mu: float, epsilon: float) -> Any:
    """Balle and Wang 2018, theorem 8, in mpmath."""
    with mpmath.workdps(80):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        upper, lower = mpmath.ncdf(m / 2 - e / m), mpmath.ncdf(-m / 2 - e / m)
        return upper - mpmath.exp(e) * lower


def test_sigma_10_a_hundred_times_at_delta_1e_5_is_the_4_37718_of_our_check_values() -> None:
    event = Repeated(event=noise(1.0 / 10.0), count=100)
    assert ACCOUNTANT.epsilon(event, 1e-5) == pytest.approx(4.37718, abs=5e-6)


@pytest.mark.parametrize("mu", np.geomspace(1e-4, 100.0, 25))
@pytest.mark.parametrize("delta", denser([1e-100, 1e-15, 1e-9, 1e-5, 1e-2, 0.3, 0.9]))
def test_epsilon_is_never_below_the_exact_one_and_at_most_1e_8_above(
    mu: float, delta: float
) -> None:
    epsilon = ACCOUNTANT.epsilon(noise(float(mu)), delta)
    assert exact_delta(float(mu), epsilon) <= delta
    if epsilon > 0.0:
        assert exact_delta(float(mu), epsilon * (1.0 - 1e-8)) > delta


@given(mu=st.floats(1e-3, 60.0), delta=st.floats(1e-12, 0.5))
@settings(deadline=None)
def test_the_delta_at_the_epsilon_of_a_delta_is_that_delta(mu: float, delta: float) -> None:
    epsilon = ACCOUNTANT.epsilon(noise(mu), delta)
    again = ACCOUNTANT.delta(noise(mu), epsilon)
    assert again <= delta * (1.0 + 1e-9)
    if epsilon > 0.0:
        # Epsilon was raised by 1e-9 of itself; delta falls by at most that times its slope.
        slope = (mu / 2.0 + epsilon / mu + 1.0) * (1.0 + 1.0 / mu)
        assert again >= delta * (1.0 - 1e-8 * (1.0 + epsilon * slope))


@given(mus=st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=5), count=st.integers(1, 1000))
@settings(deadline=None)
def test_mus_of_a_composition_add_up_in_squares(mus: list[float], count: int) -> None:
    event = Composed(events=tuple(Repeated(event=noise(mu), count=count) for mu in mus))
    expected = math.sqrt(math.fsum(count * mu * mu for mu in mus))
    assert total_mu(event) == pytest.approx(expected, rel=1e-14, abs=0.0)


def test_a_composition_costs_what_one_release_at_the_total_mu_costs() -> None:
    parts = Composed(events=(noise(3.0), noise(4.0)))
    assert ACCOUNTANT.epsilon(parts, 1e-6) == ACCOUNTANT.epsilon(noise(5.0), 1e-6)
    assert ACCOUNTANT.delta(parts, 2.0) == ACCOUNTANT.delta(noise(5.0), 2.0)


@pytest.mark.parametrize(
    ("sigma", "count", "delta"), [(10.0, 100, 1e-5), (1.0, 1, 1e-6), (5.0, 500, 1e-5)]
)
def test_epsilon_agrees_with_the_pessimistic_pld_of_dp_accounting(
    sigma: float, count: int, delta: float
) -> None:
    pld = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, value_discretization_interval=1e-4
    ).self_compose(count)
    theirs = float(pld.get_epsilon_for_delta(delta))
    ours = ACCOUNTANT.epsilon(Repeated(event=noise(1.0 / sigma), count=count), delta)
    assert ours == pytest.approx(theirs, rel=1e-5, abs=0.0)


@given(mu=st.floats(1e-3, 30.0), deltas=st.tuples(st.floats(1e-15, 0.9), st.floats(1e-15, 0.9)))
@settings(deadline=None)
def test_a_smaller_delta_never_has_a_smaller_epsilon(
    mu: float, deltas: tuple[float, float]
) -> None:
    low, high = sorted(deltas)
    epsilon = ACCOUNTANT.epsilon(noise(mu), low)
    assert epsilon >= ACCOUNTANT.epsilon(noise(mu), high) * (1.0 - 1e-9)


@given(mu=st.floats(1e-3, 5.0), counts=st.tuples(st.integers(1, 500), st.integers(1, 500)))
@settings(deadline=None)
def test_more_releases_never_cost_less(mu: float, counts: tuple[int, int]) -> None:
    few, many = sorted(counts)
    more = ACCOUNTANT.epsilon(Repeated(event=noise(mu), count=many), 1e-5)
    assert more >= ACCOUNTANT.epsilon(Repeated(event=noise(mu), count=few), 1e-5)


@given(mu=st.floats(1e-2, 30.0), delta=st.floats(1e-12, 0.1))
@settings(deadline=None, max_examples=50)
def test_the_exact_epsilon_is_never_above_the_renyi_bound(mu: float, delta: float) -> None:
    bound = RenyiAccountant().epsilon(noise(mu), delta)
    # The conversion meets the exact value nowhere, so no rounding is to be allowed for.
    assert ACCOUNTANT.epsilon(noise(mu), delta) <= bound


def test_a_delta_above_the_total_variation_distance_costs_no_epsilon() -> None:
    # TV = 2 Phi(mu/2) - 1 = 0.0399 at mu = 0.1
    assert ACCOUNTANT.epsilon(noise(0.1), 0.04) == 0.0
    assert ACCOUNTANT.epsilon(noise(0.1), 0.039) > 0.0


def test_an_epsilon_beyond_a_million_is_reported_as_infinity() -> None:
    assert ACCOUNTANT.epsilon(noise(1e4), 1e-5) == math.inf


@pytest.mark.parametrize(
    "event",
    [
        NonPrivate(adjacency=ZERO_OUT),
        ZeroConcentrated(rho=0.1, adjacency=ZERO_OUT),
        PureDp(epsilon=1.0, adjacency=ZERO_OUT),
        FinitePair(first=(0.5, 0.5), second=(0.4, 0.6), adjacency=ZERO_OUT),
        RenyiCurve(orders=(2.0,), divergences=(0.1,), adjacency=ZERO_OUT),
    ],
    ids=lambda event: type(event).__name__,
)
def test_anything_but_gaussian_noise_is_refused_alone_and_in_company(event: PrivacyEvent) -> None:
    for unsupported in (event, Composed(events=(noise(1.0), Repeated(event=event, count=2)))):
        with pytest.raises(UnsupportedEventError, match=f"got {type(event).__name__}; use renyi"):
            ACCOUNTANT.epsilon(unsupported, 1e-5)
        with pytest.raises(UnsupportedEventError, match=f"got {type(event).__name__}; use renyi"):
            ACCOUNTANT.delta(unsupported, 1.0)
