"""The base class and the register of channels, and the channel 'direct'.

A channel decides how messages reach the server. It is a frozen dataclass with a decorator:

    @register_channel("post", summary="letters without a return address")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Post(Channel):
        minimum_clients: int = field(metadata=whole(2, 100))

        @property
        def visibility(self) -> ShuffledMessages:
            return ShuffledMessages(minimum_clients=self.minimum_clients)

Its fields are the keys that are allowed next to `kind = "post"` in [channel] (see `core.sections`).
It overrides methods of `Channel` to state which runs it can serve (it is given plain facts of a
run, not the spec) and what reports say about it. No other code tests for its class or its kind.
`Direct` is the channel that hides nothing.

A channel declares what is seen of the messages, as one of the visibilities of `mechanisms.release`.
The cost of a message and the traits below follow from it, so a channel cannot invent a cost.

List the module of a new channel in `CHANNELS`, or under the entry point group `sottovoce.channels`
(see `core.registry`). A channel must not import torch: specs are also read where it is not
installed.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, assert_never, get_args

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ConfigError, ParameterError, PluginError
from sottovoce.core.plugin_returns import (
    TEXT,
    TEXTS,
    Contract,
    enforce_contract,
    instance,
    with_attributes,
)
from sottovoce.core.registry import Register, is_ours
from sottovoce.core.sections import RegisteredSection, check_keys, keys_of
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.release import (
    EveryMessage,
    NoisySums,
    OnlySums,
    ReleaseTerms,
    SecretSample,
    ShuffledMessages,
    Visibility,
)
from sottovoce.privacy.events import HiddenBy
from sottovoce.protocol.message import MessageContent
from sottovoce.protocol.sums import Cohort, create_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFacts:
    """Facts about how clients are sampled, as far as a channel may ask for them.

    Attributes:
        kind: The name of the sampling in the spec.
        largest_cohort: The largest number of clients that a round can have.
        independent_rate: The probability with which each client takes part in each round,
            independently of other clients and rounds; None if they depend on each other.
        rounds_of_an_epoch: The number of rounds in which every client is asked exactly once, epoch
            after epoch; None if there is no such number.
    """

    kind: str
    largest_cohort: int
    independent_rate: float | None = None
    rounds_of_an_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFacts:
    """Facts about where and how a run is computed.

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
    """The facts of a run that a channel may ask for; channels do not see the spec.

    Attributes:
        clients: The number of all clients.
        rounds: The number of rounds.
        sampling: How clients are sampled.
        unit: What is protected: samples, or whole clients.
        grouped: Whether some clients have a budget or a mechanism of their own.
        minimum_clients: The run halts when fewer clients than this have budget left
            (`privacy.minimum_clients`, not the key of a channel).
        seeded: Whether all randomness comes from the spec's seed.
        algorithm: The name of the algorithm in the spec.
        plain_mean: A function that returns whether the algorithm needs only the mean of one update
            per client, and clients keep no state. Call it only where it matters: it may import a
            plug-in.
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
    """What reports need to know about a channel, as plain data.

    It is stored with a run, because the plug-in may be missing where a report is made.

    Attributes:
        shows_each: Whether the server sees each message and knows who sent it.
        only_sums: Whether the server sees only sums of messages.
        noise_at_server: Whether a trusted party adds noise once, to the sum.
        seen_by: Sentences that say who sees what, and who is trusted.
        is_cryptographic: Whether a protocol between machines hides messages from the server.
    """

    shows_each: bool
    only_sums: bool
    noise_at_server: bool
    seen_by: str
    is_cryptographic: bool = False  # Earlier versions did not store it.

    def plain(self) -> dict[str, Any]:
        """Return the facts as a dictionary for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def read(cls, told: object) -> Self | None:
        """Return the facts from a dictionary that `plain` returned, or None for anything else."""
        fields = {one.name: one.type for one in dataclasses.fields(cls)}
        if not isinstance(told, dict) or {"is_cryptographic", *told} != set(fields):
            return None
        fits = all(type(value) is fields[name] for name, value in told.items())
        return cls(**told) if fits else None


