"""The channel 'shuffler': the server sees messages in random order, without senders.

`protocol` says who shuffles:

simulated    This process shuffles and is trusted to forget who sent what. For studies.
two_server   A relay that cannot read messages, for a collector that does not learn their senders;
             docs/explanation/relay-and-collector.md.

The accounting assumes that

- the server sees nothing of a round except at least `minimum_clients` messages, once, in an order
  that is independent of their senders;
- at least `minimum_clients` clients follow their mechanism. Clients that may collude with the
  server do not count among them. The real protocol releases messages only of at least
  `minimum_clients + colluders` clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sottovoce.core.display import show_epsilon
from sottovoce.mechanisms.release import ShuffledMessages
from sottovoce.protocol.channels.channel import (
    ChannelContext,
    check_equal_clients,
    check_reachable,
    register_channel,
)
from sottovoce.protocol.channels.hiding import SIMULATED, TWO_SERVER, HidingChannel
from sottovoce.protocol.sums import Cohort


@register_channel("shuffler", summary="messages in random order, without their senders")
@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffler(HidingChannel):
    """The channel on which the server sees shuffled messages without senders, from enough clients.

    `protocol` is "simulated" or "two_server"; the other keys are those of `HidingChannel`.
    """

    BACKENDS: ClassVar[Mapping[str, str]] = {TWO_SERVER: "relay"}
    WIRE_KIND: ClassVar[str] = "Shuffler"

    @property
    def visibility(self) -> ShuffledMessages:
        """A message is hidden among at least `minimum_clients` messages of its round."""
        return ShuffledMessages(minimum_clients=self.minimum_clients)

    def check(self, context: ChannelContext) -> None:
        colluders = self.most_colluders
        check_reachable(self.minimum_clients, context, "no message", colluders=colluders)

    def check_cohort(self, cohort: Cohort) -> None:
        """Refuse different mechanisms or weights, because they would reveal who sent a message.

        Args:
            cohort: Mechanism and weight of each client.

        Raises:
            ParameterError: Mechanisms or weights differ.
        """
        check_equal_clients(cohort, "a shuffler")

    def describe(self) -> str:
        if self.protocol == SIMULATED:
            return (
                "shuffler, simulated: the server is trusted to shuffle messages and forget senders"
            )
        return (
            "shuffler by two servers: trusted not to work together, nor with more than "
            f"{self.most_colluders} clients"
        )

    def guarantee(self) -> str:
        return f"privacy of shuffled messages ({self.describe()}): together they hide"

    def seen_by(self, *, private: bool) -> str:  # noqa: ARG002
        return (
            f"The server sees messages of at least {self.fewest_messages} clients in a random "
            f"order, without senders. {self._trust()}"
        )

    def _trust(self) -> str:
        if self.protocol == SIMULATED:
            return "The shuffler is trusted to forget who sent what."
        return (
            "The operators of the relay, which knows senders, and of the collector, which reads "
            "messages, are trusted not to work together, nor with more than "
            f"{self.most_colluders} clients."
        )

    def warnings(self, local_epsilon: float | None, central_epsilon: float | None) -> list[str]:
        return warn_if_not_amplified(self.minimum_clients, local_epsilon, central_epsilon)


def warn_if_not_amplified(
    clients: int, local_epsilon: float | None, central_epsilon: float | None
) -> list[str]:
    """Return a list with a warning if shuffling lowers epsilon by at most one percent.

    Args:
        clients: The number of clients whose messages are shuffled.
        local_epsilon: The epsilon without shuffling; None if it is infinite.
        central_epsilon: The epsilon with shuffling; None if it is infinite.

    Returns:
        One warning or none; none if an epsilon is None.
    """
    local, central = local_epsilon or 0.0, central_epsilon or 0.0
    if not local or central < 0.99 * local:
        return []
    return [
        f"shuffling {clients} clients gives almost no amplification: epsilon is "
        f"{show_epsilon(central, 3)} with it and {show_epsilon(local, 3)} without; use more "
        "clients, or a smaller epsilon for each message (messages of many coordinates have a large "
        "one)"
    ]
