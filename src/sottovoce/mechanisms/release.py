"""What one release costs: the one place that decides it, and the terms of a release as data.

    release_event(mechanism, adjacency=Adjacency.ZERO_OUT)                        all is seen
    ReleaseTerms(adjacency=..., visibility=NoSenders(minimum_clients=100))        a function of it

Runs charge what `release_event` says, sites recompute it, and whatever prints an epsilon beforehand
asks it too. Nothing else turns a mechanism's own claim into a charge: outside of this package and
of the audits nobody calls `Mechanism.privacy`.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, assert_never, runtime_checkable

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import MAX_DIMENSION, L2Ball
from sottovoce.core.errors import ParameterError, PrivacyError, SottovoceError
from sottovoce.core.registry import is_ours
from sottovoce.mechanisms.coordinate_laws import noise_of
from sottovoce.mechanisms.mechanism import BoundedDensity, Mechanism
from sottovoce.mechanisms.registry import MECHANISMS, is_own, kind_of
from sottovoce.privacy import events
from sottovoce.privacy.accounting import PrivacySpent, privacy_spent
from sottovoce.privacy.compositions import SAMPLE_ASSUMPTIONS, beside_others, without_promises
from sottovoce.privacy.events import (
    Assumed,
    HiddenBy,
    LaplaceNoise,
    NonPrivate,
    OneBit,
    PrivacyEvent,
    Sampled,
    SamplingScheme,
    Shuffled,
)
from sottovoce.privacy.shuffling import MAX_CLIENTS, shuffled

# -- what is seen of a message ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryMessage:
    """The server sees every message and knows who sent it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlySums:
    """Nothing is seen but sums of bits over at least `minimum_clients` messages."""

    minimum_clients: int

    def __post_init__(self) -> None:
        parameter_rules.integer(
            "minimum_clients",
            self.minimum_clients,
            low=2,
            high=2**31,
            remedy="the sum of one message is that message",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSenders:
    """Messages are seen, at least `minimum_clients` in random order, and not who sent which.

    The messages are those of one round behind a shuffler, and those of one epoch where clients are
    asked in an order that nobody knows.
    """

    minimum_clients: int

    def __post_init__(self) -> None:
        parameter_rules.integer(
            "minimum_clients",
            self.minimum_clients,
            low=2,
            high=MAX_CLIENTS,
            remedy="one message has but one order",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisySums:
    """Nothing is seen but the sum plus the noise of one message, added by someone trusted.

    Each client takes part by a secret coin of probability `client_sampling_rate`.
    """

    client_sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        parameter_rules.fraction("client_sampling_rate", self.client_sampling_rate)


Visibility = EveryMessage | OnlySums | NoSenders | NoisySums
EVERY_MESSAGE = EveryMessage()

_GIVE_DIMENSION = (
    "give dimension= (in a command, --dimension), the number of coordinates of an update: 1 for a "
    "single number"
)
# Where events are compared of which nobody said how many coordinates they are for.
_OTHER_DIMENSIONS = (2, 1000)


@runtime_checkable
class Anchored(Protocol):
    """A mechanism whose zero-out event may hold against the input 0 alone."""

    @property
    def hides_only_against_zero(self) -> bool: ...


@runtime_checkable
class ClampedBits(Protocol):
    """A mechanism of one bit a coordinate whose logits all lie within `logit_bound` of 0."""

    @property
    def logit_bound(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSample:
    """Each round works on a sample that nobody sees, taken with probability `rate`."""

    rate: float
    scheme: SamplingScheme
    hidden_by: HiddenBy

    def __post_init__(self) -> None:
        parameter_rules.fraction("sampling rate", self.rate)

    def describe(self) -> dict[str, Any]:
        """Return the sample as plain data."""
        return {"rate": self.rate, "scheme": self.scheme, "hidden_by": self.hidden_by}


def release_event(
    mechanism: Mechanism,
    *,
    adjacency: Adjacency,
    visibility: Visibility = EVERY_MESSAGE,
    sample: SecretSample | None = None,
) -> PrivacyEvent:
    """Return what one release is charged with.

    Args:
        mechanism: what every client encodes with.
        adjacency: which data sets are neighbors.
        visibility: what others see of the messages of a round.
        sample: the secret sample of contributions on which each round works.

    Raises PrivacyError if no bound is proved for the combination.
    """
    match visibility:
        case EveryMessage():
            _check_hidden_by(sample, "own-records", "secure-sum")
            event = _sampled(mechanism, mechanism.privacy(adjacency), sample)
        case OnlySums():
            _check_hidden_by(sample)
            event = _summed(mechanism, adjacency, visibility.minimum_clients)
        case NoSenders():
            _check_hidden_by(sample)
            event = _among_others(mechanism, adjacency, visibility.minimum_clients)
        case NoisySums():
            _check_hidden_by(sample, "central-noise")
            event = _noisy_sum(mechanism, adjacency, visibility.client_sampling_rate, sample)
        case _:
            assert_never(visibility)
    return mark_plugin_claim(mechanism, event)


def local_event(
    mechanism: Mechanism, *, adjacency: Adjacency, sample: SecretSample | None = None
) -> PrivacyEvent:
    """Return what the same release would cost if every message and its sender were seen.

    Who was sampled is then seen as well. Messages to someone trusted, who adds the noise once, have
    no noise of their own.
    """
    if sample is not None and sample.hidden_by == "central-noise":
        return NonPrivate(adjacency=adjacency)
    return without_promises(release_event(mechanism, adjacency=adjacency, sample=sample))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseTerms:
    """All that decides what a release costs beside its mechanism; a function from that to the cost.

    Equal terms charge the same and look alike in print, so caches may key on them.

    adjacency, visibility, sample   see `release_event`.
    any_dimension                   the dimension is not known: where epsilon grows with it, the
                                    largest counts, or there is none and the release is refused.
    claimed_by                      the plug-in on whose word the visibility is what it is.
    """

    adjacency: Adjacency
    visibility: Visibility = EVERY_MESSAGE
    sample: SecretSample | None = None
    any_dimension: bool = False
    claimed_by: str | None = None

    def __call__(self, mechanism: Mechanism) -> PrivacyEvent:
        """Return what one release of the mechanism is charged with, or refuse."""
        event = self._event(mechanism)
        if self.any_dimension:
            _check_free_of_dimension(mechanism, event, self._event)
        if self.claimed_by is None or isinstance(event, NonPrivate):
            return event
        return Assumed(event=event, assumption=self.claimed_by)

    def _event(self, mechanism: Mechanism) -> PrivacyEvent:
        event = release_event(
            mechanism, adjacency=self.adjacency, visibility=self.visibility, sample=self.sample
        )
        return _in_any_dimension(mechanism, event) if self.any_dimension else event

    def local(self, mechanism: Mechanism) -> PrivacyEvent:
        """Return what the same release would cost if nothing of it were hidden."""
        if isinstance(self.visibility, NoisySums):  # whose messages have no noise of their own
            return NonPrivate(adjacency=self.adjacency)
        return without_promises(self(mechanism))

    def spent(
        self, event: PrivacyEvent, delta: float, accountant: str | None = None
    ) -> PrivacySpent:
        """Return what releases under these terms spend in all, with every promise that it rests on.

        That noise is added once is a promise of the visibility, and where nothing is sampled not of
        the event.
        """
        spent = privacy_spent(event, delta, accountant)
        promise = SAMPLE_ASSUMPTIONS["central-noise"]
        if not isinstance(self.visibility, NoisySums) or promise in spent.assumptions:
            return spent
        return dataclasses.replace(spent, assumptions=(*spent.assumptions, promise))

    @property
    def amplified(self) -> bool:
        """Whether a sample, a shuffle or a secure sum may make the cost smaller."""
        return self.sample is not None or isinstance(self.visibility, OnlySums | NoSenders)

    def describe(self) -> dict[str, Any]:
        """Return how the release is amplified, for a result; empty if it is not."""
        described: dict[str, Any] = {}
        if self.sample is not None:
            described["sampling"] = self.sample.describe()
        match self.visibility:
            case NoSenders(minimum_clients=clients):
                described["shuffled_clients"] = clients
            case OnlySums(minimum_clients=clients):
                described["secure_sum_clients"] = clients
            case EveryMessage() | NoisySums():
                pass
            case _:
                assert_never(self.visibility)
        return described


def mark_plugin_claim(mechanism: Mechanism, event: PrivacyEvent) -> PrivacyEvent:
    """Return `event`, which follows from what a mechanism claims, with whose claim that is.

    The contract tests hold our own mechanisms to theirs; of a plug-in there is nothing else.
    """
    if isinstance(event, NonPrivate):  # which claims nothing
        return event
    domain = type(mechanism.input_domain)
    if not is_ours(domain.__module__):  # the sensitivity is its word
        claim = f"plug-in domain {domain.__name__} (module {domain.__module__})"
        event = Assumed(event=event, assumption=claim)
    if is_own(mechanism):
        return event
    own = type(mechanism)
    named = [name for name, known in MECHANISMS.imported().items() if known.factory is own]
    who = MECHANISMS.plug_in(named[0]) if named else None
    return Assumed(
        event=event, assumption=who or f"plug-in mechanism {own.__name__} (module {own.__module__})"
    )


# -- the cases -------------------------------------------------------------------------------------


def _check_hidden_by(sample: SecretSample | None, *proved: HiddenBy) -> None:
    """Refuse a sample that the visibility does not hide as it is accounted."""
    if sample is None or sample.hidden_by in proved:
        return
    remedy = f"hide it by {' or '.join(proved)}" if proved else "leave the sample out"
    raise PrivacyError(
        f"no bound is proved for a sample hidden by {sample.hidden_by} where messages are seen, or "
        f"hidden, in this way; {remedy}"
    )


def _sampled(
    mechanism: Mechanism, event: PrivacyEvent, sample: SecretSample | None
) -> PrivacyEvent:
    """Return `event`, which the mechanism gives rise to, on the sample."""
    if sample is None or sample.rate >= 1.0:
        return event
    if sample.hidden_by == "secure-sum" and _records(mechanism) != 1:
        raise PrivacyError(
            "a client that sends the encoding of zero leaves all of its records out, so a "
            "sample hidden by secure-sum hides no single record as it is accounted: hide it by "
            "own-records, or protect whole clients (records = 1)"
        )
    own_records = sample.hidden_by == "own-records"
    others_remain = own_records and event.adjacency is Adjacency.ZERO_OUT
    if others_remain and isinstance(mechanism, Anchored) and mechanism.hides_only_against_zero:
        raise PrivacyError(
            f"'{kind_of(mechanism)}' claims less against zero than between two updates, but "
            "where a client leaves one of its own records out the others remain; ask for "
            "adjacency replace-one"
        )
    return Sampled(
        # Where a client's own records are sampled, others are in its message.
        event=beside_others(event) if own_records else event,
        rate=sample.rate,
        scheme=sample.scheme,
        hidden_by=sample.hidden_by,
    )


def _summed(mechanism: Mechanism, adjacency: Adjacency, clients: int) -> events.SecureSum:
    """Return the event of a sum of bits over so many clients."""
    local = mechanism.privacy(adjacency)
    if not isinstance(local, OneBit) or not isinstance(mechanism, ClampedBits):
        raise PrivacyError(
            "secure sums amplify only clamped one-bit codes; use mechanism 'clamped_sign'"
        )
    return events.SecureSum(
        shift=local.shift,
        dimension=local.dimension,
        logit_bound=mechanism.logit_bound,
        clients=clients,
        adjacency=adjacency,
        against_zero=local.against_zero,
    )


def _among_others(mechanism: Mechanism, adjacency: Adjacency, clients: int) -> Shuffled:
    """Return the event of one message among those of so many clients.

    The others hide the protected client in so far as their messages could have come from *its*
    inputs (clones), or from a law that all inputs share (`BoundedDensity`). So what is asked of the
    mechanism must hold between any two inputs that clients may have: replace-one, and a whole
    input, not one record of it.
    """
    if adjacency is not Adjacency.REPLACE_ONE:
        raise PrivacyError(
            "shuffling hides any change of an input, zero-out among them, and is charged as "
            "such: ask for adjacency replace-one (in a spec, privacy.adjacency = 'replace-one')"
        )
    if _records(mechanism) != 1:
        raise PrivacyError(
            "shuffling hides a client among others whose inputs may differ from its own in "
            "everything, so one record's epsilon says nothing here: protect whole clients "
            "(records = 1; in a spec, privacy.level = 'client')"
        )
    ratios = mechanism.density_ratios() if isinstance(mechanism, BoundedDensity) else None
    return shuffled(mechanism.privacy(adjacency), clients, ratios)


def _noisy_sum(
    mechanism: Mechanism,
    adjacency: Adjacency,
    client_sampling_rate: float,
    sample: SecretSample | None,
) -> PrivacyEvent:
    """Return the event of a sum with one noise, on a sample of clients or of their records."""
    noise_of(mechanism)
    event = mechanism.privacy(adjacency)
    if client_sampling_rate < 1.0:
        if _records(mechanism) != 1:
            raise PrivacyError(
                "a client that is sampled brings all of its records, so sampling clients hides no "
                "single record as it is accounted: set privacy.record_sampling_rate and sampling "
                "'everyone', or privacy.level = 'client'"
            )
        clients = SecretSample(
            rate=client_sampling_rate, scheme="poisson", hidden_by="central-noise"
        )
        event = _sampled(mechanism, event, clients)
    return _sampled(mechanism, event, sample)  # which is refused on a sample


def _records(mechanism: Mechanism) -> int:
    """Return of how many contributions an input is the mean; a box has one."""
    return getattr(mechanism.input_domain, "records", 1)


def _in_any_dimension(mechanism: Mechanism, event: PrivacyEvent) -> PrivacyEvent:
    """Return the event with the largest dimension where epsilon grows with it."""
    match event:
        case OneBit() | events.SecureSum():
            return dataclasses.replace(event, dimension=MAX_DIMENSION)
        case LaplaceNoise() if isinstance(mechanism.input_domain, L2Ball):
            return dataclasses.replace(event, dimension=MAX_DIMENSION)
        case Assumed() | Sampled():
            return dataclasses.replace(event, event=_in_any_dimension(mechanism, event.event))
        case Shuffled() if _in_any_dimension(mechanism, event.event) != event.event:
            raise ParameterError(
                f"how well shuffling hides a message of '{kind_of(mechanism)}' depends on "
                f"its dimension; {_GIVE_DIMENSION}"
            )
        case _:
            return event


def _check_free_of_dimension(
    mechanism: Mechanism, event: PrivacyEvent, event_of: Callable[[Mechanism], PrivacyEvent]
) -> None:
    """Refuse a mechanism whose event is another where an update has more coordinates."""
    built: Any = mechanism
    for dimension in _OTHER_DIMENSIONS:
        try:
            domain = dataclasses.replace(built.input_domain, dimension=dimension)
            same = event_of(dataclasses.replace(built, input_domain=domain)) == event
        except SottovoceError:  # not made for so many
            same = False
        if not same:
            raise ParameterError(
                f"what a message of '{kind_of(mechanism)}' costs depends on its dimension; "
                f"{_GIVE_DIMENSION}"
            )
