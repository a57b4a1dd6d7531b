"""Public preconditioning: the geometry of features, learned from public images.

Noise for privacy grows with the number of coordinates, and a clipped gradient spends its norm on
what all samples share. Public images give both the mean that all features share and the few
directions along which they vary. The transform of a private sample then depends on that sample
alone.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.learning.features import release_pages
from sottovoce_papers.features.precondition_step import check_scale

Array = NDArray[Any]

CHUNK_ELEMENTS = 1 << 24  # float32 values held while features are transformed: 64 MiB.
# Relative to the largest eigenvalue: a direction of public images below it is mostly noise.
EIGENVALUE_FLOOR = 1e-4
# Relative to the mean variance within runs: below it, an estimate from few images is unreliable.
WITHIN_FLOOR = 0.02
_LEAST_REDUCED = 200
_POWER_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicGeometry:
    """The mean and directions (one per column) of features, with eigenvalues in falling order."""

    mean: NDArray[np.float32]
    directions: NDArray[np.float32]
    eigenvalues: NDArray[np.float64]

    @property
    def num_components(self) -> int:
        return len(self.eigenvalues)

    def leading(self, count: int) -> "PublicGeometry":
        """Return the geometry with the first `count` directions only."""
        return PublicGeometry(
            mean=self.mean,
            directions=np.ascontiguousarray(self.directions[:, :count]),
            eigenvalues=self.eigenvalues[:count],
        )


def learn(
    public_features: Array, num_components: int, generator: np.random.Generator
) -> PublicGeometry:
    """Return the mean and the leading principal directions of public features, one sample per row.

    A random subspace of dimension w, a quarter larger than asked, is iterated; the error is of the
    order (l_w / l_k)^2.5. The result is exact if the subspace is the whole space.

    Reference: Halko, Martinsson and Tropp 2011, algorithm 4.4.
    """
    centered = _Centered(public_features)
    num_samples, num_features = centered.shape
    most = min(num_samples - 1, num_features)
    parameter_rules.integer(
        "components", num_components, low=1, high=max(1, most), remedy="use more public images"
    )
    width = min(most, num_components + num_components // 4 + 20)
    start = generator.standard_normal((num_features, width), dtype=np.float32)
    basis = _orthonormal(centered.times(torch.from_numpy(start)))
    for _ in range(_POWER_STEPS):
        basis = _orthonormal(centered.times(_orthonormal(centered.transposed_times(basis))))
    _, singular, directions = torch.linalg.svd(
        centered.transposed_times(basis).T, full_matrices=False
    )
    eigenvalues = singular.double().square() / num_samples
    return PublicGeometry(
        mean=centered.mean.numpy(),
        directions=np.ascontiguousarray(directions[:num_components].numpy().T),
        eigenvalues=eigenvalues[:num_components].numpy(),
    )


class _Centered:
    """Rows minus their mean, one chunk at a time, because they need not fit into memory."""

    def __init__(self, features: Array) -> None:
        self._rows = _rows(features)
        self.shape = self._rows.shape
        total = torch.zeros(self.shape[1], dtype=torch.float64)
        for _, chunk in _chunks(self._rows):
            total += torch.from_numpy(chunk).sum(dim=0, dtype=torch.float64)
        self.mean = (total / len(self._rows)).float()
        if not bool(torch.isfinite(self.mean).all()):
            raise ParameterError("public features must be finite; check the public images")

    def times(self, columns: Tensor) -> Tensor:
        """Return the centered rows times a matrix."""
        offset = self.mean @ columns
        parts = [torch.from_numpy(chunk) @ columns - offset for _, chunk in _chunks(self._rows)]
        return torch.cat(parts)

    def transposed_times(self, columns: Tensor) -> Tensor:
        """Return the transpose of the centered rows times a matrix."""
        total = torch.zeros(self.shape[1], columns.shape[1])
        for part, chunk in _chunks(self._rows):
            total += (torch.from_numpy(chunk) - self.mean).T @ columns[part]
        return total


def _chunks(rows: Array) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """Yield all rows in float32, in chunks of about one size; release memory maps after each."""
    together = max(1, CHUNK_ELEMENTS // rows.shape[1])
    for start in range(0, len(rows), together):
        part = slice(start, min(start + together, len(rows)))
        yield part, rows[part].astype(np.float32)
        release_pages(rows)


def num_principal(num_components: int, num_runs: int, num_features: int) -> int:
    """Return the number of principal directions among which discriminants are searched."""
    return min(max(_LEAST_REDUCED, 2 * num_components), num_runs - 1, num_features)


def learn_discriminants(
    public_features: Array, num_directions: int, variants: int, generator: np.random.Generator
) -> PublicGeometry:
    """Return the directions along which public objects differ most relative to their variants.

    Features come in runs of `variants` that show the same object. With S_w the covariance within
    runs and S_b that of their means, directions u solve S_b u = l S_w u with u' S_w u = 1, so that
    the variation a classifier should ignore has variance 1 along each. S_w is computed among
    `num_directions` leading principal directions, with a small multiple of the identity added: ask
    for more directions than are used.

    Reference: Fisher 1936; Rao 1948, section 7.
    """
    parameter_rules.integer("variants", variants, low=2, high=len(public_features))
    if len(public_features) % variants:
        raise ParameterError(
            f"{len(public_features)} public samples are not a multiple of the {variants} variants; "
            "use a multiple"
        )
    principal = learn(public_features, num_directions, generator)
    reduced = _Centered(public_features).times(torch.from_numpy(principal.directions))
    runs = reduced.numpy().astype(np.float64).reshape(-1, variants, num_directions)
    eigenvalues, vectors = _discriminants(runs)
    return PublicGeometry(
        mean=principal.mean,
        directions=(principal.directions @ vectors).astype(np.float32),
        eigenvalues=eigenvalues,
    )


def _discriminants(runs: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ratios of variance between and within runs, in falling order, and directions.

    `runs` has the shape (runs, variants, dimension).
    """
    from scipy.linalg import eigh  # numpy does not solve generalized eigenvalue problems.

    num_runs, variants, dimension = runs.shape
    means = runs.mean(axis=1)
    deviations = (runs - means[:, None]).reshape(-1, dimension)
    within = deviations.T @ deviations / (num_runs * (variants - 1))
    floor = WITHIN_FLOOR * np.trace(within) / dimension
    within += max(floor, np.finfo(np.float64).tiny) * np.eye(dimension)
    ratios, vectors = eigh(means.T @ means / num_runs, within)
    return np.maximum(ratios[::-1], 0.0), vectors[:, ::-1]


