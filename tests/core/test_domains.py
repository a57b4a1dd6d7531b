"""Domains: projections, checks and sensitivities."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import (
    ROUNDING_HEADROOM,
    Box,
    Domain,
    L1Ball,
    L2Ball,
    Vector,
    finite_vector,
)
from sottovoce.core.errors import DomainError, ParameterError

DIMENSION = 4
DOMAINS: list[Domain] = [
    L2Ball(dimension=DIMENSION, radius=1.5),
    L2Ball(dimension=DIMENSION, radius=1e-3, records=7),
    L1Ball(dimension=DIMENSION, radius=1.5),
    L1Ball(dimension=DIMENSION, radius=200.0),
    Box(dimension=DIMENSION, lower=-0.5, upper=2.0),
]
BALLS = [L2Ball, L1Ball]

over_domains = pytest.mark.parametrize("domain", DOMAINS, ids=repr)
over_balls = pytest.mark.parametrize("ball", BALLS)


def vectors(largest: float = 1e6) -> st.SearchStrategy[Vector]:
    coordinate = st.floats(min_value=-largest, max_value=largest)
    return st.lists(coordinate, min_size=DIMENSION, max_size=DIMENSION).map(np.array)


def exact_l1_projection(values: Vector, limit: float) -> Vector:
    """The Euclidean projection by its KKT conditions, in rational arithmetic.

    Every number of non-zero coordinates is tried; exactly one gives a threshold that keeps those
    coordinates and drops the others.
    """
    magnitudes = [abs(Fraction(float(v))) for v in values]
    if sum(magnitudes) <= Fraction(limit):
        return values
    ordered = sorted(magnitudes, reverse=True)
    for kept in range(1, len(ordered) + 1):
        threshold = (sum(ordered[:kept]) - Fraction(limit)) / kept
        dropped = ordered[kept] if kept < len(ordered) else Fraction(0)
        if ordered[kept - 1] > threshold >= dropped:
            shrunk = [float(max(m - threshold, Fraction(0))) for m in magnitudes]
            return np.copysign(shrunk, values)
    raise AssertionError("one of the active sets satisfies the KKT conditions")


@over_domains
@given(values=vectors())
@settings(deadline=None)
def test_a_projected_vector_passes_the_check(domain: Domain, values: Vector) -> None:
    projected = domain.project(values)
    assert np.array_equal(domain.check(projected), projected)


@over_domains
@given(values=vectors())
@settings(deadline=None)
def test_projecting_twice_is_projecting_once(domain: Domain, values: Vector) -> None:
    once = domain.project(values)
    np.testing.assert_allclose(domain.project(once), once, rtol=1e-15, atol=1e-300)


@over_domains
@given(first=vectors(), second=vectors())
@settings(deadline=None)
def test_projection_never_moves_two_points_apart(
    domain: Domain, first: Vector, second: Vector
) -> None:
    before = float(np.linalg.norm(first - second))
    after = float(np.linalg.norm(domain.project(first) - domain.project(second)))
    # Rounding is relative to the inputs, not to their distance.
    assert after <= before + 1e-14 * float(np.abs([first, second]).max())


@over_domains
@given(first=vectors(largest=1.0), nudge=vectors(largest=1e-3))
@settings(deadline=None)
def test_projection_never_moves_two_close_points_apart(
    domain: Domain, first: Vector, nudge: Vector
) -> None:
    second = first + nudge
    before = float(np.linalg.norm(first - second))
    after = float(np.linalg.norm(domain.project(first) - domain.project(second)))
    assert after <= before + 1e-15


@over_domains
def test_the_zero_vector_is_inside_and_stays_zero(domain: Domain) -> None:
    zero = np.zeros(DIMENSION)
    assert np.array_equal(domain.project(zero), zero)
    assert np.array_equal(domain.check(zero), zero)


@over_domains
def test_a_vector_well_inside_is_not_changed_by_a_single_bit(domain: Domain) -> None:
    inside = np.array([1e-4, -2e-5, 0.0, 3e-300])
    assert np.array_equal(domain.project(inside), inside)


@over_domains
def test_the_smallest_subnormal_is_inside_every_domain(domain: Domain) -> None:
    tiny = np.array([5e-324, -5e-324, 0.0, 5e-324])
    assert np.array_equal(domain.check(domain.project(tiny)), tiny)


@pytest.mark.parametrize("scale", [1e100, 1e300, 1.7e308])
def test_a_huge_vector_projects_onto_the_sphere_in_its_own_direction(scale: float) -> None:
    ball = L2Ball(dimension=DIMENSION, radius=2.0)
    projected = ball.check(ball.project(scale * np.array([1.0, -1.0, 1.0, 1.0])))
    np.testing.assert_allclose(projected, [1.0, -1.0, 1.0, 1.0], rtol=2 * ROUNDING_HEADROOM)


def test_a_huge_vector_is_clipped_to_the_box() -> None:
    box = Box(dimension=DIMENSION, lower=-1.0, upper=1.0)
    assert box.project([1e300, -1e300, 1.7e308, 0.5]).tolist() == [1.0, -1.0, 1.0, 0.5]


def test_the_l2_norm_of_huge_and_of_tiny_vectors_neither_overflows_nor_vanishes() -> None:
    ball = L2Ball(dimension=2, radius=1.0)
    assert ball.norm(np.array([3e300, 4e300])) == pytest.approx(5e300, rel=1e-15, abs=0.0)
    assert ball.norm(np.array([3e-300, 4e-300])) == pytest.approx(5e-300, rel=1e-15, abs=0.0)
    assert ball.norm(np.zeros(2)) == 0.0


def test_a_vector_whose_norm_overflows_is_refused_by_check() -> None:
    with pytest.raises(DomainError, match="norm inf exceeds the radius 1"):
        L2Ball(dimension=DIMENSION, radius=1.0).check([1.7e308] * DIMENSION)


@given(values=vectors())
@settings(deadline=None)
def test_l2_projection_keeps_the_direction(values: Vector) -> None:
    ball = L2Ball(dimension=DIMENSION, radius=1.5)
    projected, norm = ball.project(values), ball.norm(values)
    if norm > ball.radius:
        np.testing.assert_allclose(
            projected / ball.norm(projected), values / norm, rtol=1e-14, atol=1e-300
        )


@given(values=vectors())
@settings(deadline=None, max_examples=300)
def test_l1_projection_is_the_euclidean_projection_by_exact_kkt(values: Vector) -> None:
    ball = L1Ball(dimension=DIMENSION, radius=1.5)
    expected = exact_l1_projection(values, ball.radius * (1.0 - ROUNDING_HEADROOM))
    # Subtracting a threshold close to the largest magnitude costs that magnitude's last bits.
    rounding = 16.0 * 2.0**-52 * max(1.0, float(np.abs(values).max()))
    np.testing.assert_allclose(ball.project(values), expected, rtol=0.0, atol=rounding)


def test_l1_projection_reproduces_a_hand_computed_case() -> None:
    # |v| = (3, 2, 0.5, 0), radius 2: threshold 1.5 keeps two coordinates, (1.5, 0.5, 0, 0).
    ball = L1Ball(dimension=DIMENSION, radius=2.0)
    projected = ball.project([3.0, -2.0, 0.5, 0.0])
    np.testing.assert_allclose(projected, [1.5, -0.5, 0.0, 0.0], atol=2.0 * ROUNDING_HEADROOM)


def test_l1_projection_treats_ties_alike() -> None:
    projected = L1Ball(dimension=DIMENSION, radius=1.0).project([5.0, 5.0, -5.0, 5.0])
    assert len(set(np.abs(projected).tolist())) == 1
    assert np.sign(projected).tolist() == [1.0, 1.0, -1.0, 1.0]


@over_balls
def test_projection_of_a_long_vector_passes_the_check(ball: type[L2Ball] | type[L1Ball]) -> None:
    # The norm of many coordinates carries the most rounding; the headroom must cover it.
    domain = ball(dimension=200_000, radius=1.0)
    values = np.random.default_rng(20_240_501).normal(size=domain.dimension)
    domain.check(domain.project(values))


@over_balls
def test_projection_stops_short_of_the_boundary_by_the_headroom(
    ball: type[L2Ball] | type[L1Ball],
) -> None:
    domain = ball(dimension=2, radius=1.0)
    norm = domain.norm(domain.project([3.0, 4.0]))
    assert norm == pytest.approx(1.0 - ROUNDING_HEADROOM, rel=1e-15, abs=0.0)


@over_domains
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_coordinate_that_is_not_finite_is_refused_by_index(domain: Domain, bad: float) -> None:
    values = [0.0, 0.0, bad, 0.0]
    for refuse in (domain.check, domain.project):
        with pytest.raises(DomainError, match=f"coordinate 2 is {bad}; .*must be finite"):
            refuse(values)


@over_domains
@pytest.mark.parametrize("shape", [(), (0,), (3,), (5,), (4, 1), (1, 4), (2, 2)])
def test_a_wrong_shape_is_refused_with_both_shapes(domain: Domain, shape: tuple[int, ...]) -> None:
    for refuse in (domain.check, domain.project):
        with pytest.raises(DomainError) as caught:
            refuse(np.zeros(shape))
        assert f"dimension {DIMENSION}" in str(caught.value)
        assert f"shape {shape}" in str(caught.value)


@pytest.mark.parametrize(
    "domain", [L2Ball(dimension=2, radius=1.0), L1Ball(dimension=2, radius=1.0)]
)
def test_a_vector_outside_the_ball_is_refused_with_norm_radius_and_remedy(
    domain: L2Ball | L1Ball,
) -> None:
    with pytest.raises(DomainError, match=r"norm 2 exceeds the radius 1; call project\(\) first"):
        domain.check([0.0, -2.0])


def test_the_boundary_of_the_ball_is_inside_and_the_next_float_is_not() -> None:
    L2Ball(dimension=2, radius=5.0).check([3.0, 4.0])
    L1Ball(dimension=2, radius=7.0).check([3.0, -4.0])
    for ball in (L2Ball(dimension=1, radius=5.0), L1Ball(dimension=1, radius=5.0)):
        with pytest.raises(DomainError, match="exceeds the radius"):
            ball.check([-math.nextafter(5.0, math.inf)])


def test_a_vector_outside_the_box_is_refused_with_coordinate_and_bounds() -> None:
    box = Box(dimension=3, lower=-1.0, upper=2.0)
    box.check([-1.0, 2.0, 0.0])
    with pytest.raises(DomainError, match=r"coordinate 1 is -1.5, outside \[-1, 2\]"):
        box.check([0.0, -1.5, 9.0])


@pytest.mark.parametrize("given_type", [list, tuple, np.array])
def test_check_returns_float64_whatever_it_was_given(given_type: type) -> None:
    vector = finite_vector(given_type([1, 0, 2]), 3)
    assert vector.dtype == np.float64
    assert vector.tolist() == [1.0, 0.0, 2.0]


@over_balls
@pytest.mark.parametrize(
    ("records", "adjacency", "expected"),
    [
        (1, Adjacency.ZERO_OUT, 3.0),
        (1, Adjacency.REPLACE_ONE, 6.0),
        (4, Adjacency.ZERO_OUT, 0.75),
        (4, Adjacency.REPLACE_ONE, 1.5),
    ],
)
def test_the_sensitivity_of_a_mean_is_one_contribution_over_the_number_of_records(
    ball: type[L2Ball] | type[L1Ball], records: int, adjacency: Adjacency, expected: float
) -> None:
    assert ball(dimension=2, radius=3.0, records=records).sensitivity(adjacency) == expected


@over_balls
@given(data=st.data())
@settings(deadline=None)
def test_no_neighboring_means_lie_further_apart_than_the_sensitivity(
    ball: type[L2Ball] | type[L1Ball], data: st.DataObject
) -> None:
    records = data.draw(st.integers(1, 5))
    contribution = ball(dimension=DIMENSION, radius=2.0)
    mean_domain = ball(dimension=DIMENSION, radius=2.0, records=records)
    dataset = [contribution.project(data.draw(vectors())) for _ in range(records)]
    replaced = [contribution.project(data.draw(vectors())), *dataset[1:]]
    zeroed = [np.zeros(DIMENSION), *dataset[1:]]
    for neighbour, adjacency in (
        (replaced, Adjacency.REPLACE_ONE),
        (zeroed, Adjacency.ZERO_OUT),
    ):
        gap = mean_domain.norm(np.mean(dataset, axis=0) - np.mean(neighbour, axis=0))
        assert gap <= mean_domain.sensitivity(adjacency)


@pytest.mark.parametrize(
    ("lower", "upper", "zero_out", "replace_one"),
    [
        (0.0, 1.0, 1.0, 1.0),
        (-1.0, 1.0, 1.0, 2.0),
        (-1.0, 3.0, 3.0, 4.0),
        (-3.0, 1.0, 3.0, 4.0),
        (2.0, 5.0, 3.0, 3.0),  # 0 lies outside: the nearest point of the box, 2, stands for it
        (-5.0, -2.0, 3.0, 3.0),
    ],
)
def test_the_sensitivity_of_a_box_is_its_reach_from_zero_or_its_width(
    lower: float, upper: float, zero_out: float, replace_one: float
) -> None:
    box = Box(dimension=2, lower=lower, upper=upper)
    assert box.sensitivity(Adjacency.ZERO_OUT) == zero_out
    assert box.sensitivity(Adjacency.REPLACE_ONE) == replace_one


@over_balls
@pytest.mark.parametrize("dimension", [0, -1, 2**34 + 1, 2**64, 1.5, True, "3"])
def test_a_dimension_that_is_no_positive_integer_is_refused(
    ball: type[L2Ball] | type[L1Ball], dimension: int
) -> None:
    with pytest.raises(ParameterError, match="dimension must be an integer from 1 to"):
        ball(dimension=dimension, radius=1.0)
    with pytest.raises(ParameterError, match="dimension must be an integer from 1 to"):
        Box(dimension=dimension, lower=0.0, upper=1.0)


@over_balls
@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf, 1e13, True, "1"])
def test_a_radius_that_is_no_positive_number_is_refused(
    ball: type[L2Ball] | type[L1Ball], radius: float
) -> None:
    with pytest.raises(ParameterError, match=r"radius \(the clip norm\) must be a"):
        ball(dimension=1, radius=radius)


@over_balls
def test_a_client_without_records_is_refused(ball: type[L2Ball] | type[L1Ball]) -> None:
    with pytest.raises(ParameterError, match=r"records must be .* got 0; leave out a client"):
        ball(dimension=1, radius=1.0, records=0)


@pytest.mark.parametrize(
    ("lower", "upper"),
    [(1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (0.0, math.nan), (-math.inf, 0.0), (0.0, math.inf)],
)
def test_an_empty_or_unbounded_box_is_refused(lower: float, upper: float) -> None:
    with pytest.raises(ParameterError, match="must be"):
        Box(dimension=1, lower=lower, upper=upper)


@pytest.mark.parametrize(("lower", "upper"), [(-1e308, 1e308), (0.0, 1e12), (0.0, 1e-200)])
def test_a_box_whose_width_float64_cannot_divide_by_is_refused(lower: float, upper: float) -> None:
    with pytest.raises(ParameterError, match="scale the data"):
        Box(dimension=1, lower=lower, upper=upper)


@over_domains
def test_a_domain_cannot_be_changed(domain: Domain) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        domain.dimension = 9  # type: ignore[misc]
