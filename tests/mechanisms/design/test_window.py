"""The window solver: exact rows, right gradients, and nothing better that a solver can find."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from sottovoce.core.domains import Vector
from sottovoce.mechanisms.design import window
from sottovoce.mechanisms.design.window import Window


def random_window(epsilon: float, letters: int, seed: int) -> Window:
    problem = window._Problem(epsilon, letters, 16)
    generator = np.random.default_rng(seed)
    start = problem.plain_start() + 0.4 * generator.normal(size=problem.size)
    return problem.window(np.clip(start, *problem.bounds.T))


def variances(design: Window, means: Vector) -> Vector:
    rows = design.rows(means)
    return np.asarray((rows * (design.letters - means[:, None]) ** 2).sum(axis=1))


@given(
    epsilon=st.floats(0.05, 50.0),
    bits=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=100)
def test_every_window_gives_exact_rows(epsilon: float, bits: int, seed: int) -> None:
    design = random_window(epsilon, 1 << bits, seed)
    means = np.random.default_rng(seed).uniform(-0.5, 0.5, 50)
    rows = design.rows(means)
    scale = np.abs(design.letters).max()
    assert np.abs(rows.sum(axis=1) - 1.0).max() < 1e-12
    assert np.abs(rows @ design.letters - means).max() < 1e-12 * scale
    assert np.log(rows.max(axis=0) / design.minima).max() < epsilon + 1e-12
    assert (rows >= design.minima).all()


@given(epsilon=st.floats(0.1, 12.0), bits=st.integers(2, 4), seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_rows_are_linear_between_the_knots(epsilon: float, bits: int, seed: int) -> None:
    design = random_window(epsilon, 1 << bits, seed)
    knots = design.knots()
    assert knots[0] == -0.5
    assert knots[-1] == 0.5
    ends = design.rows(knots)
    middles = design.rows((knots[1:] + knots[:-1]) / 2.0)
    np.testing.assert_allclose(middles, (ends[1:] + ends[:-1]) / 2.0, atol=1e-6)


@pytest.mark.parametrize("inputs", [None, 8, 13])
@pytest.mark.parametrize("epsilon", [0.3, 2.0, 6.0])
def test_the_gradient_is_the_derivative(epsilon: float, inputs: int | None) -> None:
    problem = window._Problem(epsilon, 8, inputs)
    generator = np.random.default_rng(3)
    at = problem.plain_start() + 0.2 * generator.normal(size=problem.size)
    _, gradient = problem.objective(at)
    steps = 1e-6 * np.eye(problem.size)
    numeric = [(problem.objective(at + h)[0] - problem.objective(at - h)[0]) / 2e-6 for h in steps]
    np.testing.assert_allclose(gradient, numeric, atol=1e-6)


def best_rows(letters: Vector, epsilon: float, means: Vector) -> float:
    """The least sum of variances with these letters, by a linear programme over all rows."""
    count, size = len(means), len(letters)
    cells = count * size
    cost = np.concatenate((((letters - means[:, None]) ** 2).ravel(), np.zeros(size)))
    floor = np.hstack((-np.eye(cells), np.tile(np.eye(size), (count, 1))))
    ceiling = np.hstack((np.eye(cells), -math.exp(epsilon) * np.tile(np.eye(size), (count, 1))))
    sums = np.kron(np.eye(count), np.ones((1, size)))
    moments = np.kron(np.eye(count), letters[None, :])
    equal = np.hstack((np.vstack((sums, moments)), np.zeros((2 * count, size))))
    result = linprog(
        cost,
        A_ub=np.vstack((floor, ceiling)),
        b_ub=np.zeros(2 * cells),
        A_eq=equal,
        b_eq=np.concatenate((np.ones(count), means)),
    )
    assert result.status == 0
    return float(result.fun)


@pytest.mark.parametrize(("epsilon", "best_known"), [(1.0, 7.88589), (5.0, 0.095557)])
@pytest.mark.slow
def test_three_bits_reach_the_best_known_and_no_program_improves_on_the_rows(
    epsilon: float, best_known: float
) -> None:
    design = window.solve(epsilon, 8, 8)
    means = np.linspace(-0.5, 0.5, 8)
    total = variances(design, means).sum()
    assert total <= best_known * 1.001
    assert total == pytest.approx(best_rows(design.letters, epsilon, means), rel=1e-6)


@pytest.mark.slow
def test_continuous_input_reaches_the_best_known() -> None:
    design = window.solve(3.0, 8, None)
    means = np.linspace(-0.5, 0.5, 20001)
    assert variances(design, means).mean() <= 0.06745 * 1.001


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 10.0, 50.0])
def test_two_letters_have_the_closed_form(epsilon: float) -> None:
    design = window.solve(epsilon, 2, 2)
    ends = variances(design, np.array([-0.5, 0.5]))
    expected = math.exp(epsilon) / math.expm1(epsilon) ** 2
    np.testing.assert_allclose(ends, expected, rtol=1e-9)


def test_solving_twice_gives_the_same_design(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "_EVALUATIONS", 400)
    monkeypatch.setattr(window, "_LEAST_EVALUATIONS", 400)
    first, second = (window.solve(2.0, 4, 4) for _ in range(2))
    np.testing.assert_array_equal(first.letters, second.letters)
    np.testing.assert_array_equal(first.minima, second.minima)


def test_a_large_epsilon_does_not_lose_mass_to_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Capacities of 1e21 swallow a window of mass 1; the solver once took that for a low variance.
    monkeypatch.setattr(window, "_EVALUATIONS", 400)
    monkeypatch.setattr(window, "_LEAST_EVALUATIONS", 400)
    design = window.solve(50.0, 8, 16)
    rows = design.rows(np.linspace(-0.5, 0.5, 16))
    assert np.abs(rows.sum(axis=1) - 1.0).max() < 1e-12


def test_the_smallest_epsilon_has_a_start() -> None:
    problem = window._Problem(1e-3, 8, 8)
    value, gradient = problem.objective(problem.plain_start())
    assert math.isfinite(value)
    assert np.isfinite(gradient).all()
