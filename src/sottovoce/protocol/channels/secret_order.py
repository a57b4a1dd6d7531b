"""The channel 'secret_order', simulated: every client is asked once per epoch, in a secret order.

A shuffler hides a message among those of its round. If clients are asked in an order that stays
secret, a message is hidden among those of *all* clients of an epoch, although the model changes
after every few of them: n clients in uniformly random order, each answering with a randomizer that
may depend on all messages before, are as private as n shuffled messages (Feldman, McMillan and
Talwar 2021, theorem 3.1; for bounded densities see `privacy.shuffling`). So a message is charged
with `Shuffled(local event, minimum_clients)`, once for each epoch.

The accounting assumes of the party that asks the clients and removes their names:

- The order is uniform, drawn independently for each epoch and independent of the data. No party
  that sees messages, models or results ever learns it: not the server, and not after the run.
- Every client is asked once per epoch and answers once, and at least `minimum_clients` of them
  follow their mechanism and tell no one when they were asked. An epoch is completed: in a truncated
  epoch, whether a client was asked at all reveals more than its place in the order.
- Who takes part, and who fails to answer, depends neither on the data nor on the order.
- What a client encodes depends on its own data and on messages before it, in this epoch and earlier
  ones, but not on *when* it was asked: it keeps no state between epochs. It sends one message.
- All clients have the same mechanism and weight, with a pure epsilon between any two inputs, as
  behind a shuffler. If the mechanism states density bounds, they hold against the same law for
  every client.
"""

from dataclasses import dataclass, field

from sottovoce.core.errors import ConfigError
from sottovoce.core.sections import whole
from sottovoce.mechanisms.release import ShuffledMessages
from sottovoce.privacy.shuffling import MAX_CLIENTS
from sottovoce.protocol.channels.channel import (
    Channel,
    ChannelContext,
    check_equal_clients,
    register_channel,
)
from sottovoce.protocol.channels.shuffler import warn_if_not_amplified
from sottovoce.protocol.sums import Cohort

_CLIENTS = whole(2, MAX_CLIENTS, "the order of a single client hides nothing")


@register_channel("secret_order", summary="clients asked once per epoch, in a secret order")
@dataclass(frozen=True, slots=True, kw_only=True)
class SecretOrder(Channel):
    """The channel on which the server sees messages of clients that were asked in a secret order.

    Each client is asked once per epoch. The simulating process is trusted to keep the order secret
    and to forget senders. It needs sampling 'epochs' or 'everyone', whole epochs, and `randomness =
    "seeded"`: the order comes from the seed.

    Attributes:
        minimum_clients: The number of honest clients in a whole epoch that the accounting assumes.
            A round may have any number of clients.
    """

    minimum_clients: int = field(metadata=_CLIENTS)

    @property
    def wire_name(self) -> str:
        """The text that stands for the channel in the hash of a plan; it never changes."""
        return f"SecretOrder(minimum_clients={self.minimum_clients})"

    @property
    def visibility(self) -> ShuffledMessages:
        """A client's one message of an epoch is hidden among at least `minimum_clients` of them."""
        return ShuffledMessages(minimum_clients=self.minimum_clients)

    @property
    def fewest_messages(self) -> int:
        """The smallest number of messages in a round from which anything is released: 1.

        The messages of the epoch's other rounds hide a message too.
        """
        return 1

    # Each check enforces one of the conditions in the module's docstring.

    def check_federation(self, backend: str) -> None:
        raise ConfigError(
            f"runtime.backend = '{backend}' asks clients by name, so the server would know the "
            "order that must stay secret; use the channel 'shuffler', which hides who sent which "
            "message of a round, or simulate with runtime.backend = 'fast'"
        )

    def check_order(self) -> None:
        raise ConfigError(
            "a server's order to a site names the client, so the server knows when each is asked, "
            "and the channel 'secret_order' hides nothing; use the channel 'shuffler'"
        )

    def check(self, context: ChannelContext) -> None:
        """Refuse everything but whole epochs of clients that are all alike.

        Args:
            context: The facts of the run.

        Raises:
            ConfigError: The minimum exceeds the number of clients, or a condition of the accounting
                does not hold.
        """
        if self.minimum_clients > context.clients:
            raise ConfigError(
                f"channel.minimum_clients = {self.minimum_clients} exceeds the {context.clients} "
                "clients of an epoch; lower it"
            )
        _check_rounds(context)
        _check_clients(context)

    def check_cohort(self, cohort: Cohort) -> None:
        """Refuse different mechanisms or weights, because they would reveal who sent a message.

        Args:
            cohort: Mechanism and weight of each client.

        Raises:
            ParameterError: Mechanisms or weights differ.
        """
        check_equal_clients(cohort, "a secret order")

    def describe(self) -> str:
        return (
            "secret order, simulated: the server is trusted to ask each client once per epoch, to "
            "keep the order secret, and to forget senders"
        )

    def guarantee(self) -> str:
        return f"privacy of messages in a secret order ({self.describe()}): together they hide"

    def seen_by(self, *, private: bool) -> str:  # noqa: ARG002
        return (
            "The server asks each client once per epoch and is trusted to keep the order secret "
            f"and to forget senders. At least {self.minimum_clients} clients are assumed to follow "
            "their mechanism."
        )

    def warnings(self, local_epsilon: float | None, central_epsilon: float | None) -> list[str]:
        return warn_if_not_amplified(self.minimum_clients, local_epsilon, central_epsilon)


def _check_rounds(context: ChannelContext) -> None:
    """Refuse rounds that do not form whole epochs, or an order that does not come from the seed."""
    if not context.seeded:
        raise ConfigError(
            "the channel 'secret_order' exists only as a simulation, in which the order comes from "
            "the spec's seed; set randomness = 'seeded'"
        )
    each = context.sampling.rounds_of_an_epoch
    if each is None:
        raise ConfigError(
            "the channel 'secret_order' needs every client to be asked once per epoch, but with "
            f"sampling '{context.sampling.kind}' some may be asked more often than others; set "
            "sampling.kind = 'epochs', or use the channel 'shuffler'"
        )
    if context.rounds % each:
        raise ConfigError(
            f"{context.rounds} rounds end within an epoch of {each} rounds, and a secret order "
            f"hides clients only in whole epochs; set rounds to a multiple of {each}, such as "
            f"{each * -(-context.rounds // each)}"
        )


def _check_clients(context: ChannelContext) -> None:
    """Refuse clients with different budgets, and clients with a memory of when they were asked."""
    if context.grouped:
        raise ConfigError(
            "clients in 'privacy.groups' have budgets of their own, so some would drop out before "
            "others, and a secret order hides clients only if all take part; remove "
            "'privacy.groups'"
        )
    if context.minimum_clients > 1:
        raise ConfigError(
            "privacy.minimum_clients may halt a run within an epoch, and a secret order hides "
            "clients only in whole epochs; remove it (channel.minimum_clients counts the clients "
            "of an epoch)"
        )
    if not context.plain_mean():
        raise ConfigError(
            f"clients of the algorithm '{context.algorithm}' may keep state or send more than one "
            "message per epoch, which a secret order does not hide; use the algorithm 'fedavg' "
            "with aggregation 'mean', or the channel 'shuffler'"
        )
