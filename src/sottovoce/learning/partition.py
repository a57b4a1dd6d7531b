"""Partitions of a data set over clients, and their register.

A partition is a frozen dataclass with a decorator:

    @register_partition("halves", summary="two clients")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Halves(Partition):
        def shares(self, labels, num_clients, generator, owners):
            return np.array_split(generator.permutation(len(labels)), 2)

Its fields are the keys that are allowed next to `kind = "halves"` in [data.partition] (see
`core.sections`). The entry point group of plug-ins is `sottovoce.partitions`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError, PluginError
from sottovoce.core.plugin_returns import Contract, ReturnCondition, enforce_contract
from sottovoce.core.registry import Register
from sottovoce.core.sections import POSITIVE, RegisteredSection, check_keys, whole

Indices = NDArray[np.int64]
Owners = NDArray[np.int64] | None


class Partition:
    """The base class of partitions; a subclass defines `shares`.

    Its fields are the keys of a [data.partition] table.

    Attributes:
        kind: The name under which the partition is registered.
        determines_clients: Whether the partition determines the number of clients by itself, so
            that specs leave `data.clients` out.
        needs_owners: Whether the data must name the owner of each row; owners become clients.
    """

    __slots__ = ()

    kind: ClassVar[str] = ""
    determines_clients: ClassVar[bool] = False
    needs_owners: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_keys(self)

    def shares(
        self,
        labels: NDArray[Any],
        num_clients: int | None,
        generator: np.random.Generator,
        owners: Owners,
    ) -> list[Indices]:
        """Return the rows of every client.

        Args:
            labels: The labels of all samples.
            num_clients: The number of clients; None if `determines_clients`.
            generator: The source of randomness; the same seed gives the same partition.
            owners: The owner of each sample as a number, or None if the data do not name it.

        Returns:
            Disjoint arrays of row numbers, one for each client. Rows may be left out.

        Raises:
            NotImplementedError: A subclass must define it.
        """
        raise NotImplementedError


P = TypeVar("P", bound=type[Partition])

PARTITIONS: Register[RegisteredSection[Partition]] = Register(
    "partition",
    places=dict.fromkeys(("iid", "dirichlet", "shards", "by_owner", "one_sample"), __name__),
)


def _is_shares(value: object) -> bool:
    if not isinstance(value, list | tuple) or not value:
        return False
    parts = [np.asarray(part) for part in value]
    return all(part.ndim == 1 and (not part.size or part.dtype.kind in "iu") for part in parts)


_CONTRACT = Contract(
    base=Partition,
    needs=("shares",),
    returns={
        "shares": ReturnCondition(
            what="a list with an array of whole numbers for each client, the rows that it has",
            fits=_is_shares,
        )
    },
)


def register_partition(kind: str, *, summary: str) -> Callable[[P], P]:
    """Return a class decorator that registers a partition.

    The class must be a frozen dataclass that inherits from `Partition` and defines `shares`.

    Args:
        kind: The name of the partition, as in `data.partition.kind`.
        summary: One line about it, for lists.

    Returns:
        The decorator.

    Raises:
        PluginError: When the decorator is applied: the class is not a `Partition`, is no dataclass
            or lacks `shares`, or another module has registered the name.
    """

    def enter(partition: P) -> P:
        if not issubclass(partition, Partition):
            raise PluginError(
                f"the class of the partition '{kind}' is not a Partition; inherit from "
                "sottovoce.learning.Partition"
            )
        enforce_contract(PARTITIONS, kind, partition, _CONTRACT)
        partition.kind = kind
        registered: RegisteredSection[Partition] = RegisteredSection(
            section=partition, summary=summary
        )
        PARTITIONS.enter(kind, registered, module=partition.__module__)
        return partition

    return enter


def split(
    partition: Partition,
    labels: NDArray[Any],
    num_clients: int | None,
    generator: np.random.Generator,
    *,
    owners: Owners = None,
) -> list[Indices]:
    """Return the rows of every client under a partition, and check them.

    Args:
        partition: How to divide the data.
        labels: The labels of all samples.
        num_clients: The number of clients; None for partitions that determine it from the data.
        generator: The source of randomness; the same seed gives the same partition.
        owners: The owner of each sample as a number, or None if the data do not name it.

    Returns:
        Disjoint arrays of row numbers, one for each client, none of them empty.

    Raises:
        ParameterError: A client has no samples, or the partition cannot divide these data: for
            example, it lacks the number of clients or the owners, or needs class labels.
        PluginError: A plug-in's partition gives a sample to two clients, or one that does not
            exist.

    Examples:
        >>> import numpy as np
        >>> labels = np.array([0, 0, 1, 1, 1, 0])
        >>> parts = split(Iid(), labels, 3, np.random.default_rng(0))
        >>> [len(part) for part in parts]
        [2, 2, 2]
    """
    parts = partition.shares(labels, num_clients, generator, owners)
    empty = [client for client, part in enumerate(parts) if not len(part)]
    if empty:
        raise ParameterError(
            f"client {empty[0]} got no samples ({len(empty)} of {len(parts)} clients are empty); "
            "use fewer clients (data.clients), or with the partition 'dirichlet' a larger alpha "
            "(data.partition.alpha)"
        )
    given = np.concatenate(parts) if parts else np.arange(0)
    if len(np.unique(given)) < len(given) or np.any((given < 0) | (given >= len(labels))):
        # Each client is charged only for its own messages, so a sample of two clients would be
        # charged too little.
        raise PluginError(
            f"the partition '{partition.kind}' gives a sample to two clients, or returns a row "
            "number that does not exist; return each existing row at most once"
        )
    return parts


@register_partition("iid", summary="a random split into parts of equal size")
@dataclass(frozen=True, slots=True, kw_only=True)
class Iid(Partition):
    """A random split into parts whose sizes differ by at most one."""

    def shares(
        self,
        labels: NDArray[Any],
        num_clients: int | None,
        generator: np.random.Generator,
        owners: Owners,  # noqa: ARG002
    ) -> list[Indices]:
        number = _number_given(num_clients, labels)
        order = generator.permutation(len(labels))
        return [np.sort(part) for part in np.array_split(order, number)]


@register_partition("dirichlet", summary="few labels a client where alpha is small")
@dataclass(frozen=True, slots=True, kw_only=True)
class DirichletByLabel(Partition):
    """A split of each label's samples in proportions drawn from Dirichlet(alpha, ..., alpha).

    With a small alpha a client has few labels and sizes differ much; with a large one all clients
    are alike. A client may get no sample, which `split` refuses. Reference: Hsu, Qi and Brown 2019.

    Attributes:
        alpha: The positive concentration parameter.
    """

    alpha: float = field(metadata=POSITIVE)

    def shares(
        self,
        labels: NDArray[Any],
        num_clients: int | None,
        generator: np.random.Generator,
        owners: Owners,  # noqa: ARG002
    ) -> list[Indices]:
        number = _number_given(num_clients, labels)
        _check_classes("dirichlet", labels)
        shares: list[list[Indices]] = [[] for _ in range(number)]
        for label in np.unique(labels):
            members = generator.permutation(np.flatnonzero(labels == label))
            fractions = generator.dirichlet(np.full(number, self.alpha))
            cuts = np.round(np.cumsum(fractions)[:-1] * len(members)).astype(np.int64)
            for client, part in enumerate(np.split(members, cuts)):
                shares[client].append(part)
        return [np.sort(np.concatenate(share)) for share in shares]


@register_partition("shards", summary="some shards of samples that are sorted by label")
@dataclass(frozen=True, slots=True, kw_only=True)
class Shards(Partition):
    """A split of samples, sorted by label, into shards of which each client gets some at random.

    Reference: McMahan et al. 2017, section 3 (two shards per client).

    Attributes:
        shards_per_client: The number of shards of each client.
    """

    shards_per_client: int = field(default=2, metadata=whole(1, 2**20))

    def shares(
        self,
        labels: NDArray[Any],
        num_clients: int | None,
        generator: np.random.Generator,
        owners: Owners,  # noqa: ARG002
    ) -> list[Indices]:
        number = _number_given(num_clients, labels)
        _check_classes("shards", labels)
        num_shards = self.shards_per_client * number
        if num_shards > len(labels):
            raise ParameterError(
                f"{number} clients with {self.shards_per_client} shards each need {num_shards} "
                f"samples, but there are {len(labels)}; use fewer clients or shards"
            )
        # The permutation decides which samples of one label share a shard.
        order = generator.permutation(len(labels))
        by_label = order[np.argsort(labels[order], kind="stable")]
        shards = np.array_split(by_label, num_shards)
        dealt = generator.permutation(num_shards).reshape(number, self.shards_per_client)
        return [np.sort(np.concatenate([shards[shard] for shard in hand])) for hand in dealt]


@register_partition("by_owner", summary="the data's own clients")
@dataclass(frozen=True, slots=True, kw_only=True)
class ByOwner(Partition):
    """One client for each owner that the data name, in the order of the owners' numbers."""

    determines_clients: ClassVar[bool] = True
    needs_owners: ClassVar[bool] = True

    def shares(
        self,
        labels: NDArray[Any],
        num_clients: int | None,
        generator: np.random.Generator,  # noqa: ARG002
        owners: Owners,
    ) -> list[Indices]:
        parts = _by_owner(labels, owners)
        _check_settled(self, num_clients, len(parts), "owners")
        return parts


