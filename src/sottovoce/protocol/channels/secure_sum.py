"""The channel 'secure_sum', simulated: the server sees only the sum of all clients' bits.

The simulation adds the bits in this process, which is trusted to reveal only their sum. In a
deployment a cryptographic secure aggregation protocol takes its place. The accounting assumes that

- no party learns more than the sums over at least `minimum_clients` messages, and at most one sum
  in each round;
- at least `minimum_clients` clients follow their mechanism and keep their bits secret. Clients that
  may collude, or that see the sum, do not count among them.
"""

from dataclasses import dataclass

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ConfigError, WireError
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.packing import PackedCodes
from sottovoce.mechanisms.release import OnlySums
from sottovoce.protocol.channels.channel import (
    Channel,
    ChannelContext,
    RuntimeFacts,
    check_equal_clients,
    check_reachable,
    register_channel,
)
from sottovoce.protocol.message import MessageContent
from sottovoce.protocol.sums import Cohort, LevelCounts


@register_channel("secure_sum", summary="nothing is seen but sums over enough clients; simulated")
@dataclass(frozen=True, slots=True, kw_only=True)
class SecureSum(Channel):
    """The channel on which the server sees only sums of bits, over enough clients.

    The party that computes the sums is trusted to reveal nothing else. Here it is simulated.

    Attributes:
        minimum_clients: A sum is released only if at least this many messages arrived. The
            accounting assumes that as many clients are honest.
    """

    minimum_clients: int

    def __post_init__(self) -> None:
        _ = self.visibility  # Checks the number.

    @property
    def wire_name(self) -> str:
        """The text that stands for the channel in the hash of a plan; it never changes."""
        return f"SecureSum(minimum_clients={self.minimum_clients})"

    @property
    def visibility(self) -> OnlySums:
        """Only sums over at least `minimum_clients` messages are seen."""
        return OnlySums(minimum_clients=self.minimum_clients)

    def check_runtime(self, facts: RuntimeFacts) -> None:
        if facts.messages != "stored":
            raise ConfigError(
                f"the channel 'secure_sum' needs stored messages, got '{facts.messages}'; set "
                "runtime.messages = 'stored'"
            )

    def check(self, context: ChannelContext) -> None:
        check_reachable(self.minimum_clients, context, "no sum")

    def check_cohort(self, cohort: Cohort) -> None:
        """Refuse different mechanisms or weights, because a bit must mean the same for all clients.

        Args:
            cohort: Mechanism and weight of each client.

        Raises:
            ParameterError: Mechanisms or weights differ.
        """
        remedy = (
            "give all clients the same number of records, or protect whole clients (privacy.level "
            "= 'client')"
        )
        check_equal_clients(cohort, "a secure sum", remedy)

    def collector(self, dimension: int, cohort: Cohort) -> "BitSum":  # noqa: ARG002
        return BitSum(dimension, self.minimum_clients)

    def describe(self) -> str:
        return "secure sum, simulated: the server is trusted to reveal only sums"

    def guarantee(self) -> str:
        return f"privacy of sums ({self.describe()}): the sums hide"

    def seen_by(self, *, private: bool) -> str:  # noqa: ARG002
        return (
            f"The server sees only sums over at least {self.minimum_clients} clients. The party "
            "that computes the sums is trusted to reveal nothing else."
        )

    def warnings(
        self,
        local_epsilon: float | None,  # noqa: ARG002
        central_epsilon: float | None,  # noqa: ARG002
    ) -> list[str]:
        return [
            "the secure sum is simulated: only the bytes of the codes are counted, and a real "
            "protocol sends more (a sum of n bits alone takes log2(n + 1) bits per coordinate)"
        ]


class BitSum:
    """Counts of the clients that sent a 1 at each coordinate, from which one mean is released.

    After its release no message is added: `add` raises WireError.
    """

    def __init__(self, dimension: int, minimum_clients: int) -> None:
        self._bits = LevelCounts(dimension, 2)
        self._minimum = minimum_clients
        self._mechanism: Mechanism | None = None
        self._released: Vector | None = None

    def add(self, mechanism: Mechanism, weight: float, opened: MessageContent) -> None:  # noqa: ARG002
        # The plan has checked that all weights are equal, so they cancel.
        if self._released is not None:
            # The difference of the two sums would be this client's bits.
            raise WireError("the sum of this round has been released; a late message is not added")
        if self._mechanism not in (None, mechanism) or not isinstance(opened, PackedCodes):
            raise WireError("expected a message of the cohort's mechanism, got one of another")
        self._bits.add(opened)
        self._mechanism = mechanism

    def result(self) -> Vector | None:
        """Return the mean of the values that the bits stand for, and release it.

        Returns:
            The mean, the same at every call after the first; None, with nothing released, if fewer
            than the minimum of clients have sent bits.
        """
        if self._released is None and self._mechanism and self._bits.received >= self._minimum:
            low, high = self._mechanism.decode(np.array([0, 1], dtype=np.uint8))
            (ones,) = self._bits.counts()
            self._released = low + (high - low) * (ones / self._bits.received)
        return None if self._released is None else self._released.copy()
