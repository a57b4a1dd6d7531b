"""A shuffler, simulated: this process is trusted to hand on messages in random order, nameless.

In a deployment somebody else stands here. What the accounting needs of it: the server sees nothing
of a round but at least `minimum_clients` messages in an order that tells nothing, once; and that
many clients follow their mechanism. Whoever may collude is not counted among them.
"""

from dataclasses import dataclass
from typing import ClassVar

from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.release import NoSenders
from sottovoce.protocol.means import Cohort, Mean, mean_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffler:
    """Messages without senders, released only where at least `minimum_clients` arrived."""

    minimum_clients: int
    hides_sender: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _ = self.visibility  # which checks the number

    @property
    def fewest_messages(self) -> int:
        """Of a round, that are ever released."""
        return self.minimum_clients

    @property
    def wire_name(self) -> str:
        """The name in the hash of a plan, whatever the class is called; it never changes."""
        return f"Shuffler(minimum_clients={self.minimum_clients})"

    @property
    def visibility(self) -> NoSenders:
        """One message among `minimum_clients` of its round."""
        return NoSenders(minimum_clients=self.minimum_clients)

    def check(self, cohort: Cohort) -> None:
        """A message that only some could have sent, or that weighs more, would have a sender."""
        check_alike(cohort, "a shuffler")

    def serves(self, clients: int) -> bool:
        """Whether messages of a cohort of this (public) size could be released."""
        return clients >= self.minimum_clients

    def collector(self, dimension: int, cohort: Cohort) -> Mean:
        return mean_of(dimension, cohort)

    def describe(self) -> str:
        return "shuffler, simulated: the server is trusted to shuffle messages and forget senders"


def check_alike(cohort: Cohort, what: str) -> None:
    """Refuse clients of whom a message tells which it may have come from."""
    if len(set(cohort)) > 1:
        raise ParameterError(
            f"{what} needs the same mechanism and weight for every client; drop "
            "'privacy.groups', and protect whole clients (privacy.level = 'client')"
        )
