"""How messages reach the server: the register of channels, one decorator on a frozen dataclass.

    @register_channel("post", summary="letters without a return address")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Post(Channel):
        minimum_clients: int = field(metadata=whole(2, 100))

        @property
        def visibility(self) -> NoSenders:
            return NoSenders(minimum_clients=self.minimum_clients)

Its fields are the keys that may stand beside `kind = "post"` in [channel] (see `core.sections`).
What it asks of a run (plain facts, no spec) and what reports say of it, it states by overriding a
method of `Channel`: nothing else tests for its class or its kind. `Direct` is the one that hides
nothing.

A channel names what is seen of the messages, one of the visibilities of `mechanisms.release`. What
a message costs follows from that, and so do the traits below: a channel cannot invent a cost.

Name its module in `CHANNELS`, or under the entry point group `sottovoce.channels` (see
`core.registry`). A channel imports no torch: specs are read where none is installed.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, assert_never, get_args

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ConfigError, ParameterError, PluginError
from sottovoce.core.plugin_returns import TEXT, TEXTS, Contract, having, hold, instance
from sottovoce.core.registry import Register, is_ours
from sottovoce.core.sections import Registered, check_keys, keys_of
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.release import (
    EveryMessage,
    NoisySums,
    NoSenders,
    OnlySums,
    ReleaseTerms,
    SecretSample,
    Visibility,
)
from sottovoce.privacy.events import HiddenBy
from sottovoce.protocol.message import Opened
from sottovoce.protocol.sums import Cohort, mean_of


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


class Collector(Protocol):
    """Adds up the messages of one round in O(d) memory; codes stay packed where they can."""

    def add(self, mechanism: Mechanism, weight: float, opened: Opened) -> None:
        """Add one message."""

    def result(self) -> Vector | None:
        """Return the mean, or None where nothing may be, or can be, said."""


class Channel:
    """The keys of a [channel] table, what is seen of messages, and all that follows from it.

    A subclass has `visibility`, and overrides what differs.
    """

    __slots__ = ()

    kind: ClassVar[str] = ""  # as it is registered
    assumption: ClassVar[str | None] = None  # what epsilon rests on, beside what its event says

    def __post_init__(self) -> None:
        check_keys(self)

    @property
    def visibility(self) -> Visibility:
        """What is seen of the messages, which decides what each of them costs."""
        raise NotImplementedError

    @property
    def wire_name(self) -> str:
        """The name in the hash of a plan; it never changes, whatever the class is called."""
        keys = ", ".join(f"{name}={getattr(self, name)!r}" for name in keys_of(self))
        return f"{self.kind}({keys})"

    # Traits, which follow from the visibility: no channel says them itself.

    @property
    def shows_each(self) -> bool:
        """Whether the server sees each message and knows whose it is."""
        return isinstance(self.visibility, EveryMessage)

    @property
    def only_sums(self) -> bool:
        """Whether the server sees nothing but sums of messages."""
        return isinstance(self.visibility, OnlySums)

    @property
    def hides_sender(self) -> bool:
        """Whether messages arrive without names, through a `ShufflerStage`."""
        return isinstance(self.visibility, NoSenders)

    @property
    def noise_at_server(self) -> bool:
        """Whether somebody trusted adds noise once, to the sum, so that there are no messages."""
        return isinstance(self.visibility, NoisySums)

    @property
    def fewest_messages(self) -> int:
        """Of how many messages of a round, at least, anything is released."""
        return getattr(known_visibility(self), "minimum_clients", 1)

    # What it can serve.

    def check_runtime(self, facts: RuntimeFacts) -> None:
        """Refuse a way to compute the run; by default none."""

    def check_federation(self, backend: str) -> None:
        """Refuse a run on machines elsewhere; by default not."""

    def check_order(self) -> None:
        """Refuse, at a site, an order by a server; by default not."""

    def check(self, context: ChannelContext) -> None:
        """Refuse clients, sampling or algorithm; by default rounds that are always too small."""
        largest = context.sampling.largest_cohort
        if not self.serves(largest):
            raise ConfigError(
                f"the channel '{self.kind}' releases nothing of fewer than {self.fewest_messages} "
                f"messages, and a round has {largest} clients at most; ask more of them"
            )

    def resolved(self, context: ChannelContext) -> Self:  # noqa: ARG002
        """Return the channel with what follows from the rest of the spec; by default as it is."""
        return self

    def check_cohort(self, cohort: Cohort) -> None:
        """Refuse mechanisms and weights; by default any that differ where messages are hidden."""
        if not self.shows_each:
            check_alike(cohort, f"the channel '{self.kind}'")

    def serves(self, clients: int) -> bool:
        """Return whether a cohort of this (public) size could be released."""
        return clients >= self.fewest_messages

    def collector(self, dimension: int, cohort: Cohort) -> Collector:
        """Return what adds up the messages of a round; by default the mean of all."""
        assert not self.only_sums, "checked() refuses it"
        return mean_of(dimension, cohort)

    # What is said of it.

    def describe(self) -> str:
        """Return what it is, in a line."""
        return f"{self.kind}: a channel of a plug-in"

    def guarantee(self) -> str:
        """Return what hides something, as the subject of the guarantee's sentence."""
        return f"privacy on a channel ({self.describe()}): what is seen of the messages hides"

    def seen_by(self, *, private: bool) -> str:  # noqa: ARG002
        """Return who sees what, for a report; `private` where messages have noise at all."""
        return f"Messages go by the channel '{self.kind}' ({self.describe()})."

    def warnings(
        self,
        local_epsilon: float | None,  # noqa: ARG002
        central_epsilon: float | None,  # noqa: ARG002
    ) -> list[str]:
        """Return what to know before believing a result, from what was spent.

        Args:
            local_epsilon: If every message were seen with its sender.
            central_epsilon: What the channel leaves of it.
        """
        return []

    def facts(self, *, private: bool) -> ChannelFacts:
        """Return what a report asks."""
        return ChannelFacts(
            shows_each=self.shows_each,
            only_sums=self.only_sums,
            noise_at_server=self.noise_at_server,
            seen_by=self.seen_by(private=private),
        )