@register_partition("one_sample", summary="each sample is a client of its own")
@dataclass(frozen=True, slots=True, kw_only=True)
class OneSample(Partition):
    """One client for each sample."""

    determines_clients: ClassVar[bool] = True

    def shares(
        self,
        labels: NDArray[Any],
        num_clients: int | None,
        generator: np.random.Generator,  # noqa: ARG002
        owners: Owners,  # noqa: ARG002
    ) -> list[Indices]:
        _check_settled(self, num_clients, len(labels), "samples")
        return list(np.arange(len(labels))[:, None])


def _number_given(num_clients: int | None, labels: NDArray[Any]) -> int:
    if num_clients is None:
        raise ParameterError(
            "this partition needs the number of clients; give it (in a spec, data.clients), or use "
            "the partition 'by_owner' or 'one_sample', which determine it from the data"
        )
    return parameter_rules.integer(
        "clients",
        num_clients,
        low=1,
        high=max(1, len(labels)),
        remedy=f"there are {len(labels):,} training samples for the clients, and each needs one",
    )


def _check_settled(partition: Partition, num_clients: int | None, found: int, what: str) -> None:
    if num_clients is not None and num_clients != found:
        raise ParameterError(
            f"clients is {num_clients}, but the partition '{partition.kind}' makes a client of "
            f"each of the {found} {what}; leave clients out, or take a subset of the data"
        )


def _check_classes(kind: str, labels: NDArray[Any]) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ParameterError(
            f"the partition '{kind}' needs class labels, but these labels are numbers to predict "
            f"({labels.dtype} of shape {labels.shape}); use 'iid', 'by_owner' or 'one_sample'"
        )


def _by_owner(labels: NDArray[Any], owners: NDArray[np.int64] | None) -> list[Indices]:
    if owners is None:
        raise ParameterError(
            "the partition 'by_owner' needs data that name the owner of each sample; use a dataset "
            "with owners, such as femnist, set data.csv.owner_column (csv), add the array 'owner' "
            "or 'owner_train' (npz), or use another partition"
        )
    if owners.shape != labels.shape[:1]:
        raise ParameterError(
            f"owners must be a vector with one entry for each of the {len(labels)} samples, got "
            f"shape {owners.shape}"
        )
    order = np.argsort(owners, kind="stable")
    cuts = np.flatnonzero(np.diff(owners[order])) + 1
    return np.split(order, cuts)
