"""Client samplings: how the cohort of a round is drawn, and the register of samplings.

    @register_sampling("in_turn", summary="one client after the other")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class InTurn(ClientSampling):
        def draw(self, num_clients, schedule, number):
            return [(number - 1) % num_clients]

The fields of the class are the keys that `[sampling]` accepts in addition to `kind = "in_turn"`
(see `core.sections`). The entry point group of plug-ins is `sottovoce.samplings`.

The server sees which clients answer, so sampling by itself amplifies no privacy. It does where a
trusted party adds up the updates and keeps the sample secret (`channels.central`), or keeps the
order of an epoch secret (`channels.secret_order`). Both rely only on the samplings of this file
(`facts_of`).
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
from sottovoce.core.plugin_returns import Contract, ReturnCondition, enforce_contract, instance
from sottovoce.core.randomness import SeededRandomness
from sottovoce.core.registry import Register, is_ours
from sottovoce.core.sections import FRACTION, RegisteredSection, check_keys, whole
from sottovoce.protocol.channels.channel import SamplingFacts

Positions = NDArray[np.int64]

_SIZE = whole(1, 2**31)


class ClientSampling:
    """The keys of a `[sampling]` table and the cohorts that they draw; a subclass defines `draw`.

    Attributes:
        kind: The name under which the class is registered.

    Examples:
        >>> from sottovoce.core.randomness import SeededRandomness
        >>> from sottovoce.federated.cohorts import Epochs
        >>> schedule, sampling = SeededRandomness(7), Epochs(size=2)
        >>> sorted(sampling.draw(4, schedule, 1) + sampling.draw(4, schedule, 2))
        [0, 1, 2, 3]
        >>> sampling.most_participations(4, 10)
        5
    """

    __slots__ = ()

    kind: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_keys(self)

    def draw(self, num_clients: int, schedule: SeededRandomness, number: int) -> list[int]:
        """Return the positions of the clients of a round, in increasing order.

        Args:
            num_clients: Number of all clients.
            schedule: Public randomness, which is the same again from the same seed.
            number: The round, counted from 1.

        Returns:
            Distinct positions from 0 to `num_clients - 1`, possibly none. The same arguments give
            the same positions at every call.

        Raises:
            NotImplementedError: If a subclass does not define it.
        """
        raise NotImplementedError

    def check(self, num_clients: int) -> None:
        """Raise `ConfigError` for a number of clients that cannot be sampled; by default never.

        Args:
            num_clients: Number of all clients.
        """

    def facts(self, num_clients: int) -> SamplingFacts:
        """Return what a channel may assume about cohorts; by default only that all may be asked.

        Args:
            num_clients: Number of all clients.

        Returns:
            The kind and the largest cohort. The sampling rate and the rounds of an epoch, which
            amplification relies on, are used for built-in samplings only.
        """
        return SamplingFacts(kind=self.kind, largest_cohort=num_clients)

    def most_participations(self, num_clients: int, rounds: int) -> int:  # noqa: ARG002
        """Return the largest number of rounds in which one client can be asked.

        The noise is calibrated for this number, so it must be an upper bound.

        Args:
            num_clients: Number of all clients.
            rounds: Number of rounds of the run.

        Returns:
            A number from 1 to `rounds`; by default `rounds`.
        """
        return rounds

    def oversampled(self, factor: float, most: int | None) -> Self | None:  # noqa: ARG002
        """Return the sampling that asks `factor` times as many clients, to make up for dropout.

        Args:
            factor: How many times as many, at least 1.
            most: Number of all clients, which bounds the cohort; None if it is not known, and then
                a "fixed_size" may exceed it, which `check` refuses.

        Returns:
            The larger sampling; None if this kind cannot ask more clients, which is the default.
        """
        return None


S = TypeVar("S", bound=type[ClientSampling])

SAMPLINGS: Register[RegisteredSection[ClientSampling]] = Register(
    "sampling",
    places=dict.fromkeys(("everyone", "poisson", "fixed_size", "epochs"), __name__),
)


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


_CONTRACT = Contract(
    base=ClientSampling,
    needs=("draw",),
    returns={
        "draw": ReturnCondition(
            what="a list of whole numbers, the positions of clients",
            fits=lambda value: isinstance(value, list) and all(map(_is_whole, value)),
        ),
        "most_participations": ReturnCondition(
            what="a whole number from 1 on", fits=lambda value: _is_whole(value) and value >= 1
        ),
        "facts": instance(SamplingFacts, "sottovoce.protocol.SamplingFacts"),
        "oversampled": instance((ClientSampling, type(None)), "a sampling, or None"),
    },
)


def register_sampling(kind: str, *, summary: str) -> Callable[[S], S]:
    """Return a class decorator that registers a sampling, a frozen dataclass with a method `draw`.

    Args:
        kind: The name that `sampling.kind` has in specs.
        summary: A short description for lists.

    Returns:
        The decorator; it returns the class unchanged.

    Raises:
        PluginError: By the decorator, if the class is not a `ClientSampling`, is a plug-in's and
            not a dataclass or without `draw`, or if another module has registered `kind`.
    """

    def enter(sampling: S) -> S:
        if not issubclass(sampling, ClientSampling):
            raise PluginError(
                f"the sampling '{kind}' is registered by a class that is not a ClientSampling; "
                "inherit from sottovoce.federated.ClientSampling"
            )
        enforce_contract(SAMPLINGS, kind, sampling, _CONTRACT)
        sampling.kind = kind
        registered: RegisteredSection[ClientSampling] = RegisteredSection(
            section=sampling, summary=summary
        )
        SAMPLINGS.enter(kind, registered, module=sampling.__module__)
        return sampling

    return enter


def draw(
    sampling: ClientSampling, num_clients: int, schedule: SeededRandomness, number: int
) -> list[int]:
    """Return what `sampling.draw` returns for a round, after checking it if it is a plug-in's.

    Raises PluginError if a position occurs twice, is out of range or out of order, or if a plug-in
    draws other clients when it is asked again. A client that is drawn twice would be asked twice
    and charged once.
    """
    drawn = sampling.draw(num_clients, schedule, number)
    if is_ours(type(sampling).__module__):
        return drawn
    if drawn != sampling.draw(num_clients, schedule, number):
        raise PluginError(
            f"sampling '{sampling.kind}' drew different clients when asked for round {number} "
            "again, so a resumed run would charge other clients than it asked; draw all "
            "randomness from `schedule`"
        )
    if drawn != sorted(set(drawn)) or not set(drawn) <= set(range(num_clients)):
        raise PluginError(
            f"sampling '{sampling.kind}' drew {drawn} for round {number}; draw distinct positions "
            f"from 0 to {num_clients - 1}, in increasing order"
        )
    return drawn


def draw_positions(
    sampling: ClientSampling, num_clients: int, schedule: SeededRandomness, number: int
) -> Positions:
    """Return what `draw` returns, as an array, without a list where the sampling makes an array."""
    if isinstance(sampling, _DrawsArrays) and is_ours(type(sampling).__module__):
        return sampling.draw_array(num_clients, schedule, number)
    return np.array(draw(sampling, num_clients, schedule, number), dtype=np.int64)


class _DrawsArrays(ClientSampling):
    """A sampling of this package, whose clients are drawn as an array."""

    __slots__ = ()

    def draw_array(self, num_clients: int, schedule: SeededRandomness, number: int) -> Positions:
        """Return what `draw` returns, as an array."""
        raise NotImplementedError

    def draw(self, num_clients: int, schedule: SeededRandomness, number: int) -> list[int]:
        drawn: list[int] = self.draw_array(num_clients, schedule, number).tolist()
        return drawn


def facts_of(sampling: ClientSampling, num_clients: int) -> SamplingFacts:
    """Return the facts of a sampling; a plug-in's lose rate and epoch, so it amplifies nothing."""
    facts = sampling.facts(num_clients)
    if is_ours(type(sampling).__module__):
        return facts
    return dataclasses.replace(facts, independent_rate=None, rounds_of_an_epoch=None)


