"""A shuffler, simulated: this process is trusted to hand on messages in random order, nameless.

In a deployment somebody else stands here. What the accounting needs of it: the server sees nothing
of a round but at least `minimum_clients` messages in an order that tells nothing, once; and that
many clients follow their mechanism. Whoever may collude is not counted among them.
"""

from dataclasses import dataclass

from sottovoce.core.display import show_epsilon
from sottovoce.mechanisms.release import NoSenders
from sottovoce.protocol.channels.channel import (
    Channel,
    ChannelContext,
    check_alike,
    check_reachable,
    register_channel,
)
from sottovoce.protocol.sums import Cohort


@register_channel("shuffler", summary="messages in random order, without their senders; simulated")
@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffler(Channel):
    """Messages without senders, released only where at least `minimum_clients` arrived."""

    minimum_clients: int

    def __post_init__(self) -> None:
        _ = self.visibility  # which checks the number

    @property
    def wire_name(self) -> str:
        """The name in the hash of a plan, whatever the class is called; it never changes."""
        return f"Shuffler(minimum_clients={self.minimum_clients})"

    @property
    def visibility(self) -> NoSenders:
        """One message among `minimum_clients` of its round."""
        return NoSenders(minimum_clients=self.minimum_clients)

    def check(self, context: ChannelContext) -> None:
        check_reachable(self.minimum_clients, context, "no message")

    def check_cohort(self, cohort: Cohort) -> None:
        """A message that only some could have sent, or that weighs more, would have a sender."""
        check_alike(cohort, "a shuffler")

    def describe(self) -> str:
        return "shuffler, simulated: the server is trusted to shuffle messages and forget senders"

    def guarantee(self) -> str:
        return f"privacy of shuffled messages ({self.describe()}): together they hide"

    def seen_by(self, *, private: bool) -> str:  # noqa: ARG002
        return (
            f"The server sees replies of at least {self.minimum_clients} clients in a random "
            "order, without senders. The shuffler is trusted to forget who sent what."
        )

    def warnings(self, local_epsilon: float | None, central_epsilon: float | None) -> list[str]:
        return idle_shuffle(self.minimum_clients, local_epsilon, central_epsilon)


def idle_shuffle(
    clients: int, local_epsilon: float | None, central_epsilon: float | None
) -> list[str]:
    """Return a warning where the shuffle saves less than a hundredth of epsilon."""
    local, central = local_epsilon or 0.0, central_epsilon or 0.0
    if not local or central < 0.99 * local:
        return []
    return [
        f"shuffling {clients} clients buys nothing: epsilon "
        f"{show_epsilon(central, 3)} against {show_epsilon(local, 3)} if every message were seen "
        "with its sender; it takes more clients, or a smaller epsilon for each message (a vector "
        "of many coordinates has a large one)"
    ]
