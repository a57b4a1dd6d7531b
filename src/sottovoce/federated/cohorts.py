"""Who is asked in a round: the register of samplings, one decorator on a frozen dataclass.

    @register_sampling("in_turn", summary="one client after the other")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class InTurn(ClientSampling):
        def draw(self, num_clients, schedule, number):
            return [(number - 1) % num_clients]

Its fields are the keys that may stand beside `kind = "in_turn"` in [sampling] (see
`core.sections`). The entry point group of plug-ins is `sottovoce.samplings`.

The server sees who answers, so sampling amplifies no privacy by itself: only where somebody trusted
adds up and keeps the sample to himself (`channels.central`), or keeps the order of an epoch to
himself (`channels.secret_order`). Both count on samplings of this file alone (`facts_of`).
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.errors import ConfigError, PluginError
from sottovoce.core.plugin_returns import Contract, Returns, hold, instance
from sottovoce.core.randomness import SeededRandomness
from sottovoce.core.registry import Register, is_ours
from sottovoce.core.sections import FRACTION, Registered, check_keys, whole
from sottovoce.protocol.channels.channel import SamplingFacts

_SIZE = whole(1, 2**31)


class ClientSampling:
    """The keys of a [sampling] table, and whom they ask; a subclass has `draw`."""

    __slots__ = ()

    kind: ClassVar[str] = ""  # as it is registered

    def __post_init__(self) -> None:
        check_keys(self)

    def draw(self, num_clients: int, schedule: SeededRandomness, number: int) -> list[int]:
        """Return the positions of the clients of a round, in increasing order.

        Args:
            num_clients: How many there are.
            schedule: Public randomness, the same again from the same seed.
            number: The round, counted from 1.
        """
        raise NotImplementedError

    def check(self, num_clients: int) -> None:
        """Refuse a number of clients; by default none."""

    def facts(self, num_clients: int) -> SamplingFacts:
        """Return what channels may ask; by default that anybody may be asked in any round."""
        return SamplingFacts(kind=self.kind, largest_cohort=num_clients)

    def most_participations(self, num_clients: int, rounds: int) -> int:  # noqa: ARG002
        """Return in how many of so many rounds one client can be asked; noise is made for it."""
        return rounds

    def oversampled(self, factor: float, most: int | None) -> Self | None:  # noqa: ARG002
        """Return the sampling that asks so many times more clients; None where there is none.

        Args:
            factor: How many times more.
            most: How many clients there are, where that is known.
        """
        return None


S = TypeVar("S", bound=type[ClientSampling])

SAMPLINGS: Register[Registered[ClientSampling]] = Register(
    "sampling",
    places=dict.fromkeys(("everyone", "poisson", "fixed_size", "epochs"), __name__),
)


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


_CONTRACT = Contract(
    base=ClientSampling,
    needs=("draw",),
    returns={
        "draw": Returns(
            what="a list of whole numbers, the positions of clients",
            fits=lambda value: isinstance(value, list) and all(map(_is_whole, value)),
        ),
        "most_participations": Returns(
            what="a whole number from 1 on", fits=lambda value: _is_whole(value) and value >= 1
        ),
        "facts": instance(SamplingFacts, "sottovoce.protocol.SamplingFacts"),
        "oversampled": instance((ClientSampling, type(None)), "a sampling, or None"),
    },
)


def register_sampling(kind: str, *, summary: str) -> Callable[[S], S]:
    """Class decorator that enters a sampling, a frozen dataclass with a method `draw`.

    Raises:
        PluginError: If the class is no `ClientSampling`.
    """

    def enter(sampling: S) -> S:
        if not issubclass(sampling, ClientSampling):
            raise PluginError(
                f"the sampling '{kind}' is registered by a class that is no ClientSampling; "
                "inherit from sottovoce.federated.ClientSampling"
            )
        hold(SAMPLINGS, kind, sampling, _CONTRACT)
        sampling.kind = kind
        registered: Registered[ClientSampling] = Registered(section=sampling, summary=summary)
        SAMPLINGS.enter(kind, registered, module=sampling.__module__)
        return sampling

    return enter


def draw(
    sampling: ClientSampling, num_clients: int, schedule: SeededRandomness, number: int
) -> list[int]:
    """Return the positions of the clients of a round; whoever is drawn twice would pay once."""
    drawn = sampling.draw(num_clients, schedule, number)
    if not is_ours(type(sampling).__module__) and drawn != sampling.draw(
        num_clients, schedule, number
    ):
        raise PluginError(
            f"sampling '{sampling.kind}' draws others when it is asked for round {number} again, "
            "and then a run that is resumed charges others than it asked; draw from `schedule`"
        )
    if drawn != sorted(set(drawn)) or not set(drawn) <= set(range(num_clients)):
        raise PluginError(
            f"sampling '{sampling.kind}' drew {drawn} for round {number}; draw distinct positions "
            f"from 0 to {num_clients - 1}, in increasing order"
        )
    return drawn


def facts_of(sampling: ClientSampling, num_clients: int) -> SamplingFacts:
    """Return what channels may ask, without what they would count on a plug-in's word for."""
    facts = sampling.facts(num_clients)
    if is_ours(type(sampling).__module__):
        return facts
    return dataclasses.replace(facts, independent_rate=None, rounds_of_an_epoch=None)


