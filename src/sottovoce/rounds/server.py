"""The server's side: open, check, decode, accumulate, one message at a time.

Where the channel is a secure sum this object plays its trusted part: it sees messages, and lets out
nothing but their sum.
"""

from sottovoce.channels.channel import Collector
from sottovoce.domains import Vector
from sottovoce.errors import ParameterError, WireError
from sottovoce.rounds.plan import RoundPlan
from sottovoce.wire.message import HEADER_BYTES, open_sealed


class RoundServer:
    """Collects one uplink of a round in O(d) memory.

    Trusts no field of a message that it can know itself: round, parameters, length, format and
    weight come from the plan; whoever was not asked, or has answered, is turned away.
    """

    def __init__(self, plan: RoundPlan, *, dimension: int, uplink: int = 0) -> None:
        for part in plan.clients:
            if part.mechanism.input_domain.dimension != dimension:
                raise ParameterError(
                    f"client '{part.client}' sends {part.mechanism.input_domain.dimension} "
                    f"coordinates, the server expects {dimension}"
                )
        self._plan = plan
        self._uplink = uplink
        self._waiting = {part.client: part for part in plan.clients}
        self._answered: set[str] = set()
        self._collector: Collector = plan.channel.collector(dimension)
        self.payload_bytes = 0
        self.total_bytes = 0

    @property
    def received(self) -> int:
        return len(self._answered)

    def receive(self, client: str, message: bytes) -> None:
        """Add a client's message, or raise WireError and change nothing."""
        if client in self._answered:
            raise WireError(f"client '{client}' has answered round {self._plan.round} already")
        part = self._waiting.get(client)
        if part is None:
            raise WireError(f"client '{client}' was not asked in round {self._plan.round}")
        codes = open_sealed(message, self._plan.envelope(part, self._uplink))
        self._collector.add(part.mechanism, part.weight, codes)
        self._answered.add(client)
        del self._waiting[client]
        self.payload_bytes += len(message) - HEADER_BYTES
        self.total_bytes += len(message)

    def result(self) -> Vector | None:
        """The weighted mean of what arrived, or None if nothing did or too little for a sum."""
        mean = self._collector.result()
        if mean is None or self._plan.rotation is None:
            return mean
        return self._plan.rotation.inverse(mean)  # linear, so once for all clients
