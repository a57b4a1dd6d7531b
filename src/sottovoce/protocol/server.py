"""The server's side: open, check, decode, accumulate, one message at a time.

Where the channel is a secure sum this object plays its trusted part: it sees messages, and lets out
nothing but their sum. Behind a shuffler it never learns a name: `AnonymousServer`.

Between clients and server: names are checked and forgotten, messages leave in random order.

The stage is a component of its own, so that the server's side never handles a name and a message
together. Here both run in one process, which is trusted; elsewhere the stage is somebody else's,
and messages are encrypted for the server, so that it sees sizes and senders but no codes.
"""

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError, WireError
from sottovoce.core.randomness import Randomness, permutation
from sottovoce.protocol.channels.channel import Collector
from sottovoce.protocol.message import HEADER_BYTES, Opened, codes_of, open_packed
from sottovoce.protocol.plan import ClientPlan, RoundPlan


class _Accumulator:
    """Opened messages of one uplink of a round, in O(d) memory.

    Trusts no field of a message that it can know itself: round, parameters, length, format and
    weight come from the plan.
    """

    def __init__(self, plan: RoundPlan, dimension: int, uplink: int) -> None:
        for part in plan.clients:
            if part.mechanism.input_domain.dimension != dimension:
                raise ParameterError(
                    f"client '{part.client}' sends {part.mechanism.input_domain.dimension} "
                    f"coordinates, the server expects {dimension}"
                )
        self._plan = plan
        self._uplink = uplink
        self._collector: Collector = plan.channel.collector(
            dimension, ((part.mechanism, part.weight) for part in plan.clients)
        )
        self.received = 0
        self.payload_bytes = 0
        self.total_bytes = 0

    def _add(self, part: ClientPlan, message: bytes) -> Opened:
        opened = open_packed(message, self._plan.envelope(part, self._uplink))
        self._collector.add(part.mechanism, part.weight, opened)
        self.received += 1
        self.payload_bytes += len(message) - HEADER_BYTES
        self.total_bytes += len(message)
        return opened

    def result(self) -> Vector | None:
        """The weighted mean of what arrived, or None if nothing did or too little for a sum."""
        mean = self._collector.result()
        if mean is None or self._plan.rotation is None:
            return mean
        return self._plan.rotation.inverse(mean)  # linear, so once for all clients


class RoundServer(_Accumulator):
    """Knows who sends: whoever was not asked, or has answered, is turned away.

    With `keeps_each` it holds on to every decoded message, in memory that grows with the clients.
    """

    def __init__(
        self, plan: RoundPlan, *, dimension: int, uplink: int = 0, keeps_each: bool = False
    ) -> None:
        if plan.channel.hides_sender:
            raise ParameterError(
                "a server behind a shuffler is told no names; use AnonymousServer, and a "
                "ShufflerStage before it"
            )
        super().__init__(plan, dimension, uplink)
        if keeps_each and not plan.channel.shows_each:
            raise ParameterError(
                f"nobody sees each message here ({plan.channel.describe()}); use the mean, or the "
                "channel 'direct'"
            )
        self._waiting = {part.client: part for part in plan.clients}
        self._answered: set[str] = set()
        self._each: list[tuple[ClientPlan, Vector]] | None = [] if keeps_each else None

    def receive(self, client: str, message: bytes) -> None:
        """Add a client's message, or raise WireError and change nothing."""
        if client in self._answered:
            raise WireError(f"client '{client}' has answered round {self._plan.round} already")
        part = self._waiting.get(client)
        if part is None:
            raise WireError(f"client '{client}' was not asked in round {self._plan.round}")
        opened = self._add(part, message)
        if self._each is not None:
            self._each.append((part, part.mechanism.decode(codes_of(opened))))
        self._answered.add(client)
        del self._waiting[client]

    def each(self) -> list[tuple[ClientPlan, Vector]] | None:
        """Every client's part and decoded vector, in the order of arrival, if they were kept."""
        if self._each is None or self._plan.rotation is None:
            return self._each
        rotation = self._plan.rotation
        return [(part, rotation.inverse(vector)) for part, vector in self._each]


class AnonymousServer(_Accumulator):
    """Knows who was asked, and not who sent what: equal messages are two clients' equal codes."""

    def __init__(self, plan: RoundPlan, *, dimension: int, uplink: int = 0) -> None:
        if not plan.channel.hides_sender:
            raise ParameterError(
                "messages of this plan are bound to their senders; use RoundServer, or the "
                "channel 'shuffler' or 'secret_order'"
            )
        super().__init__(plan, dimension, uplink)

    def receive(self, message: bytes) -> None:
        """Add a message of whomever, or raise WireError and change nothing."""
        if self.received == len(self._plan.clients):
            raise WireError(
                f"round {self._plan.round} has had a message for each of the {self.received} "
                "clients that were asked"
            )
        # The plan has checked that all parts agree in mechanism and weight: any will do.
        self._add(self._plan.clients[0], message)


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
