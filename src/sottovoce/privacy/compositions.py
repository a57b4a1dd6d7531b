"""Compositions of events: build them, list their assumptions, remove their amplification."""

import math
from collections.abc import Iterable
from dataclasses import replace

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import UnsupportedEventError
from sottovoce.privacy.events import (
    Allocated,
    Composed,
    Conditional,
    FiniteTable,
    GaussianNoise,
    HiddenBy,
    LaplaceNoise,
    NonPrivate,
    OneBit,
    PrivacyEvent,
    PureDp,
    Repeated,
    Sampled,
    SeededBits,
    Shuffled,
    SummedBits,
    SummedNoise,
    ZeroConcentrated,
    basic_counts,
    describe_assumption,
)
from sottovoce.privacy.pure import pure_epsilon

# What keeps a sample secret, and the assumption that this needs.
SAMPLE_ASSUMPTIONS: dict[HiddenBy, str] = {
    "own-records": "each client samples its own records in secret; a record that is not sampled "
    "counts as zero",
    "central-noise": "a trusted party adds the noise once, to the sum; single contributions are "
    "sampled, and the sample stays secret",
    "secure-sum": "the sample stays secret; clients that were not sampled send the encoding of "
    "zero",
}


def compose_repeated(events: Iterable[tuple[PrivacyEvent, int]]) -> PrivacyEvent:
    """Return the composition in which each event is repeated as often as its count says.

    At least one (event, count) is needed, else `ParameterError` is raised; events under different
    adjacencies raise `AdjacencyMismatchError`.
    """
    parts = tuple(Repeated(event=event, count=count) for event, count in events)
    return parts[0] if len(parts) == 1 else Composed(events=parts)


def assumptions(event: PrivacyEvent) -> tuple[str, ...]:
    """Return the assumptions of all `Conditional` parts, each once, in alphabetical order.

    They are names as stored in the event, such as "chacha20"; `describe_assumption` gives the text.
    """
    found: set[str] = set()
    pending: list[PrivacyEvent] = [event]
    while pending:
        match pending.pop():
            case Conditional(event=inner, assumption=assumption):
                found.add(assumption)
                pending.append(inner)
            case Composed(events=parts):
                pending.extend(parts)
            case (
                Repeated(event=inner)
                | Sampled(event=inner)
                | Shuffled(event=inner)
                | Allocated(event=inner)
            ):
                pending.append(inner)
            case _:
                pass
    return tuple(sorted(found))


def describe_assumptions(event: PrivacyEvent) -> tuple[str, ...]:
    """Return every clause that must be true for the event to hold, each once, as text to print.

    First come the assumptions of its parts (`assumptions`), then those of its amplification: a
    sample, a shuffle, a secure sum or a random allocation does not protect against an observer who
    sees the sample, the order, single messages or the clients' steps. Empty if there are none.
    """
    named = map(describe_assumption, assumptions(event))
    amplified = sorted(filter(None, map(_amplification_assumption, basic_counts(event))))
    return tuple(dict.fromkeys([*named, *amplified]))


def _amplification_assumption(part: PrivacyEvent) -> str | None:
    """Return what a basic event assumes about other parties, in a sentence; None for nothing."""
    match part:
        case Sampled(hidden_by=hidden_by):
            return SAMPLE_ASSUMPTIONS[hidden_by]
        case Shuffled(clients=clients):
            return (
                f"a trusted shuffler, or a secret order in which clients are asked, mixes the "
                f"messages of at least {clients} clients that do not collude"
            )
        case Allocated():
            return "each client draws its step at random, independently of others and in secret"
        case SummedBits(clients=clients) | SummedNoise(clients=clients):
            return f"only sums over at least {clients} clients that do not collude are seen"
        case _:
            return None


def drop_zero_reference(event: PrivacyEvent) -> PrivacyEvent:
    """Return the event to charge if the message also contains the contributions of others.

    Then the neighbor without the contribution need not have fair bits, nor the table's row of zero,
    so the stronger bounds for a zero reference do not apply: `against_zero` becomes False (for
    `SeededBits` `largest_loss` doubles), and a `FiniteTable` becomes `PureDp` with the epsilon
    between any two rows, or `NonPrivate` if that is infinite. Parts of compositions are changed
    alike; all other events, `Sampled` and `Shuffled` ones included, are returned unchanged.
    """
    match event:
        case OneBit() | SummedBits():
            return replace(event, against_zero=False)
        case SeededBits() if event.against_zero:
            # Now the odds of both neighbors may be truncated, at opposite ends.
            return replace(event, against_zero=False, largest_loss=2.0 * event.largest_loss)
        case FiniteTable():
            # With the contributions of others the two neighbors may have any two rows.
            every = replace(event, adjacency=Adjacency.REPLACE_ONE)
            epsilon = pure_epsilon(every)
            if math.isinf(epsilon):
                return NonPrivate(adjacency=event.adjacency)
            return PureDp(epsilon=epsilon, adjacency=event.adjacency)
        case Repeated() | Conditional():
            return replace(event, event=drop_zero_reference(event.event))
        case Composed():
            return replace(event, events=tuple(drop_zero_reference(part) for part in event.events))
        case _:
            return event


