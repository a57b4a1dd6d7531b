"""How good reconstructions are, with intervals, beside what needs no attack at all."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.auditing.attacks import image_quality
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.statistics import mean_and_half_width

Images = NDArray[np.float32]

GREY, MEAN_IMAGE = "grey", "mean image"
CONFIDENCE = 0.95
_RANGES = {
    "mse": (0.0, math.inf),
    "mae": (0.0, math.inf),
    "psnr": (-math.inf, math.inf),
    "ssim": (-1.0, 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Means over the images of each update, one number an update; no SSIM where there is none.

    Images of one update share its noise and its search, so intervals are taken over updates.
    """

    mse: Vector
    mae: Vector
    psnr: Vector
    ssim: Vector | None

    def named(self) -> dict[str, Vector]:
        found = {"mse": self.mse, "mae": self.mae, "psnr": self.psnr}
        return found if self.ssim is None else {**found, "ssim": self.ssim}


def scores(originals: Images, found: Images) -> Scores:
    """Scores of (updates, images of each, *shape), each found image put to its best original."""
    if originals.shape != found.shape:
        raise ParameterError(f"{originals.shape} originals, {found.shape} reconstructions")
    similar = image_quality.has_similarity(originals.shape[2:])
    rows: list[list[float]] = []
    for truth, unordered in zip(originals, found, strict=True):
        other = unordered[image_quality.matched(truth, unordered)]
        measures = [
            image_quality.mean_squared_errors(truth, other),
            image_quality.mean_absolute_errors(truth, other),
            image_quality.peak_signal_to_noise(truth, other),
        ]
        if similar:
            measures.append(image_quality.structural_similarities(truth, other))
        rows.append([float(measure.mean()) for measure in measures])
    columns = np.array(rows).T
    return Scores(
        mse=columns[0], mae=columns[1], psnr=columns[2], ssim=columns[3] if similar else None
    )


def baseline_guesses(originals: Images, auxiliary: NDArray[Any]) -> dict[str, Images]:
    """One picture for all of them: plain grey, or the mean of other data."""
    middle = np.asarray(auxiliary, dtype=np.float64).mean(axis=0).astype(np.float32)
    return {GREY: np.zeros_like(originals), MEAN_IMAGE: np.zeros_like(originals) + middle}


def baselines(originals: Images, auxiliary: NDArray[Any]) -> dict[str, Scores]:
    """What guesses score that need no attack."""
    guesses = baseline_guesses(originals, auxiliary)
    return {name: scores(originals, guess) for name, guess in guesses.items()}


def interval(values: Vector) -> dict[str, float]:
    """The mean over updates with Student's 95% interval."""
    if len(values) < 2:
        raise ParameterError(
            f"{len(values)} update has no interval; attack at least two (raise --images)"
        )
    mean, half = mean_and_half_width(values.tolist(), CONFIDENCE)
    return {"mean": mean, "low": mean - half, "high": mean + half}


def summary(found: Scores) -> dict[str, dict[str, float] | None]:
    """Each measure with its interval, which ends where the measure does; no SSIM is None."""
    result: dict[str, dict[str, float] | None] = dict.fromkeys(_RANGES)
    for name, values in found.named().items():
        least, most = _RANGES[name]
        within = {key: min(max(value, least), most) for key, value in interval(values).items()}
        result[name] = within
    return result


def difference(one: Vector, other: Vector) -> dict[str, float]:
    """The mean of one sample less that of another, with Welch's 95% interval."""
    from scipy.special import stdtrit

    variances = [float(np.var(values, ddof=1)) / len(values) for values in (one, other)]
    squares = [v**2 / (len(x) - 1) for v, x in zip(variances, (one, other), strict=True)]
    freedom = sum(variances) ** 2 / sum(squares)
    half = float(stdtrit(freedom, 0.5 + CONFIDENCE / 2.0)) * math.sqrt(sum(variances))
    mean = float(one.mean() - other.mean())
    return {"mean": mean, "low": mean - half, "high": mean + half}


def gains(found: Scores, baseline: Scores) -> dict[str, dict[str, float]]:
    """By how much the attack beats a baseline on the same images: above 0 is better, in pairs."""
    pairs = {"mse": baseline.mse - found.mse, "mae": baseline.mae - found.mae}
    if found.ssim is not None and baseline.ssim is not None:
        pairs["ssim"] = found.ssim - baseline.ssim
    return {name: interval(values) for name, values in pairs.items()}


def beats(gain: Mapping[str, float]) -> bool:
    """Whether the whole interval lies above 0."""
    return gain["low"] > 0.0
