"""Statements of the MVU and I-MVU papers as printed: where they fail, and a lemma that holds.

References: Chaudhuri, Guo and Rabbat 2022 (MVU); Guo, Chaudhuri, Stock and Rabbat 2023 (I-MVU).
What is right instead is in mechanisms/metric_mvu.py, privacy/interpolated.py and
mechanisms/design/families.py.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.core.domains import Box, Vector
from sottovoce.mechanisms.metric_mvu import MetricMvu
from sottovoce.privacy.envelope import greedy_bound, pairwise_renyi
from sottovoce.privacy.interpolated import interpolated_renyi_bound

EPSILON = 5.0
TWO_ROWS = np.array([[math.exp(EPSILON), 1.0], [1.0, math.exp(EPSILON)]]) / (
    1.0 + math.exp(EPSILON)
)
INTERVAL = Box(dimension=1, lower=0.0, upper=1.0)


def dithered_row(x: float) -> Vector:
    """The law of a message for an input that is dithered to 0 or 1."""
    return np.asarray((1.0 - x) * TWO_ROWS[0] + x * TWO_ROWS[1])


def largest_loss(first: Vector, second: Vector) -> float:
    return float(np.abs(np.log(first / second)).max())


def test_algorithm_1_with_dithering_does_not_keep_the_metric_between_grid_points() -> None:
    """Equation 3 holds for the inputs 0 and 1; 0 and 0.1 may lose 0.5 and lose 2.76."""
    assert largest_loss(*TWO_ROWS) == pytest.approx(EPSILON)
    assert largest_loss(dithered_row(0.0), dithered_row(0.1)) == pytest.approx(2.756, abs=1e-3)
    ours = MetricMvu(
        input_domain=INTERVAL, epsilon=EPSILON, metric="l1", input_bits=1, output_bits=1
    ).table.channel
    rows = ours.at(np.array([0.0, 0.1]))
    assert largest_loss(rows[0], rows[1]) <= 0.1 * EPSILON * (1.0 + 1e-12)


def test_lemma_6_for_squared_distances_leaves_a_thirtieth_of_epsilon_on_a_grid_of_32() -> None:
    """Steps of 1/31 may lose epsilon/31^2 each, so the 31 steps from 0 to 1 lose epsilon/31."""
    table = MetricMvu(
        input_domain=INTERVAL, epsilon=EPSILON, metric="l2_squared", input_bits=5, output_bits=3
    ).table.channel
    ends = table.at(np.array([0.0, 1.0]))
    assert 0.5 * EPSILON / 31.0 < largest_loss(ends[0], ends[1]) <= EPSILON / 31.0 * (1.0 + 1e-9)


def test_lemma_7_s_greedy_bound_does_not_cover_inputs_between_grid_points() -> None:
    costs, order = np.array([0.0, 1.0, 1.0, 0.0]), 2.0
    values = pairwise_renyi(TWO_ROWS, TWO_ROWS, order).ravel()
    greedy = greedy_bound(costs, values, 0.1**2, 1)
    dithered = np.array([dithered_row(0.0), dithered_row(0.1)])
    exact = pairwise_renyi(dithered, dithered, order).max()
    assert greedy == pytest.approx(0.0499, abs=5e-5)
    assert exact == pytest.approx(0.902, abs=5e-4)
    sound = interpolated_renyi_bound(
        [0.0, 1.0], TWO_ROWS, order, power=2.0, radius_distance=0.1, dimension=1
    )
    assert exact <= sound <= 1.01 * exact


@given(first=st.lists(st.floats(-8.0, 8.0), min_size=2, max_size=8), x=st.floats(-3.0, 4.0))
def test_lemma_2_of_interpolated_mvu_is_right(first: list[float], x: float) -> None:
    """(i) to (vi), for rows that are each other's reverse."""
    start = np.array(first)
    theta = start[::-1] - start

    def law(at: float) -> Vector:
        logits = (1.0 - at) * start + at * start[::-1]
        weights = np.exp(logits - logits.max())
        return np.asarray(weights / weights.sum())

    def information(at: float) -> float:
        return float(law(at) @ (theta - law(at) @ theta) ** 2)

    np.testing.assert_array_equal(theta, -theta[::-1])
    np.testing.assert_allclose(law(x), law(1.0 - x)[::-1], rtol=1e-9, atol=1e-12)
    assert information(x) == pytest.approx(information(1.0 - x), rel=1e-6, abs=1e-9)
    assert float(law(0.5) @ (theta - law(0.5) @ theta) ** 3) == pytest.approx(0.0, abs=1e-6)
    top = int(np.argmax(theta))
    share = float(law(x)[top])
    if share >= 0.5:
        bound = 4.0 * theta[top] ** 2 * share * (1.0 - share)
        assert information(x) <= bound * (1.0 + 1e-9) + 1e-9


def test_the_information_of_interpolated_mvu_can_be_largest_far_from_one_half() -> None:
    """Appendix B's search must look there, and a search alone is no certificate."""
    theta, base = np.array([-3.0, 0.0, 3.0]), np.array([1e-3, 1.0, 1e-3])

    def information(x: float) -> float:
        weights = base * np.exp((x - 0.5) * theta)
        weights /= weights.sum()
        return float(weights @ theta**2 - (weights @ theta) ** 2)

    assert information(0.5) == pytest.approx(0.018, abs=1e-4)
    assert information(2.8025) == pytest.approx(2.25, abs=1e-3)
