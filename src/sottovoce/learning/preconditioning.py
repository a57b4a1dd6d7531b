"""Public preconditioning: the geometry of features, learned from images that are nobody's.

Noise for privacy grows with the number of coordinates, and a clipped gradient spends its norm on
whatever all samples share. Public images tell both: the mean that all features share, and the few
directions along which they vary. What private data is turned into by them is then a function of
each sample alone.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce import parameters
from sottovoce.errors import ParameterError

Array = NDArray[Any]

CHUNK_ELEMENTS = 1 << 24  # float32 values held while features are turned: 64 MiB
EIGENVALUE_FLOOR = 1e-4  # of the largest: below, a direction of public images is mostly noise
_POWER_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicGeometry:
    """Mean, principal directions (one a column) and eigenvalues, largest first, of features."""

    mean: NDArray[np.float32]
    directions: NDArray[np.float32]
    eigenvalues: NDArray[np.float64]

    @property
    def num_components(self) -> int:
        return len(self.eigenvalues)


def learn(
    public_features: Array, num_components: int, generator: np.random.Generator
) -> PublicGeometry:
    """The mean and the leading principal directions of public features, one sample a row.

    A random subspace of dimension w, a quarter larger than asked, is iterated; what remains outside
    is of the order (l_w / l_k)^3.5. It is exact where the subspace is everything.

    Reference: Halko, Martinsson and Tropp 2011, algorithm 4.4.
    """
    features = _rows(public_features)
    num_samples, num_features = features.shape
    most = min(num_samples - 1, num_features)
    parameters.integer(
        "components", num_components, low=1, high=max(1, most), remedy="use more public images"
    )
    x = torch.from_numpy(features.astype(np.float32))
    if not bool(torch.isfinite(x).all()):
        raise ParameterError("public features must be finite; check the public images")
    mean = x.mean(dim=0)
    x -= mean
    width = min(most, num_components + num_components // 4 + 20)
    start = generator.standard_normal((num_features, width), dtype=np.float32)
    basis = _orthonormal(x @ torch.from_numpy(start))
    for _ in range(_POWER_STEPS):
        basis = _orthonormal(x @ _orthonormal(x.T @ basis))
    _, singular, directions = torch.linalg.svd(basis.T @ x, full_matrices=False)
    eigenvalues = singular.double().square() / num_samples
    return PublicGeometry(
        mean=mean.numpy(),
        directions=np.ascontiguousarray(directions[:num_components].numpy().T),
        eigenvalues=eigenvalues[:num_components].numpy(),
    )


def scales(geometry: PublicGeometry, exponent: float) -> NDArray[np.float64]:
    """What each principal coordinate is multiplied by: (l/l1 + 1e-4)^(-exponent/2).

    Exponent 0 leaves the public variances as they are, 1 makes them nearly equal.
    """
    relative = geometry.eigenvalues / max(geometry.eigenvalues[0], 1e-300)
    factors: NDArray[np.float64] = (relative + EIGENVALUE_FLOOR) ** (-exponent / 2)
    return factors


def check(*, exponent: float, bias: float) -> None:
    """The rules of a preconditioner's parameters."""
    if not 0 <= parameters.finite("exponent", exponent) <= 2:
        raise ParameterError(
            f"exponent must lie between 0 and 2, got {exponent!r}; 0 keeps the public variances, "
            "1 evens them out"
        )
    if not 0 <= parameters.finite("bias", bias) <= 1e3:
        raise ParameterError(
            f"bias must lie between 0 and 1000, got {bias!r}; features have norm 1, so take less"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Preconditioner:
    """From a sample's features to its own few coordinates, and a constant.

    z = s U^T (x - mu),   y = (z / |z|, bias)
    """

    geometry: PublicGeometry
    exponent: float
    bias: float

    def __post_init__(self) -> None:
        check(exponent=self.exponent, bias=self.bias)

    @property
    def num_outputs(self) -> int:
        return self.geometry.num_components + 1

    def chunks(self, features: Array) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """(rows, their coordinates) for all rows, so that a memory map is never read whole."""
        rows = _rows(features)
        geometry = self.geometry
        if rows.shape[1] != len(geometry.mean):
            raise ParameterError(
                f"features have {rows.shape[1]} values a sample, but the public ones "
                f"{len(geometry.mean)}; pass both through the same steps"
            )
        turn = (geometry.directions * scales(geometry, self.exponent)).astype(np.float32)
        together = max(1, CHUNK_ELEMENTS // rows.shape[1])
        for start in range(0, len(rows), together):
            part = slice(start, min(start + together, len(rows)))
            centred: Array = rows[part].astype(np.float32) - geometry.mean
            coordinates: NDArray[np.float32] = centred @ turn
            yield part, self._on_the_sphere(coordinates)

    def apply(self, features: Array) -> NDArray[np.float32]:
        """The coordinates of all samples, (n, components + 1)."""
        coordinates = np.empty((len(features), self.num_outputs), dtype=np.float32)
        for part, values in self.chunks(features):
            coordinates[part] = values
        return coordinates

    def _on_the_sphere(self, z: NDArray[np.float32]) -> NDArray[np.float32]:
        norms = np.linalg.norm(z, axis=1, keepdims=True)
        # A sample that is the public mean itself has no direction: it stays 0.
        unit = z / np.maximum(norms, np.finfo(np.float32).tiny)
        return np.pad(unit, ((0, 0), (0, 1)), constant_values=self.bias)


def _rows(features: Array) -> Array:
    """Features as one row a sample; a memory map stays one."""
    if features.ndim < 2 or not features.size:
        raise ParameterError(f"features must be samples by values, got shape {features.shape}")
    return features.reshape(len(features), math.prod(features.shape[1:]))


def _orthonormal(columns: torch.Tensor) -> torch.Tensor:
    basis: torch.Tensor = torch.linalg.qr(columns).Q
    return basis