@register_sampling("everyone", summary="every client in every round")
@dataclass(frozen=True, slots=True, kw_only=True)
class Everyone(_DrawsArrays):
    """The sampling that asks every client in every round."""

    def draw_array(
        self,
        num_clients: int,
        schedule: SeededRandomness,  # noqa: ARG002
        number: int,  # noqa: ARG002
    ) -> Positions:
        return np.arange(num_clients, dtype=np.int64)

    def facts(self, num_clients: int) -> SamplingFacts:
        return SamplingFacts(
            kind=self.kind, largest_cohort=num_clients, independent_rate=1.0, rounds_of_an_epoch=1
        )


@register_sampling("poisson", summary="each client independently with one probability")
@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson(_DrawsArrays):
    """The sampling that asks each client independently with probability `rate` in every round."""

    rate: float = field(metadata=FRACTION)

    def draw_array(self, num_clients: int, schedule: SeededRandomness, number: int) -> Positions:
        coins = schedule.generator("cohort", number).random(num_clients)
        return np.flatnonzero(coins < self.rate).astype(np.int64, copy=False)

    def facts(self, num_clients: int) -> SamplingFacts:
        return SamplingFacts(kind=self.kind, largest_cohort=num_clients, independent_rate=self.rate)

    def oversampled(self, factor: float, most: int | None) -> Self:  # noqa: ARG002
        return dataclasses.replace(self, rate=min(1.0, self.rate * factor))