@register_sampling("everyone", summary="every client in every round")
@dataclass(frozen=True, slots=True, kw_only=True)
class Everyone(ClientSampling):
    """Every client in every round."""

    def draw(self, num_clients: int, schedule: SeededRandomness, number: int) -> list[int]:  # noqa: ARG002
        return list(range(num_clients))

    def facts(self, num_clients: int) -> SamplingFacts:
        return SamplingFacts(
            kind=self.kind, largest_cohort=num_clients, independent_rate=1.0, rounds_of_an_epoch=1
        )


@register_sampling("poisson", summary="each client by a coin of its own")
@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson(ClientSampling):
    """Each client independently with probability `rate`."""

    rate: float = field(metadata=FRACTION)

    def draw(self, num_clients: int, schedule: SeededRandomness, number: int) -> list[int]:
        coins = schedule.generator("cohort", number).random(num_clients)
        return [int(i) for i in np.flatnonzero(coins < self.rate)]

    def facts(self, num_clients: int) -> SamplingFacts:
        return SamplingFacts(kind=self.kind, largest_cohort=num_clients, independent_rate=self.rate)

    def oversampled(self, factor: float, most: int | None) -> Self:  # noqa: ARG002
        return dataclasses.replace(self, rate=min(1.0, self.rate * factor))


@register_sampling("fixed_size", summary="so many clients in every round")
@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSize(ClientSampling):
    """Exactly `size` clients, without replacement."""

    size: int = field(metadata=_SIZE)

    def draw(self, num_clients: int, schedule: SeededRandomness, number: int) -> list[int]:
        self.check(num_clients)
        generator = schedule.generator("cohort", number)
        return sorted(int(i) for i in generator.choice(num_clients, self.size, replace=False))

    def check(self, num_clients: int) -> None:
        _check_size(self.size, num_clients)

    def facts(self, num_clients: int) -> SamplingFacts:  # noqa: ARG002
        return SamplingFacts(kind=self.kind, largest_cohort=self.size)

    def oversampled(self, factor: float, most: int | None) -> Self:
        wanted = math.ceil(round(self.size * factor, 9))  # 50 times 1.1 is 55, and not a bit more
        return dataclasses.replace(self, size=min(most or self.size, wanted))


@register_sampling("epochs", summary="so many clients in every round, and everyone once an epoch")
@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs(ClientSampling):
    """`size` clients a round, and every client once an epoch, in a new random order each time.

    So a client takes part in ceil(rounds/rounds of an epoch) rounds at most, and pays for no more.
    """

    size: int = field(metadata=_SIZE)

    def draw(self, num_clients: int, schedule: SeededRandomness, number: int) -> list[int]:
        self.check(num_clients)
        epoch, place = divmod(number - 1, self.rounds_of_an_epoch(num_clients))
        order = _order(schedule, epoch, num_clients)
        return sorted(order[place * self.size : (place + 1) * self.size].tolist())

    def check(self, num_clients: int) -> None:
        _check_size(self.size, num_clients)

    def facts(self, num_clients: int) -> SamplingFacts:
        return SamplingFacts(
            kind=self.kind,
            largest_cohort=self.size,
            rounds_of_an_epoch=self.rounds_of_an_epoch(num_clients),
        )

    def most_participations(self, num_clients: int, rounds: int) -> int:
        return -(-rounds // self.rounds_of_an_epoch(num_clients))

    def rounds_of_an_epoch(self, num_clients: int) -> int:
        """Return after how many rounds everyone was asked once."""
        return -(-num_clients // self.size)


@lru_cache(maxsize=2)  # the rounds of an epoch share it
def _order(schedule: SeededRandomness, epoch: int, num_clients: int) -> NDArray[np.int64]:
    return schedule.generator("epoch", epoch).permutation(num_clients)


def _check_size(size: int, num_clients: int) -> None:
    if size > num_clients:
        raise ConfigError(f"sampling.size {size} exceeds the {num_clients} clients")
