"""The privacy cost of one release: the only place that turns a mechanism's claim into a charge.

    release_event(mechanism, adjacency=Adjacency.ZERO_OUT)
    ReleaseTerms(adjacency=..., visibility=ShuffledMessages(minimum_clients=100))(mechanism)

Runs charge the event that `release_event` returns, sites recompute it, and every command that
prints an epsilon in advance uses it too. Outside of this package and of the audits nothing calls
`Mechanism.privacy`.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, assert_never, runtime_checkable

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import MAX_DIMENSION, L2Ball, SteppedBall
from sottovoce.core.errors import ParameterError, PrivacyError, SottovoceError
from sottovoce.core.registry import is_ours
from sottovoce.mechanisms.coordinate_laws import noise_of
from sottovoce.mechanisms.mechanism import BoundedDensity, Mechanism, SummableCodes
from sottovoce.mechanisms.registry import MECHANISMS, charged_mechanism, is_builtin, kind_of
from sottovoce.privacy import events
from sottovoce.privacy.accounting import PrivacySpent, privacy_spent
from sottovoce.privacy.compositions import SAMPLE_ASSUMPTIONS, drop_zero_reference, without_trust
from sottovoce.privacy.events import (
    Conditional,
    HiddenBy,
    LaplaceNoise,
    NonPrivate,
    OneBit,
    PrivacyEvent,
    Repeated,
    Sampled,
    SamplingScheme,
    Shuffled,
)
from sottovoce.privacy.shuffling import MAX_CLIENTS, shuffled_event

# -- what an observer sees of the messages --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryMessage:
    """The visibility in which the server sees every message and knows its sender."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlySums:
    """The visibility of secure aggregation: only sums of codes over many messages are seen.

    Attributes:
        minimum_clients: Every sum is over messages of at least so many clients that follow the
            mechanism and do not collude, the protected one included; at least 2.
    """

    minimum_clients: int

    def __post_init__(self) -> None:
        parameter_rules.integer(
            "minimum_clients",
            self.minimum_clients,
            low=2,
            high=2**31,
            remedy="set it to 2 or more: the sum of one message is that message",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledMessages:
    """The visibility of the shuffle model: messages in random order, without their senders.

    The messages are those of one round behind a shuffler, or those of one epoch in which clients
    are queried in a secret random order.

    Attributes:
        minimum_clients: At least so many messages are shuffled together; at least 2.
    """

    minimum_clients: int

    def __post_init__(self) -> None:
        parameter_rules.integer(
            "minimum_clients",
            self.minimum_clients,
            low=2,
            high=MAX_CLIENTS,
            remedy="set it to 2 or more: shuffling a single message hides nothing",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisySums:
    """The visibility of central DP: only the sum is seen, with noise added by a trusted party.

    The noise is that of one message of the mechanism.

    Attributes:
        client_sampling_rate: The probability with which each client is sampled, independently and
            secretly (Poisson sampling). 1 means that every client takes part.
    """

    client_sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        parameter_rules.fraction("client_sampling_rate", self.client_sampling_rate)


Visibility = EveryMessage | OnlySums | ShuffledMessages | NoisySums
EVERY_MESSAGE = EveryMessage()

_DIMENSION_REMEDY = (
    "give dimension= (in a command, --dimension), the number of coordinates of an update (1 for a "
    "single number)"
)
# If the dimension is unknown, the event must be the same at these dimensions.
_OTHER_DIMENSIONS = (2, 1000)


@runtime_checkable
class HidesOnlyAgainstZero(Protocol):
    """A mechanism whose zero-out event may hold only if one of the two neighbors is the input 0."""

    @property
    def hides_only_against_zero(self) -> bool:
        """Whether the zero-out event holds only if one of the two neighbors is the input 0."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSample:
    """The secret subsample of contributions on which each round works.

    Attributes:
        rate: The probability that a contribution is in the sample, above 0 and at most 1.
        scheme: How the sample is drawn: "poisson" or "fixed-size".
        hidden_by: What keeps the sample secret: "own-records", "secure-sum" or "central-noise".
    """

    rate: float
    scheme: SamplingScheme
    hidden_by: HiddenBy

    def __post_init__(self) -> None:
        parameter_rules.fraction("sampling rate", self.rate)

    def describe(self) -> dict[str, Any]:
        """Return the sample as plain data.

        Returns:
            The fields by name.
        """
        return {"rate": self.rate, "scheme": self.scheme, "hidden_by": self.hidden_by}


def release_event(
    mechanism: Mechanism,
    *,
    adjacency: Adjacency,
    visibility: Visibility = EVERY_MESSAGE,
    sample: SecretSample | None = None,
) -> PrivacyEvent:
    """Return the privacy event that one release is charged with.

    Args:
        mechanism: The mechanism with which every client encodes.
        adjacency: Which inputs are neighbors.
        visibility: What an observer sees of the messages of a round.
        sample: The secret subsample of contributions on which the round works; None if it works on
            all of them.

    Returns:
        The event. Unless it is `NonPrivate`, it is marked as conditional on a plug-in's claim if
        the mechanism or its domain is a plug-in's.

    Raises:
        PrivacyError: If no bound is proved for the combination.
        ParameterError: If the sample's scheme is unknown, or is "fixed-size" under zero-out; with
            `NoisySums` also if it samples clients and there is a `sample`, or if the mechanism's
            noise is not independent between coordinates.

    Examples:
        >>> from sottovoce import Adjacency, GaussHermite, L2Ball
        >>> ball = L2Ball(dimension=1000, radius=1.0)
        >>> mechanism = GaussHermite(input_domain=ball, levels=16, noise_multiplier=2.0)
        >>> round(release_event(mechanism, adjacency=Adjacency.ZERO_OUT).rho, 4)
        0.125
    """
    if isinstance(charged_mechanism(mechanism).input_domain, SteppedBall):
        return _event_of_steps(charged_mechanism(mechanism), adjacency, visibility, sample)
    match visibility:
        case EveryMessage():
            _check_hidden_by(sample, "own-records", "secure-sum")
            event = _apply_sampling(mechanism, mechanism.privacy(adjacency), sample)
        case OnlySums():
            _check_hidden_by(sample)
            event = _secure_sum_event(mechanism, adjacency, visibility.minimum_clients)
        case ShuffledMessages():
            _check_hidden_by(sample)
            event = _shuffled_event(mechanism, adjacency, visibility.minimum_clients)
        case NoisySums():
            _check_hidden_by(sample, "central-noise")
            event = _noisy_sum_event(mechanism, adjacency, visibility.client_sampling_rate, sample)
        case _:
            assert_never(visibility)
    return mark_plugin_claim(mechanism, event)


def _event_of_steps(
    mechanism: Mechanism,
    adjacency: Adjacency,
    visibility: Visibility,
    sample: SecretSample | None,
) -> PrivacyEvent:
    """Return the event of all noisy steps that a client takes on its own records in a round.

    What the client sends is computed from the noisy outputs of the steps, at no further cost.
    """
    domain = mechanism.input_domain
    assert isinstance(domain, SteppedBall)
    if not isinstance(visibility, EveryMessage) or sample is not None:
        raise PrivacyError(
            "a client that adds noise to each of its local steps is protected by this noise alone: "
            "no further amplification by a channel or a sample is proved; use the channel 'direct' "
            "and leave the sample out"
        )
    own = SecretSample(rate=domain.sampling_rate, scheme="poisson", hidden_by="own-records")
    claim = mechanism.privacy(adjacency)
    if isinstance(claim, NonPrivate):
        return claim
    step = mark_plugin_claim(mechanism, _apply_sampling(mechanism, claim, own))
    return step if domain.steps == 1 else Repeated(event=step, count=domain.steps)


def local_event(
    mechanism: Mechanism, *, adjacency: Adjacency, sample: SecretSample | None = None
) -> PrivacyEvent:
    """Return the privacy event of the same release if every message and its sender were seen.

    This is the local guarantee, which needs no trust in a channel. An observer also learns who was
    sampled. Messages to a trusted party that adds the noise once (a sample hidden by
    "central-noise") have no noise of their own, so their event is `NonPrivate`.

    Args:
        mechanism: The mechanism with which every client encodes.
        adjacency: Which inputs are neighbors.
        sample: The subsample of contributions on which the round works; None if there is none.

    Returns:
        The event without amplification.

    Raises:
        PrivacyError: If no bound is proved for such a sample.
        ParameterError: If the sample's scheme is unknown, or is "fixed-size" under zero-out.
    """
    if sample is not None and sample.hidden_by == "central-noise":
        return NonPrivate(adjacency=adjacency)
    return without_trust(release_event(mechanism, adjacency=adjacency, sample=sample))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseTerms:
    """The terms of a release: a function from a mechanism to the privacy event that is charged.

    Equal terms charge the same and have equal representations, so caches may use them as keys.

    Attributes:
        adjacency: Which inputs are neighbors.
        visibility: What an observer sees of the messages of a round.
        sample: The secret subsample of contributions on which each round works; None for all.
        any_dimension: Whether the dimension is unknown. If epsilon grows with the dimension, the
            largest dimension is charged; if no bound holds for all of them, the release is refused
            with ParameterError.
        claimed_by: The plug-in on whose unproved claim this visibility rests; None for none.
    """

    adjacency: Adjacency
    visibility: Visibility = EVERY_MESSAGE
    sample: SecretSample | None = None
    any_dimension: bool = False
    claimed_by: str | None = None

    def __call__(self, mechanism: Mechanism) -> PrivacyEvent:
        """Return the privacy event that one release of the mechanism is charged with.

        Raises:
            PrivacyError: No bound is proved for the combination.
            ParameterError: The dimension is unknown, and the event depends on it; or as for
                `release_event`.
        """
        event = self._event(mechanism)
        if self.any_dimension:
            _check_dimension_free(mechanism, event, self._event)
        if self.claimed_by is None or isinstance(event, NonPrivate):
            return event
        return Conditional(event=event, assumption=self.claimed_by)

    def _event(self, mechanism: Mechanism) -> PrivacyEvent:
        event = release_event(
            mechanism, adjacency=self.adjacency, visibility=self.visibility, sample=self.sample
        )
        return _at_largest_dimension(mechanism, event) if self.any_dimension else event

    def local(self, mechanism: Mechanism) -> PrivacyEvent:
        """Return the privacy event of the release if every message, sender and sample were seen.

        Args:
            mechanism: The mechanism with which every client encodes.

        Returns:
            The event without amplification; `NonPrivate` if a trusted party adds the noise.
        """
        if isinstance(self.visibility, NoisySums):
            # The messages have no noise of their own: the trusted party adds it.
            return NonPrivate(adjacency=self.adjacency)
        return without_trust(self(mechanism))

    def spent(
        self, event: PrivacyEvent, delta: float, accountant: str | None = None
    ) -> PrivacySpent:
        """Return the epsilon that releases under these terms spend, and what it assumes.

        That a trusted party adds the noise is an assumption of the visibility. It is added here
        because the event states it only if there is a sample.

        Args:
            event: The event of all releases together.
            delta: The delta at which epsilon is computed.
            accountant: The name of the only accountant to use; None for the smallest bound of the
                built-in ones.

        Returns:
            Epsilon, delta and the assumptions.
        """
        spent = privacy_spent(event, delta, accountant)
        promise = SAMPLE_ASSUMPTIONS["central-noise"]
        if not isinstance(self.visibility, NoisySums) or promise in spent.assumptions:
            return spent
        return dataclasses.replace(spent, assumptions=(*spent.assumptions, promise))

    @property
    def amplified(self) -> bool:
        """Whether a `sample`, shuffling or secure aggregation may reduce the cost.

        Noise that a trusted party adds does not count, nor does its sampling of clients.
        """
        return self.sample is not None or isinstance(self.visibility, OnlySums | ShuffledMessages)

    def describe(self) -> dict[str, Any]:
        """Return how the release is amplified, as plain data for a result.

        Returns:
            The sample under "sampling", and the least number of clients under "shuffled_clients"
            or "secure_sum_clients"; empty if there is none of them.
        """
        described: dict[str, Any] = {}
        if self.sample is not None:
            described["sampling"] = self.sample.describe()
        match self.visibility:
            case ShuffledMessages(minimum_clients=clients):
                described["shuffled_clients"] = clients
            case OnlySums(minimum_clients=clients):
                described["secure_sum_clients"] = clients
            case EveryMessage() | NoisySums():
                pass
            case _:
                assert_never(self.visibility)
        return described


def mark_plugin_claim(mechanism: Mechanism, event: PrivacyEvent) -> PrivacyEvent:
    """Return the event, marked as conditional if a plug-in claims the privacy that it follows from.

    Such an event is wrapped in `Conditional`, which names the plug-in: a mechanism, or the domain
    that gives the sensitivity. The contract tests check the mechanisms of this package; the claim
    of a plug-in rests on the plug-in alone. `NonPrivate` claims nothing and is returned unchanged.
    """
    if isinstance(event, NonPrivate):  # there is no claim
        return event
    domain = type(mechanism.input_domain)
    if not is_ours(domain.__module__):
        # The sensitivity is a claim of the plug-in's domain.
        claim = f"plug-in domain {domain.__name__} (module {domain.__module__})"
        event = Conditional(event=event, assumption=claim)
    if is_builtin(mechanism):
        return event
    own = type(mechanism)
    named = [name for name, known in MECHANISMS.imported().items() if known.factory is own]
    who = MECHANISMS.describe_plugin(named[0]) if named else None
    return Conditional(
        event=event, assumption=who or f"plug-in mechanism {own.__name__} (module {own.__module__})"
    )


def _check_hidden_by(sample: SecretSample | None, *proved: HiddenBy) -> None:
    """Raise PrivacyError unless the sample is hidden in a way that is proved for the visibility."""
    if sample is None or sample.hidden_by in proved:
        return
    remedy = f"hide it by {' or '.join(proved)}" if proved else "leave the sample out"
    raise PrivacyError(
        f"no bound is proved for a sample hidden by {sample.hidden_by} together with what is seen "
        f"of the messages on this channel; {remedy}"
    )


def _apply_sampling(
    mechanism: Mechanism, event: PrivacyEvent, sample: SecretSample | None
) -> PrivacyEvent:
    """Return the event on a subsample, with amplification by sampling."""
    if sample is None or sample.rate >= 1.0:
        return event
    if sample.hidden_by == "secure-sum" and _records(mechanism) != 1:
        raise PrivacyError(
            "a sample hidden by secure-sum leaves out all records of a client at once (the client "
            "sends the encoding of zero), so no amplification is proved for a single record; hide "
            "it by own-records, or protect whole clients (records = 1)"
        )
    own_records = sample.hidden_by == "own-records"
    others_remain = own_records and event.adjacency is Adjacency.ZERO_OUT
    if (
        others_remain
        and isinstance(mechanism, HidesOnlyAgainstZero)
        and mechanism.hides_only_against_zero
    ):
        raise PrivacyError(
            f"the zero-out guarantee of '{kind_of(mechanism)}' holds only against the update 0, "
            "but a client that leaves one of its own records out still sends the others; use "
            "adjacency replace-one"
        )
    return Sampled(
        # The message still contains the client's other records, so it is never the input 0.
        event=drop_zero_reference(event) if own_records else event,
        rate=sample.rate,
        scheme=sample.scheme,
        hidden_by=sample.hidden_by,
    )


def _secure_sum_event(mechanism: Mechanism, adjacency: Adjacency, clients: int) -> PrivacyEvent:
    """Return the event of a sum of codes over `clients` clients."""
    if not isinstance(mechanism, SummableCodes):
        raise PrivacyError(
            "a secure sum reduces epsilon for clamped bits and rounded Gaussian noise only; use "
            "mechanism 'clamped_sign', 'poisson_binomial' or 'discrete_gaussian', or account "
            "without the secure sum (in a spec, another channel)"
        )
    return mechanism.summed_event(adjacency, clients)


def _shuffled_event(mechanism: Mechanism, adjacency: Adjacency, clients: int) -> Shuffled:
    """Return the event of one message that is shuffled with those of `clients` clients.

    The other messages hide the protected client as far as they could have come from *its* inputs
    (clones), or from a law that all inputs share (`BoundedDensity`). So the claim of the mechanism
    must hold between any two inputs that clients may have: under replace-one, and for a whole input
    rather than one record of it.
    """
    if adjacency is not Adjacency.REPLACE_ONE:
        raise PrivacyError(
            "amplification by shuffling is proved for adjacency replace-one, which covers zero-out "
            "too; use adjacency replace-one (in a spec, privacy.adjacency = 'replace-one')"
        )
    if _records(mechanism) != 1:
        raise PrivacyError(
            "shuffling needs an epsilon between any two inputs that clients may have, and one "
            "record's epsilon does not provide it; protect whole clients (records = 1; in a spec, "
            "privacy.level = 'client')"
        )
    ratios = mechanism.density_ratios() if isinstance(mechanism, BoundedDensity) else None
    return shuffled_event(mechanism.privacy(adjacency), clients, ratios)


def _noisy_sum_event(
    mechanism: Mechanism,
    adjacency: Adjacency,
    client_sampling_rate: float,
    sample: SecretSample | None,
) -> PrivacyEvent:
    """Return the event of a sum with noise added once, if need be on a subsample."""
    noise_of(mechanism)
    event = mechanism.privacy(adjacency)
    if client_sampling_rate < 1.0:
        if _records(mechanism) != 1:
            raise PrivacyError(
                "a sampled client contributes all of its records, so no amplification by sampling "
                "clients is proved for a single record; set privacy.record_sampling_rate and "
                "sampling 'everyone', or privacy.level = 'client'"
            )
        clients = SecretSample(
            rate=client_sampling_rate, scheme="poisson", hidden_by="central-noise"
        )
        event = _apply_sampling(mechanism, event, clients)
    # If `event` is already on a sample of clients, a second sample is refused here.
    return _apply_sampling(mechanism, event, sample)


def _records(mechanism: Mechanism) -> int:
    """Return the number of records whose mean an input is; 1 for a box."""
    return getattr(mechanism.input_domain, "records", 1)


def _at_largest_dimension(mechanism: Mechanism, event: PrivacyEvent) -> PrivacyEvent:
    """Return the event for the largest dimension, if its epsilon grows with the dimension."""
    match event:
        case OneBit() | events.SummedBits():
            return dataclasses.replace(event, dimension=MAX_DIMENSION)
        case LaplaceNoise() if isinstance(mechanism.input_domain, L2Ball):
            return dataclasses.replace(event, dimension=MAX_DIMENSION)
        case Conditional() | Sampled():
            return dataclasses.replace(event, event=_at_largest_dimension(mechanism, event.event))
        case Shuffled() if _at_largest_dimension(mechanism, event.event) != event.event:
            raise ParameterError(
                f"the amplification of '{kind_of(mechanism)}' by shuffling depends on the "
                f"dimension; {_DIMENSION_REMEDY}"
            )
        case _:
            return event


def _check_dimension_free(
    mechanism: Mechanism, event: PrivacyEvent, event_of: Callable[[Mechanism], PrivacyEvent]
) -> None:
    """Raise ParameterError if the event changes with the dimension of the update."""
    built: Any = mechanism
    for dimension in _OTHER_DIMENSIONS:
        try:
            domain = dataclasses.replace(built.input_domain, dimension=dimension)
            same = event_of(dataclasses.replace(built, input_domain=domain)) == event
        except SottovoceError:  # the mechanism does not exist in this dimension
            same = False
        if not same:
            raise ParameterError(
                f"the cost of a message of '{kind_of(mechanism)}' depends on the dimension; "
                f"{_DIMENSION_REMEDY}"
            )
