"""Qualities against definitions written out slowly, and values that are known."""

import itertools
import math

import numpy as np
import pytest

from sottovoce.auditing import reconstruction_scores
from sottovoce.core.errors import ParameterError


def _images(count: int, shape: tuple[int, ...] = (3, 14, 13), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.5, 0.5, size=(count, *shape))


def _slow_ssim(x: np.ndarray, y: np.ndarray) -> float:
    """One window at a time, every sum spelt out."""
    weights = np.array(
        [
            [math.exp(-((i - 5) ** 2 + (j - 5) ** 2) / (2 * 1.5**2)) for j in range(11)]
            for i in range(11)
        ]
    )
    weights /= weights.sum()
    values = []
    channels, height, width = x.shape
    for c, i, j in itertools.product(range(channels), range(height - 10), range(width - 10)):
        a, b = (image[c, i : i + 11, j : j + 11] + 0.5 for image in (x, y))
        mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
        var_a = (weights * (a - mean_a) ** 2).sum()
        var_b = (weights * (b - mean_b) ** 2).sum()
        cov = (weights * (a - mean_a) * (b - mean_b)).sum()
        values.append(
            (2 * mean_a * mean_b + 1e-4)
            * (2 * cov + 9e-4)
            / ((mean_a**2 + mean_b**2 + 1e-4) * (var_a + var_b + 9e-4))
        )
    return float(np.mean(values))


def test_similarity_is_that_of_an_independent_slow_implementation() -> None:
    x, y = _images(3), _images(3, seed=1)
    y[1] = 0.8 * x[1] + 0.1
    expected = [_slow_ssim(a, b) for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(
        reconstruction_scores.structural_similarities(x, y), expected, rtol=1e-9, atol=1e-12
    )


def test_a_copy_is_perfect_and_a_negative_is_not() -> None:
    x = _images(2)
    np.testing.assert_allclose(reconstruction_scores.structural_similarities(x, x), 1.0)
    assert (reconstruction_scores.structural_similarities(x, -x) < -0.5).all()
    np.testing.assert_array_equal(reconstruction_scores.mean_squared_errors(x, x), 0.0)
    np.testing.assert_allclose(reconstruction_scores.peak_signal_to_noise(x, x), 100.0)


def test_constant_images_have_the_similarity_of_their_means_alone() -> None:
    x, y = np.full((1, 1, 11, 11), 0.0), np.full((1, 1, 11, 11), -0.25)  # 1/2 and 1/4 bright
    expected = (2 * 0.5 * 0.25 + 1e-4) / (0.5**2 + 0.25**2 + 1e-4)
    np.testing.assert_allclose(reconstruction_scores.structural_similarities(x, y), expected)


def test_errors_of_a_known_difference() -> None:
    x = np.zeros((2, 4))
    y = np.array([[0.1, -0.1, 0.1, -0.1], [0.2, 0.0, 0.0, 0.0]])
    np.testing.assert_allclose(reconstruction_scores.mean_squared_errors(x, y), [0.01, 0.01])
    np.testing.assert_allclose(reconstruction_scores.mean_absolute_errors(x, y), [0.1, 0.05])
    np.testing.assert_allclose(reconstruction_scores.peak_signal_to_noise(x, y), 20.0)


def test_a_shuffled_batch_is_put_in_order() -> None:
    x = _images(7)
    order = np.random.default_rng(2).permutation(7)
    shuffled = x[order] + 0.01
    chosen = reconstruction_scores.match_rows(x, shuffled)
    np.testing.assert_array_equal(order[chosen], np.arange(7))


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"shape \(2, 3, 14, 13\).*cannot be compared"):
        reconstruction_scores.mean_squared_errors(_images(2), _images(3))
    with pytest.raises(ParameterError, match="at least 11 pixels a side"):
        reconstruction_scores.structural_similarities(_images(1, (1, 8, 8)), _images(1, (1, 8, 8)))
    with pytest.raises(ParameterError, match="channels, height, width"):
        reconstruction_scores.structural_similarities(_images(1, (64,)), _images(1, (64,)))
