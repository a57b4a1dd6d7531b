"""The server receives all messages in random order and cannot tell whose they are."""

from dataclasses import dataclass

from sottovoce import parameters
from sottovoce.adjacency import Adjacency
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.privacy.events import Shuffled


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffler:
    """A trusted shuffler of at least `clients` messages: for accounting, no round runs it."""

    clients: int

    def __post_init__(self) -> None:
        parameters.integer("clients", self.clients, low=1, high=2**31)

    def event(self, mechanism: Mechanism, adjacency: Adjacency) -> Shuffled:
        return Shuffled(event=mechanism.privacy(adjacency), clients=self.clients)
