"""What a channel may ask of a run, and a report of a channel: plain facts, no spec."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

from sottovoce.core.adjacency import Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFacts:
    """What a channel may ask of the way in which clients are drawn.

    Attributes:
        kind: Its name in the spec.
        largest_cohort: The most clients that a round can have.
        independent_rate: With which probability each client takes part in each round, by a coin of
            its own; None where rounds or clients depend on each other.
        rounds_of_an_epoch: In how many rounds every client is asked exactly once, one such epoch
            after the other; None where there is no such number.
    """

    kind: str
    largest_cohort: int
    independent_rate: float | None = None
    rounds_of_an_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFacts:
    """Where and how a run is computed.

    Attributes:
        messages: 'stored', 'packed' or 'none', as in [runtime].
        seeded: Whether all randomness comes from the spec's seed.
        rotation: 'auto', 'on' or 'off'.
    """

    messages: Literal["stored", "packed", "none"]
    seeded: bool
    rotation: Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelContext:
    """The plain facts of a run that a channel may look at; it knows no spec.

    Attributes:
        clients: How many there are in all.
        unit: What is protected: samples, or whole clients.
        grouped: Whether some clients have budgets or mechanisms of their own.
        minimum_clients: The run halts where fewer have budget left.
        algorithm: Its name in the spec.
        plain_mean: Whether the algorithm needs nothing but the mean of one update of each client,
            and clients keep nothing. To be called only where it matters: it may import a plug-in.
    """

    clients: int
    rounds: int
    sampling: SamplingFacts
    unit: Unit
    grouped: bool
    minimum_clients: int
    seeded: bool
    algorithm: str
    plain_mean: Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFacts:
    """What reports ask of a channel, as plain data: reports are made where a plug-in may be gone.

    See `Channel` for the fields.
    """

    shows_each: bool
    only_sums: bool
    noise_at_server: bool
    seen_by: str

    def plain(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return dataclasses.asdict(self)

    @classmethod
    def read(cls, told: object) -> Self | None:
        """Return what `plain` wrote; None for anything else."""
        fields = {one.name: one.type for one in dataclasses.fields(cls)}
        if not isinstance(told, dict) or set(told) != set(fields):
            return None
        fits = all(type(told[name]) is kind for name, kind in fields.items())
        return cls(**told) if fits else None
