"""Updates of several clients at once: rows of a matrix, or outer products that need not be made.

The gradient of a linear layer at one sample is an outer product, residual x [features, 1]. Its norm
is a product of two norms, and a weighted sum of many is one matrix product: whoever needs no more
than these never holds the rows. The flat layout is that of the module: weights row by row, then
biases, layer after layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import overload

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class DenseRows:
    """A row for each client."""

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def norms(self) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(self.values, dim=1)
        return norms

    def scaled(self, factors: Tensor) -> "DenseRows":
        return DenseRows(self.values * factors[:, None])

    def select(self, positions: Tensor | slice) -> "DenseRows":
        return DenseRows(self.values[positions])

    def total(self, weights: Tensor) -> Tensor:
        """The weighted sum of all rows."""
        return weights.to(self.values.dtype) @ self.values

    def blocks(self, rows: int) -> Iterator[Tensor]:
        """The rows, at most so many at once."""
        yield from torch.split(self.values, rows)


@dataclass(frozen=True, slots=True)
class OuterRows:
    """Row i is (left_i x right_i, left_i): a linear layer's weights and, if it has, biases."""

    left: Tensor
    right: Tensor
    has_bias: bool = True

    def __len__(self) -> int:
        return len(self.left)

    def norms(self) -> Tensor:
        inputs = float(self.has_bias) + self.right.square().sum(dim=1)
        return torch.sqrt(self.left.square().sum(dim=1) * inputs)

    def scaled(self, factors: Tensor) -> "OuterRows":
        return replace(self, left=self.left * factors[:, None])

    def select(self, positions: Tensor | slice) -> "OuterRows":
        return replace(self, left=self.left[positions], right=self.right[positions])

    def total(self, weights: Tensor) -> Tensor:
        left = self.left * weights[:, None]
        weighted = (left.T @ self.right).reshape(-1)
        return torch.cat([weighted, left.sum(dim=0)]) if self.has_bias else weighted

    def blocks(self, rows: int) -> Iterator[Tensor]:
        """The rows, at most so many at once."""
        outputs, features = self.left.shape[1], self.right.shape[1]
        for left, right in zip(
            torch.split(self.left, rows), torch.split(self.right, rows), strict=True
        ):
            made = left.new_empty(len(left), outputs * (features + self.has_bias))
            weights = made[:, : outputs * features].view(len(left), outputs, features)
            torch.mul(left[:, :, None], right[:, None, :], out=weights)
            if self.has_bias:
                made[:, outputs * features :] = left
            yield made


@dataclass(frozen=True, slots=True)
class LayeredRows:
    """Row i is made of the i-th rows of several layers, one after the other."""

    layers: tuple[DenseRows | OuterRows, ...]

    def __len__(self) -> int:
        return len(self.layers[0])

    def norms(self) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(
            torch.stack([x.norms() for x in self.layers]), dim=0
        )
        return norms

    def scaled(self, factors: Tensor) -> "LayeredRows":
        return LayeredRows(tuple(layer.scaled(factors) for layer in self.layers))

    def select(self, positions: Tensor | slice) -> "LayeredRows":
        return LayeredRows(tuple(layer.select(positions) for layer in self.layers))

    def total(self, weights: Tensor) -> Tensor:
        return torch.cat([layer.total(weights) for layer in self.layers])

    def blocks(self, rows: int) -> Iterator[Tensor]:
        """The rows, at most so many at once."""
        for parts in zip(*(layer.blocks(rows) for layer in self.layers), strict=True):
            yield torch.cat(parts, dim=1)


Rows = DenseRows | OuterRows | LayeredRows


def clipped(rows: Rows, limit: float) -> Rows:
    """Rows shortened to norm `limit`; one that is not finite becomes zero."""
    finite, factors = clipping(rows, limit)
    return finite.scaled(factors)


def clipping(rows: Rows, limit: float) -> tuple[Rows, Tensor]:
    """Finite rows, and the factors that shorten them to norm `limit`.

    For whoever adds rows up: the factors can be weights of the sum, and need no pass of their own.
    A row that is not finite is zero.
    """
    norms = rows.norms()
    factors = limit / torch.clamp(norms, min=limit)
    finite = torch.isfinite(norms)
    # Asking a GPU takes longer than doing what is mostly not needed.
    if norms.is_cuda or not bool(finite.all()):
        return _without(rows, finite), torch.where(finite, factors, 0.0)
    return rows, factors


@overload
def _without(rows: DenseRows | OuterRows, finite: Tensor) -> DenseRows | OuterRows: ...
@overload
def _without(rows: LayeredRows, finite: Tensor) -> LayeredRows: ...
def _without(rows: Rows, finite: Tensor) -> Rows:
    """Rows with zeros in place of those that are not finite: 0 times infinity is no zero."""
    match rows:
        case DenseRows(values=values):
            return DenseRows(torch.where(finite[:, None], values, 0.0))
        case OuterRows(left=left, right=right):
            return replace(
                rows,
                left=torch.where(finite[:, None], left, 0.0),
                right=torch.where(finite[:, None], right, 0.0),
            )
        case LayeredRows(layers=layers):
            return LayeredRows(tuple(_without(layer, finite) for layer in layers))