@register_sampling("fixed_size", summary="a fixed number of clients in every round")
@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSize(_DrawsArrays):
    """The sampling that asks exactly `size` clients a round, without replacement."""

    size: int = field(metadata=_SIZE)

    def draw_array(self, num_clients: int, schedule: SeededRandomness, number: int) -> Positions:
        self.check(num_clients)
        generator = schedule.generator("cohort", number)
        return np.sort(generator.choice(num_clients, self.size, replace=False))

    def check(self, num_clients: int) -> None:
        _check_size(self.size, num_clients)

    def facts(self, num_clients: int) -> SamplingFacts:  # noqa: ARG002
        return SamplingFacts(kind=self.kind, largest_cohort=self.size)

    def oversampled(self, factor: float, most: int | None) -> Self:
        wanted = math.ceil(round(self.size * factor, 9))  # Rounded: 50 times 1.1 is 55, not 56.
        return dataclasses.replace(self, size=min(most or wanted, wanted))


@register_sampling(
    "epochs", summary="a fixed number of clients in every round, and each client once an epoch"
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs(_DrawsArrays):
    """The sampling that asks `size` clients a round and every client exactly once an epoch.

    The last round of an epoch has fewer clients if `size` does not divide their number. Each epoch
    has its own random order. A client takes part in at most ceil(rounds/e) rounds, where
    an epoch has e = ceil(clients/size) rounds, and its noise is calibrated for no more than these.
    """

    size: int = field(metadata=_SIZE)

    def draw_array(self, num_clients: int, schedule: SeededRandomness, number: int) -> Positions:
        self.check(num_clients)
        if self.size == num_clients:  # Every round is an epoch; the order changes nothing.
            return np.arange(num_clients, dtype=np.int64)
        epoch, place = divmod(number - 1, self.rounds_of_an_epoch(num_clients))
        order = _order(schedule, epoch, num_clients)
        return np.sort(order[place * self.size : (place + 1) * self.size])

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
        """Return ceil(num_clients/size), the rounds in which every client is asked exactly once."""
        return -(-num_clients // self.size)


@lru_cache(maxsize=2)  # All rounds of an epoch use the same order.
def _order(schedule: SeededRandomness, epoch: int, num_clients: int) -> NDArray[np.int64]:
    return schedule.generator("epoch", epoch).permutation(num_clients)


def _check_size(size: int, num_clients: int) -> None:
    if size > num_clients:
        raise ConfigError(
            f"sampling.size {size} exceeds the {num_clients} clients; set it to at most "
            f"{num_clients}"
        )
