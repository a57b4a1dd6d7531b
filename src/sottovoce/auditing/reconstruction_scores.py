"""Quality measures of reconstructed images, with intervals and baselines that need no attack.

Pixels lie in [-1/2, 1/2], as every loader scales them, so the data range is 1. MSE and MAE apply to
rows of any shape; PSNR is the MSE in decibels; SSIM applies to images of at least 11 x 11 pixels.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.statistics import mean_and_half_width

WINDOW, WINDOW_STDDEV = 11, 1.5
_LEAST_MSE = 1e-10  # 100 dB: the PSNR of a copy is infinite, and means need a finite value.
_C1, _C2 = 0.01**2, 0.03**2  # (K1 L)^2 and (K2 L)^2 with the range L = 1

Rows = NDArray[np.float32] | NDArray[np.float64]


def mean_squared_errors(originals: Rows, others: Rows) -> Vector:
    """Return the mean squared difference of each original row to the same row of `others`.

    There is one value for each row, the mean over its entries. Raise ParameterError unless both
    arrays have the same shape, at least one row and at least two axes.
    """
    return _mean_of_rows((_differences(originals, others)) ** 2)


def mean_absolute_errors(originals: Rows, others: Rows) -> Vector:
    """Return the mean absolute difference of each original row to the same row of `others`.

    There is one value for each row, the mean over its entries. Raise ParameterError unless both
    arrays have the same shape, at least one row and at least two axes.
    """
    return _mean_of_rows(np.abs(_differences(originals, others)))


def peak_signal_to_noise(originals: Rows, others: Rows) -> Vector:
    """Return the PSNR of each row, in decibels: -10 log10(MSE), as pixels have the range 1.

    It is at most 100, the value for a copy.
    """
    mse = np.maximum(mean_squared_errors(originals, others), _LEAST_MSE)
    return np.asarray(-10.0 * np.log10(mse))


def supports_ssim(row_shape: tuple[int, ...]) -> bool:
    """Return whether rows are images (channels, height, width) of at least 11 x 11 pixels.

    SSIM is defined for such rows only.
    """
    return len(row_shape) == 3 and min(row_shape[1:]) >= WINDOW


def structural_similarities(originals: Rows, others: Rows) -> Vector:
    """Return the SSIM of each image, averaged over windows and channels.

        (2 m_x m_y + C1)(2 s_xy + C2) / ((m_x^2 + m_y^2 + C1)(s_x^2 + s_y^2 + C2))

    with means, variances and the covariance under a Gaussian window of 11 x 11 pixels and standard
    deviation 1.5, at every position where the whole window fits; C1 = 0.01^2 and C2 = 0.03^2, for
    pixels in [-1/2, 1/2]. It is 1 for a copy and about 0 for noise. Raise ParameterError for images
    below 11 x 11 pixels. Reference: Wang, Bovik, Sheikh and Simoncelli 2004, section III.
    """
    _differences(originals, others)
    if not supports_ssim(originals.shape[1:]):
        raise ParameterError(
            f"SSIM compares images (channels, height, width) of at least {WINDOW} pixels a side, "
            f"got rows of shape {originals.shape[1:]}; use the mean squared error"
        )
    # SSIM expects brightness that starts at 0: with signed values the first factor would compare
    # signs.
    x, y = originals.astype(np.float64) + 0.5, others.astype(np.float64) + 0.5
    mean_x, mean_y = _window_means(x), _window_means(y)
    variance_x = _window_means(x * x) - mean_x**2
    variance_y = _window_means(y * y) - mean_y**2
    covariance = _window_means(x * y) - mean_x * mean_y
    luminance = (2.0 * mean_x * mean_y + _C1) / (mean_x**2 + mean_y**2 + _C1)
    structure = (2.0 * covariance + _C2) / (variance_x + variance_y + _C2)
    return _mean_of_rows(luminance * structure)


def match_rows(originals: Rows, others: Rows) -> NDArray[np.int64]:
    """Return the index of the row of `others` that is assigned to each original.

    Each row of `others` is assigned once, with the least total squared error. This is needed
    because a mean gradient does not reveal the order of the images in a batch.
    """
    from scipy.optimize import linear_sum_assignment

    _differences(originals, others)
    x = originals.reshape(len(originals), -1).astype(np.float64)
    y = others.reshape(len(others), -1).astype(np.float64)
    costs = (x**2).sum(axis=1)[:, None] - 2.0 * x @ y.T + (y**2).sum(axis=1)
    _, chosen = linear_sum_assignment(costs)
    return np.asarray(chosen, dtype=np.int64)


def _differences(originals: Rows, others: Rows) -> Vector:
    """Return the differences; raise unless both have as many rows of the same shape."""
    if originals.shape != others.shape or originals.ndim < 2 or not originals.size:
        raise ParameterError(
            f"originals of shape {originals.shape} and reconstructions of shape {others.shape} "
            "cannot be compared; give the same number of rows, at least one, of the same shape"
        )
    return np.asarray(originals, dtype=np.float64) - others


def _mean_of_rows(values: Vector) -> Vector:
    return np.asarray(values.reshape(len(values), -1).mean(axis=1))


def _window_means(images: Vector) -> Vector:
    """Return the means under the Gaussian window, computed axis by axis."""
    offsets = np.arange(WINDOW) - WINDOW // 2
    weights = np.exp(-(offsets**2) / (2.0 * WINDOW_STDDEV**2))
    weights /= weights.sum()
    for axis in (-2, -1):
        windows = np.lib.stride_tricks.sliding_window_view(images, WINDOW, axis=axis)
        images = windows @ weights
    return images


Images = NDArray[np.float32]

GRAY, MEAN_IMAGE = "grey", "mean image"
CONFIDENCE = 0.95
_RANGES = {
    "mse": (0.0, math.inf),
    "mae": (0.0, math.inf),
    "psnr": (-math.inf, math.inf),
    "ssim": (-1.0, 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconstructionScores:
    """The quality of reconstructed images, by update: one value for each attacked update.

    A value is the average over the images of the update. Images of one update share its noise and
    its optimization, so intervals are over updates.

    Attributes:
        mse: The mean squared error.
        mae: The mean absolute error.
        psnr: The peak signal-to-noise ratio in decibels.
        ssim: The structural similarity; None where it is not defined.
    """

    mse: Vector
    mae: Vector
    psnr: Vector
    ssim: Vector | None

    def named(self) -> dict[str, Vector]:
        """Return the measures that are defined, by name."""
        found = {"mse": self.mse, "mae": self.mae, "psnr": self.psnr}
        return found if self.ssim is None else {**found, "ssim": self.ssim}


def score_reconstructions(originals: Images, found: Images) -> ReconstructionScores:
    """Return the scores of reconstructions of shape (updates, images of each, *image shape).

    Within each update the images are matched to the originals first. Raise ParameterError unless
    both arrays have the same shape.
    """
    if originals.shape != found.shape:
        raise ParameterError(
            f"reconstructions must have the shape of the originals {originals.shape}, got "
            f"{found.shape}"
        )
    similar = supports_ssim(originals.shape[2:])
    rows: list[list[float]] = []
    for truth, unordered in zip(originals, found, strict=True):
        other = unordered[match_rows(truth, unordered)]
        measures = [
            mean_squared_errors(truth, other),
            mean_absolute_errors(truth, other),
            peak_signal_to_noise(truth, other),
        ]
        if similar:
            measures.append(structural_similarities(truth, other))
        rows.append([float(measure.mean()) for measure in measures])
    columns = np.array(rows).T
    return ReconstructionScores(
        mse=columns[0], mae=columns[1], psnr=columns[2], ssim=columns[3] if similar else None
    )


def baseline_guesses(originals: Images, auxiliary: NDArray[Any]) -> dict[str, Images]:
    """Return guesses that need no attack, by name, each with the shape of `originals`.

    Every image is guessed as a gray image (all pixels 0), or as the mean of the auxiliary images.
    """
    middle = np.asarray(auxiliary, dtype=np.float64).mean(axis=0).astype(np.float32)
    return {GRAY: np.zeros_like(originals), MEAN_IMAGE: np.zeros_like(originals) + middle}


def score_baselines(originals: Images, auxiliary: NDArray[Any]) -> dict[str, ReconstructionScores]:
    """Return the scores of guesses that need no attack, by name.

    They guess every image as a gray image, or as the mean of the auxiliary images.
    """
    guesses = baseline_guesses(originals, auxiliary)
    return {name: score_reconstructions(originals, guess) for name, guess in guesses.items()}


def interval(values: Vector) -> dict[str, float]:
    """Return the mean of a measure over the attacked updates, with Student's 95% interval.

    Args:
        values: The measure of each update.

    Returns:
        "mean", and the ends of the confidence interval, "low" and "high".

    Raises:
        ParameterError: There are fewer than two updates.
    """
    if len(values) < 2:
        raise ParameterError(
            f"a confidence interval needs at least two updates, got {len(values)}; raise --images "
            "to at least twice --batch, the number of images of one update"
        )
    mean, half = mean_and_half_width(values.tolist(), CONFIDENCE)
    return {"mean": mean, "low": mean - half, "high": mean + half}


def summary(found: ReconstructionScores) -> dict[str, dict[str, float] | None]:
    """Return the mean of each measure over updates with its 95% interval, as in `interval`.

    Mean and ends are clipped to the measure's range. SSIM is None if it is not defined. Raise
    ParameterError if there are fewer than two updates.
    """
    result: dict[str, dict[str, float] | None] = dict.fromkeys(_RANGES)
    for name, values in found.named().items():
        least, most = _RANGES[name]
        within = {key: min(max(value, least), most) for key, value in interval(values).items()}
        result[name] = within
    return result


def difference(one: Vector, other: Vector) -> dict[str, float]:
    """Return the mean of `one` minus the mean of `other`, with Welch's 95% interval.

    The keys are "mean" (the difference), "low" and "high". Each sample needs at least two values.
    """
    from scipy.special import stdtrit

    variances = [float(np.var(values, ddof=1)) / len(values) for values in (one, other)]
    squares = [v**2 / (len(x) - 1) for v, x in zip(variances, (one, other), strict=True)]
    freedom = sum(variances) ** 2 / sum(squares)
    half = float(stdtrit(freedom, 0.5 + CONFIDENCE / 2.0)) * math.sqrt(sum(variances))
    mean = float(one.mean() - other.mean())
    return {"mean": mean, "low": mean - half, "high": mean + half}


def gains(
    found: ReconstructionScores, baseline: ReconstructionScores
) -> dict[str, dict[str, float]]:
    """Return how much better the attack is than a baseline on the same images, with intervals.

    There is a gain in "mse", "mae" and, if defined, "ssim", each with "mean", "low" and "high".
    Differences are taken update by update; positive means that the attack is better.
    """
    pairs = {"mse": baseline.mse - found.mse, "mae": baseline.mae - found.mae}
    if found.ssim is not None and baseline.ssim is not None:
        pairs["ssim"] = found.ssim - baseline.ssim
    return {name: interval(values) for name, values in pairs.items()}


def beats(gain: Mapping[str, float]) -> bool:
    """Return whether the whole interval of a gain lies above 0."""
    return gain["low"] > 0.0
