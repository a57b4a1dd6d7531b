"""Clients' data, and the updates that several clients compute at once.

A simulation of 60,000 clients with one sample each cannot hold 60,000 tensors. So `Clients` keeps
two arrays and the rows of each client, and makes the tensors of a single client on demand. The
arrays may be memory-mapped and of half precision; a cohort is read when it is trained.

`Rows` are updates: rows of a matrix, or outer products that are not computed. The gradient of a
linear layer at one sample is an outer product, residual x [features, 1]. Its norm is a product of
two norms, and a weighted sum of many of them is one matrix product, so code that needs only these
never holds the rows. The flat layout is that of the module: weights row by row, then biases, layer
after layer.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.core.errors import DataError
from sottovoce.core.printable_text import client_name as client_name
from sottovoce.mechanisms.row_batches import FactoredRows, OuterProducts, select_singles


@dataclass(frozen=True, slots=True)
class DenseRows:
    """Updates or gradients as the rows of a matrix, one for each client or sample."""

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def norms(self) -> Tensor:
        """Return the Euclidean norm of each row, as a tensor with one entry for each row."""
        norms: Tensor = torch.linalg.vector_norm(self.values, dim=1)
        return norms

    def scaled(self, factors: Tensor | float) -> "DenseRows":
        """Return the rows multiplied by one factor, or one each; these rows stay unchanged."""
        return DenseRows(self.values * _column(factors))

    def select(self, positions: Tensor | slice) -> "DenseRows":
        """Return the rows at these positions, or those of a mask or a slice."""
        return DenseRows(self.values[positions])

    def total(self, weights: Tensor) -> Tensor:
        """Return the sum of all rows, each times its weight, as a flat vector."""
        return weights.to(self.values.dtype) @ self.values

    def blocks(self, rows: int) -> Iterator[Tensor]:
        """Yield the rows as matrices of at most `rows` rows, in order."""
        yield from torch.split(self.values, rows)


@dataclass(frozen=True, slots=True)
class OuterRows:
    """Updates (left_i x right_i, left_i): a linear layer's gradients for weights and biases.

    Attributes:
        left: The gradients of the layer's outputs, one row for each client or sample.
        right: The inputs of the layer, one row for each client or sample.
        has_bias: Whether the layer has biases; without them row i is only left_i x right_i.
    """

    left: Tensor
    right: Tensor
    has_bias: bool = True

    def __len__(self) -> int:
        return len(self.left)

    def norms(self) -> Tensor:
        """Return the Euclidean norm of each row, as a tensor with one entry for each row."""
        inputs = float(self.has_bias) + self.right.square().sum(dim=1)
        return torch.sqrt(self.left.square().sum(dim=1) * inputs)

    def scaled(self, factors: Tensor | float) -> "OuterRows":
        """Return the rows multiplied by one factor, or one each; these rows stay unchanged."""
        return OuterRows(self.left * _column(factors), self.right, self.has_bias)

    def select(self, positions: Tensor | slice) -> "OuterRows":
        """Return the rows at these positions, or those of a mask or a slice."""
        return OuterRows(self.left[positions], self.right[positions], self.has_bias)

    def total(self, weights: Tensor) -> Tensor:
        """Return the sum of all rows, each times its weight, as a flat vector."""
        left = self.left * weights[:, None]
        weighted = (left.T @ self.right).reshape(-1)
        return torch.cat([weighted, left.sum(dim=0)]) if self.has_bias else weighted

    def blocks(self, rows: int) -> Iterator[Tensor]:
        """Yield the rows as matrices of at most `rows` rows, in order."""
        if rows >= len(self):
            yield self._matrix(self.left, self.right)
            return
        for left, right in zip(
            torch.split(self.left, rows), torch.split(self.right, rows), strict=True
        ):
            yield self._matrix(left, right)

    def _matrix(self, left: Tensor, right: Tensor) -> Tensor:
        (count, outputs), features = left.shape, right.shape[1]
        products = outputs * features
        made = left.new_empty(count, products + outputs * self.has_bias)
        weights = made.as_strided((count, outputs, features), (made.shape[1], features, 1))
        torch.mul(left.unsqueeze(2), right.unsqueeze(1), out=weights)
        if self.has_bias:
            made.narrow(1, products, outputs).copy_(left)
        return made


@dataclass(frozen=True, slots=True)
class LayeredRows:
    """Updates of several layers: row i is the concatenation of the i-th rows of the layers."""

    layers: tuple[DenseRows | OuterRows, ...]

    def __len__(self) -> int:
        return len(self.layers[0])

    def norms(self) -> Tensor:
        """Return the Euclidean norm of each row, as a tensor with one entry for each row."""
        norms: Tensor = torch.linalg.vector_norm(
            torch.stack([x.norms() for x in self.layers]), dim=0
        )
        return norms

    def scaled(self, factors: Tensor | float) -> "LayeredRows":
        """Return the rows multiplied by one factor, or one each; these rows stay unchanged."""
        return LayeredRows(tuple(layer.scaled(factors) for layer in self.layers))

    def select(self, positions: Tensor | slice) -> "LayeredRows":
        """Return the rows at these positions, or those of a mask or a slice."""
        return LayeredRows(tuple(layer.select(positions) for layer in self.layers))

    def total(self, weights: Tensor) -> Tensor:
        """Return the sum of all rows, each times its weight, as a flat vector."""
        return torch.cat([layer.total(weights) for layer in self.layers])

    def blocks(self, rows: int) -> Iterator[Tensor]:
        """Yield the rows as matrices of at most `rows` rows, in order."""
        for start in range(0, max(1, len(self)), max(1, rows)):
            yield self._matrix(slice(start, start + rows))

    def _matrix(self, positions: slice) -> Tensor:
        """Return some of the rows; nothing else is kept, so that a large model is held once."""
        chosen = [layer.select(positions) for layer in self.layers]
        return torch.cat([made for one in chosen for made in one.blocks(max(1, len(one)))], dim=1)


def _column(factors: Tensor | float) -> Tensor | float:
    return factors[:, None] if isinstance(factors, Tensor) else factors


Rows = DenseRows | OuterRows | LayeredRows


def factored(rows: Rows) -> FactoredRows | NDArray[np.float64]:
    """Return rows, on the CPU, for the encoding of messages; outer products stay uncomputed."""
    match rows:
        case LayeredRows(layers=layers) if all(map(_is_single, layers)):
            return FactoredRows(tuple(_part(layer) for layer in layers))
        case OuterRows() | DenseRows() if _is_single(rows):
            return FactoredRows((_part(rows),))
        case _:
            (matrix,) = rows.blocks(len(rows))
            return np.asarray(matrix.detach().to("cpu", torch.float64).numpy())


def _is_single(layer: DenseRows | OuterRows) -> bool:
    tensors = (layer.values,) if isinstance(layer, DenseRows) else (layer.left, layer.right)
    return all(tensor.dtype == torch.float32 for tensor in tensors)


def _part(layer: DenseRows | OuterRows) -> Any:
    if isinstance(layer, DenseRows):
        return layer.values.detach().cpu().numpy()
    left, right = layer.left.detach().cpu(), layer.right.detach().cpu()
    return OuterProducts(left.numpy(), right.numpy(), layer.has_bias)


def clip_rows(rows: Rows, limit: float) -> Rows:
    """Return the rows, each scaled down to Euclidean norm `limit` if its norm is larger.

    Norms are at most `limit` up to rounding in the rows' type. A row whose norm is not finite
    becomes zero. The given rows stay unchanged.
    """
    finite, factors = clipping_factors(rows, limit)
    return finite.scaled(factors)


@dataclass
class ClipCount:
    """How many rows were clipped, for a run whose rows are not private.

    Attributes:
        rows: The number of rows.
        clipped: How many of them were longer than the limit.
    """

    rows: int = 0
    clipped: int = 0


_clip_count: ContextVar[ClipCount | None] = ContextVar("clip count", default=None)


@contextmanager
def counted_clipping(wanted: bool) -> Iterator[ClipCount]:
    """Count in a `with` block how many rows `count_clipped` is told of, if `wanted`."""
    count = ClipCount()
    token = _clip_count.set(count if wanted else None)
    try:
        yield count
    finally:
        _clip_count.reset(token)


def count_clipped(factors: Tensor) -> None:
    """Count rows, given the factors that clip them; does nothing outside `counted_clipping`."""
    count = _clip_count.get()
    if count is not None:
        count.rows += len(factors)
        count.clipped += int((factors < 1.0).sum())


# The constant of automatic clipping, so that gradients near zero keep differing in length.
_STABILITY = 0.01


def norm_divisors(norms: Tensor, limit: float, *, normalizes: bool = False) -> Tensor:
    """Return d for which gradients of these norms, times limit/d, have norm `limit` at most.

    It is max(norm, limit), which clips, or norm + 0.01 where gradients are normalized, which needs
    no limit that fits the data (Bu, Wang, Zha and Karypis 2023, AUTO-S).
    """
    return norms + _STABILITY if normalizes else torch.clamp(norms, min=limit)


def clipping_factors(rows: Rows, limit: float, *, normalizes: bool = False) -> tuple[Rows, Tensor]:
    """Return the rows, not yet clipped, and the factors that clip each of them to norm `limit`.

    Code that sums rows can use the factors as weights of the sum instead of scaling the rows first.
    A factor is min(1, limit/norm), with the Euclidean norm, or limit/(norm + 0.01) with
    `normalizes`. A row whose norm is not finite is replaced by zero, and its factor is 0.
    """
    norms = rows.norms()
    factors = limit / norm_divisors(norms, limit, normalizes=normalizes)
    finite = torch.isfinite(norms)
    # Reading a result from a GPU takes longer than replacing rows that are mostly finite.
    if norms.is_cuda or not bool(finite.all()):
        return _zero_non_finite(rows, finite), torch.where(finite, factors, 0.0)
    return rows, factors


@overload
def _zero_non_finite(rows: DenseRows | OuterRows, finite: Tensor) -> DenseRows | OuterRows: ...
@overload
def _zero_non_finite(rows: LayeredRows, finite: Tensor) -> LayeredRows: ...
def _zero_non_finite(rows: Rows, finite: Tensor) -> Rows:
    """Replace rows that are not finite by zero.

    Multiplying them by a factor 0 would not do, since 0 times infinity is NaN.
    """
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
            return LayeredRows(tuple(_zero_non_finite(layer, finite) for layer in layers))


Indices = NDArray[np.int64]
_DIGESTED_ROWS = 1000
_ALIGNMENT = 512  # What torch gives new tensors on a CUDA device,
_NUMPY_ALIGNMENT = 16  # and numpy new arrays.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientData:
    """The samples of one client.

    Attributes:
        name: The client's name.
        features: One row for each sample.
        labels: One label, or one row of targets, for each sample.
    """

    name: str
    features: Tensor
    labels: Tensor

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return len(self.labels)


class Clients(Sequence[ClientData]):
    """A sequence of clients that own rows of shared arrays; a slice is such a sequence too.

    Args:
        features: The features of all clients, one row for each sample. A tensor stays on its
            device.
        labels: The label of each row.
        shares: The row numbers of each client.
        names: The names of the clients. Default: client-0000, client-0001 and so on.
    """

    def __init__(
        self,
        features: NDArray[Any] | Tensor,
        labels: NDArray[Any] | Tensor,
        shares: Sequence[Indices],
        names: Sequence[str] | None = None,
    ) -> None:
        self._features, self._labels, self._shares = features, labels, shares
        if isinstance(features, Tensor):
            self._labels_on_device = torch.as_tensor(labels, device=features.device)
        self._names = list(names or map(client_name, range(len(shares))))
        self._places = np.arange(len(shares), dtype=np.int64)  # In the lists of shares and names.

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> ClientData: ...
    @overload
    def __getitem__(self, index: slice) -> "Clients": ...
    def __getitem__(self, index: int | slice) -> "ClientData | Clients":
        if isinstance(index, slice):
            return self.take(range(len(self))[index])
        features, labels = self._read(self._shares[self._places[index]])
        return ClientData(name=self.name(index), features=features, labels=labels)

    def take(self, positions: Sequence[int] | Indices) -> "Clients":
        """Return some of the clients, in the order given.

        Args:
            positions: Their positions in this sequence.

        Returns:
            Clients that share the arrays of these.
        """
        chosen, single = np.asarray(positions, dtype=np.int64), self.single_rows
        taken = object.__new__(type(self))
        vars(taken).update(vars(self))  # It shares the lists of all clients, which are long.
        taken._places = self._places[chosen]
        del taken.single_rows
        if single is not None:
            taken.single_rows = single[chosen]
        return taken

    @cached_property
    def single_rows(self) -> Indices | None:
        """The row of each client if every client has exactly one, else None."""
        shares = self._own_shares()
        return np.concatenate(shares) if {len(share) for share in shares} == {1} else None

    def _own_shares(self) -> list[Indices]:
        return [self._shares[place] for place in self._places.tolist()]

    def with_rows(self, choose: Callable[[Indices], Indices]) -> "Clients":
        """Return these clients with other rows.

        Args:
            choose: A function of a client's rows that returns the rows it has instead.

        Returns:
            Clients that share the arrays of these.
        """
        changed = object.__new__(type(self))
        vars(changed).update(vars(self))
        changed._shares = [choose(share) for share in self._own_shares()]
        changed._names = self.names
        changed._places = np.arange(len(self), dtype=np.int64)
        vars(changed).pop("single_rows", None)
        return changed

    def with_copies(self, names: Sequence[str], *, like: int) -> "Clients":
        """Return these clients followed by further ones, which all have the rows of one client.

        These clients stay unchanged.

        Args:
            names: The names of the further clients.
            like: The position of the client whose rows they have.

        Returns:
            Clients that share the arrays of these.
        """
        shares = self._own_shares()
        shares += [shares[like]] * len(names)
        return Clients(self._features, self._labels, shares, [*self.names, *names])

    def name(self, index: int) -> str:
        """Return the name of a client.

        Args:
            index: The position of the client.

        Returns:
            Its name.
        """
        return self._names[int(self._places[index])]

    @property
    def names(self) -> list[str]:
        """The names of all clients."""
        return [self._names[place] for place in self._places.tolist()]

    @property
    def sizes(self) -> list[int]:
        """The number of samples of each client."""
        if self.single_rows is not None:
            return [1] * len(self)
        return [len(share) for share in self._own_shares()]

    @property
    def rows(self) -> Indices:
        """The rows of the shared arrays that the clients own, one client after the other."""
        if self.single_rows is not None:
            return self.single_rows
        return np.concatenate(self._own_shares())

    def samples(self) -> tuple[Tensor, Tensor]:
        """Return features and labels of all clients, one client after the other.

        Returns:
            (features, labels): the features as float32 or int64, one row for each sample.
        """
        return self._read(self.rows)

    def shared_samples(self) -> tuple[Tensor, Tensor]:
        """Return `samples`, without a copy if they are consecutive rows of float32 arrays.

        Returns:
            (features, labels), which must not be written to.
        """
        rows = self.rows
        if not len(rows) or not np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
            return self._read(rows)
        part = slice(int(rows[0]), int(rows[0]) + len(rows))
        features = self._features[part]
        # Products of matrices may depend on alignment, so it must be one that copies have, too.
        if isinstance(features, Tensor):
            if features.data_ptr() % _ALIGNMENT == 0:
                return to_single(features), self._labels_on_device[part]
        elif _is_like_new(features):
            return torch.from_numpy(features), torch.from_numpy(self._labels[rows])
        return self._read(rows)

    def digest(self, *, features: bool) -> str:
        """Return sixteen hex digits that identify who has which labels and, on request, features.

        The digest detects that data differ; it does not authenticate them. It covers the names and
        sizes of the clients and all their labels. Features that were computed may differ in their
        last bits from machine to machine.

        Args:
            features: Whether to include features, of at most 1000 rows.

        Returns:
            The digest.
        """
        hashed = hashlib.blake2b(repr((self.names, self.sizes)).encode(), digest_size=8)
        some = self.rows[:: 1 + len(self.rows) // _DIGESTED_ROWS]
        for part in (self._labels, self._features)[: 1 + features]:
            chosen = self.rows if part is self._labels else some
            values = part[chosen].cpu().numpy() if isinstance(part, Tensor) else part[chosen]
            hashed.update(np.ascontiguousarray(values).tobytes())
        return hashed.hexdigest()

    def features_of(self, rows: Indices) -> Tensor:
        """Return some rows of the shared features.

        Args:
            rows: Their numbers, as in `rows`.

        Returns:
            A copy of the rows, as float32 or int64.
        """
        # Tensors may be on a GPU: then only the row numbers of a cohort are copied there.
        if isinstance(self._features, Tensor):
            places = torch.from_numpy(rows).to(self._features.device, non_blocking=True)
            return to_single(self._features.index_select(0, places))
        if self._features.dtype == np.int64:
            return as_inputs(self._features[rows])
        if self._features.dtype == np.float16:  # Torch converts these several times faster.
            return torch.from_numpy(self._features[rows]).float()
        return torch.from_numpy(select_singles(self._features, rows))

    def labels_of(self, rows: Indices) -> Tensor:
        """Return the labels of some rows.

        Args:
            rows: Their numbers, as in `rows`.

        Returns:
            A copy of the labels, on the device of the features.
        """
        if isinstance(self._features, Tensor):
            places = torch.from_numpy(rows).to(self._features.device, non_blocking=True)
            return self._labels_on_device.index_select(0, places)
        return torch.from_numpy(self._labels[rows])

    def _read(self, rows: Indices) -> tuple[Tensor, Tensor]:
        return self.features_of(rows), self.labels_of(rows)


class RemoteClients(Clients):
    """Clients whose rows are at other sites; their numbers of rows are given, not counted.

    Reading a client raises DataError.

    Args:
        sizes: The number of rows by the name of the client: `data.sites` of a spec, which at client
            level need not be true.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._names, self._sizes = list(sizes), list(sizes.values())
        self._places = np.arange(len(self._sizes), dtype=np.int64)

    @overload
    def __getitem__(self, index: int) -> ClientData: ...
    @overload
    def __getitem__(self, index: slice) -> "Clients": ...
    def __getitem__(self, index: int | slice) -> "ClientData | Clients":
        raise DataError(
            "the training rows are at the sites of a federation, not on this machine; read them "
            "at the sites"
        )

    @property
    def sizes(self) -> list[int]:
        """The number of samples that was given for each client, in the order of the clients."""
        return self._sizes


