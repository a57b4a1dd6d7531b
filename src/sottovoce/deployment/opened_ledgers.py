"""Ledgers as of one moment, and which of them contain the rows of others."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from sottovoce.deployment.policy import Policy
from sottovoce.deployment.site import SITE_FILE, read_site
from sottovoce.deployment.witness import check_receipt
from sottovoce.ledger import seal as seals
from sottovoce.ledger.copies import SEEDED_NAME
from sottovoce.ledger.database import DERIVED_PREFIX
from sottovoce.ledger.ledger import LEDGER_NAME
from sottovoce.ledger.reader import LedgerEntry, LedgerReader
from sottovoce.ledger.records import FIRST_EVENT_ACCOUNT, LedgerPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSnapshot:
    """A ledger as of one moment.

    Attributes:
        path: The path as it was given.
        file: The ledger file.
        inode: Device and inode of the file.
        position: The position of the ledger: its identity, and the length and last link of its
            hash chains.
        clients: Names of all clients in the ledger.
        rows: Charges by client, of the clients that were asked for.
        runs: All runs in the ledger.
        site: Name of the site whose account it is, if it is a site's.
        policy: The site's policy; None if it is not a site's ledger.
        admitted: Whether everything that was charged is within the policy's `epsilon_total`.
        number: Number of the ledger among those that are compared.
        held_by: Numbers of the ledgers that have every row of this one, its own included.
        repeated: Its runs of which another ledger may have the same messages.
    """

    path: str
    file: Path
    inode: tuple[int, int]
    position: LedgerPosition
    clients: tuple[str, ...]
    rows: Mapping[str, Sequence[LedgerEntry]]
    runs: frozenset[str]
    site: str | None = None
    policy: Policy | None = None
    admitted: bool = False
    number: int = 0
    held_by: frozenset[int] = frozenset()
    repeated: frozenset[str] = frozenset()

    def holds(self, other: "LedgerSnapshot") -> bool:
        """Return whether this ledger has all rows of another, charges and messages."""
        mine, its = self.position, other.position
        if its.charges > mine.charges or its.messages > mine.messages:
            return False
        if self.inode == other.inode:
            return True
        # A ledger of an earlier version has a derived identity, which two runs of one spec share,
        # and its charges have no random numbers. A copy cannot be told from another run then.
        if its.identity != mine.identity or its.identity.startswith(DERIVED_PREFIX):
            return False
        with LedgerReader(self.file) as ledger:  # it may have grown since, but never shrinks
            return (
                ledger.head_after(its.charges) == its.charges_head
                and ledger.head_after(its.messages, "messages") == its.messages_head
            )

    def repeats(self, other: "LedgerSnapshot") -> frozenset[str]:
        """Return the runs of which both ledgers may have the same messages.

        These are runs of a copy that was charged further, and runs of one seed.
        """
        if self.number in other.held_by or other.number in self.held_by:
            return frozenset()
        shared = self.runs & other.runs
        if self.position.identity == other.position.identity:
            return shared
        return frozenset(run for run in shared if SEEDED_NAME.fullmatch(run))

    def root(self, among: Iterable["LedgerSnapshot"]) -> int:
        """Return the number of the longest ledger that has every row of this one."""
        holders = [one for one in among if one.number in self.held_by]
        longest = max(
            holders, key=lambda one: (one.position.charges, one.position.messages, -one.number)
        )
        return longest.number


def open_ledger(shown: str, names: tuple[str, ...]) -> LedgerSnapshot:
    """Read the charges of some clients, or of all, while other processes may charge.

    `shown` is a ledger file or its folder. All clients are read if `names` is empty or the ledger
    is a site's. Raises LedgerError for a ledger that is missing, was altered, or is not the one
    that its site has charged.
    """
    path = Path(shown)
    file = path / LEDGER_NAME if path.is_dir() else path
    folder = path if path.is_dir() else path.parent
    is_site = file.name == LEDGER_NAME and (folder / SITE_FILE).is_file()
    site = read_site(folder / SITE_FILE) if is_site else None
    policy = site.policy if site else None
    sealed = seals.read(folder / seals.SEAL_NAME) if is_site else None
    seals.check_present(file, sealed)
    with LedgerReader(file) as ledger:
        if is_site:
            check_receipt(ledger, folder)
        with ledger.snapshot():
            ledger.check_unaltered()
            if is_site:
                seals.check(ledger, sealed, file)
            clients = tuple(ledger.clients())
            status = file.stat()
            standing, runs = ledger.position(), ledger.runs()
            rows: dict[str, list[LedgerEntry]] = {}
            for entry in ledger.entries(clients if site or not names else names):
                rows.setdefault(entry.client, []).append(entry)
            admitted = False
            if isinstance(policy, Policy):
                units = {entry.unit for entries in rows.values() for entry in entries}
                if units <= {policy.level}:
                    history = ledger.history_of_all(policy.level)
                    spent = policy.filter(ledger.budget(FIRST_EVENT_ACCOUNT)).spent(history)
                    admitted = spent <= policy.epsilon_total
    return LedgerSnapshot(
        path=shown,
        file=file,
        inode=(status.st_dev, status.st_ino),
        position=standing,
        clients=clients,
        rows=rows,
        runs=runs,
        site=site.name if site else None,
        policy=policy if isinstance(policy, Policy) else None,
        admitted=admitted,
    )


def sum_rounded_up(values: Iterable[float]) -> float:
    """Return the sum of some numbers, rounded up if no float equals it."""
    exact = sum(map(Fraction, values), Fraction())
    nearest = float(exact)
    return math.nextafter(nearest, math.inf) if Fraction(nearest) < exact else nearest


def compare_ledgers(opened: Sequence[LedgerSnapshot]) -> list[LedgerSnapshot]:
    """Return the snapshots with `number`, `held_by` and `repeated` filled in, in the same order."""
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
