"""Laplace noise against quadrature and against vectors that are enumerated."""

import math

import mpmath
import numpy as np
import pytest
from cases import denser
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import UnsupportedEventError
from sottovoce.privacy import accounting
from sottovoce.privacy.accounting import find_accountant, privacy_spent
from sottovoce.privacy.additive_noise import laplace_renyi
from sottovoce.privacy.divergences import finite_hockey_stick, finite_renyi
from sottovoce.privacy.events import GaussianNoise, LaplaceNoise, PureDp, Repeated, Sampled
from sottovoce.privacy.loss_pairs import LaplacePair
from sottovoce.privacy.pure import pure_epsilon

ZERO_OUT = Adjacency.ZERO_OUT


def scalar(shift: float, dimension: int = 1) -> LaplaceNoise:
    return LaplaceNoise(shift=shift, dimension=dimension, adjacency=ZERO_OUT)


def binned(centres: Vector, edges: Vector) -> Vector:
    """The joint law of Laplace(centre, 1) coordinates, each told only by its bin."""
    law = np.ones(1)
    for centre in centres:
        at = edges - centre
        cdf = np.where(at < 0.0, np.exp(np.minimum(at, 0.0)) / 2.0, 1.0 - np.exp(-at.clip(0)) / 2.0)
        masses = np.diff(np.concatenate(([0.0], cdf, [1.0])))
        law = np.multiply.outer(law, masses).ravel()
    return law