def _is_like_new(array: NDArray[Any]) -> bool:
    """Return whether an array is float32, writable, contiguous and as aligned as any new one."""
    address = array.__array_interface__["data"][0]
    return array.dtype == np.float32 and array.flags.carray and address % _NUMPY_ALIGNMENT == 0


def as_inputs(features: Any) -> Tensor:
    """Return features as a new tensor on the CPU: int64 stays as it is, all else is float32."""
    kept = np.int64 if features.dtype == np.int64 else np.float32
    return torch.from_numpy(np.array(features, dtype=kept))


def to_single(features: Tensor) -> Tensor:
    """Return features as float32, or unchanged if they are int64."""
    return features if features.dtype == torch.int64 else features.float()


def samples_of(clients: Sequence[ClientData]) -> tuple[Tensor, Tensor]:
    """Return (features, labels) of all samples of some clients, one client after the other."""
    if isinstance(clients, Clients):
        return clients.samples()
    return torch.cat([c.features for c in clients]), torch.cat([c.labels for c in clients])


def sizes_of(clients: Sequence[ClientData]) -> list[int]:
    """Return the number of samples of each client, in the order of the clients."""
    if isinstance(clients, Clients):
        return clients.sizes
    return [client.num_samples for client in clients]


def have_one_sample(clients: Sequence[ClientData]) -> bool:
    """Return whether there are clients and each of them has exactly one sample."""
    if isinstance(clients, Clients):
        return clients.single_rows is not None
    return set(sizes_of(clients)) == {1}