def scales(geometry: PublicGeometry, exponent: float) -> NDArray[np.float64]:
    """Return the factor of each coordinate: (l/l1 + 1e-4)^(-exponent/2).

    For principal directions, exponent 0 keeps the public variances and 1 makes them nearly equal.
    Discriminants are already scaled: use 0.
    """
    relative = geometry.eigenvalues / max(geometry.eigenvalues[0], 1e-300)
    factors: NDArray[np.float64] = (relative + EIGENVALUE_FLOOR) ** (-exponent / 2)
    return factors


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Preconditioner:
    """The map from the features of a sample to a few coordinates and a constant.

    z = s U^T (x - mu),   y = (z / |z|, bias)
    """

    geometry: PublicGeometry
    exponent: float
    bias: float

    def __post_init__(self) -> None:
        check_scale(exponent=self.exponent, bias=self.bias)

    @property
    def num_outputs(self) -> int:
        return self.geometry.num_components + 1

    def chunks(self, features: Array) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Yield (rows, their coordinates) for all rows; a memory map is never read whole."""
        rows = _rows(features)
        geometry = self.geometry
        if rows.shape[1] != len(geometry.mean):
            raise ParameterError(
                f"features have {rows.shape[1]} values per sample, but the public ones have "
                f"{len(geometry.mean)}; pass both through the same steps"
            )
        turn = (geometry.directions * scales(geometry, self.exponent)).astype(np.float32)
        for part, chunk in _chunks(rows):
            centered: Array = chunk - geometry.mean
            coordinates: NDArray[np.float32] = centered @ turn
            yield part, self._on_the_sphere(coordinates)

    def apply(self, features: Array) -> NDArray[np.float32]:
        """Return the coordinates of all samples, of shape (n, components + 1)."""
        coordinates = np.empty((len(features), self.num_outputs), dtype=np.float32)
        for part, values in self.chunks(features):
            coordinates[part] = values
        return coordinates

    def _on_the_sphere(self, z: NDArray[np.float32]) -> NDArray[np.float32]:
        norms = np.linalg.norm(z, axis=1, keepdims=True)
        # A sample that equals the public mean has no direction and stays 0.
        unit = z / np.maximum(norms, np.finfo(np.float32).tiny)
        return np.pad(unit, ((0, 0), (0, 1)), constant_values=self.bias)


def _rows(features: Array) -> Array:
    """Return features as one row per sample; a memory map stays a memory map."""
    if features.ndim < 2 or not features.size:
        raise ParameterError(
            f"features must have the shape (samples, values...), got {features.shape}"
        )
    return features.reshape(len(features), math.prod(features.shape[1:]))


def _orthonormal(columns: Tensor) -> Tensor:
    basis: Tensor = torch.linalg.qr(columns).Q
    return basis
