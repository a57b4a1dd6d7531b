"""Backups of a ledger, comparison of two copies, and merging of one account over several ledgers.

A backup is one file that holds the state of one moment and is verified before it gets its name.

Merging counts a row once for each ledger that holds it. Rows of two files count as one only where
one file has all rows of the other, charges and messages: the same file under another path, a copy,
or an older copy. Every commit draws a random number that its chain covers, so two ledgers that
were charged separately are never taken for copies, whatever they answered.

If an account has charges of one run in two ledgers, its messages may be in two sums or shuffles;
if it has two names in a run, both messages are in the same one. The messages of other clients may
be repeated as well, if a run was copied and continued in both places, or was made twice with one
seed: then two sums may differ by a single message. No channel hides a message in these cases, so
everything of that run is counted without the channel's amplification.

Each row's chain link is a digest of all rows up to it, so two copies agree up to a row exactly if
their links of that row are equal. They diverge at the first row whose links differ.
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
from sottovoce.ledger.reader import LedgerEntry, LedgerReader
from sottovoce.ledger.records import LedgerPosition
from sottovoce.ledger.verification import Chain
from sottovoce.privacy.compositions import without_trust
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
class TableComparison:
    """A comparison of one table of two copies of a ledger.

    Attributes:
        table: The table: charges, budgets or messages.
        shared: Number of rows at the beginning that both copies have.
        only_first: Number of further rows of the first copy.
        only_second: Number of further rows of the second copy.
    """

    table: Chain
    shared: int
    only_first: int
    only_second: int

    @property
    def agree(self) -> bool:
        """Whether both copies have the same rows."""
        return not self.only_first and not self.only_second

    @property
    def parts_at(self) -> str | None:
        """The first row that differs, if each copy has rows that the other lacks; else None.

        It is a text such as "charge 5"; rows are counted from 1.
        """
        if self.only_first and self.only_second:
            return f"{self.table.removesuffix('s')} {self.shared + 1}"
        return None

    def plain(self) -> dict[str, Any]:
        """Return the attributes, `agree` and `parts_at` as JSON data."""
        return {**asdict(self), "agree": self.agree, "parts_at": self.parts_at}

    def sentence(self) -> str:
        """Return which rows both copies have and, if one contains the other, which to use."""
        if self.agree:
            return f"{self.table}: both copies have the same rows ({self.shared})"
        if self.parts_at:
            return (
                f"{self.table}: the copies diverge at {self.parts_at}; the first continues with "
                f"{self.only_first} rows and the second with {self.only_second} others. Neither "
                "is a copy of the other any more, and neither has the charges of the other"
            )
        longer = "first" if self.only_first else "second"
        more = self.only_first or self.only_second
        return (
            f"{self.table}: both copies share the first {self.shared}, and the {longer} has {more} "
            f"more; use the {longer}"
        )


def compare(first: LedgerReader, second: LedgerReader) -> list[TableComparison]:
    """Compare the charges, then the budgets, then the messages of two copies of a ledger.

    Neither copy is verified here.
    """
    return [_compare_table(table, first, second) for table in _TABLES]


def _compare_table(table: Chain, first: LedgerReader, second: LedgerReader) -> TableComparison:
    shared, lengths = 0, [0, 0]
    together = True
    for links in zip_longest(first.links(table), second.links(table)):
        for place, link in enumerate(links):
            lengths[place] += link is not None
        together = together and links[0] == links[1]
        shared += together
    return TableComparison(
        table=table,
        shared=shared,
        only_first=lengths[0] - shared,
        only_second=lengths[1] - shared,
    )


# The name of a run whose randomness is seeded. It follows from the spec alone, so two runs of one
# spec have the same name and the same noise even if their data differ.
SEEDED_NAME = re.compile(r"[0-9a-f]{16}")

Counted = Literal["as charged", "seen", "one seed", "one noise"]
Counts = Counter[tuple[str, Unit, Counted]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRows:
    """The rows of one account in one ledger file.

    Attributes:
        number: Index of the file in the list of files that are merged.
        root: Index of the longest file that has all rows of this one; its own if no other has.
        entries: Charges of the account.
        repeated: Runs of which another ledger may have the same messages, of any client.
    """

    number: int
    root: int
    entries: Sequence[LedgerEntry]
    repeated: frozenset[str]


@dataclass(slots=True, kw_only=True)
class Merged:
    """The charges of one account in several ledgers, merged so that shared rows count once.

    A source is one of the ledgers, identified by its index. A charge is counted "as charged",
    "seen" (without amplification by a channel or by sampling), or as "one seed" or "one noise"
    (both without any bound).

    Attributes:
        counts: How often each (event as JSON text, unit, how it is counted) occurs in the total.
        own: The same for each source separately, over all its rows.
        counted: Number of rows of each source that are in `counts`.
        same: For (source, other), the number of rows of the source that are counted as the other's.
        doubtful: For (source, other), the number of rows that are counted although the other has a
            row of the same name.
    """

    counts: Counts = field(default_factory=Counter)
    own: list[Counts] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)
    same: Counter[tuple[int, int]] = field(default_factory=Counter)
    doubtful: Counter[tuple[int, int]] = field(default_factory=Counter)

    def number(self, counted: Counted) -> int:
        """Return the number of charges that are counted in this way, such as "as charged"."""
        return sum(count for (*_, how), count in self.counts.items() if how == counted)


def charged_events(counts: Counts) -> list[tuple[PrivacyEvent, Unit, int]]:
    """Return (event, unit, count) for each entry of `counts`, with events as they were charged.

    An event that is counted in two ways has two entries.
    """
    return [(from_json(text), unit, count) for (text, unit, _), count in counts.items()]


def counted_events(counts: Counts) -> list[tuple[PrivacyEvent, int]]:
    """Return (event, count) for each entry of `counts`, with events as the total counts them.

    An event may have lost its amplification, or be NonPrivate where there is no bound.
    """
    return [(_event(text, how), count) for (text, _, how), count in counts.items()]


def merge(sources: Sequence[AccountRows]) -> Merged:
    """Merge the charges of one account in several ledgers.

    A row that two files have counts once, if one of them has all rows of the other
    (`AccountRows.root`). Every other row counts by itself.
    """
    # If a file has all rows of another, they are counted as that file's.
    order = sorted(range(len(sources)), key=lambda one: sources[one].root != sources[one].number)
    releases: dict[tuple[int, int], tuple[int, LedgerEntry]] = {}
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
    """Rules for counting a release, by what else is recorded of its run."""

    def __init__(
        self, releases: Iterable[tuple[int, LedgerEntry]], repeated: frozenset[str]
    ) -> None:
        self._repeated = repeated
        self._ledgers: dict[str, set[int]] = {}
        self._names: dict[str, set[str]] = {}
        # Only messages that may be drawn from a seed: those from system randomness have no
        # commitment.
        self._commitments: dict[object, list[bytes | None]] = {}
        for root, entry in releases:
            self._ledgers.setdefault(_run(entry), set()).add(root)
            self._names.setdefault(_run(entry), set()).add(entry.client)
            if entry.commitment or not entry.is_stored:
                self._commitments.setdefault(entry.key, []).append(entry.commitment)

    def counted(self, entry: LedgerEntry) -> Counted:
        """Return how a release is counted."""
        commitments = self._commitments.get(entry.key, [])
        is_seeded = any(commitments) or SEEDED_NAME.fullmatch(entry.run) is not None
        # The same keystream on the same input gives the same message. On two inputs the noise
        # cancels in the difference of both messages.
        is_same = None not in commitments and len(set(commitments)) == 1
        if len(commitments) > 1 and is_seeded and not is_same:
            return "one seed"
        run, is_repeated = _run(entry), entry.run in self._repeated
        several_names = len(self._names[run]) > 1
        # Noise that is added once, to a sum, has no stored message, but its event is the same as
        # that of a message.
        if not entry.is_stored and _is_noise(entry.event):
            if is_repeated and is_seeded:
                return "one seed"
            if several_names:
                return "one noise"
        is_shared = several_names or is_repeated or len(self._ledgers[run]) > 1
        return "seen" if is_shared and _is_hidden(entry.event) else "as charged"


def _run(entry: LedgerEntry) -> str:
    """Return the name of the run, without the suffix by which a site marks a question."""
    return entry.run.partition("/")[0]


def _event(text: str, counted: Counted) -> PrivacyEvent:
    event = from_json(text)
    match counted:
        case "as charged":
            return event
        case "seen":
            return without_trust(event)
        case "one seed" | "one noise":
            return NonPrivate(adjacency=event.adjacency)


@lru_cache(maxsize=1024)
def _is_hidden(text: str) -> bool:
    event = from_json(text)
    return without_trust(event) != event


@lru_cache(maxsize=1024)
def _is_noise(text: str) -> bool:
    parts = basic_counts(from_json(text))
    return any(isinstance(part, GaussianNoise | LaplaceNoise) for part in parts)


def _find_doubtful(releases: Iterable[tuple[int, LedgerEntry]], merged: Merged) -> None:
    """Count the releases of the same name that are counted for two sources."""
    first: dict[object, int] = {}
    for place, entry in releases:
        known = first.setdefault((_run(entry), *entry.key[1:]), place)
        if known != place:
            merged.doubtful[place, known] += 1


def back_up(ledger: LedgerReader, path: Path) -> LedgerPosition:
    """Write a verified copy of a whole ledger to a new file that only its owner can read.

    Other processes may continue to charge the ledger meanwhile. An existing file is not replaced.

    Args:
        ledger: The ledger to copy.
        path: The file to create.

    Returns:
        The position of the copy: its number of charges and messages, and their chain links.

    Raises:
        LedgerError: `verify` finds a problem in the ledger or its copy (a budget that is exceeded
            is one), or `path` exists.
        OutputError: `path` cannot be written.
    """
    check_whole(ledger)
    before = ledger.position()
    temporary = path.parent / f".{path.name[:100]}.{secrets.token_hex(8)}"
    try:
        with files.explain_os_errors("write", path):
            files.open_private(temporary).close()
        ledger.copy_to(temporary)
        with LedgerReader(temporary) as copy:
            check_whole(copy)
            if copy.head_after(before.charges) != before.charges_head:
                raise LedgerError(f"the copy {path} differs from the ledger; check the disk")
            standing = copy.position()
        with files.explain_os_errors("write", path):
            if not files.rename_if_absent(temporary, path):
                raise LedgerError(f"{path} exists; choose another name for the copy")
    finally:
        temporary.unlink(missing_ok=True)
    return standing


def check_whole(ledger: LedgerReader) -> None:
    """Raise LedgerError with the first problem that `verify` finds in a ledger, if any."""
    for problem in ledger.verify():
        raise LedgerError(
            f"{problem}; a damaged ledger is not copied. Run 'sottovoce ledger verify' for a list "
            "of everything that is wrong, and restore the ledger from a backup"
        )
