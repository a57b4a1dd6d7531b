"""Between clients and server: names are checked and forgotten, messages leave in random order.

The stage is a component of its own, so that the server's side never handles a name and a message
together. Here both run in one process, which is trusted; elsewhere the stage is somebody else's,
and messages are encrypted for the server, so that it sees sizes and senders but no codes.
"""

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError, WireError
from sottovoce.core.randomness import Randomness, permutation
from sottovoce.protocol.message import open_packed
from sottovoce.protocol.plan import RoundPlan
from sottovoce.protocol.server import AnonymousServer, RoundServer


class ShufflerStage:
    """Holds the messages of one uplink of a round until it closes.

    The order comes from `randomness`: keys of the operating system, or for a simulation that can be
    repeated a seed, by explicit choice. It is drawn once and kept nowhere.
    """

    def __init__(self, plan: RoundPlan, randomness: Randomness, *, uplink: int = 0) -> None:
        if not plan.channel.hides_sender:
            raise ParameterError(
                "only messages of a plan with the channel 'shuffler' or 'secret_order' are shuffled"
            )
        self._plan = plan
        self._minimum = plan.channel.fewest_messages
        self._randomness = randomness
        self._uplink = uplink
        self._waiting = {part.client: part for part in plan.clients}
        self._answered: set[str] = set()
        self._messages: list[bytes] = []
        self._closed = False

    @property
    def received(self) -> int:
        return len(self._answered)

    def receive(self, client: str, message: bytes) -> None:
        """Keep a client's message without its name, or raise WireError and change nothing.

        It must be exactly what the plan announces: a mark in the header, or another length, would
        be a name.
        """
        number = self._plan.round
        if self._closed:
            # Handed on, it would be a message that is known to be this client's.
            raise WireError(f"round {number} is closed; a late message of '{client}' is dropped")
        if client in self._answered:
            raise WireError(f"client '{client}' has answered round {number} already")
        part = self._waiting.get(client)
        if part is None:
            raise WireError(f"client '{client}' was not asked in round {number}")
        open_packed(message, self._plan.envelope(part, self._uplink))
        self._messages.append(bytes(message))
        self._answered.add(client)
        del self._waiting[client]

    def close(self) -> list[bytes]:
        """All messages in random order, once; none of them if fewer than the minimum arrived."""
        if self._closed:
            raise WireError(f"round {self._plan.round} is closed; its messages are released once")
        self._closed = True
        messages, self._messages = self._messages, []
        if len(messages) < self._minimum:
            return []
        keystream = self._randomness.stream(
            "shuffle", self._plan.run, self._plan.round, self._uplink
        )
        return [messages[position] for position in permutation(len(messages), keystream)]


class ShuffledRound:
    """Stage and server in one process: the surface of a RoundServer, for a simulator."""

    def __init__(
        self, plan: RoundPlan, randomness: Randomness, *, dimension: int, uplink: int = 0
    ) -> None:
        self._stage = ShufflerStage(plan, randomness, uplink=uplink)
        self._server = AnonymousServer(plan, dimension=dimension, uplink=uplink)
        self._closed = False
        self.payload_bytes = 0
        self.total_bytes = 0
        self._envelope = plan.envelope(plan.clients[0], uplink)

    @property
    def received(self) -> int:
        return self._stage.received

    def receive(self, client: str, message: bytes) -> None:
        self._stage.receive(client, message)
        self.payload_bytes += self._envelope.payload_bytes
        self.total_bytes += self._envelope.total_bytes

    def result(self) -> Vector | None:
        """The mean of the messages, or None if too few arrived; the first call closes the round."""
        if not self._closed:
            self._closed = True
            for message in self._stage.close():
                self._server.receive(message)
        return self._server.result()


def open_round(
    plan: RoundPlan,
    randomness: Randomness,
    *,
    dimension: int,
    uplink: int = 0,
    keeps_each: bool = False,
) -> RoundServer | ShuffledRound:
    """Whatever collects this plan's messages where clients and server share a process."""
    if plan.channel.hides_sender:
        return ShuffledRound(plan, randomness, dimension=dimension, uplink=uplink)
    return RoundServer(plan, dimension=dimension, uplink=uplink, keeps_each=keeps_each)
