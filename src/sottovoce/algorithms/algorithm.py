"""What an algorithm is: state in, state out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from sottovoce.adjacency import Unit
from sottovoce.domains import L2Ball, Vector

if TYPE_CHECKING:  # brings torch, which a reader of checkpoints does not need
    from sottovoce.learning.task import ClientData, Task

State = Mapping[str, Vector]
Uplinks = tuple[Vector, ...]  # every vector that will leave a client in a round


class Algorithm(Protocol):
    """A federated algorithm on flat model vectors.

    Whatever the data and the model, `client_steps` yields finite vectors inside the domain: an
    error that depends on the data would tell the server what no charge has paid for.
    """

    @property
    def unit(self) -> Unit:
        """What the domain's neighbours differ in."""
        ...

    @property
    def uplinks(self) -> int:
        """How many vectors leave a client in a round, whatever its data: it pays for them first."""
        ...

    def domain(self, dimension: int, client: "ClientData") -> L2Ball:
        """Where a client's uplinks live, and so what one neighbour can change."""
        ...

    def weight(self, client: "ClientData") -> float:
        """The client's public weight in the mean."""
        ...

    def initialise(self, model: Vector) -> State: ...

    def client_steps(
        self, task: "Task", model: Vector, clients: Sequence["ClientData"]
    ) -> Iterator[tuple["ClientData", Uplinks]]:
        """Each client's uplinks, as they become ready."""
        ...

    def server_step(
        self, model: Vector, combined: Sequence[Vector], state: State
    ) -> tuple[Vector, State]:
        """The next model from the mean of each uplink."""
        ...
