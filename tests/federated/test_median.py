import numpy as np
import pytest

from sottovoce.core.errors import ParameterError
from sottovoce.federated.algorithms.fedavg import CoordinateMedian


def test_it_is_the_middle_of_each_coordinate() -> None:
    rows = np.array([[1.0, -5.0], [2.0, 100.0], [9.0, 0.0]])
    np.testing.assert_array_equal(CoordinateMedian().combine(rows), [2.0, 0.0])
    np.testing.assert_array_equal(CoordinateMedian().combine(rows[:2]), [1.5, 47.5])
    np.testing.assert_array_equal(CoordinateMedian().combine(rows[:1]), rows[0])


def test_a_minority_that_lies_moves_it_no_further_than_the_honest_reach() -> None:
    generator = np.random.default_rng(0)
    honest = generator.normal(size=(11, 7))
    found = CoordinateMedian().combine(np.vstack([honest, np.full((10, 7), 1e9)]))
    assert (found <= honest.max(axis=0)).all()


def test_gaussian_noise_costs_pi_over_two_of_the_means_variance() -> None:
    messages = np.random.default_rng(1).normal(size=(101, 40_000))
    ratio = CoordinateMedian().combine(messages).var() / messages.mean(axis=0).var()
    assert ratio == pytest.approx(np.pi / 2, rel=0.04)


def test_of_single_bits_it_is_a_majority_vote() -> None:
    """The documented trap: 60% of ones have the mean 0.2, and the median 1."""
    bits = np.where(np.arange(100)[:, None] < 60, 1.0, -1.0)
    assert CoordinateMedian().combine(bits) == [1.0]


@pytest.mark.parametrize("rows", [np.zeros((0, 3)), np.zeros(3), np.array([[np.nan]])])
def test_what_is_no_message_is_refused(rows: np.ndarray) -> None:
    with pytest.raises(ParameterError, match=r"at least one row|leave it out"):
        CoordinateMedian().combine(rows)