class MeanCollector(Protocol):
    """An object that computes the mean of the messages of one round, in O(d) memory."""

    def add(self, mechanism: Mechanism, weight: float, opened: MessageContent) -> None:
        """Add one message to the mean; codes stay packed where possible.

        Args:
            mechanism: The mechanism that encoded the message.
            weight: The weight of its client in the mean.
            opened: The content of the message, checked against the plan.

        Raises:
            WireError: The message is not of the cohort's mechanism, or the mean was released.
        """

    def result(self) -> Vector | None:
        """Return the mean of the decoded messages, or None.

        It is None if no message was added, or fewer than the channel releases a mean of.
        """


class Channel:
    """The base class of channels, which decide what the server sees of messages.

    A subclass must define `visibility` and may override the other methods. Its fields are the keys
    of a [channel] table.

    Attributes:
        kind: The name under which the channel is registered.
        assumption: What epsilon depends on in addition to the assumptions of its event, as a
            clause; None if there is nothing.
    """

    __slots__ = ()

    kind: ClassVar[str] = ""
    assumption: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        check_keys(self)

    @property
    def visibility(self) -> Visibility:
        """What an observer, such as the server, sees of the messages; it decides their cost.

        Raises:
            NotImplementedError: A subclass must define it.
        """
        raise NotImplementedError

    @property
    def wire_name(self) -> str:
        """The text that stands for the channel in the hash of a plan: its kind and its keys.

        It never changes, even if the class is renamed.
        """
        keys = ", ".join(f"{name}={getattr(self, name)!r}" for name in keys_of(self))
        return f"{self.kind}({keys})"

    # These traits follow from the visibility; channels do not define them.

    @property
    def shows_each(self) -> bool:
        """Whether the server sees each message and knows who sent it."""
        return isinstance(self.visibility, EveryMessage)

    @property
    def only_sums(self) -> bool:
        """Whether the server sees only sums of messages."""
        return isinstance(self.visibility, OnlySums)

    @property
    def hides_sender(self) -> bool:
        """Whether messages arrive without names, through a `ShufflerStage`."""
        return isinstance(self.visibility, ShuffledMessages)

    @property
    def noise_at_server(self) -> bool:
        """Whether a trusted party adds noise once, to the sum, so that messages have none."""
        return isinstance(self.visibility, NoisySums)

    @property
    def most_colluders(self) -> int:
        """The most clients that may work together against the others, and are not counted."""
        return 0

    @property
    def fewest_messages(self) -> int:
        """The smallest number of messages in a round from which the channel releases anything."""
        return getattr(known_visibility(self), "minimum_clients", 1) + self.most_colluders

    @property
    def trusts_server(self) -> bool:
        """Whether the cost of a message relies on a promise of the server, such as to shuffle.

        By default it does, unless the server sees every message anyway.
        """
        return not self.shows_each

    @property
    def is_cryptographic(self) -> bool:
        """Whether a protocol hides messages, so that no client may send one as it is."""
        return not self.trusts_server and not self.shows_each

    # These methods decide which runs the channel can serve.

    def check_runtime(self, facts: RuntimeFacts) -> None:
        """Refuse ways to compute the run that the channel does not support; by default none.

        Args:
            facts: Where and how the run is computed.

        Raises:
            ConfigError: The channel does not support it.
        """

    def check_federation(self, backend: str) -> None:
        """Refuse runs with real clients that the channel cannot serve; by default none.

        Args:
            backend: The value of `runtime.backend`.

        Raises:
            ConfigError: The channel cannot serve that backend.
        """

    def check_order(self) -> None:
        """Refuse, at a site, a server's order (a request for a message) on this channel.

        By default none is refused.

        Raises:
            ConfigError: The channel cannot protect a client that follows an order.
        """

    def check(self, context: ChannelContext) -> None:
        """Refuse clients, sampling or an algorithm that the channel cannot serve.

        By default a run is refused only if its rounds can never have enough clients.

        Args:
            context: The facts of the run.

        Raises:
            ConfigError: The channel cannot serve the run.
        """
        largest = context.sampling.largest_cohort
        if not self.serves(largest):
            raise ConfigError(
                f"the channel '{self.kind}' releases nothing from fewer than "
                f"{self.fewest_messages} messages, but a round has at most {largest} clients; ask "
                "more clients in a round"
            )

    def resolved(self, context: ChannelContext) -> Self:  # noqa: ARG002
        """Return the channel, with those fields set that follow from the rest of the spec.

        Args:
            context: The facts of the run.

        Returns:
            A channel of the same class; by default this one.
        """
        return self

    def check_cohort(self, cohort: Cohort) -> None:
        """Refuse mechanisms and weights that would make messages distinguishable.

        By default they must be equal for all clients, unless the server sees who sent each message.

        Args:
            cohort: Mechanism and weight of each client.

        Raises:
            ParameterError: The channel cannot serve this cohort.
        """
        if not self.shows_each:
            check_equal_clients(cohort, f"the channel '{self.kind}'")

    def serves(self, clients: int) -> bool:
        """Return whether a round with this many clients has enough messages for a release.

        Args:
            clients: The number of clients in the round, which is public.

        Returns:
            Whether there are at least `fewest_messages` clients.
        """
        return clients >= self.fewest_messages

    def collector(self, dimension: int, cohort: Cohort) -> MeanCollector:
        """Return the object that adds up the messages of a round; by default it takes their mean.

        Args:
            dimension: The number of coordinates of the mean.
            cohort: The pair (mechanism, weight) of each client.

        Returns:
            A new collector, an object with `add` and `result` as in `MeanCollector`, for one round
            and one uplink (one of the vectors that clients send).
        """
        assert not self.only_sums, "check_channel refuses it"
        return create_mean(dimension, cohort)

    # These methods write what is shown to users.

    def describe(self) -> str:
        """Return a one-line description of the channel and of who is trusted.

        Returns:
            A clause without a final period.
        """
        return f"{self.kind}: a channel of a plug-in"

    def guarantee(self) -> str:
        """Return the beginning of the sentence that states the guarantee: what hides the data.

        Returns:
            The text, which ends in a subject and the verb 'hide' or 'hides'.
        """
        return f"privacy on a channel ({self.describe()}): what is seen of the messages hides"

    def seen_by(self, *, private: bool) -> str:  # noqa: ARG002
        """Return who sees what, and who is trusted, for a report.

        Args:
            private: Whether messages have noise at all.

        Returns:
            One or more sentences.
        """
        return f"Messages go by the channel '{self.kind}' ({self.describe()})."

    def warnings(
        self,
        local_epsilon: float | None,  # noqa: ARG002
        central_epsilon: float | None,  # noqa: ARG002
    ) -> list[str]:
        """Return what a user should know before relying on a result.

        Args:
            local_epsilon: The largest epsilon that a client has spent in all rounds so far if every
                message, its sender and the sampled records were seen; None if that is infinite or
                messages have no noise of their own.
            central_epsilon: The same given what the channel hides and that samples stay secret;
                None if that is infinite or the channel hides nothing.

        Returns:
            Warnings, one clause each; by default none.
        """
        return []

    def facts(self, *, private: bool) -> ChannelFacts:
        """Return what reports need to know about the channel.

        Args:
            private: Whether messages have noise at all.

        Returns:
            Plain data that can be stored with a run.
        """
        return ChannelFacts(
            shows_each=self.shows_each,
            only_sums=self.only_sums,
            noise_at_server=self.noise_at_server,
            seen_by=self.seen_by(private=private),
            is_cryptographic=self.is_cryptographic,
        )


