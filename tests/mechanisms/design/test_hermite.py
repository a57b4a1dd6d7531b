"""The Gauss-Hermite family: its nodes, and the certificate that its privacy rests on."""

import itertools
import math
from typing import Any

import mpmath
import numpy as np
import pytest
from cases import cases, denser
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.design.families import (
    MAX_LEVELS,
    ExponentialFamily,
    certified_fisher_bound,
    excess_error,
    gauss_hermite,
    levels_covering,
    tilted_law,
)
from sottovoce.privacy.divergences import finite_renyi

CERTIFIED_LEVELS = [2, 3, 4, 5, 8, 16, 33, 64, 256]


def mean_of_tilt(design: ExponentialFamily, tilts: Vector) -> Vector:
    """E[y_j] under P(. | z), the value that z decodes to on average: A'(z)."""
    return tilted_law(design, tilts) @ design.points


def fisher_information(points: Vector, weights: Vector, tilts: Vector) -> Vector:
    """A''(z), the variance of the tilted law, in plain float64."""
    logits = np.log(weights) + np.outer(tilts, points)
    law = np.exp(logits - logits.max(axis=1, keepdims=True))
    law /= law.sum(axis=1, keepdims=True)
    deviations = points - (law @ points)[:, None]
    variances: Vector = (law * deviations**2).sum(axis=1)
    return variances


def exact_fisher_information(points: Vector, weights: Vector, tilt: float) -> Any:
    with mpmath.workdps(50):
        y = [mpmath.mpf(float(v)) for v in points]
        masses = [
            mpmath.mpf(float(w)) * mpmath.exp(v * tilt) for v, w in zip(y, weights, strict=True)
        ]
        total = mpmath.fsum(masses)
        mean = mpmath.fdot(masses, y) / total
        return mpmath.fsum(m * (v - mean) ** 2 for m, v in zip(masses, y, strict=True)) / total


def exact_log_partition(design: ExponentialFamily, tilt: Any) -> Any:
    terms = (
        mpmath.mpf(float(w)) * mpmath.exp(mpmath.mpf(float(y)) * tilt)
        for y, w in zip(design.points, design.weights, strict=True)
    )
    return mpmath.log(mpmath.fsum(terms))


def exact_renyi(design: ExponentialFamily, first: float, second: float, order: float) -> Any:
    """D_a between two tilts by the log-partition function, in mpmath."""
    with mpmath.workdps(60):
        z, other, a = mpmath.mpf(first), mpmath.mpf(second), mpmath.mpf(order)
        joint = exact_log_partition(design, a * z + (1 - a) * other)
        own = a * exact_log_partition(design, z) + (1 - a) * exact_log_partition(design, other)
        return (joint - own) / (a - 1)


def hermite_polynomials(degree: int, x: Any) -> tuple[Any, Any]:
    """He_degree and He_(degree - 1) at x, by the three-term recurrence."""
    previous, current = mpmath.mpf(1), x
    for k in range(1, degree):
        previous, current = current, x * current - k * previous
    return current, previous


