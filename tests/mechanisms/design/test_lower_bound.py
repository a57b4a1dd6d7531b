"""The lower bound: below everything that can be built, close to what was, and exactly checked."""

from fractions import Fraction

import numpy as np
import pytest
from cases import denser, thinned
from scipy.optimize import linprog

from sottovoce.mechanisms.design import lower_bound, randomized_response, store, window
from sottovoce.mechanisms.design.lower_bound import variance_lower_bound


def best_with_many_letters(epsilon: float, inputs: int) -> float:
    """A linear programme over 61 letters: an upper bound on what any number of letters achieves."""
    means = np.linspace(0.0, 1.0, inputs)
    reach = 1.5 / np.tanh(epsilon / 2.0)
    letters = np.linspace(0.5 - reach, 0.5 + reach, 61)
    size, cells = len(letters), inputs * 61
    columns = np.tile(np.eye(size), (inputs, 1))
    equal = np.vstack(
        (np.kron(np.eye(inputs), np.ones((1, size))), np.kron(np.eye(inputs), letters[None, :]))
    )
    result = linprog(
        np.concatenate((((letters - means[:, None]) ** 2).ravel(), np.zeros(size))),
        A_ub=np.vstack(
            (
                np.hstack((-np.eye(cells), columns)),
                np.hstack((np.eye(cells), -np.exp(epsilon) * columns)),
            )
        ),
        b_ub=np.zeros(2 * cells),
        A_eq=np.hstack((equal, np.zeros((2 * inputs, size)))),
        b_eq=np.concatenate((np.ones(inputs), means)),
    )
    assert result.status == 0
    return float(result.fun)


@pytest.mark.parametrize("epsilon", denser([0.5, 1.0, 3.0]))
@pytest.mark.parametrize("inputs", [2, 4])
def test_no_mechanism_with_many_letters_goes_below_and_the_best_comes_close(
    epsilon: float, inputs: int
) -> None:
    bound = variance_lower_bound(epsilon, 256, inputs)
    best = best_with_many_letters(epsilon, inputs)
    assert bound <= best * (1.0 + 1e-7)
    assert bound >= best * 0.97


@pytest.mark.parametrize(("epsilon", "bits"), thinned([0.1, 1.0, 4.0, 9.0, 20.0], [1, 2, 3]))
def test_randomized_response_is_never_below(epsilon: float, bits: int) -> None:
    bound = variance_lower_bound(epsilon, 1 << bits, 1 << bits)
    by_bit = randomized_response.bitwise(epsilon, bits)
    for channel in (by_bit, randomized_response.k_ary(epsilon, 1 << bits)):
        assert bound <= channel.variances(channel.knots).sum()


def test_the_gap_of_a_three_bit_design_is_small() -> None:
    """Of the one that comes with the package; test_window.py solves it again."""
    total = store.find(store.spec_of(1.0, 3, 3)).sum_of_variances()
    bound = variance_lower_bound(1.0, 8, 8)
    assert bound <= total <= 1.004 * bound


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "gap"), [(8, 0.004), (None, 0.02)])
def test_the_gap_of_a_design_that_is_solved_now_is_small(inputs: int | None, gap: float) -> None:
    design = window.solve(1.0, 8, inputs)
    means = np.linspace(-0.5, 0.5, inputs or 4001)
    rows = design.rows(means)
    variances = (rows * (design.letters - means[:, None]) ** 2).sum(axis=1)
    total = variances.sum() if inputs else variances.mean()
    bound = variance_lower_bound(1.0, 8, inputs)
    assert bound <= total <= (1.0 + gap) * bound


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 10.0, 50.0])
def test_two_letters_are_bounded_by_what_they_have(epsilon: float) -> None:
    design = window.solve(epsilon, 2, 16)
    means = np.linspace(-0.5, 0.5, 16)
    total = (design.rows(means) * (design.letters - means[:, None]) ** 2).sum()
    assert variance_lower_bound(epsilon, 2, 16) == pytest.approx(total, rel=1e-9)


def test_quantization_alone_bounds_few_letters_at_a_large_epsilon() -> None:
    # 32 inputs, 8 letters: gaps of 4, 4, 4, 4, 5, 5, 5 steps, 10 or 20 each, over 31^2.
    assert variance_lower_bound(50.0, 8, 32) == pytest.approx(100 / 31**2, rel=1e-9)
    assert variance_lower_bound(50.0, 8, None) == pytest.approx(1.0 / 294.0, rel=1e-9)


def test_the_exact_check_can_fail() -> None:
    weights = (Fraction(1), Fraction(1))
    reach = Fraction(1, 2) * Fraction(3, 1)  # the letters of randomised response at e^eps = 2
    fair = [(-reach, reach), (-reach, reach)]
    assert not lower_bound._phi_is_nonnegative(fair, weights, Fraction(2))
    touching = [(Fraction(-1), Fraction(-1)), (Fraction(1), Fraction(1))]
    assert lower_bound._phi_is_nonnegative(touching, weights, Fraction(2))


def test_hats_add_up_to_the_inputs() -> None:
    for inputs in (2, 8, 100, 512, None):
        grid = lower_bound._Grid.even(inputs, knots=16)
        assert sum(grid.weights) == grid.count
        assert sum(grid.moments) == 0
        second = sum(m * k for m, k in zip(grid.moments, grid.knots, strict=True))
        assert second <= grid.square * Fraction(101, 100)
