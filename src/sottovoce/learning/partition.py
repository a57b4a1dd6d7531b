"""Ways to spread a dataset over clients."""

from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Iid:
    """A random split into parts of equal size, up to one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirichletByLabel:
    """Each label's samples are shared out by a draw from Dirichlet(alpha, ..., alpha).

    Small alpha: few labels a client. Reference: Hsu, Qi and Brown 2019.
    """

    alpha: float

    def __post_init__(self) -> None:
        parameter_rules.positive("alpha", self.alpha)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """Samples are sorted by label and cut into shards, of which each client gets so many at random.

    Reference: McMahan et al. 2017, section 3 (two shards a client).
    """

    shards_per_client: int

    def __post_init__(self) -> None:
        parameter_rules.integer("shards_per_client", self.shards_per_client, low=1, high=2**20)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByOwner:
    """The data's own clients: everybody has what is theirs, in the order of the owners' numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSample:
    """Each sample is a client of its own."""


Partition = Iid | DirichletByLabel | Shards | ByOwner | OneSample


def split(
    partition: Partition,
    labels: NDArray[Any],
    num_clients: int | None,
    generator: np.random.Generator,
    *,
    owners: NDArray[np.int64] | None = None,
) -> list[Indices]:
    """Disjoint indices for every client, none of them empty.

    `num_clients` None is for partitions that settle the number themselves: ByOwner and OneSample.
    """
    match partition:
        case ByOwner():
            parts = _by_owner(labels, owners)
            _check_settled(partition, num_clients, len(parts), "owners")
        case OneSample():
            parts = list(np.arange(len(labels))[:, None])
            _check_settled(partition, num_clients, len(parts), "samples")
        case Iid() | DirichletByLabel() | Shards():
            parts = _shared_out(partition, labels, _number_given(num_clients, labels), generator)
        case _:
            assert_never(partition)
    empty = [client for client, part in enumerate(parts) if not len(part)]
    if empty:
        raise ParameterError(
            f"client {empty[0]} got no samples ({len(empty)} of {len(parts)} clients are empty); "
            "use fewer clients or a larger alpha"
        )
    return parts


def _shared_out(
    partition: Iid | DirichletByLabel | Shards,
    labels: NDArray[Any],
    num_clients: int,
    generator: np.random.Generator,
) -> list[Indices]:
    match partition:
        case Iid():
            order = generator.permutation(len(labels))
            return [np.sort(part) for part in np.array_split(order, num_clients)]
        case DirichletByLabel(alpha=alpha):
            _check_classes("dirichlet", labels)
            return _dirichlet(alpha, labels, num_clients, generator)
        case Shards(shards_per_client=shards_per_client):
            _check_classes("shards", labels)
            return _shards(shards_per_client, labels, num_clients, generator)
        case _:
            assert_never(partition)


def _number_given(num_clients: int | None, labels: NDArray[Any]) -> int:
    if num_clients is None:
        raise ParameterError(
            "this partition needs the number of clients; give it, or use the partition 'by_owner' "
            "or 'one_sample', which settle it"
        )
    return parameter_rules.integer(
        "clients",
        num_clients,
        low=1,
        high=max(1, len(labels)),
        remedy=f"there are {len(labels):,} training samples for the clients, and each needs one",
    )


def _check_settled(
    partition: ByOwner | OneSample, num_clients: int | None, found: int, what: str
) -> None:
    if num_clients is not None and num_clients != found:
        raise ParameterError(
            f"clients is {num_clients}, but {type(partition).__name__} makes a client of each of "
            f"the {found} {what}; leave clients out, or take a subset of the data"
        )


def _check_classes(kind: str, labels: NDArray[Any]) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ParameterError(
            f"the partition '{kind}' goes by classes, and these labels are numbers to predict "
            f"({labels.dtype} of shape {labels.shape}); use 'iid', 'by_owner' or 'one_sample'"
        )


def _dirichlet(
    alpha: float, labels: NDArray[Any], num_clients: int, generator: np.random.Generator
) -> list[Indices]:
    shares: list[list[Indices]] = [[] for _ in range(num_clients)]
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        fractions = generator.dirichlet(np.full(num_clients, alpha))
        cuts = np.round(np.cumsum(fractions)[:-1] * len(members)).astype(np.int64)
        for client, part in enumerate(np.split(members, cuts)):
            shares[client].append(part)
    return [np.sort(np.concatenate(share)) for share in shares]


def _shards(
    shards_per_client: int, labels: NDArray[Any], num_clients: int, generator: np.random.Generator
) -> list[Indices]:
    num_shards = shards_per_client * num_clients
    if num_shards > len(labels):
        raise ParameterError(
            f"{num_clients} clients with {shards_per_client} shards each need {num_shards} "
            f"samples, and there are {len(labels)}; use fewer clients or shards"
        )
    order = generator.permutation(len(labels))  # which of a label's samples share a shard
    by_label = order[np.argsort(labels[order], kind="stable")]
    shards = np.array_split(by_label, num_shards)
    dealt = generator.permutation(num_shards).reshape(num_clients, shards_per_client)
    return [np.sort(np.concatenate([shards[shard] for shard in hand])) for hand in dealt]


def _by_owner(labels: NDArray[Any], owners: NDArray[np.int64] | None) -> list[Indices]:
    if owners is None:
        raise ParameterError(
            "the partition 'by_owner' needs data that says whose each sample is; use a dataset "
            "with owners, such as femnist, name data.csv.owner_column (csv), add the array 'owner' "
            "or 'owner_train' (npz), or use another partition"
        )
    if owners.shape != labels.shape[:1]:
        raise ParameterError(f"there are {len(labels)} samples and {len(owners)} owners of them")
    order = np.argsort(owners, kind="stable")
    cuts = np.flatnonzero(np.diff(owners[order])) + 1
    return np.split(order, cuts)
