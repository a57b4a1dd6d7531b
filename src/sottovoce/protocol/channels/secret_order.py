"""A secret order, simulated: this process is trusted to ask every client once, in random order.

A shuffler hides a message among those of its round. Whoever is asked in an order that nobody knows
hides among *all* clients of an epoch, though the model moves on after every few of them: n clients
in uniformly random order, each answered by a randomiser that may depend on all messages before, are
as private as n messages shuffled (Feldman, McMillan and Talwar 2021, theorem 3.1; for bounded
densities `privacy.shuffling`). So a message is charged with
`Shuffled(local event, minimum_clients)`, once for each epoch.

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

from dataclasses import dataclass, field

from sottovoce.core.errors import ConfigError
from sottovoce.core.sections import whole
from sottovoce.mechanisms.release import NoSenders
from sottovoce.privacy.shuffling import MAX_CLIENTS
from sottovoce.protocol.channels.channel import (
    Channel,
    ChannelContext,
    check_alike,
    register_channel,
)
from sottovoce.protocol.channels.shuffler import idle_shuffle
from sottovoce.protocol.sums import Cohort

_CLIENTS = whole(2, MAX_CLIENTS, "one client has but one order")


@register_channel("secret_order", summary="clients asked once an epoch, in an order nobody learns")
@dataclass(frozen=True, slots=True, kw_only=True)
class SecretOrder(Channel):
    """Messages without senders, of clients each asked once an epoch, in an order nobody knows.

    `minimum_clients` counts those of a whole epoch; a round may have any number of them. With
    sampling 'epochs' or 'everyone', whole epochs, and `randomness = "seeded"`: the order comes from
    the seed.
    """

    minimum_clients: int = field(metadata=_CLIENTS)

    @property
    def wire_name(self) -> str:
        """The name in the hash of a plan, whatever the class is called; it never changes."""
        return f"SecretOrder(minimum_clients={self.minimum_clients})"

    @property
    def visibility(self) -> NoSenders:
        """The one message of an epoch, among at least `minimum_clients`."""
        return NoSenders(minimum_clients=self.minimum_clients)

    @property
    def fewest_messages(self) -> int:
        """One: what hides a message are those of the epoch's other rounds too."""
        return 1

    # Each rule stands for a condition of those above.

    def check_federation(self, backend: str) -> None:
        raise ConfigError(
            f"runtime.backend = '{backend}' asks clients by name, so the server would know the "
            "order that is to be secret; use the channel 'shuffler', which hides who sent which "
            "message of a round, or simulate with runtime.backend = 'fast'"
        )

    def check_order(self) -> None:
        raise ConfigError(
            "an order names its client, so the server knows when each is asked, and the channel "
            "'secret_order' hides nothing; use the channel 'shuffler'"
        )

    def check(self, context: ChannelContext) -> None:
        """Refuse all but whole epochs of clients that are all alike."""
        if self.minimum_clients > context.clients:
            raise ConfigError(
                f"channel.minimum_clients {self.minimum_clients} exceeds the {context.clients} "
                "clients that an epoch has"
            )
        _check_rounds(context)
        _check_clients(context)

    def check_cohort(self, cohort: Cohort) -> None:
        """A message that only some could have sent, or that weighs more, would have a sender."""
        check_alike(cohort, "a secret order")

    def describe(self) -> str:
        return (
            "secret order, simulated: the server is trusted to ask each client once an epoch, in "
            "an order that nobody learns, and to forget senders"
        )

    def guarantee(self) -> str:
        return f"privacy of messages in a secret order ({self.describe()}): together they hide"

    def seen_by(self, *, private: bool) -> str:  # noqa: ARG002
        return (
            "The server asks each client once an epoch in an order that nobody learns, and is "
            f"trusted to forget senders; at least {self.minimum_clients} clients follow their "
            "mechanism."
        )

    def warnings(self, local_epsilon: float | None, central_epsilon: float | None) -> list[str]:
        return idle_shuffle(self.minimum_clients, local_epsilon, central_epsilon)


def _check_rounds(context: ChannelContext) -> None:
    """Everyone is asked once an epoch, and the order is nobody's to know but the simulation's."""
    if not context.seeded:
        raise ConfigError(
            "the channel 'secret_order' is simulated: the order comes from the spec's seed, which "
            "is no secret; set randomness = 'seeded'"
        )
    each = context.sampling.rounds_of_an_epoch
    if each is None:
        raise ConfigError(
            "the channel 'secret_order' hides clients that are asked once an epoch each, and with "
            f"sampling '{context.sampling.kind}' some are asked more often than others: set "
            "sampling.kind = 'epochs', or use the channel 'shuffler'"
        )
    if context.rounds % each:
        raise ConfigError(
            f"{context.rounds} rounds end within an epoch of {each}, and a secret order hides "
            f"clients in whole epochs only: set rounds to a multiple of {each}, such as "
            f"{each * -(-context.rounds // each)}"
        )


def _check_clients(context: ChannelContext) -> None:
    """All alike in what they may spend and send, and without a memory of when they were asked."""
    if context.grouped:
        raise ConfigError(
            "clients in 'privacy.groups' with budgets of their own would leave epochs at different "
            "times, and a secret order hides clients that all take part: drop 'privacy.groups'"
        )
    if context.minimum_clients > 1:
        raise ConfigError(
            "privacy.minimum_clients may halt a run within an epoch, and a secret order hides "
            "clients in whole epochs only: leave it out (channel.minimum_clients counts those of "
            "an epoch)"
        )
    if not context.plain_mean():
        raise ConfigError(
            f"clients of the algorithm '{context.algorithm}' do more than send one message an "
            "epoch and forget it, which a secret order does not hide: use the algorithm 'fedavg', "
            "or the channel 'shuffler'"
        )
