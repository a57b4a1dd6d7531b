"""The channel 'secure_sum': the server sees only the sum of all clients' codes.

`protocol` says who computes the sum:

simulated    This process adds the codes and is trusted to reveal only their sum. For studies.
pairwise     One server that need not be trusted, and sites that mask their codes for each other
             (`protocol.secure.pairwise_site`); docs/explanation/secure-sum.md.
two_server   A relay and a collector that do not collude; docs/explanation/relay-and-collector.md.

The accounting assumes that

- no party learns more than the sums over at least `minimum_clients` messages of clients that follow
  their mechanism and keep their codes secret, and at most one sum in each round;
- clients that may collude, or that see the sum, do not count among them. The real protocols release
  a sum only over at least `minimum_clients + colluders` clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ConfigError, ParameterError, WireError
from sottovoce.mechanisms.mechanism import MAX_CODE_BITS, Mechanism, SummableCodes
from sottovoce.mechanisms.packing import PackedCodes
from sottovoce.mechanisms.release import OnlySums
from sottovoce.protocol.channels.channel import (
    ChannelContext,
    RuntimeFacts,
    check_equal_clients,
    check_reachable,
    register_channel,
)
from sottovoce.protocol.channels.hiding import PAIRWISE as PAIRWISE
from sottovoce.protocol.channels.hiding import SIMULATED, HidingChannel
from sottovoce.protocol.channels.hiding import TWO_SERVER as TWO_SERVER
from sottovoce.protocol.message import MessageContent
from sottovoce.protocol.sums import Cohort, LevelCounts

_MOST_PAIRWISE = 1000
_WHO = {
    SIMULATED: "secure sum, simulated: the server is trusted to reveal only sums",
    PAIRWISE: "secure sum by pairwise masks: no server is trusted, and at most {} clients collude "
    "with it",
    TWO_SERVER: "secure sum by two servers: trusted not to work together, nor with more than {} "
    "clients",
}


@register_channel("secure_sum", summary="nothing is seen but sums over enough clients")
@dataclass(frozen=True, slots=True, kw_only=True)
class SecureSum(HidingChannel):
    """The channel on which the server sees only sums of codes, over enough clients.

    `protocol` is "simulated", "pairwise" or "two_server"; the other keys are those of
    `HidingChannel`.
    """

    BACKENDS: ClassVar[Mapping[str, str]] = {PAIRWISE: "flower", TWO_SERVER: "relay"}
    WIRE_KIND: ClassVar[str] = "SecureSum"

    @property
    def visibility(self) -> OnlySums:
        """Only sums over at least `minimum_clients` messages are seen."""
        return OnlySums(minimum_clients=self.minimum_clients)

    def check_runtime(self, facts: RuntimeFacts) -> None:
        """Refuse a run without messages, because the codes themselves are added up.

        Args:
            facts: Where and how the run is computed.

        Raises:
            ConfigError: The run would draw decoded values.
        """
        if facts.messages == "none":
            raise ConfigError(
                "the channel 'secure_sum' adds codes up, but runtime.messages = 'none' draws "
                "decoded values; set runtime.messages = 'packed' or 'stored'"
            )

    def check(self, context: ChannelContext) -> None:
        colluders = self.most_colluders
        check_reachable(self.minimum_clients, context, "no sum", colluders=colluders)
        if self.protocol == PAIRWISE:
            self._check_threshold(context.sampling.largest_cohort)

    def _check_threshold(self, clients: int) -> None:
        """Refuse a threshold at which a lying server could get two sums with one client in both."""
        if clients > _MOST_PAIRWISE:
            raise ConfigError(
                f"{clients} clients in a round are too many for masks between all pairs, which "
                f"serve at most {_MOST_PAIRWISE}; set channel.protocol = 'two_server', or ask "
                "fewer clients in a round"
            )
        if 2 * self.fewest_messages <= clients + self.most_colluders:
            least = (clients - self.most_colluders) // 2 + 1
            raise ConfigError(
                f"a sum over {self.fewest_messages} of {clients} clients, of which "
                f"{self.most_colluders} may collude, would let a lying server make two sums; set "
                f"channel.minimum_clients to at least {least}"
            )

    def check_cohort(self, cohort: Cohort) -> None:
        """Refuse different mechanisms or weights, because a code must mean the same for all.

        Args:
            cohort: Mechanism and weight of each client.

        Raises:
            ParameterError: Mechanisms or weights differ, or the codes of so many clients cannot be
                told from their sum.
        """
        cohort = list(cohort)
        remedy = (
            "give all clients the same number of records, or protect whole clients (privacy.level "
            "= 'client')"
        )
        check_equal_clients(cohort, "a secure sum", remedy)
        check_sum_fits(cohort)

    def collector(self, dimension: int, cohort: Cohort) -> "CodeSum":  # noqa: ARG002
        return CodeSum(dimension, self.fewest_messages)

    def describe(self) -> str:
        return _WHO[self.protocol].format(self.most_colluders)

    def guarantee(self) -> str:
        return f"privacy of sums ({self.describe()}): the sums hide"

    def seen_by(self, *, private: bool) -> str:  # noqa: ARG002
        sums = (
            f"The server sees only sums over at least {self.fewest_messages} clients, of which at "
            f"least {self.minimum_clients} are assumed to follow the protocol."
        )
        match self.protocol:
            case "pairwise":
                return (
                    f"{sums} No server is trusted: the masks of the clients hide each message, as "
                    f"long as at most {self.most_colluders} clients work together with the server."
                )
            case "two_server":
                return (
                    f"{sums} The operators of the relay and of the collector are trusted not to "
                    f"work together, nor with more than {self.most_colluders} clients."
                )
            case _:
                return f"{sums} The party that computes them is trusted to reveal nothing else."

    def warnings(
        self,
        local_epsilon: float | None,  # noqa: ARG002
        central_epsilon: float | None,  # noqa: ARG002
    ) -> list[str]:
        if self.protocol != SIMULATED:
            return []
        return [
            "the secure sum is simulated: only the bytes of the codes are counted, and a real "
            "protocol sends more (a sum of n one-bit codes alone takes log2(n + 1) bits per "
            "coordinate)"
        ]


def check_sum_fits(cohort: Cohort) -> None:
    """Raise ParameterError unless the sum of all codes of a cohort fits into 32 bits.

    Mechanisms whose codes are not added up are left to the accounting, which refuses them.
    """
    mechanisms = [mechanism for mechanism, _ in cohort]
    if not mechanisms or not isinstance(mechanisms[0], SummableCodes):
        return
    bits = mechanisms[0].sum_bits(len(mechanisms))
    if bits > MAX_CODE_BITS:
        raise ParameterError(
            f"a sum over {len(mechanisms)} clients takes {bits} bits per coordinate, above the "
            f"limit of {MAX_CODE_BITS}; use fewer bits per coordinate or fewer clients in a round"
        )


class CodeSum:
    """The sum of the codes that clients sent at each coordinate, from which one mean is released.

    After its release no message is added: `add` raises WireError.
    """

    def __init__(self, dimension: int, minimum_clients: int) -> None:
        self._dimension = dimension
        self._minimum = minimum_clients
        self._mechanism: Mechanism | None = None
        self._sum: _BitTotal | _IntegerTotal | None = None
        self._released: Vector | None = None

    def add(self, mechanism: Mechanism, weight: float, opened: MessageContent) -> None:  # noqa: ARG002
        # The plan has checked that all weights are equal, so they cancel.
        if self._released is not None:
            # The difference of the two sums would be this client's codes.
            raise WireError("the sum of this round has been released; a late message is not added")
        if self._mechanism not in (None, mechanism) or not isinstance(opened, PackedCodes):
            raise WireError("expected a message of the cohort's mechanism, got one of another")
        if self._sum is None:
            bits = opened.levels == 2
            self._sum = _BitTotal(self._dimension) if bits else _IntegerTotal(self._dimension)
        self._sum.add(opened)
        self._mechanism = mechanism

    def result(self) -> Vector | None:
        """Return the mean of the values that the codes stand for, and release it.

        Returns:
            The mean, the same at every call after the first; None, with nothing released, if fewer
            than the minimum of clients have sent codes.
        """
        total = self._sum
        if self._released is None and total is not None and total.received >= self._minimum:
            mechanism: object = self._mechanism
            assert isinstance(mechanism, SummableCodes), "the accounting refuses any other"
            self._released = mechanism.decode_sum(total.total(), total.received)
        return None if self._released is None else self._released.copy()


class _BitTotal:
    """The sum of one-bit codes, counted in packed form."""

    def __init__(self, dimension: int) -> None:
        self._bits = LevelCounts(dimension, 2)

    @property
    def received(self) -> int:
        """The number of clients whose codes were added."""
        return self._bits.received

    def add(self, opened: PackedCodes) -> None:
        self._bits.add(opened)

    def total(self) -> NDArray[np.integer[Any]]:
        """Return the sum of all codes, one number per coordinate."""
        counts = self._bits.counts()
        return np.asarray(counts[0])


class _IntegerTotal:
    """The sum of codes of more than one bit."""

    def __init__(self, dimension: int) -> None:
        self._total = np.zeros(dimension, dtype=np.int64)
        self.received = 0

    def add(self, opened: PackedCodes) -> None:
        if opened.count != len(self._total):
            raise WireError(f"expected {len(self._total)} codes, got {opened.count}")
        self._total += opened.codes()
        self.received += 1

    def total(self) -> NDArray[np.integer[Any]]:
        """Return the sum of all codes, one number per coordinate."""
        return self._total
