"""The server's side: open, check, decode, accumulate, one message at a time.

Where the channel is a secure sum this object plays its trusted part: it sees messages, and lets out
nothing but their sum. Behind a shuffler it never learns a name: `AnonymousServer`.
"""

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError, WireError
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