C = TypeVar("C", bound=type[Channel])

_HERE = "sottovoce.protocol.channels"
CHANNELS: Register[RegisteredSection[Channel]] = Register(
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
        "collector": with_attributes(("add", "result"), "a collector of the messages of a round"),
        "describe": TEXT,
        "guarantee": TEXT,
        "seen_by": TEXT,
        "warnings": TEXTS,
    },
)


def register_channel(kind: str, *, summary: str) -> Callable[[C], C]:
    """Return a class decorator that registers a channel.

    The class must be a frozen dataclass that inherits from `Channel` and defines `visibility`.

    Args:
        kind: The name of the channel, as in `channel.kind`.
        summary: One line about what is seen and who is trusted, for lists.

    Returns:
        The decorator.

    Raises:
        PluginError: When the decorator is applied: the class does not inherit from `Channel`, a
            plug-in is no dataclass, lacks `visibility`, or defines a trait that follows from it, or
            another module has registered the name.
    """

    def enter(channel: C) -> C:
        if not issubclass(channel, Channel):
            raise PluginError(
                f"the class of the channel '{kind}' is not a Channel; inherit from "
                "sottovoce.protocol.Channel"
            )
        if not is_ours(channel.__module__):
            _check_traits(kind, channel)
        enforce_contract(CHANNELS, kind, channel, _CONTRACT)
        channel.kind = kind
        registered: RegisteredSection[Channel] = RegisteredSection(section=channel, summary=summary)
        CHANNELS.enter(kind, registered, module=channel.__module__)
        return channel

    return enter


