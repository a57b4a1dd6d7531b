"""Ledgers as they were at one moment, and which of them have the rows of others."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from sottovoce.deployment.policy import Policy
from sottovoce.deployment.site import SITE_FILE, read_site
from sottovoce.deployment.witness import check_kept
from sottovoce.ledger import seal as seals
from sottovoce.ledger.copies import SEEDED_NAME
from sottovoce.ledger.database import DERIVED
from sottovoce.ledger.ledger import LEDGER_NAME
from sottovoce.ledger.reader import Entry, LedgerReader
from sottovoce.ledger.records import FIRST_EVENT, Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A ledger as it was at one moment. `site` is the name of the site whose account it is.

    `held_by` are the numbers of all ledgers that have every row of it, its own among them;
    `repeated` are its runs of which another ledger may have the same messages.
    """

    path: str
    file: Path
    inode: tuple[int, int]
    standing: Standing
    clients: tuple[str, ...]
    rows: Mapping[str, Sequence[Entry]]
    runs: frozenset[str]
    site: str | None = None
    policy: Policy | None = None
    admitted: bool = False
    number: int = 0
    held_by: frozenset[int] = frozenset()
    repeated: frozenset[str] = frozenset()

    def holds(self, other: "Opened") -> bool:
        """Whether all rows of another are in this ledger, charges and messages."""
        mine, its = self.standing, other.standing
        if its.charges > mine.charges or its.messages > mine.messages:
            return False
        if self.inode == other.inode:
            return True
        # Two runs of one spec share what an earlier version's ledger is given for an identity, and
        # their charges have no random numbers: a copy of it is not told from another run.
        if its.identity != mine.identity or its.identity.startswith(DERIVED):
            return False
        with LedgerReader(self.file) as ledger:  # which only grows
            return (
                ledger.head_after(its.charges) == its.charges_head
                and ledger.head_after(its.messages, "messages") == its.messages_head
            )

    def repeats(self, other: "Opened") -> frozenset[str]:
        """Runs of which both may have the same messages: of a copy that went on, or of one seed."""
        if self.number in other.held_by or other.number in self.held_by:
            return frozenset()
        shared = self.runs & other.runs
        if self.standing.identity == other.standing.identity:
            return shared
        return frozenset(run for run in shared if SEEDED_NAME.fullmatch(run))

    def root(self, among: Iterable["Opened"]) -> int:
        """The number of the longest ledger that has every row of this one."""
        holders = [one for one in among if one.number in self.held_by]
        longest = max(
            holders, key=lambda one: (one.standing.charges, one.standing.messages, -one.number)
        )
        return longest.number


def open_ledger(shown: str, names: tuple[str, ...]) -> Opened:
    """Read the charges of some clients, or of all, while others may go on charging.

    A ledger that was altered, or is not the one that its site was charged in, is refused.
    """
    path = Path(shown)
    file = path / LEDGER_NAME if path.is_dir() else path
    folder = path if path.is_dir() else path.parent
    is_site = file.name == LEDGER_NAME and (folder / SITE_FILE).is_file()
    site = read_site(folder / SITE_FILE) if is_site else None
    policy = site.policy if site else None
    sealed = seals.read(folder / seals.SEAL_NAME) if is_site else None
    seals.check_there(file, sealed)
    with LedgerReader(file) as ledger:
        if is_site:
            check_kept(ledger, folder)
        with ledger.snapshot():
            ledger.check_unaltered()
            if is_site:
                seals.check(ledger, sealed, file)
            clients = tuple(ledger.clients())
            status = file.stat()
            standing, runs = ledger.standing(), ledger.runs()
            rows: dict[str, list[Entry]] = {}
            for entry in ledger.entries(clients if site or not names else names):
                rows.setdefault(entry.client, []).append(entry)
            admitted = False
            if isinstance(policy, Policy):
                units = {entry.unit for entries in rows.values() for entry in entries}
                if units <= {policy.level}:
                    history = ledger.everything(policy.level)
                    spent = policy.filter(ledger.budget(FIRST_EVENT)).spent(history)
                    admitted = spent <= policy.epsilon_total
    return Opened(
        path=shown,
        file=file,
        inode=(status.st_dev, status.st_ino),
        standing=standing,
        clients=clients,
        rows=rows,
        runs=runs,
        site=site.name if site else None,
        policy=policy if isinstance(policy, Policy) else None,
        admitted=admitted,
    )


def sum_up(values: Iterable[float]) -> float:
    """The sum of some numbers, rounded up where no float is it."""
    exact = sum(map(Fraction, values), Fraction())
    nearest = float(exact)
    return math.nextafter(nearest, math.inf) if Fraction(nearest) < exact else nearest


def compared(opened: Sequence[Opened]) -> list[Opened]:
    """The same, each with its number and with what others have of it."""
    numbered = [
        replace(
            one,
            number=number,
            held_by=frozenset(
                place for place, other in enumerate(opened) if place == number or other.holds(one)
            ),
        )
        for number, one in enumerate(opened)
    ]
    return [
        replace(one, repeated=frozenset().union(*(one.repeats(other) for other in numbered)))
        for one in numbered
    ]
