"""Compositions of events: made from counts, and read (what they rest on, what others may see)."""

import math
from collections.abc import Iterable
from dataclasses import replace

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import UnsupportedEventError
from sottovoce.privacy.events import (
    Allocated,
    Assumed,
    Composed,
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
    SecureSum,
    SeededBits,
    Shuffled,
    ZeroConcentrated,
    assumption_in_words,
    basic_counts,
)
from sottovoce.privacy.pure import pure_epsilon

# What hides a sample, and what must be true for it.
SAMPLE_ASSUMPTIONS: dict[HiddenBy, str] = {
    "own-records": "each client samples its own records in secret; one that is left out counts "
    "as zero",
    "central-noise": "someone trusted adds the noise once, to the sum; single contributions are "
    "sampled, and nobody sees which",
    "secure-sum": "nobody sees who was sampled; clients that were not send the encoding of zero",
}


def multiset(events: Iterable[tuple[PrivacyEvent, int]]) -> PrivacyEvent:
    """The composition of each event as often as its count says."""
    parts = tuple(Repeated(event=event, count=count) for event, count in events)
    return parts[0] if len(parts) == 1 else Composed(events=parts)


def assumptions(event: PrivacyEvent) -> tuple[str, ...]:
    """What the event rests on, each once, in alphabetical order."""
    found: set[str] = set()
    pending: list[PrivacyEvent] = [event]
    while pending:
        match pending.pop():
            case Assumed(event=inner, assumption=assumption):
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


def assumptions_in_words(event: PrivacyEvent) -> tuple[str, ...]:
    """Return every sentence that must be true for the event to hold, each once.

    First what its parts assume (`assumptions`), then what amplifies them: a sample, a shuffle or a
    secure sum is worth nothing to somebody who sees through it.
    """
    named = map(assumption_in_words, assumptions(event))
    amplified = sorted(filter(None, map(_promise, basic_counts(event))))
    return tuple(dict.fromkeys([*named, *amplified]))


def _promise(part: PrivacyEvent) -> str | None:
    """What a basic event needs of others, in a sentence; None for nothing."""
    match part:
        case Sampled(hidden_by=hidden_by):
            return SAMPLE_ASSUMPTIONS[hidden_by]
        case Shuffled(clients=clients):
            return (
                f"a trusted shuffler, or an order of asking that stays secret, mixes at least "
                f"{clients} messages of clients who do not collude"
            )
        case Allocated():
            return "each client draws its step at random, independently of others, in secret"
        case SecureSum(clients=clients):
            return f"nobody sees more than sums over at least {clients} clients who do not collude"
        case _:
            return None


def beside_others(event: PrivacyEvent) -> PrivacyEvent:
    """What the event is if others' contributions are in the message too: no bits need be fair."""
    match event:
        case OneBit() | SecureSum():
            return replace(event, against_zero=False)
        case SeededBits() if event.against_zero:
            # Both neighbours' odds may be truncated now, at opposite ends.
            return replace(event, against_zero=False, largest_loss=2.0 * event.largest_loss)
        case FiniteTable():
            # Others' contributions may choose any rows for the two neighbors.
            every = replace(event, adjacency=Adjacency.REPLACE_ONE)
            epsilon = pure_epsilon(every)
            if math.isinf(epsilon):
                return NonPrivate(adjacency=event.adjacency)
            return PureDp(epsilon=epsilon, adjacency=event.adjacency)
        case Repeated() | Assumed():
            return replace(event, event=beside_others(event.event))
        case Composed():
            return replace(event, events=tuple(beside_others(part) for part in event.events))
        case _:
            return event


def without_promises(event: PrivacyEvent) -> PrivacyEvent:
    """Return what clients' messages give away by themselves, if no promise of others is kept.

    Noise that somebody trusted adds once, to a sum, is in no message.
    """
    if any(
        isinstance(part, Allocated)
        or (isinstance(part, Sampled) and part.hidden_by == "central-noise")
        for part in basic_counts(event)
    ):
        return NonPrivate(adjacency=event.adjacency)
    return unhidden(event, samples_too=True)


def unhidden(event: PrivacyEvent, *, samples_too: bool = False) -> PrivacyEvent:
    """Return what the event would be if every message were seen: hiding is post-processing.

    With `samples_too` also if it were known what was sampled, which is post-processing as well: a
    round works on a contribution or not, whatever the data.
    """
    hiding = (Shuffled, SecureSum, Allocated, *((Sampled,) if samples_too else ()))
    parts = basic_counts(event)
    if not any(isinstance(part, hiding) for part in parts):
        return event
    counts: dict[PrivacyEvent, int] = {}
    for part, count in parts.items():
        match part:
            case Shuffled() | Allocated():
                seen: PrivacyEvent = part.event
            case SecureSum():
                seen = part.local()
            case Sampled() if samples_too:
                seen = part.event
            case _:
                seen = part
        counts[seen] = counts.get(seen, 0) + count
    shown = multiset(counts.items())
    for assumption in assumptions(event):
        shown = Assumed(event=shown, assumption=assumption)
    return shown


def as_replace_one(event: PrivacyEvent) -> PrivacyEvent:
    """Return an event under replace-one that holds wherever this one, under zero-out, does.

    Another contribution is reached by way of zero: distances and pure epsilons double, and rho
    quadruples (docs/privacy.md, section 34). That is more than two events of the same kind. What a
    channel or a sample hides is counted as if it were seen.

    Raises:
        UnsupportedEventError: if nothing is proved for a part of it.
    """
    counts: dict[PrivacyEvent, int] = {}
    for part, count in basic_counts(event).items():
        replaced = _replaced(part)
        counts[replaced] = counts.get(replaced, 0) + count
    shown = multiset(counts.items())
    for assumption in assumptions(event):
        shown = Assumed(event=shown, assumption=assumption)
    return shown


def _replaced(part: PrivacyEvent) -> PrivacyEvent:
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
        case SecureSum():
            return _replaced(part.local())
        case Sampled() | Shuffled() | Allocated():
            return as_replace_one(part.event)
        case _:
            epsilon = pure_epsilon(part)
            if math.isinf(epsilon):
                raise UnsupportedEventError(
                    f"nothing is proved about {type(part).__name__} under replace-one, where it "
                    "was charged under zero-out; count its ledger by itself"
                )
            return PureDp(epsilon=2.0 * epsilon, adjacency=Adjacency.REPLACE_ONE)
