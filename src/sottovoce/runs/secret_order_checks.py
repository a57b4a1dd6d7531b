"""What a run whose clients are asked in a secret order may ask for, and what it must not.

Each rule stands for a condition of `channels.secret_order`.
"""

from sottovoce.core.errors import ConfigError
from sottovoce.federated.cohorts import ClientSampling, Epochs, Everyone
from sottovoce.protocol.channels.secret_order import SecretOrder
from sottovoce.runs.algorithms import traits_of
from sottovoce.runs.spec import RunSpec


def channel(
    spec: RunSpec, minimum_clients: int, sampling: ClientSampling, num_clients: int
) -> SecretOrder:
    """The channel, for whole epochs of clients that are all alike."""
    if minimum_clients > num_clients:
        raise ConfigError(
            f"channel.minimum_clients {minimum_clients} exceeds the {num_clients} clients that an "
            "epoch has"
        )
    _check_rounds(spec, sampling, num_clients)
    _check_clients(spec)
    return SecretOrder(minimum_clients=minimum_clients)


def _check_rounds(spec: RunSpec, sampling: ClientSampling, num_clients: int) -> None:
    """Everyone is asked once an epoch, and the order is nobody's to know but the simulation's."""
    if spec.randomness != "seeded":
        raise ConfigError(
            "the channel 'secret_order' is simulated: the order comes from the spec's seed, which "
            "is no secret; set randomness = 'seeded'"
        )
    if not isinstance(sampling, Epochs | Everyone):
        raise ConfigError(
            "the channel 'secret_order' hides clients that are asked once an epoch each, and with "
            f"sampling '{spec.sampling.kind}' some are asked more often than others: set "
            "sampling.kind = 'epochs', or use the channel 'shuffler'"
        )
    each = sampling.rounds_of_an_epoch(num_clients) if isinstance(sampling, Epochs) else 1
    if spec.rounds % each:
        raise ConfigError(
            f"{spec.rounds} rounds end within an epoch of {each}, and a secret order hides clients "
            f"in whole epochs only: set rounds to a multiple of {each}, such as "
            f"{each * -(-spec.rounds // each)}"
        )


def _check_clients(spec: RunSpec) -> None:
    """All alike in what they may spend and send, and without a memory of when they were asked."""
    if spec.privacy.groups:
        raise ConfigError(
            "clients in 'privacy.groups' with budgets of their own would leave epochs at different "
            "times, and a secret order hides clients that all take part: drop 'privacy.groups'"
        )
    if spec.privacy.minimum_clients > 1:
        raise ConfigError(
            "privacy.minimum_clients may halt a run within an epoch, and a secret order hides "
            "clients in whole epochs only: leave it out (channel.minimum_clients counts those of "
            "an epoch)"
        )
    if not traits_of(spec).plain_mean:
        raise ConfigError(
            f"clients of the algorithm '{spec.algorithm.kind}' do more than send one message an "
            "epoch and forget it, which a secret order does not hide: use the algorithm 'fedavg', "
            "or the channel 'shuffler'"
        )
