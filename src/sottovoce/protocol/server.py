"""The server's side of a round: open, check, decode and add up, one message at a time.

`RoundServer` knows who sends each message. Where the channel is a secure sum it stands for the
trusted party: it sees messages and releases only their sum. Behind a shuffler the server is an
`AnonymousServer`, which never learns who sent a message.

`ShufflerStage` stands between clients and server: it checks who sends, discards the names, and
releases the messages in random order. It is a separate component, so that the server never handles
a name together with a message. In a simulation both run in one trusted process. In a deployment
another party runs the stage, and messages are encrypted for the server, so that this party sees
sizes and senders but no codes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError, WireError
from sottovoce.core.randomness import Randomness, permutation
from sottovoce.mechanisms.mechanism import SummableCodes
from sottovoce.protocol.channels.channel import MeanCollector
from sottovoce.protocol.message import HEADER_BYTES, MessageContent, codes_of, open_packed
from sottovoce.protocol.plan import ClientPlan, RoundPlan


class _Accumulator:
    """The sum of the messages of one uplink of a round, in O(d) memory for d coordinates.

    It trusts no field of a message: round, parameters, length, format and weight come from the
    plan.
    """

    def __init__(self, plan: RoundPlan, dimension: int, uplink: int) -> None:
        for part in plan.clients:
            if part.mechanism.input_domain.dimension != dimension:
                raise ParameterError(
                    f"client '{part.client}' has a mechanism for "
                    f"{part.mechanism.input_domain.dimension} coordinates, the server expects "
                    f"{dimension}; use one dimension for all"
                )
        self._plan = plan
        self._uplink = uplink
        self._collector: MeanCollector = plan.channel.collector(
            dimension, ((part.mechanism, part.weight) for part in plan.clients)
        )
        self.received = 0
        self.payload_bytes = 0
        self.total_bytes = 0

    def _add(self, part: ClientPlan, message: bytes) -> MessageContent:
        opened = open_packed(message, self._plan.envelope(part, self._uplink))
        self._collector.add(part.mechanism, part.weight, opened)
        self.received += 1
        self.payload_bytes += len(message) - HEADER_BYTES
        self.total_bytes += len(message)
        return opened

    def result(self) -> Vector | None:
        """Return the mean of the decoded messages of this uplink, with the weights of the plan.

        Returns:
            The mean, rotated back if the plan rotates updates. None if no message arrived, or fewer
            than the smallest number from which the channel releases anything.
        """
        mean = self._collector.result()
        if mean is None or self._plan.rotation is None:
            return mean
        # The rotation is linear, so rotating the mean back suffices.
        return self._plan.rotation.inverse(mean)


class RoundServer(_Accumulator):
    """A server that knows who sends each message and accepts one from each client that was asked.

    Args:
        plan: The plan of the round.
        dimension: The number of coordinates of the mean.
        uplink: The index of the vector among those that clients send in the round.
        keeps_each: Whether to keep every decoded message; memory then grows with the clients.

    Attributes:
        received: The number of messages that were added.
        payload_bytes: The total length in bytes of their payloads, without headers.
        total_bytes: The total length in bytes of the messages.

    Raises:
        ParameterError: The channel hides senders, or `keeps_each` is set on a channel that does not
            show single messages, or a client's mechanism has another dimension.
    """

    def __init__(
        self, plan: RoundPlan, *, dimension: int, uplink: int = 0, keeps_each: bool = False
    ) -> None:
        if plan.channel.hides_sender:
            raise ParameterError(
                f"the channel '{plan.channel.kind}' hides senders, and a RoundServer needs their "
                "names; use AnonymousServer behind a ShufflerStage"
            )
        super().__init__(plan, dimension, uplink)
        if keeps_each and not plan.channel.shows_each:
            raise ParameterError(
                f"the channel '{plan.channel.kind}' does not show single messages "
                f"({plan.channel.describe()}); use the mean (keeps_each=False), or the channel "
                "'direct'"
            )
        self._waiting = {part.client: part for part in plan.clients}
        self._answered: set[str] = set()
        self._each: list[tuple[ClientPlan, Vector]] | None = [] if keeps_each else None

    def receive(self, client: str, message: bytes) -> None:
        """Add a client's message, or raise and change nothing.

        Args:
            client: The client that sent the message, as the transport has authenticated it.
            message: The bytes that arrived.

        Raises:
            WireError: The client was not asked or has answered already, or the message is not
                exactly what the plan announces.
        """
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
        """Return plan and decoded vector of each client that answered, in the order of arrival.

        Returns:
            The pairs, with vectors rotated back if the plan rotates updates; None if `keeps_each`
            was not set.
        """
        if self._each is None or self._plan.rotation is None:
            return self._each
        rotation = self._plan.rotation
        return [(part, rotation.inverse(vector)) for part, vector in self._each]


class AnonymousServer(_Accumulator):
    """A server that knows which clients were asked, but not which of them sent a message.

    It adds the messages that a `ShufflerStage` releases, for one uplink of a round. It cannot
    detect that a message arrives twice: two equal messages count as two clients with equal codes.

    Raises:
        ParameterError: The channel does not hide senders, or a client's mechanism has another
            dimension.
    """

    def __init__(self, plan: RoundPlan, *, dimension: int, uplink: int = 0) -> None:
        if not plan.channel.hides_sender:
            raise ParameterError(
                f"messages on the channel '{plan.channel.kind}' carry their senders; use "
                "RoundServer, or the channel 'shuffler' or 'secret_order'"
            )
        super().__init__(plan, dimension, uplink)

    def receive(self, message: bytes) -> None:
        """Add a message of an unknown sender, or raise and change nothing.

        Raises:
            WireError: The message is not exactly what the plan announces, or as many messages as
                clients that were asked have arrived.
        """
        if self.received == len(self._plan.clients):
            raise WireError(
                f"round {self._plan.round} already has a message for each of the {self.received} "
                "clients that were asked"
            )
        # The plan has checked that all clients have the same mechanism and weight, so the part of
        # any client serves.
        self._add(self._plan.clients[0], message)


class ShufflerStage:
    """A shuffler: it holds the messages of one uplink of a round and releases them in random order.

    The order is drawn once from `randomness` and stored nowhere. Give `SystemRandomness`, or
    `SeededRandomness` for a simulation that must be repeatable.

    Raises:
        ParameterError: The channel of the plan does not hide senders.
    """

    def __init__(self, plan: RoundPlan, randomness: Randomness, *, uplink: int = 0) -> None:
        if not plan.channel.hides_sender:
            raise ParameterError(
                f"the channel '{plan.channel.kind}' does not shuffle messages; use the channel "
                "'shuffler' or 'secret_order'"
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
        """The number of clients that have answered."""
        return len(self._answered)

    def receive(self, client: str, message: bytes) -> None:
        """Keep a client's message without its name, or raise WireError and change nothing.

        The message must be exactly what the plan announces: any difference in the header or the
        length could identify its sender. It is also refused if the round is closed, or the client
        was not asked or has answered already.
        """
        number = self._plan.round
        if self._closed:
            # Released alone, it would be known to be this client's message.
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
        """Close the round and return all messages in random order; a second call raises WireError.

        The list is empty if fewer messages arrived than the channel requires; these are discarded.
        """
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
    """A shuffler stage and its server in one process, with the interface of `RoundServer`.

    For simulations, in which this process is trusted.
    """

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
        """The number of clients that have answered."""
        return self._stage.received

    def receive(self, client: str, message: bytes) -> None:
        """Pass a client's message to the shuffler stage, or raise WireError and change nothing.

        It is refused if it is not exactly what the plan announces, the client was not asked or has
        answered already, or `result` was called.
        """
        self._stage.receive(client, message)
        self.payload_bytes += self._envelope.payload_bytes
        self.total_bytes += self._envelope.total_bytes

    def result(self) -> Vector | None:
        """Close the round if it is open, and return the mean of the decoded messages.

        Returns:
            The mean, rotated back if the plan rotates updates; None if fewer messages arrived than
            the channel requires. No message is accepted afterwards.
        """
        if not self._closed:
            self._closed = True
            for message in self._stage.close():
                self._server.receive(message)
        return self._server.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class SummedUplink:
    """One uplink of a round of which only the sum has arrived, by a cryptographic protocol.

    Attributes:
        plan: The plan of the round.
        sums: The sum of the clients' codes at each coordinate.
        received: The number of clients in the sum.
        payload_bytes: The total length in bytes of the clients' masked vectors.
        total_bytes: The total length in bytes of all messages of the protocol.
    """

    plan: RoundPlan
    sums: NDArray[np.integer[Any]]
    received: int
    payload_bytes: int
    total_bytes: int

    def result(self) -> Vector | None:
        """Return the mean of the decoded messages, rotated back; the same as of a simulated sum."""
        mechanism: object = self.plan.clients[0].mechanism
        assert isinstance(mechanism, SummableCodes), "an attempt is opened for no other"
        mean = mechanism.decode_sum(self.sums, self.received)
        return mean if self.plan.rotation is None else self.plan.rotation.inverse(mean)


def open_round(
    plan: RoundPlan,
    randomness: Randomness,
    *,
    dimension: int,
    uplink: int = 0,
    keeps_each: bool = False,
) -> RoundServer | ShuffledRound:
    """Return the server of one uplink of a round, for clients in the same process.

    Args:
        plan: The plan of the round.
        randomness: The source of a shuffler's order; other channels do not use it.
        dimension: The number of coordinates of the mean.
        uplink: The index of the vector among those that clients send in the round.
        keeps_each: Whether a `RoundServer` keeps every decoded message; ignored if the channel
            hides senders.

    Returns:
        A `ShuffledRound` if the channel hides senders, otherwise a `RoundServer`.

    Raises:
        ParameterError: A client's mechanism has another dimension, or `keeps_each` is set on a
            channel that shows only sums.
    """
    if plan.channel.hides_sender:
        return ShuffledRound(plan, randomness, dimension=dimension, uplink=uplink)
    return RoundServer(plan, dimension=dimension, uplink=uplink, keeps_each=keeps_each)
