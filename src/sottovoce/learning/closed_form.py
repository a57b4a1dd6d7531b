"""Gradients of one fully connected layer under softmax cross-entropy, without autograd.

With delta = softmax(W x + b) - onehot(y), one sample's gradient is the outer product

    delta (x, 1)^T,    of norm    |delta| sqrt(|x|^2 + 1),

so that norms need no gradient, and a sum of clipped gradients is one product of matrices.

Models are flat as in Task: the weight (outputs, features) row by row, then the bias. Features are
flattened, and may be any array that slices (a memory-mapped float16 file, say): they are converted
a chunk at a time, on the device of the model.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce import parameters
from sottovoce.domains import ROUNDING_HEADROOM
from sottovoce.errors import ParameterError

Features = Tensor | NDArray[np.floating]
Labels = Tensor | NDArray[np.integer]

# Feature values converted at once: bounds the memory whatever the number of samples.
MAX_CHUNK_ELEMENTS = 1 << 24


def linear_residuals(flat: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """delta for each sample, as rows; the number of outputs follows from the model's length."""
    width = features.shape[1]
    if flat.dim() != 1 or len(flat) % (width + 1) or not len(flat):
        raise ParameterError(
            f"a linear model on {width} features has a multiple of {width + 1} parameters, got "
            f"shape {tuple(flat.shape)}; flatten the samples, and give weight and bias in one"
        )
    outputs = len(flat) // (width + 1)
    weight, bias = flat[: outputs * width].reshape(outputs, width), flat[outputs * width :]
    residuals = torch.softmax(torch.addmm(bias, features, weight.T), dim=1)
    residuals[torch.arange(len(labels), device=flat.device), labels] -= 1.0
    return residuals


def gradient_norms(residuals: Tensor, features: Tensor) -> Tensor:
    """|delta| sqrt(|x|^2 + 1) for each sample, in float64."""
    squares = features.to(torch.float64).square().sum(dim=1)
    return residuals.to(torch.float64).square().sum(dim=1).mul_(squares.add_(1.0)).sqrt_()


def row_gradients(residuals: Tensor, features: Tensor) -> Tensor:
    """Each sample's gradient as a flat row: [n, outputs (features + 1)]."""
    weights = residuals[:, :, None] * features[:, None, :]
    return torch.cat([weights.flatten(start_dim=1), residuals], dim=1)


def clip_factors(residuals: Tensor, features: Tensor, clip_norm: float) -> Tensor:
    """What each gradient is multiplied with to have norm at most `clip_norm`, in float64.

    A gradient that is not finite counts as zero. The limit lies a rounding's headroom below.
    """
    limit = parameters.clip_norm("clip_norm", clip_norm) * (1.0 - ROUNDING_HEADROOM)
    norms = gradient_norms(residuals, features)
    factors = limit / torch.clamp(norms, min=limit)
    return torch.where(torch.isfinite(norms), factors, 0.0)


def clipped_sum(flat: Tensor, features: Features, labels: Labels, *, clip_norm: float) -> Tensor:
    """The sum of all samples' clipped gradients, flat, in float64.

    The product is taken in float64. For n samples, rounding sets the sums of neighbours apart by at
    most n^2 2^-52 clip norms more, which the clip's headroom of 2^-20 covers up to 2^16 samples.
    """
    total: Tensor | None = None
    for x, y in _chunks(flat, features, labels):
        residuals = linear_residuals(flat, x, y)
        factors = clip_factors(residuals, x, clip_norm)[:, None]
        finite = factors > 0.0
        scaled = torch.where(finite, residuals.to(torch.float64) * factors, 0.0)
        inputs = torch.where(finite, x.to(torch.float64), 0.0)
        part = torch.cat([(scaled.T @ inputs).reshape(-1), scaled.sum(dim=0)])
        total = part if total is None else total.add_(part)
    if total is None:
        return torch.zeros(len(flat), dtype=torch.float64, device=flat.device)
    return total


def _chunks(flat: Tensor, features: Features, labels: Labels) -> Iterator[tuple[Tensor, Tensor]]:
    """Samples as float32 rows on the model's device, a bounded number at a time."""
    if len(features) != len(labels):
        raise ParameterError(
            f"there are {len(features)} samples but {len(labels)} labels; give one label a sample"
        )
    rows = max(1, MAX_CHUNK_ELEMENTS * len(features) // max(1, _num_values(features)))
    for start in range(0, len(features), rows):
        part = slice(start, start + rows)
        x, y = torch.as_tensor(_copied(features[part])), torch.as_tensor(_copied(labels[part]))
        yield x.flatten(start_dim=1).to(flat.device, flat.dtype), y.to(flat.device, torch.int64)


def _num_values(features: Features) -> int:
    return features.numel() if isinstance(features, Tensor) else features.size


def _copied(values: Features | Labels) -> Tensor | NDArray[np.generic]:
    """A chunk in memory: torch takes no read-only arrays, as mapped files are."""
    return values if isinstance(values, Tensor) else np.array(values)