_TRAITS = (
    *("shows_each", "only_sums", "hides_sender", "noise_at_server", "fewest_messages", "serves"),
    *("facts", "most_colluders", "trusts_server", "is_cryptographic"),
)


def _check_traits(kind: str, channel: type) -> None:
    """Refuse a plug-in that overrides what follows from its visibility."""
    foreign = [one for one in channel.__mro__ if not is_ours(one.__module__)]
    said = [name for name in _TRAITS if any(name in vars(one) for one in foreign)]
    if said:
        raise PluginError(
            f"the channel '{kind}' defines {', '.join(said)}, which must follow from its "
            "visibility; remove the definition"
        )


def known_visibility(channel: Channel) -> Visibility:
    """Return a channel's visibility, provided that the privacy cost of a message is proved for it.

    Raises:
        PluginError: A plug-in's visibility is not one of those with a proved cost.
    """
    visibility = channel.visibility
    if type(visibility) not in get_args(Visibility):
        raise PluginError(
            f"the visibility of the channel '{channel.kind}' is {visibility!r}, for which no "
            "privacy cost is proved; return EveryMessage, OnlySums, ShuffledMessages or "
            "NoisySums from sottovoce.mechanisms"
        )
    return visibility


def check_channel(channel: Channel, context: ChannelContext) -> Channel:
    """Check a channel against a run, and return it with the fields that follow from the spec.

    Raises:
        ConfigError: The channel cannot serve the run.
        PluginError: A plug-in's visibility is not one of those with a proved cost, it shows only
            sums but defines no `collector`, or it assumes that clients are sampled at a lower rate
            than they are.
    """
    channel.check(context)
    found = channel.resolved(context)
    visibility = known_visibility(found)
    if isinstance(visibility, OnlySums) and type(found).collector is Channel.collector:
        raise PluginError(
            f"the channel '{channel.kind}' shows only sums but does not say how bits are added; "
            "define the method collector(dimension, cohort), where cohort has the pair (mechanism, "
            "weight) of each client; help(sottovoce.protocol.Channel.collector) says what it "
            "returns"
        )
    if isinstance(visibility, NoisySums):
        _check_one_noise(channel.kind, visibility, context)
    if not is_ours(type(channel).__module__):
        minimum = getattr(visibility, "minimum_clients", 1)
        check_reachable(minimum, context, "nothing")
    return found


def _check_one_noise(kind: str, visibility: NoisySums, context: ChannelContext) -> None:
    """Refuse more than one mean per round, or a sampling rate that is not the drawn one."""
    if not context.plain_mean():
        raise ConfigError(
            f"the channel '{kind}' releases one noisy mean per round; use the algorithm 'fedavg' "
            "with aggregation 'mean', or the channel 'direct'"
        )
    if visibility.client_sampling_rate < (context.sampling.independent_rate or 1.0):
        raise PluginError(
            f"the channel '{kind}' assumes that each client takes part independently with "
            f"probability {visibility.client_sampling_rate:g}, but sampling "
            f"'{context.sampling.kind}' does not draw clients like that; return the rate of the "
            "sampling from resolved(context)"
        )


# -- what channels share ---------------------------------------------------------------------------


