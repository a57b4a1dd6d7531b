"""The certificate of the Fisher information, on families that nobody designed."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.domains import Vector
from sottovoce.mechanisms.design.families import (
    ExponentialFamily,
    certified_fisher_bound,
    exponential_family,
    tilted_law,
)

# How far above the supremum a certificate may lie: cells within 1e-6, rounding 1e-8.
CLOSE = 1.1e-6


def symmetric(half_points: Vector, half_weights: Vector, *, middle: bool) -> tuple[Vector, Vector]:
    """A symmetric family of the given points, their negatives and perhaps 0."""
    points = [-half_points[::-1], half_points]
    weights = [half_weights[::-1], half_weights]
    if middle:
        points.insert(1, np.zeros(1))
        weights.insert(1, half_weights[:1])
    masses = np.concatenate(weights)
    return np.concatenate(points), (masses + masses[::-1]) / (2.0 * masses.sum())


def variance(points: Vector, weights: Vector, tilt: Any) -> Any:
    """Var_z(y) at the working precision of mpmath."""
    pairs = list(zip(map(mpmath.mpf, points.tolist()), weights.tolist(), strict=True))
    masses = [mpmath.mpf(w) * mpmath.exp(y * tilt) for y, w in pairs]
    total = mpmath.fsum(masses)
    mean = mpmath.fsum(m * y for m, (y, _) in zip(masses, pairs, strict=True)) / total
    return mpmath.fsum(m * (y - mean) ** 2 for m, (y, _) in zip(masses, pairs, strict=True)) / total


def supremum(points: Vector, weights: Vector) -> tuple[float, Any]:
    """The largest variance on a dense grid, and mpmath's maximum around it."""
    # Weights go down to 1e-30: two points whose gap matters have traded places by 75/gap.
    reach = 400.0 / float(np.abs(points).max())
    tilts = np.linspace(0.0, reach, 40_001)
    law = tilted_law(ExponentialFamily(points=points, weights=weights, fisher_bound=0.0), tilts)
    centred = points - (law @ points)[:, None]
    variances = (law * centred**2).sum(axis=1)
    top = int(variances.argmax())
    with mpmath.workdps(40):
        step = mpmath.mpf(tilts[1])
        low, high = max(mpmath.mpf(0), tilts[top] - step), tilts[top] + step
        golden = (mpmath.sqrt(5) - 1) / 2
        for _ in range(30):
            left, right = high - golden * (high - low), low + golden * (high - low)
            if variance(points, weights, left) < variance(points, weights, right):
                low = left
            else:
                high = right
        return float(variances.max()), variance(points, weights, (low + high) / 2)


def claim_holds(claim: float, points: Vector, weights: Vector) -> bool:
    grid, refined = supremum(points, weights)
    return claim >= refined and claim >= grid * (1.0 - 1e-12)


half_families = st.integers(1, 6).flatmap(
    lambda size: st.tuples(
        st.lists(st.floats(-1.0, 1.0), min_size=size, max_size=size),
        st.lists(st.floats(-30.0, 0.0), min_size=size, max_size=size),
        st.floats(-3.0, 3.0),
        st.booleans(),
    )
)


@given(half_families)
@settings(max_examples=40)
def test_the_certificate_is_never_below_the_supremum_and_close_above(drawn: Any) -> None:
    half_points, exponents, magnitude, middle = drawn
    half = np.array(half_points) * 10.0**magnitude
    if np.abs(half).max() < 1e-3 * 10.0**magnitude:
        half[0] = 10.0**magnitude
    points, weights = symmetric(half, 10.0 ** np.array(exponents), middle=middle)
    bound = certified_fisher_bound(points, weights)
    assert claim_holds(bound, points, weights)
    assert bound <= float(supremum(points, weights)[1]) * (1.0 + CLOSE)


@pytest.mark.parametrize("middle", [False, True])
def test_unsorted_points_and_ties_at_the_largest_are_covered(middle: bool) -> None:
    half = np.array([2.0, -0.5, 2.0, 1.0, -2.0])
    points, weights = symmetric(half, np.array([0.1, 1.0, 1e-9, 0.3, 1e-3]), middle=middle)
    bound = certified_fisher_bound(points, weights)
    assert claim_holds(bound, points, weights)
    order = np.argsort(points, kind="stable")
    sorted_weights = (weights[order] + weights[order][::-1]) / 2.0
    assert bound == pytest.approx(certified_fisher_bound(points[order], sorted_weights), rel=2e-6)


@pytest.mark.parametrize("share", [1.0 - 1e-5, 0.99, 0.5])
def test_a_claim_that_is_too_small_is_caught(share: float) -> None:
    points, weights = symmetric(np.array([0.2, 1.0]), np.array([1.0, 0.01]), middle=True)
    bound = certified_fisher_bound(points, weights)
    assert claim_holds(bound, points, weights)
    assert not claim_holds(bound * share, points, weights)


def test_the_information_at_zero_alone_would_be_a_claim_that_is_too_small() -> None:
    """Appendix B of the I-MVU paper starts from x = 1/2, a stationary point: not the largest."""
    points, weights = symmetric(np.array([3.0]), np.array([1e-6]), middle=True)
    weights[1] = 1.0 - 2.0 * weights[0] * 1e-6
    weights[[0, 2]] *= 1e-6
    at_zero = float(weights @ points**2)
    assert not claim_holds(at_zero, points, weights)
    assert claim_holds(certified_fisher_bound(points, weights), points, weights)


@pytest.mark.parametrize("t", [1e-3, 1.0 / 3.0, 1.0, 5.0, 60.0])
@pytest.mark.parametrize("signs", [[1.0], [1.0, -1.0, 1.0]])
def test_equal_magnitudes_have_the_bound_t_squared(t: float, signs: list[float]) -> None:
    half = t * np.array(signs)
    points, weights = symmetric(half, np.linspace(1.0, 2.0, len(half)), middle=False)
    bound = certified_fisher_bound(points, weights)
    assert bound == pytest.approx(t**2, rel=1e-15)
    with mpmath.workdps(40):
        assert bound >= mpmath.mpf(t) ** 2
        assert variance(points, weights, mpmath.mpf(0)) <= bound


def test_the_shortcut_agrees_with_the_cells() -> None:
    # A middle point of next to no weight: the same supremum, found the long way.
    points, weights = np.array([-2.0, 0.0, 2.0]), np.array([0.5, 1e-14, 0.5])
    assert certified_fisher_bound(points, weights) == pytest.approx(4.0, rel=CLOSE)
    assert math.isclose(certified_fisher_bound(points[::2], weights[::2]), 4.0, rel_tol=1e-15)


def test_a_family_is_read_only_and_an_asymmetric_one_is_refused() -> None:
    family = exponential_family(np.array([-1.0, 0.0, 1.0]), np.array([0.25, 0.5, 0.25]))
    with pytest.raises(ValueError, match="read-only"):
        family.points[0] = 0.0
    for points, weights in (
        ([-1.0, 1.5], [0.5, 0.5]),
        ([-1.0, 1.0], [0.4, 0.6]),
        ([-1.0, 0.0, 1.0], [0.5, 0.0, 0.5]),
    ):
        with pytest.raises(AssertionError):
            certified_fisher_bound(np.array(points), np.array(weights))
