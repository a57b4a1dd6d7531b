"""A secret order, simulated: this process is trusted to ask every client once, in random order.

A shuffler hides a message among those of its round. Whoever is asked in an order that nobody knows
hides among *all* clients of an epoch, though the model moves on after every few of them: n clients
in uniformly random order, each answered by a randomiser that may depend on all messages before, are
as private as n messages shuffled (Feldman, McMillan and Talwar 2021, theorem 3.1; for bounded
densities `privacy.blanket`). So a message is charged with `Shuffled(local event, minimum_clients)`,
once for each epoch.

What the accounting needs, of whoever asks the clients and strips their names:

- The order is uniform, drawn anew for each epoch, and independent of the data. Nobody who sees
  messages, models or results ever learns it: not the server, and not after the run.
- Every client is asked once an epoch and answers once, and at least `minimum_clients` of them
  follow their mechanism and tell nobody when they were asked. An epoch is run to its end: of one
  that was cut short, being among those who were asked tells more than the place in the order does.
- Who takes part, and who fails to answer, depends neither on the data nor on the order.
- What a client encodes depends on its own data and on messages before it, in this epoch and earlier
  ones, and not on *when* it was asked: it keeps nothing between epochs. It sends one message.
- One mechanism and weight for all, a pure epsilon between any two inputs, as behind a shuffler; and
  density bounds, where the mechanism states any, that hold against the same law for every client.
"""

from dataclasses import dataclass
from typing import ClassVar

from sottovoce.core import parameter_rules
from sottovoce.mechanisms.release import NoSenders
from sottovoce.privacy.shuffling import MAX_CLIENTS
from sottovoce.protocol.channels.shuffler import check_alike
from sottovoce.protocol.means import Cohort, Mean, mean_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretOrder:
    """Messages without senders, of clients each asked once an epoch, in an order nobody knows.

    `minimum_clients` counts those of a whole epoch; a round may have any number of them.
    """

    minimum_clients: int
    hides_sender: ClassVar[bool] = True
    fewest_messages: ClassVar[int] = 1  # of a round: what hides them are the other rounds' too

    def __post_init__(self) -> None:
        parameter_rules.integer(
            "minimum_clients",
            self.minimum_clients,
            low=2,
            high=MAX_CLIENTS,
            remedy="one client has but one order",
        )

    @property
    def wire_name(self) -> str:
        """The name in the hash of a plan, whatever the class is called; it never changes."""
        return f"SecretOrder(minimum_clients={self.minimum_clients})"

    @property
    def visibility(self) -> NoSenders:
        """The one message of an epoch, among at least `minimum_clients`."""
        return NoSenders(minimum_clients=self.minimum_clients)

    def check(self, cohort: Cohort) -> None:
        """A message that only some could have sent, or that weighs more, would have a sender."""
        check_alike(cohort, "a secret order")

    def serves(self, clients: int) -> bool:
        """Whether messages of a cohort of this (public) size could be released."""
        return clients >= self.fewest_messages

    def collector(self, dimension: int, cohort: Cohort) -> Mean:
        return mean_of(dimension, cohort)

    def describe(self) -> str:
        return (
            "secret order, simulated: the server is trusted to ask each client once an epoch, in "
            "an order that nobody learns, and to forget senders"
        )