C = TypeVar("C", bound=type[Channel])

_HERE = "sottovoce.protocol.channels"
CHANNELS: Register[Registered[Channel]] = Register(
    "channel",
    places={
        "direct": f"{_HERE}.channel",
        "secure_sum": f"{_HERE}.secure_sum",
        "shuffler": f"{_HERE}.shuffler",
        "secret_order": f"{_HERE}.secret_order",
        "central": f"{_HERE}.central",
    },
)


_CONTRACT = Contract(
    base=Channel,
    needs=("visibility",),
    returns={
        "resolved": instance(Channel, "a channel"),
        "collector": having(("add", "result"), "a collector of the messages of a round"),
        "describe": TEXT,
        "guarantee": TEXT,
        "seen_by": TEXT,
        "warnings": TEXTS,
    },
)


def register_channel(kind: str, *, summary: str) -> Callable[[C], C]:
    """Class decorator that enters a channel, a frozen dataclass with a property `visibility`.

    Raises:
        PluginError: If the class is no `Channel`.
    """

    def enter(channel: C) -> C:
        if not issubclass(channel, Channel):
            raise PluginError(
                f"the channel '{kind}' is registered by a class that is no Channel; inherit from "
                "sottovoce.protocol.Channel"
            )
        if not is_ours(channel.__module__):
            _check_traits(kind, channel)
        hold(CHANNELS, kind, channel, _CONTRACT)
        channel.kind = kind
        registered: Registered[Channel] = Registered(section=channel, summary=summary)
        CHANNELS.enter(kind, registered, module=channel.__module__)
        return channel

    return enter


_TRAITS = (
    *("shows_each", "only_sums", "hides_sender", "noise_at_server", "fewest_messages", "serves"),
    "facts",
)


def _check_traits(kind: str, channel: type) -> None:
    """Refuse a plug-in that says itself what follows from its visibility."""
    foreign = [one for one in channel.__mro__ if not is_ours(one.__module__)]
    said = [name for name in _TRAITS if any(name in vars(one) for one in foreign)]
    if said:
        raise PluginError(
            f"the channel '{kind}' defines {', '.join(said)}, which follow from its visibility; "
            "leave them out"
        )


def known_visibility(channel: Channel) -> Visibility:
    """Return what is seen of a channel's messages, if its cost is proved.

    Raises:
        PluginError: A plug-in's visibility is none that has a cost.
    """
    visibility = channel.visibility
    if type(visibility) not in get_args(Visibility):
        raise PluginError(
            f"the visibility of the channel '{channel.kind}' is {visibility!r}, and no cost is "
            "proved for it; return EveryMessage, OnlySums, NoSenders or NoisySums of "
            "sottovoce.mechanisms"
        )
    return visibility