def check_equal_clients(
    cohort: Cohort,
    what: str,
    remedy: str = "drop 'privacy.groups', and protect whole clients (privacy.level = 'client')",
) -> None:
    """Refuse a cohort whose clients differ in mechanism or weight, which would identify them.

    Args:
        cohort: Mechanism and weight of each client.
        what: What needs equal clients, for the message: "a shuffler", for example.
        remedy: What to do, for the message.

    Raises:
        ParameterError: Mechanisms or weights differ.
    """
    if len(set(cohort)) > 1:
        raise ParameterError(
            f"{what} needs the same mechanism and weight for every client; {remedy}"
        )


def check_reachable(
    minimum: int, context: ChannelContext, nothing: str, *, colluders: int = 0
) -> None:
    """Refuse a minimum that exceeds the number of clients that a round can have.

    Args:
        minimum: The smallest number of clients that follow the protocol.
        context: The facts of the run.
        nothing: What would never be released, for the message: "no sum", for example.
        colluders: How many clients must take part in addition to them.

    Raises:
        ConfigError: The minimum is too large.
    """
    largest = context.sampling.largest_cohort
    if minimum + colluders > largest:
        plus = f" plus channel.colluders = {colluders}" if colluders else ""
        raise ConfigError(
            f"channel.minimum_clients = {minimum}{plus} exceeds the {largest} clients that a round "
            f"can have, so {nothing} would ever be released; lower channel.minimum_clients, or ask "
            "more clients in a round (data.clients and [sampling])"
        )


def terms_of(
    channel: Channel, adjacency: Adjacency, *, record_sampling_rate: float = 1.0
) -> ReleaseTerms:
    """Return the terms by which the messages of a channel are charged.

    Args:
        channel: The channel.
        adjacency: The adjacency of the guarantee.
        record_sampling_rate: The probability with which each record secretly takes part in a round;
            1 if all do.

    Returns:
        The terms. Called with a mechanism, they return the privacy event of one of its messages.

    Raises:
        ParameterError: `record_sampling_rate` is not above 0. Or it is below 1, and the channel's
            visibility is neither EveryMessage nor NoisySums: only for these is its cost proved.
    """
    sample = None
    if record_sampling_rate < 1.0:
        hidden_by = _records_hidden_by(channel)
        sample = SecretSample(rate=record_sampling_rate, scheme="poisson", hidden_by=hidden_by)
    ours = is_ours(type(channel).__module__)
    return ReleaseTerms(
        adjacency=adjacency,
        visibility=channel.visibility,
        sample=sample,
        claimed_by=None if ours else CHANNELS.describe_plugin(channel.kind),
    )


def _records_hidden_by(channel: Channel) -> HiddenBy:
    """Return what keeps secret which records a client has sampled."""
    match channel.visibility:
        case EveryMessage():
            return "own-records"
        case NoisySums():
            return "central-noise"
        case OnlySums() | ShuffledMessages():
            raise ParameterError(
                "sampling of records is accounted for on the channels 'direct' and 'central' only, "
                f"got '{channel.kind}'; remove 'privacy.record_sampling_rate'"
            )
        case _:
            assert_never(channel.visibility)


@register_channel("direct", summary="the server sees every message and who sent it")
@dataclass(frozen=True, slots=True, kw_only=True)
class Direct(Channel):
    """The channel that hides nothing: the server sees every message and who sent it.

    The guarantee is local differential privacy: it rests only on the noise that a client adds to
    its own message. The client trusts neither the server nor other clients.
    """

    @property
    def wire_name(self) -> str:
        """The text that stands for the channel in the hash of a plan; it never changes."""
        return "Direct()"

    @property
    def visibility(self) -> EveryMessage:
        """What the server sees of the messages: each of them, with its sender."""
        return EveryMessage()

    def serves(self, clients: int) -> bool:  # noqa: ARG002
        """Return True: this channel releases a result from any number of clients.

        Args:
            clients: The number of clients in the round; it is not used.

        Returns:
            True.
        """
        return True

    def describe(self) -> str:
        return "direct: the server sees every message"

    def guarantee(self) -> str:
        return "local privacy: the messages hide"

    def seen_by(self, *, private: bool) -> str:
        trust = "Values are sent as they are, so the server is trusted with the data in them."
        if private:
            trust = (
                "Each client adds noise before anything leaves it, so what the server learns is "
                "bounded by epsilon."
            )
        return f"The server sees every message and who sent it. {trust}"
