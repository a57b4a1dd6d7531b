"""The loss law of staircase noise, against the density itself."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from cases import denser
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.noise.laws import nu_for_mean_absolute
from sottovoce.privacy.additive_noise import (
    largest_loss_mass,
    product_staircase_renyi_l2,
    staircase_pair,
    staircase_renyi,
)
from sottovoce.privacy.divergences import finite_hockey_stick
from sottovoce.privacy.events import Repeated
from sottovoce.privacy.pld import PldAccountant
from sottovoce.privacy.pure import pure_epsilon
from sottovoce.privacy.renyi import renyi_divergence

ZERO_OUT = Adjacency.ZERO_OUT


def _level(x: int, nu: int, unit: int) -> int:
    """How many steps down, straight from the definition of the density; all in parts of a unit."""
    k, rest = divmod(abs(x), unit)
    return k if rest < nu else k + 1


def _loss_law(epsilon: float, nu: float, shift: float) -> dict[int, mpmath.mpf]:
    """P of each loss (in units of epsilon): all breakpoints of both densities, piece by piece."""
    b = mpmath.exp(-mpmath.mpf(epsilon))
    top = (1 - b) / (2 * (nu + b * (1 - mpmath.mpf(nu))))
    # Exactly, in whole parts of a unit, an even number of them for the middles of pieces.
    unit = 2 * math.lcm(Fraction(nu).denominator, Fraction(shift).denominator)
    inner, move = int(Fraction(nu) * unit), int(Fraction(shift) * unit)
    steps = [k * unit + e for k in range(math.ceil(75.0 / epsilon) + 2) for e in (0, inner)]
    marks = {sign * at + by for sign in (1, -1) for at in steps for by in (0, move)}
    law: dict[int, mpmath.mpf] = {}
    for low, high in itertools.pairwise(sorted(marks)):
        middle = (low + high) // 2
        here, there = _level(middle, inner, unit), _level(middle - move, inner, unit)
        mass = top * b**here * ((high - low) / unit)
        law[there - here] = law.get(there - here, 0) + mass
    return law


@pytest.mark.parametrize("epsilon", denser([0.3, 1.0, 4.0]))
@pytest.mark.parametrize("nu", [0.05, 0.3, 0.5, 0.7, 0.95])
@pytest.mark.parametrize("shift", [0.07, 0.25, 0.6, 0.9, 1.0])
def test_the_loss_has_three_atoms_with_these_masses(
    epsilon: float, nu: float, shift: float
) -> None:
    exact = _loss_law(epsilon, nu, shift)
    assert set(exact) <= {-1, 0, 1}
    first = staircase_pair(epsilon, nu, shift, ZERO_OUT).first
    for claimed, loss in zip(first, (1, 0, -1), strict=True):
        assert claimed == pytest.approx(float(exact.get(loss, 0)), abs=1e-13)


@pytest.mark.parametrize(
    ("order", "epsilon", "nu", "shift", "divergence"),
    [
        (1.5, 0.1, None, 1.0, 0.0074759674298133),
        (2.0, 0.1, None, 1.0, 0.0099473742714126),
        (32.0, 0.1, None, 1.0, 0.07923880780601),
        (2.0, 1.0, None, 1.0, 0.71057687005343),
        (8.0, 1.0, None, 1.0, 0.94838730547431),
        (2.0, 1.0, 0.5, 1.0, 0.73532566405552),
        (2.0, 1.0, 0.8, 0.5, 0.35430408252271),
        (8.0, 3.0, None, 0.25, 2.9172226369825),
        (64.0, 3.0, None, 1.0, 2.998122319346),
    ],
)
def test_golden_renyi_divergences_from_breakpoint_sums(
    order: float, epsilon: float, nu: float | None, shift: float, divergence: float
) -> None:
    nu = nu_for_mean_absolute(epsilon) if nu is None else nu
    assert staircase_renyi(order, epsilon, nu, shift) == pytest.approx(divergence, abs=1e-10)
    pair = staircase_pair(epsilon, nu, shift, ZERO_OUT)
    assert renyi_divergence(pair, order) == pytest.approx(divergence, abs=1e-10)


@settings(max_examples=150, deadline=None)
@given(
    order=st.floats(1.0001, 1e4),
    epsilon=st.floats(1e-9, 400.0),
    nu=st.floats(1e-3, 0.999),
    shift=st.floats(1e-6, 1.0),
)
def test_no_bound_lies_below_the_exact_divergence(
    order: float, epsilon: float, nu: float, shift: float
) -> None:
    """In 400 digits; and not far above it either."""
    with mpmath.workdps(400):
        a, eps, v, s = (mpmath.mpf(x) for x in (order, epsilon, nu, shift))
        b = mpmath.exp(-eps)
        m = (1 - b) / (2 * (v + b * (1 - v))) * (min(s, 2 * v) + s / mpmath.expm1(eps))
        excess = m * mpmath.expm1((a - 1) * eps) * -mpmath.expm1(-a * eps)
        exact = mpmath.log1p(excess) / (a - 1)
        assert largest_loss_mass(epsilon, nu, shift) >= m
        pair = staircase_pair(epsilon, nu, shift, ZERO_OUT)
        first, last = (mpmath.mpf(p) for p in (pair.first[0], pair.first[2]))
        for x in (mpmath.mpf(1), mpmath.exp(eps / 2), mpmath.exp(eps)):
            assert first - x * last >= m * (1 - x * b)  # the curve of a dominating pair
        for claimed in (staircase_renyi(order, epsilon, nu, shift), renyi_divergence(pair, order)):
            assert claimed >= exact
        assert staircase_renyi(order, epsilon, nu, shift) <= exact * (1 + mpmath.mpf(2) ** -38)


def test_nu_one_half_is_randomized_response() -> None:
    for epsilon in (1e-9, 0.5, 40.0, 500.0):
        pair = staircase_pair(epsilon, 0.5, 1.0, ZERO_OUT)
        assert pair.first[0] == pytest.approx(1.0 / (1.0 + math.exp(-epsilon)), rel=1e-14)
        assert pair.first[1] < 1e-13
        assert epsilon <= pure_epsilon(pair) <= epsilon * (1.0 + 1e-13) + 1e-13


@pytest.mark.parametrize("nu", [0.1, 0.4, 0.8])
def test_a_smaller_shift_is_dominated_and_the_mass_is_concave(nu: float) -> None:
    shifts = np.linspace(0.0, 1.0, 101)
    masses = np.array([largest_loss_mass(1.3, nu, float(s)) for s in shifts])
    assert np.all(np.diff(masses) >= 0.0)
    assert np.all(np.diff(masses, 2) <= 1e-14)
    for x in np.geomspace(0.05, 20.0, 40):
        curve = [
            finite_hockey_stick(pair.first, pair.second, math.log(x))
            for pair in (staircase_pair(1.3, nu, float(s), ZERO_OUT) for s in shifts)
        ]
        assert np.all(np.diff(curve) >= -1e-15)


def test_deltas_of_a_composition_cover_the_enumerated_ones() -> None:
    pair = staircase_pair(0.8, 0.3, 1.0, ZERO_OUT)
    p, q = np.ones(1), np.ones(1)
    for _ in range(5):
        p, q = np.outer(p, pair.first).ravel(), np.outer(q, pair.second).ravel()
    event = Repeated(event=pair, count=5)
    for epsilon in (0.0, 0.5, 1.5, 3.0):
        exact = finite_hockey_stick(p, q, epsilon)
        claimed = PldAccountant().delta(event, epsilon)
        assert exact * (1.0 - 1e-12) <= claimed <= exact * 1.01


@pytest.mark.parametrize("order", denser([1.5, 2.0, 16.0]))
@pytest.mark.parametrize("nu", [0.2, 0.45, 0.8])
def test_under_an_l2_clip_the_equal_split_is_the_worst(order: float, nu: float) -> None:
    generator = np.random.default_rng(3)
    worst = product_staircase_renyi_l2(order, 1.0, nu, 1.0, 6)
    for _ in range(300):
        direction = np.abs(generator.normal(size=6)) ** generator.choice([0.1, 1.0, 4.0])
        shifts = direction / np.linalg.norm(direction)
        split = math.fsum(staircase_renyi(order, 1.0, nu, min(1.0, float(s))) for s in shifts)
        assert split <= worst
    equal = math.fsum([staircase_renyi(order, 1.0, nu, 1.0 / math.sqrt(6.0))] * 6)
    assert worst == pytest.approx(equal, rel=1e-12)


def test_under_an_l2_clip_the_cost_grows_like_the_root_of_the_dimension() -> None:
    costs = [product_staircase_renyi_l2(2.0, 0.1, 0.45, 1.0, 10**k) for k in (2, 4, 6)]
    assert costs[1] / costs[0] == pytest.approx(10.0, rel=0.01)
    assert costs[2] / costs[1] == pytest.approx(10.0, rel=0.001)


def test_what_is_no_shift_within_one_step_is_refused() -> None:
    for shift in (1.0000001, -0.1, math.nan):
        with pytest.raises(ParameterError, match="PureDp"):
            staircase_pair(1.0, 0.4, shift, ZERO_OUT)
        with pytest.raises(ParameterError, match="widen"):
            product_staircase_renyi_l2(2.0, 1.0, 0.4, shift, 5)
    nothing = staircase_pair(1.0, 0.4, 0.0, ZERO_OUT)
    assert nothing.first == nothing.second == (0.0, 1.0, 0.0)
    assert staircase_renyi(2.0, 1.0, 0.4, 0.0) == 0.0