@pytest.mark.parametrize("levels", range(2, 21))
def test_nodes_and_weights_are_those_of_mpmath(levels: int) -> None:
    design = gauss_hermite(levels)
    with mpmath.workdps(50):
        roots = [
            mpmath.findroot(lambda x: hermite_polynomials(levels, x)[0], mpmath.mpf(float(point)))
            for point in design.points
        ]
        # A polynomial of this degree has no further roots, so distinct ones are all of them.
        assert all(b - a > mpmath.mpf("0.1") for a, b in itertools.pairwise(roots))
        weights = [
            mpmath.factorial(levels) / (levels * hermite_polynomials(levels, x)[1]) ** 2
            for x in roots
        ]
    np.testing.assert_allclose(design.points, [float(x) for x in roots], rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(design.weights, [float(w) for w in weights], rtol=1e-12)


@pytest.mark.parametrize("levels", denser([2, 3, 8, 20]))
def test_moments_are_the_gaussians_up_to_twice_the_levels_minus_1(levels: int) -> None:
    design = gauss_hermite(levels)
    for power in range(2 * levels):
        double_factorial = math.prod(range(power - 1, 0, -2)) if power % 2 == 0 else 0
        moment = math.fsum(design.weights * design.points**power)
        scale = math.fsum(design.weights * np.abs(design.points) ** power)
        assert moment == pytest.approx(double_factorial, rel=1e-11, abs=1e-12 * scale)


@pytest.mark.parametrize("levels", CERTIFIED_LEVELS)
def test_a_design_is_a_symmetric_law_with_positive_weights(levels: int) -> None:
    design = gauss_hermite(levels)
    assert len(design.points) == len(design.weights) == levels
    assert np.array_equal(design.points, -design.points[::-1])
    assert np.array_equal(design.weights, design.weights[::-1])
    assert np.all(np.diff(design.points) > 0.0)
    assert np.all(design.weights > 0.0)
    assert math.fsum(design.weights) == pytest.approx(1.0, abs=1e-14)


def test_a_shared_design_cannot_be_written_to() -> None:
    design = gauss_hermite(4)
    assert gauss_hermite(4) is design
    for array in (design.points, design.weights):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.0


@pytest.mark.parametrize("levels", [0, 1, -2, 257, 2**64, 2.5, math.nan, True, "4"])
def test_levels_out_of_range_are_refused(levels: int) -> None:
    with pytest.raises(ParameterError, match="levels must be an integer from 2 to 256, got"):
        gauss_hermite(levels)


@pytest.mark.parametrize("levels", CERTIFIED_LEVELS)
def test_the_certificate_covers_a_fine_grid_and_exceeds_1_by_at_most_2e_6(levels: int) -> None:
    design = gauss_hermite(levels)
    # Beyond the last node by 6 the law sits on it, and the variance is next to nothing.
    reach = float(design.points[-1]) + 6.0
    highest = 0.0
    for part in np.array_split(np.linspace(0.0, reach, 1 + cases(60_000)), 1 + levels // 8):
        variances = fisher_information(design.points, design.weights, part)
        highest = max(highest, float(variances.max()))
    assert variances[-1] < 0.1
    assert highest <= design.fisher_bound <= 1.0 + 2e-6


@pytest.mark.parametrize("levels", CERTIFIED_LEVELS)
def test_the_certificate_covers_mpmath_around_the_largest_information(levels: int) -> None:
    design = gauss_hermite(levels)
    reach = float(design.points[-1])
    for tilt in [0.0, 1e-9, 1e-4, *np.linspace(0.01, reach, 25)]:
        exact = exact_fisher_information(design.points, design.weights, float(tilt))
        assert exact <= design.fisher_bound


@given(levels=st.sampled_from(CERTIFIED_LEVELS[:-1]), tilt=st.floats(-40.0, 40.0))
@settings(deadline=None)
def test_no_tilt_has_more_information_than_the_certificate(levels: int, tilt: float) -> None:
    design = gauss_hermite(levels)
    assert exact_fisher_information(design.points, design.weights, tilt) <= design.fisher_bound


def test_two_levels_have_information_sech_squared() -> None:
    design, tilts = gauss_hermite(2), np.linspace(-8.0, 8.0, 801)
    law = tilted_law(design, tilts)
    variances = law @ design.points**2 - (law @ design.points) ** 2
    np.testing.assert_allclose(variances, 1.0 / np.cosh(tilts) ** 2, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(mean_of_tilt(design, tilts), np.tanh(tilts), rtol=1e-14)


def test_three_levels_have_their_closed_form_information() -> None:
    design, tilts = gauss_hermite(3), np.linspace(-4.0, 4.0, 801)
    c = np.cosh(math.sqrt(3.0) * tilts)
    law = tilted_law(design, tilts)
    variances = law @ design.points**2 - (law @ design.points) ** 2
    np.testing.assert_allclose(
        variances, 3.0 * (2.0 * c + 1.0) / (2.0 + c) ** 2, rtol=1e-9, atol=1e-14
    )


@given(
    levels=st.sampled_from([2, 3, 4, 5, 8, 16, 33]),
    first=st.floats(-8.0, 8.0),
    second=st.floats(-8.0, 8.0),
    order=st.floats(1.001, 100.0),
)
@settings(deadline=None, max_examples=200)
def test_the_renyi_divergence_of_two_tilts_is_covered_by_the_certificate(
    levels: int, first: float, second: float, order: float
) -> None:
    design = gauss_hermite(levels)
    with mpmath.workdps(60):
        gap = mpmath.mpf(first) - mpmath.mpf(second)
        bound = mpmath.mpf(order) * design.fisher_bound * gap**2 / 2
        assert exact_renyi(design, first, second, order) <= bound + mpmath.mpf("1e-50")


@given(
    levels=st.sampled_from([2, 3, 4, 8, 16]),
    centre=st.floats(-3.0, 3.0),
    gap=st.floats(1e-6, 0.1),
    order=st.floats(1.01, 5.0),
)
@settings(deadline=None)
def test_the_renyi_divergence_of_close_tilts_is_covered_too(
    levels: int, centre: float, gap: float, order: float
) -> None:
    # Close neighbours at small tilts attain the bound: only the certificate's slack is left.
    design = gauss_hermite(levels)
    with mpmath.workdps(60):
        distance = mpmath.mpf(centre + gap) - mpmath.mpf(centre)
        bound = mpmath.mpf(order) * design.fisher_bound * distance**2 / 2
        assert exact_renyi(design, centre + gap, centre, order) <= bound


def test_the_bound_is_attained_by_close_tilts_so_nothing_smaller_would_do() -> None:
    for levels in (2, 3, 8):
        divergence = exact_renyi(gauss_hermite(levels), 5e-4, -5e-4, 2.0)
        assert float(divergence) == pytest.approx(2.0 * 1e-6 / 2.0, rel=1e-5, abs=0.0)


@given(
    levels=st.sampled_from([2, 3, 4, 8]),
    first=st.floats(-4.0, 4.0),
    second=st.floats(-4.0, 4.0),
    order=st.floats(1.1, 20.0),
)
@settings(deadline=None)
def test_tilted_laws_have_the_renyi_divergence_of_the_log_partition(
    levels: int, first: float, second: float, order: float
) -> None:
    design = gauss_hermite(levels)
    one, other = tilted_law(design, np.array([first, second]))
    expected = float(exact_renyi(design, first, second, order))
    assert finite_renyi(one, other, order) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("levels", CERTIFIED_LEVELS)
@pytest.mark.parametrize("tilt", [0.0, -1.0, 30.0, -1e3, 1e6])
def test_a_tilted_law_is_a_law_however_large_the_tilt(levels: int, tilt: float) -> None:
    (law,) = tilted_law(gauss_hermite(levels), np.array([tilt]))
    assert np.all(law >= 0.0)
    assert math.fsum(law) == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize("factor", [1.01, 1.5, 3.0])
@pytest.mark.parametrize("levels", [2, 3, 8, 16])
def test_a_design_whose_points_are_stretched_is_certified_as_that_much_worse(
    levels: int, factor: float
) -> None:
    design = gauss_hermite(levels)
    bound = certified_fisher_bound(design.points * factor, design.weights)
    # Var(f y) = f^2 Var(y), whose supremum was 1.
    assert factor**2 <= bound <= factor**2 * (1.0 + 1e-5)


def test_a_design_with_mass_moved_to_its_extremes_is_certified_as_worse() -> None:
    design = gauss_hermite(8)
    weights = design.weights.copy()
    weights[[0, -1]] += 0.01
    weights /= weights.sum()
    at_zero = float(weights @ design.points**2)
    assert at_zero > 1.2
    assert certified_fisher_bound(design.points, weights) >= at_zero


@pytest.mark.parametrize("extreme", [1e-3, 1e-6, 1e-12])
def test_a_design_whose_information_peaks_far_from_zero_is_caught(extreme: float) -> None:
    # Hardly any variance at tilt 0; where the tilt makes 0 and 3 equally likely it is 9/4.
    points = np.array([-3.0, 0.0, 3.0])
    weights = np.array([extreme, 1.0 - 2.0 * extreme, extreme])
    assert float(weights @ points**2) < 0.02
    assert 2.25 <= certified_fisher_bound(points, weights) <= 2.25 * (1.0 + 1e-4)


def test_asymmetric_points_or_weights_are_not_certified() -> None:
    with pytest.raises(AssertionError):
        certified_fisher_bound(np.array([-1.0, 1.5]), np.array([0.5, 0.5]))
    with pytest.raises(AssertionError):
        certified_fisher_bound(np.array([-1.0, 1.0]), np.array([0.4, 0.6]))


def _unbiased_range(levels: int) -> float:
    """The largest tilt up to which |E[y] - z| <= z/100."""
    design = gauss_hermite(levels)
    tilts = np.linspace(0.0, float(design.points[-1]) + 1.0, 20001)[1:]
    outside = np.abs(mean_of_tilt(design, tilts) - tilts) > 0.01 * tilts
    return float(tilts[max(0, int(np.argmax(outside)) - 1)] if outside.any() else tilts[-1])


@pytest.mark.parametrize(
    ("levels", "reach", "half_a_digit"),
    [(2, 0.17, 5e-3), (3, 0.70, 5e-3), (4, 1.23, 5e-3), (8, 2.99, 5e-3), (16, 5.5, 5e-2)],
)
def test_the_unbiased_range_is_the_value_of_our_check_values(
    levels: int, reach: float, half_a_digit: float
) -> None:
    assert _unbiased_range(levels) == pytest.approx(reach, abs=half_a_digit)


@pytest.mark.parametrize("levels", [2, 3, 4, 8, 16, 64])
def test_the_bias_is_1_percent_up_to_the_unbiased_range_and_more_just_beyond(levels: int) -> None:
    design, reach = gauss_hermite(levels), _unbiased_range(levels)
    inside = np.linspace(0.0, reach, 1001)[1:]
    assert np.all(np.abs(mean_of_tilt(design, inside) - inside) <= 0.01 * inside)
    step = 2.0 * (float(design.points[-1]) + 1.0) / 20_000.0
    beyond = np.array([reach + step])
    assert np.all(np.abs(mean_of_tilt(design, beyond) - beyond) > 0.01 * beyond)


@pytest.mark.parametrize("levels", [2, 3, 8])
@pytest.mark.parametrize("clients", [1.0, 100.0])
def test_the_excess_error_is_that_of_the_declared_law(levels: int, clients: float) -> None:
    design = gauss_hermite(levels)
    tilts = np.array([-2.0, -0.1, 0.0, 0.5, 3.0])
    law = tilted_law(design, tilts)
    means = law @ design.points
    spread = np.array([p @ (design.points - m) ** 2 for p, m in zip(law, means, strict=True)])
    expected = clients * (means - tilts) ** 2 + spread - 1.0
    np.testing.assert_allclose(excess_error(design, tilts, clients), expected, atol=1e-12)


def covering(reach: float, spread: float) -> int:
    return levels_covering(reach, spread, clients=1e4, excess=0.0025)


@pytest.mark.parametrize("spread", [0.0, 0.01, 0.08, 0.1, 0.3, 0.6, 1.2, 2.0])
def test_the_fewest_bits_that_are_accurate_enough_are_chosen(spread: float) -> None:
    """Against adaptive quadrature of the typical error."""

    def typical(levels: int) -> float:
        def integrand(normal: float) -> float:
            (excess,) = excess_error(gauss_hermite(levels), np.array([spread * normal]), 1e4)
            return float(excess) * math.exp(-(normal**2) / 2.0) / math.sqrt(2.0 * math.pi)

        return float(2.0 * integrate.quad(integrand, 0.0, 12.0, limit=200)[0])

    levels = covering(1e6, spread)
    assert typical(levels) <= 0.0025 * (1.0 + 1e-6)
    assert levels == 2 or typical(levels // 2) > 0.0025 * (1.0 - 1e-6)


@pytest.mark.parametrize("reach", [0.01, 0.5, 1.5, 3.0])
def test_in_few_dimensions_the_worst_tilt_decides(reach: float) -> None:
    levels = covering(reach, reach)
    worst = excess_error(gauss_hermite(levels), np.linspace(-reach, reach, 1001), 1e4).max()
    assert worst <= 0.0025
    assert levels <= covering(1e6, reach)


def test_where_no_number_of_levels_is_enough_the_largest_is_taken() -> None:
    assert covering(1e9, 1e9) == MAX_LEVELS


def test_two_levels_are_exactly_one_fair_sign() -> None:
    design = gauss_hermite(2)
    assert design.points.tolist() == [-1.0, 1.0]
    assert design.weights.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("levels", [2, 3, 8, 64])
def test_the_mean_of_a_tilt_is_odd_and_grows_towards_the_last_node(levels: int) -> None:
    design = gauss_hermite(levels)
    tilts = np.linspace(0.0, 10.0, 200)
    means = mean_of_tilt(design, tilts)
    assert np.all(np.diff(means) >= 0.0)
    np.testing.assert_allclose(mean_of_tilt(design, -tilts), -means, rtol=1e-12, atol=1e-13)
    (limit,) = mean_of_tilt(design, np.array([1e4]))
    assert limit == design.points[-1]