@pytest.mark.parametrize("shift", denser([1e-3, 0.3, 1.0, 4.0]))
@pytest.mark.parametrize("order", [1.01, 1.5, 2.0, 8.0, 64.0])
def test_the_divergence_is_that_of_quadrature(shift: float, order: float) -> None:
    with mpmath.workdps(40):
        a, s = mpmath.mpf(order), mpmath.mpf(shift)

        def density(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.exp(-a * abs(x) + (a - 1) * abs(x - s)) / 2

        total = mpmath.quad(density, [-60, 0, s, s + 120])
        exact = float(mpmath.log(total) / (a - 1))
    assert laplace_renyi(shift, 1, order) == pytest.approx(exact, rel=1e-9)


@given(
    shift=st.floats(1e-9, 2000.0),
    order=st.floats(1.0001, 1e6),
    dimension=st.sampled_from([1, 2, 1000, 10**9]),
)
@settings(deadline=None, max_examples=300)
def test_it_is_never_below_the_formula_and_hardly_above(
    shift: float, order: float, dimension: int
) -> None:
    with mpmath.workdps(60):
        a, s = mpmath.mpf(order), mpmath.mpf(shift) / mpmath.sqrt(dimension)
        inside = (a * mpmath.exp((a - 1) * s) + (a - 1) * mpmath.exp(-a * s)) / (2 * a - 1)
        exact = dimension * mpmath.log(inside) / (a - 1)
        found = mpmath.mpf(laplace_renyi(shift, dimension, order))
        assert found >= exact * (1 - mpmath.mpf(2) ** -48)
        assert found <= exact * (1 + mpmath.mpf("1e-6")) + mpmath.mpf("1e-12") * dimension * s


@given(data=st.data(), order=st.floats(1.1, 30.0), dimension=st.integers(1, 5))
@settings(deadline=None, max_examples=100)
def test_no_split_of_the_shift_costs_more(
    data: st.DataObject, order: float, dimension: int
) -> None:
    shifts = data.draw(st.lists(st.floats(1e-3, 3.0), min_size=dimension, max_size=dimension))
    total = sum(laplace_renyi(shift, 1, order) for shift in shifts)
    assert total <= laplace_renyi(math.hypot(*shifts), dimension, order) * (1.0 + 1e-9)
    assert total <= laplace_renyi(sum(shifts), 1, order) * (1.0 + 1e-9)


@given(data=st.data(), dimension=st.integers(1, 3), delta=st.sampled_from([0.2, 1e-2, 1e-5]))
@settings(deadline=None, max_examples=60)
def test_every_bound_covers_vectors_that_are_enumerated(
    data: st.DataObject, dimension: int, delta: float
) -> None:
    moves = np.array(
        data.draw(st.lists(st.floats(-2.0, 2.0), min_size=dimension, max_size=dimension))
    )
    inner = sorted(data.draw(st.lists(st.floats(-2.5, 2.5), min_size=5, max_size=9, unique=True)))
    first, second = binned(moves, np.array(inner)), binned(np.zeros(dimension), np.array(inner))
    l1, l2 = float(np.sum(np.abs(moves))) + 1e-9, float(np.linalg.norm(moves)) + 1e-9
    rate = 0.3
    for event in (scalar(l1), scalar(l2, dimension)):
        for name, epsilon in privacy_spent(event, delta).bounds:
            for p, q in ((first, second), (second, first)):
                truth = finite_hockey_stick(p, q, epsilon)
                assert truth <= delta * (1.0 + 1e-9) + 1e-15, name
        for order in (1.3, 2.0, 9.0):
            divergence = laplace_renyi(event.shift, event.dimension, order)
            assert finite_renyi(first, second, order) <= divergence * (1.0 + 1e-9) + 1e-12
        sampled = Sampled(event=event, rate=rate, scheme="poisson", hidden_by="own-records")
        for name, epsilon in privacy_spent(sampled, delta).bounds:
            mixed = rate * first + (1.0 - rate) * second
            for p, q in ((mixed, second), (second, mixed)):
                truth = finite_hockey_stick(p, q, epsilon)
                assert truth <= delta * (1.0 + 1e-9) + 1e-15, name


@given(first=st.floats(0.01, 4.0), second=st.floats(0.01, 4.0), part=st.floats(-1.2, 1.2))
@settings(deadline=None, max_examples=100)
def test_two_coordinates_have_the_profile_of_the_proof(
    first: float, second: float, part: float
) -> None:
    s, t = max(first, second), min(first, second)
    epsilon = abs(part) * (s + t)
    edges = np.linspace(-t, t, 20_001)
    law, _ = LaplacePair(t).masses(edges)
    losses = np.concatenate((edges[:1], (edges[1:] + edges[:-1]) / 2.0, edges[-1:]))
    law[-2] -= 0.5  # the atom at t lies in the last bin, at its end
    law[-1] += 0.5
    at = epsilon - losses
    g = np.minimum(1.0, np.minimum(np.exp(np.minimum(at, 0.0)), np.exp((at - s) / 2.0)))
    r = (s + t - epsilon) / 2.0
    claimed = math.exp(-r) * (1.0 + min(r, t) / 2.0) if r >= 0.0 else 1.0
    assert float(np.sum(law * g)) == pytest.approx(claimed, abs=1e-6)
    assert claimed >= math.exp(min(0.0, -r))


@given(shift=st.floats(1e-6, 60.0), part=st.floats(-1.2, 1.2))
@settings(deadline=None)
def test_the_pair_has_its_curve(shift: float, part: float) -> None:
    epsilon = part * shift
    first, second = LaplacePair(shift).masses(np.array([epsilon]))
    exact = 1.0 - min(1.0, math.exp(epsilon), math.exp((epsilon - shift) / 2.0))
    above = first[1] - math.exp(epsilon) * second[1]
    assert above == pytest.approx(exact, abs=1e-13 * (1.0 + math.exp(epsilon)))
    first, second = LaplacePair(shift).masses(np.linspace(-1.3 * shift, 1.3 * shift, 8))
    assert first.sum() == pytest.approx(1.0, rel=1e-12)
    np.testing.assert_allclose(first, second[::-1], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize(
    ("stddev", "renyi", "pld"), [(1.0, 3.983, 3.651), (2.0, 1.764, 1.610), (5.0, 0.655, 0.598)]
)
def test_sampled_it_costs_what_its_own_pair_does(stddev: float, renyi: float, pld: float) -> None:
    event = Sampled(
        event=scalar(math.sqrt(2.0) / stddev), rate=0.05, scheme="poisson", hidden_by="own-records"
    )
    composed = Repeated(event=event, count=150)
    assert find_accountant("pld").epsilon(composed, 1e-5) == pytest.approx(pld, rel=5e-3)
    assert find_accountant("renyi").epsilon(composed, 1e-5) == pytest.approx(renyi, rel=5e-3)


def test_its_own_pair_beats_pure_epsilon_and_a_gaussian_bounds_it_far_out() -> None:
    composed = Repeated(event=scalar(0.1), count=100)
    pure = Repeated(event=PureDp(epsilon=0.1, adjacency=ZERO_OUT), count=100)
    assert accounting.epsilon(composed, 1e-5) < accounting.epsilon(pure, 1e-5)
    many = accounting.epsilon(scalar(1.0, 10**9), 1e-5)
    gaussian = accounting.epsilon(GaussianNoise(mu=1.0, adjacency=ZERO_OUT), 1e-5)
    assert gaussian < many < 1.12 * gaussian  # what converting from Renyi loses
    assert pure_epsilon(scalar(0.5)) == pytest.approx(0.5)
    assert pure_epsilon(scalar(0.5, 4)) == pytest.approx(1.0)


def test_vectors_in_l2_have_no_pair() -> None:
    with pytest.raises(UnsupportedEventError, match="LaplaceNoise"):
        find_accountant("pld").epsilon(scalar(1.0, 2), 1e-5)
