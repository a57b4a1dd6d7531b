"""What an algorithm is: state in, state out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.plugin_returns import MAPPING, Returns, having, instance
from sottovoce.core.randomness import Randomness

if TYPE_CHECKING:  # bring torch, which a reader of checkpoints does not need
    from sottovoce.learning.clients import ClientData
    from sottovoce.learning.rows import Rows
    from sottovoce.learning.task import Task

State = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What clients start from in a round; `randomness` is their own, for samples of records.

    `model` and what of `state` is sent down are as clients read them, not as the server has them:
    rounded. What a client sends is relative to that.
    """

    run: str
    round: int
    model: Vector
    state: State
    randomness: Randomness


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Every vector that will leave some clients: `uplinks` hold a row for each of them.

    The clients are those from position `start` on, as many as there are rows.
    """

    start: int
    uplinks: "tuple[Rows, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """What the server has of one uplink: the weighted mean, and all vectors if it gathers them."""

    mean: Vector
    each: "Each | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Each:
    """The decoded vectors of a round as rows, with who sent them and their public weights."""

    clients: tuple[str, ...]
    rows: Vector
    weights: Vector


class Algorithm(Protocol):
    """A federated algorithm on flat model vectors.

    Whatever the data and the model, `client_steps` yields finite vectors, or such as a projection
    onto the domain makes finite: an error that depends on the data would tell the server what no
    charge has paid for.
    """

    @property
    def unit(self) -> Unit:
        """What the domain's neighbours differ in."""
        ...

    @property
    def record_sampling_rate(self) -> float:
        """With which probability a client's record takes part in a round, in secret; mostly 1.

        Messages are charged for the sample that this says, and for no other.
        """
        ...

    @property
    def uplinks(self) -> int:
        """How many vectors leave a client in a round, whatever its data: it pays for them first."""
        ...

    @property
    def shared_state(self) -> tuple[str, ...]:
        """What of the state is sent to each client of a round beside the model, each of its size.

        Clients must not read anything else of the state, but for what is their own.
        """
        ...

    @property
    def gathers(self) -> bool:
        """Whether the server needs each decoded vector, and not only their mean."""
        ...

    def domain(self, dimension: int, num_samples: int) -> L2Ball:
        """Where the uplinks of a client with so many samples live; so what a neighbour changes."""
        ...

    def weight(self, num_samples: int) -> float:
        """The client's public weight in the mean."""
        ...

    def initialise(self, model: Vector) -> State: ...

    def client_steps(
        self, task: "Task", clients: Sequence["ClientData"], step: Step
    ) -> Iterator[Block]:
        """Clients' uplinks, as they become ready."""
        ...

    def server_step(
        self, model: Vector, combined: Sequence[Combined], state: State
    ) -> tuple[Vector, State]:
        """The next model from what arrived of each uplink."""
        ...


def _is_next(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], np.ndarray)
        and isinstance(value[1], Mapping)
    )


# What a plug-in must return for an algorithm.
ALGORITHM = having(
    (
        *("unit", "record_sampling_rate", "uplinks", "shared_state", "gathers", "domain"),
        *("weight", "initialise", "client_steps", "server_step"),
    ),
    "a sottovoce.federated.Algorithm",
    methods={
        "domain": instance(L2Ball, "a sottovoce.core.L2Ball"),
        "weight": instance((int, float), "a number"),
        "initialise": MAPPING,
        "client_steps": Returns(
            what="an iterator of sottovoce.federated.Block",
            fits=lambda value: isinstance(value, Iterable),
            yields=instance(Block, "a sottovoce.federated.Block"),
        ),
        "server_step": Returns(
            what="the next model, a numpy array, and the next state, a dictionary of arrays",
            fits=_is_next,
        ),
    },
)
