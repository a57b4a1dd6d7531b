"""The releases that several ledgers record, each once.

Charges have no number of their own beyond their ledger: the chain of a ledger begins with nothing,
so two runs of one spec write the same rows, and their messages alone differ. Two rows are taken
for one release only if they have the same run, client, round, uplink, attempt, unit and event, and

    lie in one file                 whatever path leads to it, or
    have the same message, and      their run has a name of its own (part of it is drawn at random),
                                    or their commitments show the same keystream and input, or
    have no message in either       and their run has a name of its own, and all rows before them
                                    are the same: copies of a ledger that stores no messages.

A row without a message, in a ledger that stores messages of its run, has released nothing; where it
is the beginning of a row of another copy, it is that row. All others are counted one by one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sottovoce.adjacency import Unit
from sottovoce.ledger.reader import Entry
from sottovoce.privacy.compositions import unhidden
from sottovoce.privacy.event_json import from_json
from sottovoce.privacy.events import PrivacyEvent

# What makes the names of runs, and how many of them are drawn: see their `run_name`s.
_OWN_NAME = re.compile(
    r"[0-9a-f]{16}-[0-9a-f]{8}"
    r"|estimate-[0-9a-f]{16}"
    r"|question-[0-9a-f]{12}-[0-9a-f]{8}(/[0-9a-f]{16})?"
    r"|flower-[0-9]{10,}"
)

Key = tuple[str, str, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The rows of one account in one file; `storing` are the runs whose messages it stores."""

    file: tuple[int, int]
    entries: Sequence[Entry]
    storing: frozenset[str]


@dataclass(slots=True, kw_only=True)
class Merged:
    """What several sources record.

    history   every event with its unit and count
    counted   how many rows of each source are counted for it
    same      (source, other): rows of a source that are counted as the other's
    doubtful  (source, other): rows that are counted although the other has one of the same name
    exposed   releases that are counted as if every message were seen
    """

    history: dict[tuple[str, Unit, bool], int] = field(default_factory=dict)
    counted: list[int]
    same: dict[tuple[int, int], int] = field(default_factory=dict)
    doubtful: dict[tuple[int, int], int] = field(default_factory=dict)
    exposed: int = 0

    def events(self) -> list[tuple[PrivacyEvent, Unit, int]]:
        """(event, unit, count), in the order of first use."""
        found = []
        for (text, unit, is_exposed), count in self.history.items():
            event = from_json(text)
            found.append((unhidden(event, samples_too=True) if is_exposed else event, unit, count))
        return found


@dataclass(slots=True, kw_only=True)
class _Release:
    """A release, by the row that says most about it."""

    entry: Entry
    source: int
    rows: set[tuple[tuple[int, int], int]]
    is_stored: bool


def merge(sources: Sequence[Source]) -> Merged:
    """Count every release of some sources once; the longest source comes first.

    Two messages of one round behind a channel that hides one of them are counted as if they were
    seen: under one name, where the others repeat theirs, two sums or two shuffles differ by these
    two alone; under two names that are one person's, both are in one sum.
    """
    found: dict[Key, list[_Release]] = {}
    merged = Merged(counted=[0] * len(sources))
    order = sorted(range(len(sources)), key=lambda one: -len(sources[one].entries))
    for number in order:
        for entry in sources[number].entries:
            _add(found.setdefault(entry.key, []), entry, number, sources[number], merged)
    together: dict[tuple[object, ...], list[_Release]] = {}
    for (run, _, *others), releases in found.items():
        together.setdefault((run, *others), []).extend(releases)
    for releases in together.values():
        texts = {release.entry.event for release in releases}
        hidden = len(releases) > 1 and any(map(_is_hidden, texts))
        merged.exposed += len(releases) if hidden else 0
        for release in releases:
            key = release.entry.event, release.entry.unit, hidden
            merged.history[key] = merged.history.get(key, 0) + 1
            merged.counted[release.source] += 1
    _find_doubtful(found, merged)
    return merged


def _add(
    releases: list[_Release], entry: Entry, number: int, source: Source, merged: Merged
) -> None:
    row, is_stored = (source.file, entry.id), entry.run in source.storing
    for known in releases:
        if row in known.rows or _is_same(entry, is_stored, known):
            if known.source != number:
                pair = number, known.source
                merged.same[pair] = merged.same.get(pair, 0) + 1
            known.rows.add(row)
            if known.entry.digest is None:
                known.entry = replace(entry, link=known.entry.link)
                known.is_stored = known.is_stored and is_stored
            return
    releases.append(_Release(entry=entry, source=number, rows={row}, is_stored=is_stored))


def _is_same(entry: Entry, is_stored: bool, known: _Release) -> bool:
    """Whether a row of another file is shown to be of a known release."""
    other = known.entry
    if (entry.event, entry.unit) != (other.event, other.unit):
        return False
    same_message = entry.digest is not None and entry.digest == other.digest
    if same_message and entry.commitment is not None and entry.commitment == other.commitment:
        return True
    if _OWN_NAME.fullmatch(entry.run) is None:
        return False
    if entry.digest is not None and other.digest is not None:
        return same_message
    if entry.link != other.link:
        return False
    # Without a message nothing has left, but only where messages are stored before they leave.
    bare = [
        stored for one, stored in ((entry, is_stored), (other, known.is_stored)) if not one.digest
    ]
    return len(bare) == 2 or all(bare)


def _is_hidden(text: str) -> bool:
    event = from_json(text)
    return unhidden(event, samples_too=True) != event


def _find_doubtful(found: dict[Key, list[_Release]], merged: Merged) -> None:
    """Releases of the same name that were counted more than once, or may be an order's answer."""
    by_name: dict[tuple[object, ...], list[_Release]] = {}
    for (run, *others), releases in found.items():
        # A site adds to the name of a question what it was asked.
        by_name.setdefault((run.partition("/")[0], *others), []).extend(releases)
    for releases in by_name.values():
        first = releases[0]
        for other in releases[1:]:
            if other.source != first.source:
                pair = other.source, first.source
                merged.doubtful[pair] = merged.doubtful.get(pair, 0) + 1