def checked(channel: Channel, context: ChannelContext) -> Channel:
    """Return the channel as a run has it, or refuse the run.

    Raises:
        ConfigError: The channel cannot serve it.
        PluginError: A plug-in's visibility is none that has a cost, or claims a sample of clients
            that is not drawn.
    """
    channel.check(context)
    found = channel.resolved(context)
    visibility = known_visibility(found)
    if isinstance(visibility, OnlySums) and type(found).collector is Channel.collector:
        raise PluginError(
            f"the channel '{channel.kind}' shows nothing but sums, and lacks the method "
            "collector(dimension, cohort), which says how bits are added up; define it"
        )
    if isinstance(visibility, NoisySums):
        _check_one_noise(channel.kind, visibility, context)
    if not is_ours(type(channel).__module__):
        minimum = getattr(visibility, "minimum_clients", 1)
        check_reachable(minimum, context, "nothing")
    return found


def _check_one_noise(kind: str, visibility: NoisySums, context: ChannelContext) -> None:
    """Refuse more than one mean a round, or a sample that is not drawn, under one noise."""
    if not context.plain_mean():
        raise ConfigError(
            f"the channel '{kind}' releases one noisy mean a round: use the algorithm 'fedavg' "
            "with aggregation 'mean', or the channel 'direct'"
        )
    if visibility.client_sampling_rate < (context.sampling.independent_rate or 1.0):
        raise PluginError(
            f"the channel '{kind}' counts on clients that take part with probability "
            f"{visibility.client_sampling_rate:g}, and sampling '{context.sampling.kind}' does not "
            "draw them so"
        )


# -- what channels share ---------------------------------------------------------------------------


def check_alike(
    cohort: Cohort,
    what: str,
    remedy: str = "drop 'privacy.groups', and protect whole clients (privacy.level = 'client')",
) -> None:
    """Refuse clients of whom a message tells which it may have come from."""
    if len(set(cohort)) > 1:
        raise ParameterError(
            f"{what} needs the same mechanism and weight for every client; {remedy}"
        )


def check_reachable(minimum: int, context: ChannelContext, nothing: str) -> None:
    """Refuse more clients than a round can have."""
    largest = context.sampling.largest_cohort
    if minimum > largest:
        raise ConfigError(
            f"channel.minimum_clients {minimum} exceeds the {largest} clients that a round can "
            f"have: {nothing} would ever be released"
        )


def terms_of(
    channel: Channel, adjacency: Adjacency, *, record_sampling_rate: float = 1.0
) -> ReleaseTerms:
    """Return what a message costs if each record takes part in it with this probability."""
    sample = None
    if record_sampling_rate < 1.0:
        hidden_by = _records_hidden_by(channel)
        sample = SecretSample(rate=record_sampling_rate, scheme="poisson", hidden_by=hidden_by)
    ours = is_ours(type(channel).__module__)
    return ReleaseTerms(
        adjacency=adjacency,
        visibility=channel.visibility,
        sample=sample,
        claimed_by=None if ours else CHANNELS.plug_in(channel.kind),
    )


def _records_hidden_by(channel: Channel) -> HiddenBy:
    """Return what keeps secret which records a client sampled."""
    match channel.visibility:
        case EveryMessage():
            return "own-records"
        case NoisySums():
            return "central-noise"
        case OnlySums() | NoSenders():
            raise ParameterError(
                "samples of records are accounted on the channels 'direct' and 'central' only, not "
                f"on {channel.describe()}; set the record sampling rate to 1"
            )
        case _:
            assert_never(channel.visibility)


@register_channel("direct", summary="the server sees every message and who sent it")
@dataclass(frozen=True, slots=True, kw_only=True)
class Direct(Channel):
    """Nothing is hidden."""

    @property
    def wire_name(self) -> str:
        """The name in the hash of a plan, whatever the class is called; it never changes."""
        return "Direct()"

    @property
    def visibility(self) -> EveryMessage:
        """Everything is seen."""
        return EveryMessage()

    def serves(self, clients: int) -> bool:  # noqa: ARG002
        """Any cohort will do."""
        return True

    def describe(self) -> str:
        return "direct: the server sees every message"

    def guarantee(self) -> str:
        return "local privacy: the messages hide"

    def seen_by(self, *, private: bool) -> str:
        trust = "It is trusted with all of it."
        if private:
            trust = (
                "Noise is added before anything leaves a client, so the server learns no more than "
                "epsilon allows."
            )
        return f"The server sees every reply and who sent it. {trust}"
