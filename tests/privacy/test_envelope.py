"""The envelope accountant: equal to the linear program, never below the exact worst case."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.privacy.divergences import finite_renyi
from sottovoce.privacy.envelope import (
    ORDERS,
    envelope_bound,
    greedy_bound,
    linear_program_bound,
    pairwise_renyi,
    renyi_curve,
)
from sottovoce.privacy.renyi import RenyiAccountant

orders = st.floats(1.01, 1e3)


@st.composite
def tables(draw: st.DrawFn, low: int = 2, high: int = 5) -> Vector:
    """Random tables of pmf rows, with cells from 1 down to about e^-20."""
    shape = draw(st.integers(low, high)), draw(st.integers(2, 5))
    logs = draw(
        st.lists(st.floats(-20.0, 0.0), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
    )
    return normalised(np.exp(np.array(logs).reshape(shape)))


def normalised(weights: Vector) -> Vector:
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def tilted_table(num_rows: int, num_outcomes: int, strength: float) -> Vector:
    inputs, nodes = np.linspace(-1.0, 1.0, num_rows), np.linspace(-2.0, 2.0, num_outcomes)
    return normalised(np.exp(strength * np.outer(inputs, nodes) - nodes**2 / 2.0))


@st.composite
def option_sets(draw: st.DrawFn) -> tuple[Vector, Vector]:
    size = draw(st.integers(1, 30))
    costs = draw(st.lists(st.floats(0.0, 20.0), min_size=size, max_size=size))
    values = draw(st.lists(st.floats(0.0, 10.0), min_size=size, max_size=size))
    return np.round(costs, 3), np.round(values, 3)


def knapsack(costs: Vector, values: Vector, budget: int, dimension: int) -> float:
    """The exact integer optimum by dynamic programming over whole costs."""
    best = np.zeros(budget + 1)
    for _ in range(dimension):
        following = best.copy()
        for cost, value in zip(costs.astype(int), values, strict=True):
            if cost <= budget:
                reached = best[: budget + 1 - cost] + value
                following[cost:] = np.maximum(following[cost:], reached)
        best = following
    return float(np.maximum.accumulate(best)[-1])


def full_linear_program(costs: Vector, values: Vector, budget: float, dimension: int) -> float:
    """Program (4) as printed, with its own variables for every coordinate."""
    from scipy.optimize import linprog

    once_each = np.kron(np.eye(dimension), np.ones((1, costs.size)))
    solution = linprog(
        -np.tile(values, dimension),
        A_ub=np.vstack([np.tile(costs, dimension), once_each]),
        b_ub=[budget, *np.ones(dimension)],
    )
    assert solution.status == 0
    return -float(solution.fun)


@given(options=option_sets(), budget=st.floats(0.01, 60.0), dimension=st.integers(1, 6))
def test_the_envelope_the_collapsed_and_the_full_linear_program_agree(
    options: tuple[Vector, Vector], budget: float, dimension: int
) -> None:
    costs, values = options
    envelope = envelope_bound(costs, values, budget, dimension)
    collapsed = linear_program_bound(costs, values, budget, dimension)
    full = full_linear_program(costs, values, budget, dimension)
    assert envelope == pytest.approx(collapsed, rel=1e-9, abs=1e-12)
    assert envelope == pytest.approx(full, rel=1e-9, abs=1e-9)


@given(options=option_sets(), budget=st.floats(0.0, 60.0), dimension=st.integers(1, 10**6))
def test_greedy_is_never_below_the_envelope(
    options: tuple[Vector, Vector], budget: float, dimension: int
) -> None:
    envelope = envelope_bound(*options, budget, dimension)
    assert greedy_bound(*options, budget, dimension) >= envelope * (1.0 - 1e-12)


@given(
    table=tables(),
    order=orders,
    power=st.sampled_from([1, 2]),
    dimension=st.integers(1, 4),
    budget=st.integers(1, 20),
)
def test_the_envelope_is_never_below_the_exact_worst_pair_of_vectors(
    table: Vector, order: float, power: int, dimension: int, budget: int
) -> None:
    steps = np.arange(len(table))
    costs = (np.abs(steps[:, None] - steps) ** power).ravel()
    values = pairwise_renyi(table, table, order).ravel()
    near = costs <= budget  # no coordinate can afford what lies farther
    bound = envelope_bound(costs[near], values[near], budget, dimension)
    assert bound >= knapsack(costs, values, budget, dimension)


def test_the_knapsack_of_the_tests_is_the_maximum_over_all_pairs_of_vectors() -> None:
    table = tilted_table(3, 3, 1.5)
    divergences = pairwise_renyi(table, table, 3.0)
    inputs = list(itertools.product(range(3), repeat=2))
    for budget in range(1, 9):
        brute = max(
            divergences[a[0], b[0]] + divergences[a[1], b[1]]
            for a, b in itertools.product(inputs, repeat=2)
            if (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 <= budget
        )
        steps = np.arange(3, dtype=np.float64)
        costs = np.asarray((steps[:, None] - steps) ** 2).ravel()
        assert knapsack(costs, divergences.ravel(), budget, 2) == pytest.approx(brute, rel=1e-12)


def test_greedy_is_several_times_looser_in_one_dimension_and_equal_in_many() -> None:
    table = tilted_table(32, 8, 4.0)
    steps = np.arange(32)
    costs = ((steps[:, None] - steps) ** 2).ravel()
    values = pairwise_renyi(table, table, 8.0).ravel()
    looseness = [
        greedy_bound(costs, values, 31.0**2, d) / envelope_bound(costs, values, 31.0**2, d)
        for d in (1, 10, 100, 10**5)
    ]
    assert looseness[0] > 5.75
    assert looseness == sorted(looseness, reverse=True)
    assert looseness[-1] == pytest.approx(1.0, abs=1e-12)


def test_the_envelope_is_constant_beyond_the_largest_cost_and_never_falls() -> None:
    costs, values = [1.0, 2.0, 3.0], [1.0, 5.0, 0.5]  # the dearest option is worth the least
    found = [envelope_bound(costs, values, budget, 1) for budget in (0.0, 1.0, 2.0, 3.0, 99.0)]
    assert found == pytest.approx([0.0, 2.5, 5.0, 5.0, 5.0], rel=1e-12)


def test_an_option_of_infinite_value_makes_every_bound_infinite() -> None:
    for bound in (greedy_bound, linear_program_bound, envelope_bound):
        assert bound([1.0, 2.0], [1.0, math.inf], 5.0, 3) == math.inf
        assert bound([0.0, 2.0], [1.0, math.inf], 0.0, 3) == 3.0


@given(table=tables(), order=st.floats(1.0001, 1e4))
def test_the_matrix_holds_the_divergences_of_all_pairs(table: Vector, order: float) -> None:
    found = pairwise_renyi(table, table, order)
    for i, k in itertools.product(range(len(table)), repeat=2):
        exact = exact_renyi(table[i], table[k], order)
        # Rounded up by the cells' error, which counts 1/(a - 1) times near order 1.
        assert found[i, k] == pytest.approx(exact, rel=1e-9, abs=1e-15 * (order + 1 / (order - 1)))
        assert found[i, k] >= exact * (1.0 - 1e-15) - 1e-35  # the oracle has 40 digits


def exact_renyi(first: Vector, second: Vector, order: float) -> float:
    with mpmath.workdps(40):
        p = [mpmath.mpf(float(x)) for x in first]
        q = [mpmath.mpf(float(x)) for x in second]
        total_p, total_q, a = mpmath.fsum(p), mpmath.fsum(q), mpmath.mpf(order)
        moment = mpmath.fsum(
            (x / total_p) ** a * (y / total_q) ** (1 - a) for x, y in zip(p, q, strict=True)
        )
        return max(0.0, float(mpmath.log(moment) / (a - 1)))


@pytest.mark.parametrize("order", [1.0 + 1e-6, 1.01, 2.0, 64.0, 1e4, 1e6])
def test_extreme_tables_give_no_nan_and_infinity_only_where_due(order: float) -> None:
    rows = normalised(
        np.array(
            [
                [1.0, math.exp(-50.0), 1.0],
                [math.exp(-50.0), 1.0, 1.0],
                [1.0, 1.0, 5e-324],
                [1.0, 1.0, 0.0],
                [0.0, 1.0, 0.0],
            ]
        )
    )
    found = pairwise_renyi(rows, rows, order)
    assert not np.isnan(found).any()
    lacking = ((rows[:, None, :] > 0.0) & (rows[None, :, :] == 0.0)).any(axis=2)
    assert np.array_equal(np.isinf(found), lacking)
    for i, k in zip(*np.nonzero(~lacking), strict=True):
        assert found[i, k] == pytest.approx(finite_renyi(rows[i], rows[k], order), rel=1e-6)


def test_the_curve_is_monotone_rounded_up_and_understood_by_the_accountant() -> None:
    table = tilted_table(16, 4, 1.0)

    def bound(order: float) -> float:
        values = pairwise_renyi(table, table[7:8], order).ravel()
        return envelope_bound((np.arange(16) - 7) ** 2, values, 225.0, 64)

    curve = renyi_curve(bound, Adjacency.ZERO_OUT)
    assert curve.orders == ORDERS
    assert list(curve.divergences) == sorted(curve.divergences)
    for order, divergence in zip(curve.orders, curve.divergences, strict=True):
        assert divergence >= bound(order) * (1.0 + 1e-12)
    assert 0.0 < RenyiAccountant().epsilon(curve, 1e-5) < math.inf


def test_a_bound_that_fails_becomes_infinity_in_the_curve() -> None:
    curve = renyi_curve(lambda order: math.nan if order > 10.0 else 1.0, Adjacency.REPLACE_ONE)
    pairs = zip(curve.orders, curve.divergences, strict=True)
    assert all(math.isinf(divergence) == (order > 10.0) for order, divergence in pairs)


def test_bad_input_is_refused_with_a_remedy() -> None:
    table = tilted_table(4, 4, 1.0)
    with pytest.raises(ParameterError, match="divide each row by its sum"):
        pairwise_renyi(2.0 * table, table, 2.0)
    with pytest.raises(ParameterError, match="order must lie above 1"):
        pairwise_renyi(table, table, 1.0)
    with pytest.raises(ParameterError, match="same number of outcomes"):
        pairwise_renyi(table, table[:, :2] / table[:, :2].sum(axis=1, keepdims=True), 2.0)
    with pytest.raises(ParameterError, match="cost and a value"):
        envelope_bound([1.0], [1.0, 2.0], 1.0, 1)
    with pytest.raises(ParameterError, match="budget"):
        envelope_bound([1.0], [1.0], math.nan, 1)
    with pytest.raises(ParameterError, match="at least 0"):
        envelope_bound([1.0], [math.nan], 1.0, 1)
