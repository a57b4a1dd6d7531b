"""Clients' data, and the updates that several clients compute at once.

A simulation of 60,000 clients with a sample each cannot hold 60,000 tensors: `Clients` keeps two
arrays and who owns which rows, and makes a client's own tensors when somebody asks for them. The
arrays may be memory-mapped and of half precision; a cohort is read when it is trained.

`Rows` are updates: rows of a matrix, or outer products that need not be made. The gradient of a
linear layer at one sample is an outer product, residual x [features, 1]. Its norm is a product of
two norms, and a weighted sum of many is one matrix product: whoever needs no more than these never
holds the rows. The flat layout is that of the module: weights row by row, then biases, layer after
layer.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.core.errors import DataError
from sottovoce.core.printable_text import client_name as client_name


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


Indices = NDArray[np.int64]
_DIGESTED_ROWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientData:
    """One client's samples."""

    name: str
    features: Tensor
    labels: Tensor

    @property
    def num_samples(self) -> int:
        return len(self.labels)


class Clients(Sequence[ClientData]):
    """Clients that own rows of shared arrays; a slice is another such sequence."""

    def __init__(
        self,
        features: NDArray[Any] | Tensor,
        labels: NDArray[Any] | Tensor,
        shares: Sequence[Indices],
        names: Sequence[str] | None = None,
    ) -> None:
        self._features, self._labels, self._shares = features, labels, shares
        if isinstance(features, Tensor):
            self._labels_there = torch.as_tensor(labels, device=features.device)
        self._names = list(names or map(client_name, range(len(shares))))

    def __len__(self) -> int:
        return len(self._shares)

    @overload
    def __getitem__(self, index: int) -> ClientData: ...
    @overload
    def __getitem__(self, index: slice) -> "Clients": ...
    def __getitem__(self, index: int | slice) -> "ClientData | Clients":
        if isinstance(index, slice):
            return self.take(range(len(self))[index])
        features, labels = self._read(self._shares[index])
        return ClientData(name=self.name(index), features=features, labels=labels)

    def take(self, positions: Sequence[int]) -> "Clients":
        """Some of the clients, in the order given."""
        shares = [self._shares[i] for i in positions]
        names = [self._names[i] for i in positions]
        labels = self._labels_there if isinstance(self._features, Tensor) else self._labels
        return Clients(self._features, labels, shares, names)

    def joined_by(self, names: Sequence[str], *, like: int) -> "Clients":
        """These clients and some more, each with the rows of the client at `like`."""
        more = self.take([*range(len(self)), *[like] * len(names)])
        more._names[len(self) :] = names
        return more

    def name(self, index: int) -> str:
        return self._names[index]

    @property
    def names(self) -> list[str]:
        return self._names

    @property
    def sizes(self) -> list[int]:
        return [len(share) for share in self._shares]

    @property
    def rows(self) -> Indices:
        """Which rows of the shared arrays the clients own, one client after the other."""
        return np.concatenate(self._shares)

    def samples(self) -> tuple[Tensor, Tensor]:
        """Features and labels of all clients, one client after the other."""
        return self._read(self.rows)

    def digest(self, *, features: bool) -> str:
        """Sixteen hex digits that stand for who has which labels and, if asked, which features.

        Features of some rows only, at most `_DIGESTED_ROWS`: data are told apart, not sealed.
        Features that were computed may differ in their last bits from machine to machine.
        """
        hashed = hashlib.blake2b(repr((self.names, self.sizes)).encode(), digest_size=8)
        some = self.rows[:: 1 + len(self.rows) // _DIGESTED_ROWS]
        for part in (self._labels, self._features)[: 1 + features]:
            chosen = self.rows if part is self._labels else some
            values = part[chosen].cpu().numpy() if isinstance(part, Tensor) else part[chosen]
            hashed.update(np.ascontiguousarray(values).tobytes())
        return hashed.hexdigest()

    def _read(self, rows: Indices) -> tuple[Tensor, Tensor]:
        if isinstance(self._features, Tensor):  # on a GPU: one small copy to it for a cohort
            places = torch.from_numpy(rows).to(self._features.device)
            return self._features[places].float(), self._labels_there[places]
        labels = torch.from_numpy(self._labels[rows])
        features = np.ascontiguousarray(self._features[rows], dtype=np.float32)
        return torch.from_numpy(features), labels


class ClientsElsewhere(Clients):
    """Clients whose rows are not here: their names, and how many rows each says to have."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._names, self._sizes = list(sizes), list(sizes.values())

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, index: int) -> ClientData: ...
    @overload
    def __getitem__(self, index: slice) -> "Clients": ...
    def __getitem__(self, index: int | slice) -> "ClientData | Clients":
        raise DataError("the training rows are at the sites of a federation, not here")

    @property
    def sizes(self) -> list[int]:
        return self._sizes


def samples_of(clients: Sequence[ClientData]) -> tuple[Tensor, Tensor]:
    """Features and labels of some clients, one client after the other."""
    if isinstance(clients, Clients):
        return clients.samples()
    return torch.cat([c.features for c in clients]), torch.cat([c.labels for c in clients])


def sizes_of(clients: Sequence[ClientData]) -> list[int]:
    """How many samples each client has."""
    if isinstance(clients, Clients):
        return clients.sizes
    return [client.num_samples for client in clients]


def names_of(clients: Sequence[ClientData]) -> list[str]:
    if isinstance(clients, Clients):
        return clients.names
    return [client.name for client in clients]
