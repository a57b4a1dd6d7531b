"""Random allocation of Gaussian noise: golden values, direct integrals, and what is refused."""

import math
from itertools import pairwise

import numpy as np
import pytest

import sottovoce
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import UnsupportedEventError
from sottovoce.privacy.accounting import find_accountant, privacy_spent
from sottovoce.privacy.allocation import Direction, allocated_delta, curve_pair
from sottovoce.privacy.divergences import gaussian_delta
from sottovoce.privacy.event_json import from_json, to_json
from sottovoce.privacy.events import Allocated, GaussianNoise, Repeated

Z, R = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE


def event(steps: int, sigma: float, adjacency: Adjacency = Z) -> Allocated:
    centered = adjacency is R
    mu = (2.0 if centered else 1.0) / sigma
    noise = GaussianNoise(mu=mu, adjacency=adjacency, zero_centered=centered)
    return Allocated(event=noise, steps=steps)


# Two independent computations agree on these to 1e-5, at delta = 1e-5.
@pytest.mark.parametrize(
    ("steps", "sigma", "direction", "epsilon"),
    [
        (100, 1.0, "remove", 0.62094),
        (100, 1.0, "add", 0.42195),
        (100, 1.0, "replace", 0.82537),
        (10, 2.0, "remove", 0.62206),
        (10, 2.0, "add", 0.58642),
        (10, 2.0, "replace", 1.20429),
    ],
)
def test_golden_values(steps: int, sigma: float, direction: Direction, epsilon: float) -> None:
    mu = (2.0 if direction == "replace" else 1.0) / sigma
    assert allocated_delta(mu, steps, direction, epsilon - 1e-5) > 1e-5
    assert allocated_delta(mu, steps, direction, 1.0006 * epsilon) <= 1e-5


@pytest.mark.parametrize("direction", ["remove", "add", "replace"])
@pytest.mark.parametrize("mu", [0.4, 1.0, 2.0])
def test_two_steps_are_never_below_the_double_integral(mu: float, direction: Direction) -> None:
    """E (F_1 + F_2)_+/2 over a fine grid of two normals, and at most a thousandth above it."""
    g = np.linspace(-9.0, 9.0, 3001)
    weights = np.exp(-g * g / 2.0)
    weights /= weights.sum()
    c = mu / 2.0 if direction == "replace" else mu
    up, down = np.exp(c * g - c * c / 2.0), np.exp(-c * g - c * c / 2.0)
    for epsilon in (0.0, 0.3, 1.5):
        a = math.exp(epsilon)
        term = {"remove": up - a, "add": 1.0 - a * down, "replace": up - a * down}[direction]
        exact = sum(
            float(w * (weights @ np.maximum(0.0, f + term)))
            for w, f in zip(weights, term, strict=True)
        )
        exact /= 2.0
        found = allocated_delta(mu, 2, direction, epsilon)
        assert exact * (1.0 - 1e-6) <= found <= exact * 1.002 + 1e-13


@pytest.mark.parametrize("direction", ["remove", "add", "replace"])
def test_more_steps_and_larger_epsilons_only_help(direction: Direction) -> None:
    deltas = [allocated_delta(1.0, steps, direction, 0.3) for steps in (1, 2, 10, 100, 10_000)]
    assert deltas[0] == gaussian_delta(1.0, 0.3)
    assert deltas == sorted(deltas, reverse=True)
    curve = [allocated_delta(2.0, 1000, direction, e) for e in np.linspace(0.0, 6.0, 13)]
    assert all(after <= before * (1.0 + 1e-6) + 1e-14 for before, after in pairwise(curve))


def test_the_accountant_takes_the_worse_direction() -> None:
    for steps, sigma, adjacency, epsilon in ((100, 1.0, Z, 0.62094), (10, 2.0, R, 1.20429)):
        spent = sottovoce.spend(event(steps, sigma, adjacency), delta=1e-5)
        assert spent.epsilon == pytest.approx(epsilon, rel=6e-4)
        assert spent.epsilon >= epsilon - 1e-5


def test_epochs_compose_by_a_pair_that_has_the_curve() -> None:
    """Between one epoch's epsilon and what four would cost one by one."""
    one = event(10, 2.0, R)
    four = privacy_spent(Repeated(event=one, count=4), 1e-5)
    assert four.accountant == "pld"
    # 4 mu^2-like growth: sixteen steps of noise would double the epsilon of a Gaussian.
    assert 2.0 * 1.20429 < four.epsilon < 2.3 * 1.20429
    twice = find_accountant("pld").delta(Repeated(event=one, count=2), 1.0)
    assert twice >= allocated_delta(1.0, 10, "replace", 1.0)


def test_a_curve_becomes_a_pair_that_is_nowhere_below_it() -> None:
    """Of one Gaussian, whose composition is known."""
    epsilons = np.linspace(-6.0, 6.0, 400)
    points = [(0.0, 1.0)]
    for epsilon in epsilons.tolist():
        x = math.exp(epsilon)
        delta = gaussian_delta(1.0, abs(epsilon))
        points.append((x, delta if epsilon >= 0.0 else 1.0 - x + x * delta))
    pair = curve_pair(points)
    for epsilon in (-2.0, -0.3, 0.0, 0.7, 2.0):
        x = math.exp(epsilon)
        found = float(np.sum(np.maximum(0.0, pair.first - x * pair.second)))
        exact = gaussian_delta(1.0, abs(epsilon))
        exact = exact if epsilon >= 0.0 else 1.0 - x + x * exact
        assert exact <= found <= exact + 1e-4
    assert float(np.sum(pair.second)) == pytest.approx(1.0, abs=1e-9)


def test_what_is_not_proved_is_refused_and_what_one_step_says_holds() -> None:
    off_center = Allocated(event=GaussianNoise(mu=2.0, adjacency=R), steps=100)
    with pytest.raises(UnsupportedEventError, match="zero_centered"):
        find_accountant("allocation").epsilon(off_center, 1e-5)
    spent = privacy_spent(off_center, 1e-5)
    assert spent.accountant == "local"
    with pytest.raises(UnsupportedEventError, match="mu"):
        find_accountant("allocation").epsilon(event(100, 0.1), 1e-5)
    with pytest.raises(UnsupportedEventError, match="one random allocation"):
        find_accountant("allocation").epsilon(Repeated(event=event(9, 1.0), count=2), 1e-5)
    assert from_json(to_json(off_center)) == off_center
