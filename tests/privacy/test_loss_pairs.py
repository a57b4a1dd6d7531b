"""Pairs of laws: masses that are right relatively to themselves, and the curves of sampling."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.privacy.divergences import finite_hockey_stick
from sottovoce.privacy.loss_distributions import connect_dots, grid_step
from sottovoce.privacy.loss_pairs import (
    PAIR_ACCURACY,
    AtomPair,
    GaussianPair,
    LogisticBitPair,
    LossPair,
    SampledAwayPair,
    SampledPair,
    SwappedPair,
    randomized_response,
    symmetric_pair,
)

DOTS = np.linspace(-24.0, 24.0, 961)
rates = st.floats(1e-3, 0.999)


def pmfs(size: int) -> st.SearchStrategy[tuple[float, ...]]:
    weights = st.lists(st.integers(0, 20), min_size=size, max_size=size)
    return weights.filter(any).map(lambda drawn: tuple(w / sum(drawn) for w in drawn))


def curve(pair: LossPair, epsilon: float) -> float:
    """sup P - e^eps Q, from the masses above epsilon alone: exact at an edge."""
    first, second = pair.masses(np.array([epsilon]))
    return float(first[1] - math.exp(epsilon) * second[1])


@pytest.mark.parametrize("mu", [0.01, 1.0, 6.0])
def test_gaussian_masses_are_right_relatively_in_both_tails(mu: float) -> None:
    # Edges in binary fractions, and bins both narrow and wide.
    edges = np.array([-30.0, -8.0, -7.984375, -1.0, 0.0, 0.0078125, 1.0, 8.0, 8.015625, 30.0]) * mu
    first, second = GaussianPair(mu).masses(edges)
    with mpmath.workdps(400):
        m = mpmath.mpf(mu)
        for law, centre in ((first, m * m / 2), (second, -m * m / 2)):
            ends = [-mpmath.inf, *(mpmath.mpf(edge) for edge in edges), mpmath.inf]
            cdf = [mpmath.ncdf((end - centre) / m) for end in ends]
            for found, low, high in zip(law, cdf, cdf[1:], strict=False):
                exact = high - low
                if exact > 1e-300:
                    assert abs(found - exact) <= PAIR_ACCURACY * exact


@given(shift=st.floats(1e-6, 60.0), logit=st.floats(-40.0, 40.0), part=st.floats(-1.2, 1.2))
@settings(deadline=None)
def test_no_logit_of_one_bit_lies_above_its_pair(shift: float, logit: float, part: float) -> None:
    epsilon = part * shift
    with mpmath.workdps(60):
        z, s = mpmath.mpf(logit), mpmath.mpf(shift)
        high, low = 1 / (1 + mpmath.exp(-z - s)), 1 / (1 + mpmath.exp(-z))
        x = mpmath.exp(mpmath.mpf(epsilon))
        for p, q in ((high, low), (low, high)):
            exact = max(p - x * q, 0) + max((1 - p) - x * (1 - q), 0)
            found = curve(LogisticBitPair(shift), epsilon)
            # The difference of two masses of about 1 rounds absolutely.
            assert exact <= found + 1e-14 * (1 + float(x))
    first, second = LogisticBitPair(shift).masses(np.linspace(-shift, shift, 7))
    assert first.sum() == pytest.approx(1.0, rel=1e-12)
    np.testing.assert_allclose(first, second[::-1], rtol=1e-9, atol=1e-15)


@given(first=pmfs(4), second=pmfs(4), epsilon=st.floats(-3.0, 3.0))
@settings(deadline=None)
def test_either_order_has_the_larger_of_both_curves(
    first: tuple[float, ...], second: tuple[float, ...], epsilon: float
) -> None:
    expected = max(
        finite_hockey_stick(first, second, epsilon), finite_hockey_stick(second, first, epsilon)
    )
    pair = symmetric_pair(first, second)
    assert curve(pair, epsilon) == pytest.approx(expected, rel=1e-12, abs=1e-13)
    # Each law has all of its mass, somewhere.
    for law in (pair.first, pair.second):
        assert math.fsum(law) == pytest.approx(1.0, abs=1e-14)


@given(first=pmfs(3), second=pmfs(3), rate=rates, epsilon=st.floats(-2.0, 2.0))
@settings(deadline=None)
def test_sampled_pairs_have_the_curves_of_the_mixtures(
    first: tuple[float, ...], second: tuple[float, ...], rate: float, epsilon: float
) -> None:
    base = symmetric_pair(first, second)
    p, q = base.first, base.second
    mixed = (1.0 - rate) * q + rate * p
    away = (1.0 - rate) * p + rate * q
    for pair, laws in (
        (SampledPair(base, rate), (mixed, q)),
        (SampledAwayPair(base, rate), (p, away)),
        (SampledPair(base, rate).reverse(), (q, mixed)),
        (SampledAwayPair(base, rate).reverse(), (away, p)),
    ):
        expected = finite_hockey_stick(*laws, epsilon)
        assert curve(pair, epsilon) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(epsilon=st.floats(0.01, 4.0), rate=rates, at=st.floats(0.0, 4.0))
@settings(deadline=None)
def test_a_swapped_pair_is_symmetric_and_has_all_mass(
    epsilon: float, rate: float, at: float
) -> None:
    pair = SwappedPair(randomized_response(epsilon), rate)
    above, below = curve(pair, at), curve(pair, -at)
    assert below == pytest.approx(1.0 - math.exp(-at) + math.exp(-at) * above, abs=1e-10)
    assert above == pytest.approx(curve(SampledPair(pair.base, rate), at), abs=1e-10)
    assert pair.reverse() is pair
    for edges in (np.array([-0.5, 0.0, 0.5]), np.array([-0.5, 0.5]), np.array([0.25, 1.0])):
        for law in pair.masses(edges):
            assert float(np.sum(law)) == pytest.approx(1.0, abs=1e-10)


def test_losses_that_sampling_makes_finite_are_not_lost() -> None:
    base = symmetric_pair((1.0, 0.0), (0.0, 1.0))
    edges = np.array([-1.0, math.log(0.9) - 1e-9, math.log(0.9) + 1e-9, 1.0])
    first, second = SampledPair(base, 0.1).masses(edges)
    assert first == pytest.approx([0.0, 0.0, 0.9, 0.0, 0.1])
    assert second == pytest.approx([0.0, 0.0, 1.0, 0.0, 0.0])
    first, _ = SampledAwayPair(base, 0.1).masses(-edges[::-1])
    assert first == pytest.approx([0.0, 0.0, 1.0, 0.0, 0.0])


PAIRS: list[LossPair] = [
    GaussianPair(0.5),
    GaussianPair(2.0),
    randomized_response(1.0),
    symmetric_pair((0.5, 0.5, 0.0), (0.1, 0.6, 0.3)),
    SampledPair(GaussianPair(1.0), 0.1),
    SampledAwayPair(GaussianPair(1.0), 0.1),
    SwappedPair(GaussianPair(1.0), 0.1),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: type(pair).__name__)
@given(epsilon=st.floats(-7.0, 7.0))
@settings(deadline=None, max_examples=30)
def test_dots_connect_above_the_curve_and_on_it_at_the_dots(pair: LossPair, epsilon: float) -> None:
    law = connect_dots(pair, DOTS)
    nearest = float(DOTS[np.argmin(np.abs(DOTS - epsilon))])
    for at, slack in ((epsilon, 5e-3), (nearest, 1e-9)):
        gaps = np.maximum(0.0, law.losses - at)
        found = law.infinite + float(np.sum(law.masses * -np.expm1(-gaps)))
        exact = curve(pair, at)
        assert found >= exact - 1e-15
        assert found <= exact + slack


@given(st.floats(1e-12, 1e3))
def test_multiples_of_a_step_are_exact(wanted: float) -> None:
    step = grid_step(wanted)
    assert 0.75 * wanted <= step <= wanted
    assert (2**45 + 1) * step / step == 2**45 + 1
    assert math.frexp(step)[0] * 8 == int(math.frexp(step)[0] * 8)


def test_the_reverse_of_a_pair_of_atoms_swaps_its_laws() -> None:
    pair = AtomPair(np.array([-1.0, math.inf]), np.array([0.2, 0.8]), np.array([1.0, 0.0]))
    turned: Any = pair.reverse()
    assert list(turned.losses) == [-math.inf, 1.0]
    assert list(turned.first) == [0.0, 1.0]
    assert GaussianPair(1.0).reverse() == GaussianPair(1.0)
