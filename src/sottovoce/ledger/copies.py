"""Whole copies of a ledger, the releases that several record, and where two copies part.

A copy is one file, of one moment, verified before it gets its name.

A row counts for each ledger that it is in. Rows are taken for one only where one file has all rows
of the other, charges and messages: the same file by another path, a copy, or an older copy. Every
commit draws a number that its chain covers, so two ledgers that went on apart are never taken for
copies, whatever they answered.

Where an account has charges of one run in two ledgers, its messages may be in two sums or shuffles,
and where it has two names in a run, both are in one. So may those of others, repeated, if a run was
copied and went on in both, or was made twice with one seed: then two sums may differ by a single
message. Nothing hides it: all that was hidden in that run counts as if it were seen.

Each row's link is a digest of everything up to it, so two copies are the same up to a row exactly
if their links of that row are: where they part is the first row whose links differ.
"""

import re
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from sottovoce.core import files
from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import LedgerError
from sottovoce.ledger.reader import Entry, LedgerReader
from sottovoce.ledger.records import Standing
from sottovoce.ledger.verification import Chain
from sottovoce.privacy.compositions import without_promises
from sottovoce.privacy.event_json import from_json
from sottovoce.privacy.events import (
    GaussianNoise,
    LaplaceNoise,
    NonPrivate,
    PrivacyEvent,
    basic_counts,
)

_TABLES: tuple[Chain, ...] = ("charges", "budgets", "messages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """One table of two copies: how many rows they share, and how many each has beyond them."""

    table: Chain
    shared: int
    only_first: int
    only_second: int

    @property
    def agree(self) -> bool:
        return not self.only_first and not self.only_second

    @property
    def parts_at(self) -> str | None:
        """The first row that the copies do not share, if both went on, each its own way."""
        if self.only_first and self.only_second:
            return f"{self.table.removesuffix('s')} {self.shared + 1}"
        return None

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "agree": self.agree, "parts_at": self.parts_at}

    def sentence(self) -> str:
        if self.agree:
            return f"{self.table}: the same {self.shared}"
        if self.parts_at:
            return (
                f"{self.table}: they part at {self.parts_at}; the first goes on with "
                f"{self.only_first}, the second with {self.only_second} others: neither is a copy "
                "of the other any more, and each forgets what the other has charged"
            )
        longer = "first" if self.only_first else "second"
        more = self.only_first or self.only_second
        return (
            f"{self.table}: the same {self.shared}, then {more} that only the {longer} has; "
            f"go on with the {longer}"
        )


def comparison(first: LedgerReader, second: LedgerReader) -> list[Parting]:
    """Two whole ledgers, table by table; neither is trusted more than the other."""
    return [_parting(table, first, second) for table in _TABLES]


def _parting(table: Chain, first: LedgerReader, second: LedgerReader) -> Parting:
    shared, lengths = 0, [0, 0]
    together = True
    for links in zip_longest(first.links(table), second.links(table)):
        for place, link in enumerate(links):
            lengths[place] += link is not None
        together = together and links[0] == links[1]
        shared += together
    return Parting(
        table=table,
        shared=shared,
        only_first=lengths[0] - shared,
        only_second=lengths[1] - shared,
    )


# The run of a spec whose randomness is seeded: the same name, and noise, whatever the data.
SEEDED_NAME = re.compile(r"[0-9a-f]{16}")

Counted = Literal["as charged", "seen", "one seed", "one noise"]
Counts = Counter[tuple[str, Unit, Counted]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The rows of one account in one file. `root` is the file that has all rows of this one.

    `repeated` are runs of which another ledger may have the same messages, of whatever client.
    """

    number: int
    root: int
    entries: Sequence[Entry]
    repeated: frozenset[str]


@dataclass(slots=True, kw_only=True)
class Merged:
    """What several sources record.

    counts    how often each event is counted, and how
    own       the same for all rows of each source, by themselves
    counted   how many rows of each source are in `counts`
    same      (source, other): rows of a source that are counted as the other's
    doubtful  (source, other): rows that are counted although the other has one of the same name
    """

    counts: Counts = field(default_factory=Counter)
    own: list[Counts] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)
    same: Counter[tuple[int, int]] = field(default_factory=Counter)
    doubtful: Counter[tuple[int, int]] = field(default_factory=Counter)

    def number(self, counted: Counted) -> int:
        """How many releases are counted so."""
        return sum(count for (*_, how), count in self.counts.items() if how == counted)


def charged(counts: Counts) -> list[tuple[PrivacyEvent, Unit, int]]:
    """(event, unit, count) as they were charged, in the order of first use."""
    return [(from_json(text), unit, count) for (text, unit, _), count in counts.items()]


def events(counts: Counts) -> list[tuple[PrivacyEvent, int]]:
    """(event, count) as they are counted."""
    return [(_event(text, how), count) for (text, _, how), count in counts.items()]


