"""Control variates of many clients: rows that belong to one client each."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.federated.algorithms.algorithm import State

ControlRows = NDArray[np.float32]
# Rows in float32: a model's gradient has no more digits, and there is one for every client.
BYTES_PER_COORDINATE = 4
SERVER_CONTROL, CLIENT_CONTROLS = "control", "client_controls"  # in a checkpoint


class Controls(NamedTuple):
    """The server's control variate c, and a row c_k for each client."""

    server: NDArray[np.float64]
    clients: ControlRows

    @classmethod
    def zeros(cls, clients: int, dimension: int) -> "Controls":
        return cls(np.zeros(dimension), np.zeros((clients, dimension), dtype=np.float32))

    @classmethod
    def of(cls, state: State) -> "Controls":
        return cls(state[SERVER_CONTROL], state[CLIENT_CONTROLS])

    def state(self) -> State:
        """As a checkpoint keeps it."""
        return {SERVER_CONTROL: self.server, CLIENT_CONTROLS: self.clients}

    def moved(
        self, server: NDArray[np.float64], places: Sequence[int], rows: ControlRows
    ) -> "Controls":
        """A new server's variate, and new rows of some clients; this object stays as it is."""
        clients = self.clients.copy()
        clients[np.asarray(places, dtype=np.int64)] = rows
        return Controls(server, clients)


def places_of(names: Sequence[str]) -> Mapping[str, int]:
    """Each client's row."""
    return {name: place for place, name in enumerate(names)}


class Drafts:
    """What simulated clients will keep to themselves once the server has had their round.

    It never leaves a client. A round that comes to nothing, or is cut off, leaves its drafts to be
    dropped by the next: whoever repeats a round starts from what the checkpoint has.
    """

    def __init__(self) -> None:
        self._round = 0
        self._rows: dict[str, ControlRows] = {}

    def put(self, number: int, clients: Sequence[str], rows: ControlRows) -> None:
        """Rows of some clients in a round."""
        if number != self._round:
            self._round, self._rows = number, {}
        self._rows.update(zip(clients, rows, strict=True))

    def take(self) -> dict[str, ControlRows]:
        """All rows of the last round, once."""
        taken, self._rows = self._rows, {}
        return taken
