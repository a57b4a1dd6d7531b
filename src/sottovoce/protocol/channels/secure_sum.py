"""Secure sums, simulated: this process is trusted to reveal nothing but the sum of all bits.

In a deployment a cryptographic protocol stands here. What the accounting needs of it: nobody learns
more than the sums over at least `minimum_clients` messages, at most one sum in each round, and that
many clients follow their mechanism and keep their bits to themselves. Whoever may collude, or looks
at the sum as one of the clients, is not counted among them.
"""

from dataclasses import dataclass

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ConfigError, WireError
from sottovoce.mechanisms.encoding import PackedCodes
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.release import OnlySums
from sottovoce.protocol.channels.channel import (
    Channel,
    ChannelContext,
    RuntimeFacts,
    check_alike,
    check_reachable,
    register_channel,
)
from sottovoce.protocol.message import Opened
from sottovoce.protocol.sums import Cohort, LevelCounts


@register_channel("secure_sum", summary="nothing is seen but sums over enough clients; simulated")
@dataclass(frozen=True, slots=True, kw_only=True)
class SecureSum(Channel):
    """Sums of bits, released only where at least `minimum_clients` messages arrived."""

    minimum_clients: int

    def __post_init__(self) -> None:
        _ = self.visibility  # which checks the number

    @property
    def wire_name(self) -> str:
        """The name in the hash of a plan, whatever the class is called; it never changes."""
        return f"SecureSum(minimum_clients={self.minimum_clients})"

    @property
    def visibility(self) -> OnlySums:
        """Sums over at least `minimum_clients` messages."""
        return OnlySums(minimum_clients=self.minimum_clients)

    def check_runtime(self, facts: RuntimeFacts) -> None:
        if facts.messages != "stored":
            raise ConfigError("the channel 'secure_sum' needs runtime.messages = 'stored'")

    def check(self, context: ChannelContext) -> None:
        check_reachable(self.minimum_clients, context, "no sum")

    def check_cohort(self, cohort: Cohort) -> None:
        """A sum of bits has one meaning only if all of them have the same."""
        remedy = (
            "give all clients as many records, or protect whole clients (privacy.level = 'client')"
        )
        check_alike(cohort, "a secure sum", remedy)

    def collector(self, dimension: int, cohort: Cohort) -> "BitSum":  # noqa: ARG002
        return BitSum(dimension, self.minimum_clients)

    def describe(self) -> str:
        return "secure sum, simulated: the server is trusted to reveal only sums"

    def guarantee(self) -> str:
        return f"privacy of sums ({self.describe()}): the sums hide"

    def seen_by(self, *, private: bool) -> str:  # noqa: ARG002
        return (
            f"The server sees only sums over at least {self.minimum_clients} clients. Whoever "
            "computes the sums is trusted to reveal nothing else."
        )

    def warnings(
        self,
        local_epsilon: float | None,  # noqa: ARG002
        central_epsilon: float | None,  # noqa: ARG002
    ) -> list[str]:
        return [
            "the secure sum is simulated: bytes are those of the bare codes, and a real protocol "
            "sends more (a sum of n bits alone takes log2(n + 1) bits a coordinate)"
        ]


class BitSum:
    """How many clients sent a 1, coordinate by coordinate; read once, and only if enough did."""

    def __init__(self, dimension: int, minimum_clients: int) -> None:
        self._bits = LevelCounts(dimension, 2)
        self._minimum = minimum_clients
        self._mechanism: Mechanism | None = None
        self._released: Vector | None = None

    def add(self, mechanism: Mechanism, weight: float, opened: Opened) -> None:  # noqa: ARG002
        # Equal weights, which the plan has checked, cancel.
        if self._released is not None:
            # The difference of two sums would be one client's bits.
            raise WireError("the sum of this round has been released; a late message is not added")
        if self._mechanism not in (None, mechanism) or not isinstance(opened, PackedCodes):
            raise WireError("a message of another mechanism does not belong into this sum")
        self._bits.add(opened)
        self._mechanism = mechanism

    def result(self) -> Vector | None:
        """The mean of what the bits stand for, or None if too few clients sent any."""
        if self._released is None and self._mechanism and self._bits.received >= self._minimum:
            low, high = self._mechanism.decode(np.array([0, 1], dtype=np.uint8))
            (ones,) = self._bits.counts()
            self._released = low + (high - low) * (ones / self._bits.received)
        return None if self._released is None else self._released.copy()