def merge(sources: Sequence[Source]) -> Merged:
    """Count every release of some sources, and those that they are shown to share once."""
    # Where a file has all rows of another, they are counted in that one.
    order = sorted(range(len(sources)), key=lambda one: sources[one].root != sources[one].number)
    releases: dict[tuple[int, int], tuple[int, Entry]] = {}
    merged = Merged(counted=[0] * len(sources))
    for place in order:
        for entry in sources[place].entries:
            known, _ = releases.setdefault((sources[place].root, entry.id), (place, entry))
            if known == place:
                merged.counted[place] += 1
            else:
                merged.same[place, known] += 1
    rules = _Rules(
        ((sources[place].root, entry) for place, entry in releases.values()),
        frozenset().union(*(source.repeated for source in sources)),
    )
    for _, entry in releases.values():
        merged.counts[entry.event, entry.unit, rules.counted(entry)] += 1
    merged.own = [
        Counter((entry.event, entry.unit, rules.counted(entry)) for entry in source.entries)
        for source in sources
    ]
    _find_doubtful(releases.values(), merged)
    return merged


class _Rules:
    """How each release is counted, by what else there is of its run."""

    def __init__(self, releases: Iterable[tuple[int, Entry]], repeated: frozenset[str]) -> None:
        self._repeated = repeated
        self._ledgers: dict[str, set[int]] = {}
        self._names: dict[str, set[str]] = {}
        # Of messages that a seed may have drawn: with system randomness they have none.
        self._commitments: dict[object, list[bytes | None]] = {}
        for root, entry in releases:
            self._ledgers.setdefault(_run(entry), set()).add(root)
            self._names.setdefault(_run(entry), set()).add(entry.client)
            if entry.commitment or not entry.is_stored:
                self._commitments.setdefault(entry.key, []).append(entry.commitment)

    def counted(self, entry: Entry) -> Counted:
        commitments = self._commitments.get(entry.key, [])
        is_seeded = any(commitments) or SEEDED_NAME.fullmatch(entry.run) is not None
        # The same keystream on the same input is the same message; on another it gives both away.
        is_same = None not in commitments and len(set(commitments)) == 1
        if len(commitments) > 1 and is_seeded and not is_same:
            return "one seed"
        run, is_repeated = _run(entry), entry.run in self._repeated
        several_names = len(self._names[run]) > 1
        # Noise that is added once, to a sum, has no message, and its event is that of a message.
        if not entry.is_stored and _is_noise(entry.event):
            if is_repeated and is_seeded:
                return "one seed"
            if several_names:
                return "one noise"
        is_shared = several_names or is_repeated or len(self._ledgers[run]) > 1
        return "seen" if is_shared and _is_hidden(entry.event) else "as charged"


def _run(entry: Entry) -> str:
    """The name of its run; a site adds to the name of a question what it was asked."""
    return entry.run.partition("/")[0]


def _event(text: str, counted: Counted) -> PrivacyEvent:
    event = from_json(text)
    match counted:
        case "as charged":
            return event
        case "seen":
            return without_promises(event)
        case "one seed" | "one noise":
            return NonPrivate(adjacency=event.adjacency)


@lru_cache(maxsize=1024)
def _is_hidden(text: str) -> bool:
    event = from_json(text)
    return without_promises(event) != event


@lru_cache(maxsize=1024)
def _is_noise(text: str) -> bool:
    parts = basic_counts(from_json(text))
    return any(isinstance(part, GaussianNoise | LaplaceNoise) for part in parts)


def _find_doubtful(releases: Iterable[tuple[int, Entry]], merged: Merged) -> None:
    """Releases of one name that are counted for two sources."""
    first: dict[object, int] = {}
    for place, entry in releases:
        known = first.setdefault((_run(entry), *entry.key[1:]), place)
        if known != place:
            merged.doubtful[place, known] += 1


def back_up(ledger: LedgerReader, path: Path) -> Standing:
    """Write a copy of a whole ledger to a new file, its owner's alone; return how far it goes.

    Others may go on charging meanwhile. A file that is there already is left alone.
    """
    check_whole(ledger)
    before = ledger.standing()
    temporary = path.parent / f".{path.name[:100]}.{secrets.token_hex(8)}"
    try:
        with files.explained("write", path):
            files.open_private(temporary).close()
        ledger.copy_to(temporary)
        with LedgerReader(temporary) as copy:
            check_whole(copy)
            if copy.head_after(before.charges) != before.charges_head:
                raise LedgerError(f"the copy {path} is not what was copied; check the disk")
            standing = copy.standing()
        with files.explained("write", path):
            if not files.place_new(temporary, path):
                raise LedgerError(f"{path} is there already; choose another name")
    finally:
        temporary.unlink(missing_ok=True)
    return standing


def check_whole(ledger: LedgerReader) -> None:
    """Refuse a ledger in which anything is wrong."""
    for problem in ledger.verify():
        raise LedgerError(
            f"{problem}; a ledger that is not whole is not copied ('sottovoce ledger verify' lists "
            "everything that is wrong)"
        )
