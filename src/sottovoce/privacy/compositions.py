"""Compositions of events: made from counts, and read (what they rest on, what others may see)."""

import math
from collections.abc import Iterable
from dataclasses import replace

from sottovoce.adjacency import Adjacency
from sottovoce.privacy.events import (
    Allocated,
    Assumed,
    Composed,
    FiniteTable,
    NonPrivate,
    OneBit,
    PrivacyEvent,
    PureDp,
    Repeated,
    Sampled,
    SecureSum,
    SeededBits,
    Shuffled,
    basic_counts,
)
from sottovoce.privacy.pure import pure_epsilon


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
            case Repeated(event=inner) | Sampled(event=inner) | Shuffled(event=inner):
                pending.append(inner)
            case _:
                pass
    return tuple(sorted(found))


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


def unhidden(event: PrivacyEvent) -> PrivacyEvent:
    """What the event would be if every message were seen: hiding is post-processing."""
    parts = basic_counts(event)
    if not any(isinstance(part, Shuffled | SecureSum | Allocated) for part in parts):
        return event
    counts: dict[PrivacyEvent, int] = {}
    for part, count in parts.items():
        match part:
            case Shuffled() | Allocated():
                seen: PrivacyEvent = part.event
            case SecureSum():
                seen = part.local()
            case _:
                seen = part
        counts[seen] = counts.get(seen, 0) + count
    shown = multiset(counts.items())
    for assumption in assumptions(event):
        shown = Assumed(event=shown, assumption=assumption)
    return shown