def without_trust(event: PrivacyEvent) -> PrivacyEvent:
    """Return the event of the clients' messages by themselves, without trust in any other party.

    Samples, shuffles and secure sums are counted as if they were seen (`reveal_messages`). Central
    noise, which a trusted party adds once to a sum, is in no message: if a part has such noise (a
    sample hidden by it, or a random allocation), the whole event becomes `NonPrivate`.
    """
    if any(
        isinstance(part, Allocated)
        or (isinstance(part, Sampled) and part.hidden_by == "central-noise")
        for part in basic_counts(event)
    ):
        return NonPrivate(adjacency=event.adjacency)
    return reveal_messages(event, reveal_samples=True)


def reveal_messages(event: PrivacyEvent, *, reveal_samples: bool = False) -> PrivacyEvent:
    """Return the event of an observer who sees every single message.

    A shuffle, a secure sum and a random allocation are post-processing of the single messages, so
    the result is an upper bound. With `reveal_samples` the observer also knows the sample. That is
    an upper bound too: for every outcome of the sampling a release either uses the contribution or
    does not depend on it.
    """
    hiding = (Shuffled, SummedBits, SummedNoise, Allocated, *((Sampled,) if reveal_samples else ()))
    parts = basic_counts(event)
    if not any(isinstance(part, hiding) for part in parts):
        return event
    counts: dict[PrivacyEvent, int] = {}
    for part, count in parts.items():
        match part:
            case Shuffled() | Allocated():
                revealed: PrivacyEvent = part.event
            case SummedBits() | SummedNoise():
                revealed = part.local()
            case Sampled() if reveal_samples:
                revealed = part.event
            case _:
                revealed = part
        counts[revealed] = counts.get(revealed, 0) + count
    total = compose_repeated(counts.items())
    for assumption in assumptions(event):
        total = Conditional(event=total, assumption=assumption)
    return total


def as_replace_one(event: PrivacyEvent) -> PrivacyEvent:
    """Return an event under replace-one that holds wherever this event holds under zero-out.

    Two contributions are compared by way of zero: distances (mu, shift) and pure epsilons double,
    rho quadruples (docs/explanation/privacy.md, section 34). That can cost more than two such
    events in composition. Samples, shuffles, secure sums and random allocations are counted as if
    they were seen. Parts that are under replace-one already are kept.

    Raises:
        UnsupportedEventError: If nothing is proved for a part of the event, such as a `RenyiCurve`.
    """
    counts: dict[PrivacyEvent, int] = {}
    for part, count in basic_counts(event).items():
        replaced = _convert_to_replace_one(part)
        counts[replaced] = counts.get(replaced, 0) + count
    total = compose_repeated(counts.items())
    for assumption in assumptions(event):
        total = Conditional(event=total, assumption=assumption)
    return total


def _convert_to_replace_one(part: PrivacyEvent) -> PrivacyEvent:
    if part.adjacency is Adjacency.REPLACE_ONE:
        return part
    match part:
        case NonPrivate() | FiniteTable():
            return replace(part, adjacency=Adjacency.REPLACE_ONE)
        case PureDp():
            return replace(part, epsilon=2.0 * part.epsilon, adjacency=Adjacency.REPLACE_ONE)
        case GaussianNoise():
            return replace(part, mu=2.0 * part.mu, adjacency=Adjacency.REPLACE_ONE)
        case ZeroConcentrated():
            return replace(part, rho=4.0 * part.rho, adjacency=Adjacency.REPLACE_ONE)
        case LaplaceNoise():
            return replace(part, shift=2.0 * part.shift, adjacency=Adjacency.REPLACE_ONE)
        case OneBit():
            return OneBit(
                shift=2.0 * part.shift,
                dimension=part.dimension,
                adjacency=Adjacency.REPLACE_ONE,
            )
        case SummedBits() | SummedNoise():
            return _convert_to_replace_one(part.local())
        case Sampled() | Shuffled() | Allocated():
            return as_replace_one(part.event)
        case _:
            epsilon = pure_epsilon(part)
            if math.isinf(epsilon):
                raise UnsupportedEventError(
                    f"no replace-one bound is proved for {type(part).__name__} charged under "
                    "zero-out; total its ledger separately, or leave it out"
                )
            return PureDp(epsilon=2.0 * epsilon, adjacency=Adjacency.REPLACE_ONE)
