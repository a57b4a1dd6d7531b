"""Ways to spread a dataset over clients."""

from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from sottovoce import parameters
from sottovoce.errors import ParameterError

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
        parameters.positive("alpha", self.alpha)


Partition = Iid | DirichletByLabel


def split(
    partition: Partition,
    labels: NDArray[np.int64],
    num_clients: int,
    generator: np.random.Generator,
) -> list[Indices]:
    """Disjoint indices for every client, none of them empty."""
    parameters.integer("clients", num_clients, low=1, high=max(1, len(labels)))
    match partition:
        case Iid():
            order = generator.permutation(len(labels))
            parts = [np.sort(part) for part in np.array_split(order, num_clients)]
        case DirichletByLabel(alpha=alpha):
            parts = _dirichlet(alpha, labels, num_clients, generator)
        case _:
            assert_never(partition)
    empty = [client for client, part in enumerate(parts) if not len(part)]
    if empty:
        raise ParameterError(
            f"client {empty[0]} got no samples ({len(empty)} of {num_clients} clients are empty); "
            "use fewer clients or a larger alpha"
        )
    return parts


def _dirichlet(
    alpha: float, labels: NDArray[np.int64], num_clients: int, generator: np.random.Generator
) -> list[Indices]:
    shares: list[list[Indices]] = [[] for _ in range(num_clients)]
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        fractions = generator.dirichlet(np.full(num_clients, alpha))
        cuts = np.round(np.cumsum(fractions)[:-1] * len(members)).astype(np.int64)
        for client, part in enumerate(np.split(members, cuts)):
            shares[client].append(part)
    return [np.sort(np.concatenate(share)) for share in shares]
