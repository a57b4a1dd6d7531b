"""A shuffler, simulated: this process is trusted to hand on messages in random order, nameless.

In a deployment somebody else stands here. What the accounting needs of it: the server sees nothing
of a round but at least `minimum_clients` messages in an order that tells nothing, once; and that
many clients follow their mechanism. Whoever may collude is not counted among them.
"""

from dataclasses import dataclass
from typing import ClassVar

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import ParameterError, PrivacyError
from sottovoce.mechanisms.mechanism import BoundedDensity, Mechanism
from sottovoce.privacy.events import Shuffled
from sottovoce.privacy.shuffling import MAX_CLIENTS, shuffled
from sottovoce.protocol.means import Cohort, Mean, mean_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffler:
    """Messages without senders, released only where at least `minimum_clients` arrived."""

    minimum_clients: int
    hides_sender: ClassVar[bool] = True

    def __post_init__(self) -> None:
        parameter_rules.integer(
            "minimum_clients",
            self.minimum_clients,
            low=2,
            high=MAX_CLIENTS,
            remedy="one message has but one order",
        )

    @property
    def fewest_messages(self) -> int:
        """Of a round, that are ever released."""
        return self.minimum_clients

    def event(self, mechanism: Mechanism, adjacency: Adjacency) -> Shuffled:
        """One message among `minimum_clients` of its round."""
        return hidden_among(self.minimum_clients, mechanism, adjacency)

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


def hidden_among(clients: int, mechanism: Mechanism, adjacency: Adjacency) -> Shuffled:
    """Return the event of one message among those of so many clients.

    The others hide the protected client in so far as their messages could have come from *its*
    inputs (clones), or from a law that all inputs share (`BoundedDensity`). So what is asked of the
    mechanism must hold between any two inputs that clients may have: replace-one, and a whole
    input, not one record of it.
    """
    if adjacency is not Adjacency.REPLACE_ONE:
        raise PrivacyError(
            "shuffling hides any change of an input, zero-out among them, and is charged as "
            "such: ask for adjacency replace-one (in a spec, privacy.adjacency = 'replace-one')"
        )
    if getattr(mechanism.input_domain, "records", 1) != 1:
        raise PrivacyError(
            "shuffling hides a client among others whose inputs may differ from its own in "
            "everything, so one record's epsilon says nothing here: protect whole clients "
            "(records = 1; in a spec, privacy.level = 'client')"
        )
    ratios = mechanism.density_ratios() if isinstance(mechanism, BoundedDensity) else None
    return shuffled(mechanism.privacy(adjacency), clients, ratios)


def check_alike(cohort: Cohort, what: str) -> None:
    """Refuse clients of whom a message tells which it may have come from."""
    if len(set(cohort)) > 1:
        raise ParameterError(
            f"{what} needs the same mechanism and weight for every client; drop "
            "'privacy.groups', and protect whole clients (privacy.level = 'client')"
        )