def names_of(clients: Sequence[ClientData]) -> list[str]:
    """Return the name of each client, in the order of the clients."""
    if isinstance(clients, Clients):
        return clients.names
    return [client.name for client in clients]


def hold_out(
    clients: Sequence[ClientData], fraction: float
) -> tuple[Sequence[ClientData], Sequence[ClientData]]:
    """Return the clients with the records that they train on, and with those that they hold out.

    The same records are held out each time. They are floor(fraction n) of a client's n records, at
    least one, and at most n - 1; a client's only record is in both parts.

    Args:
        clients: The clients.
        fraction: The part of each client's records to hold out, in (0, 1).
    """
    if isinstance(clients, Clients):
        return (
            clients.with_rows(lambda rows: rows[_parted(len(rows), fraction)[0]]),
            clients.with_rows(lambda rows: rows[_parted(len(rows), fraction)[1]]),
        )
    parts = [_parted(client.num_samples, fraction) for client in clients]
    kept, held_out = (
        [
            replace(client, features=client.features[own[part]], labels=client.labels[own[part]])
            for client, own in zip(clients, parts, strict=True)
        ]
        for part in (0, 1)
    )
    return kept, held_out


@lru_cache(maxsize=1024)
def _parted(records: int, fraction: float) -> tuple[Indices, Indices]:
    """Return the positions of the records to train on and of those to hold out, sorted.

    Which positions they are depends only on the number of records, so that they stay the same.
    """
    if records < 2:
        return np.arange(records), np.arange(records)
    count = min(records - 1, max(1, int(fraction * records)))
    order = np.random.default_rng(records).permutation(records)
    return np.sort(order[count:]), np.sort(order[:count])
