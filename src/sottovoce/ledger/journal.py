"""What a party of a protocol has done, so that it never does it twice.

A journal lies in the same SQLite file as the charges of its party, so a step and its charge are one
commit. For each federation, run, round and attempt it has one state, which only moves forward:
beginning an attempt closes all earlier ones of its run for ever, and an attempt that is at or below
the newest is refused. Secrets of an attempt are never written here, so after a restart no
process can go on with an attempt, whatever its state.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from sottovoce.core.errors import LedgerError, WireError

CLOSED = "closed"
# With row ids: in a table without them SQLite reads a row's whole record to look up its state.
_TABLE = """CREATE TABLE IF NOT EXISTS attempts (
    federation BLOB NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL,
    state TEXT NOT NULL, record BLOB,
    PRIMARY KEY (federation, run, round, attempt))"""
_FIXED = """CREATE TABLE IF NOT EXISTS fixed_terms (
    federation BLOB NOT NULL, run TEXT NOT NULL, terms TEXT NOT NULL,
    PRIMARY KEY (federation, run)) WITHOUT ROWID"""


class JournalFile(Protocol):
    """A SQLite file with durable transactions, such as a ledger's."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Run a block in one transaction that is on disk when the block ends."""
        ...

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Execute one statement."""
        ...

    def all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a query."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One attempt at a round of a run in a federation."""

    federation: bytes
    run: str
    round: int
    attempt: int

    def __str__(self) -> str:
        return f"attempt {self.attempt} at round {self.round} of the run '{self.run}'"


class Journal:
    """The states of a party's attempts, in `file`.

    Args:
        file: Where the journal lies; its table is made if it is missing.
    """

    def __init__(self, file: JournalFile) -> None:
        self._file = file
        with self._writing():
            file.execute(_TABLE)
            file.execute(_FIXED)

    def fix(self, federation: bytes, run: str, terms: str) -> str:
        """Return the terms that the first attempt of a run has fixed: these, if it is the first.

        Args:
            federation: The federation's id.
            run: Name of the run.
            terms: What the cost of the run's attempts depends on, as text.

        Returns:
            The terms that hold; the caller refuses the attempt if they are others.
        """
        with self._writing():
            self._file.execute(
                "INSERT OR IGNORE INTO fixed_terms VALUES (?, ?, ?)", (federation, run, terms)
            )
            ((found,),) = self._file.all(
                "SELECT terms FROM fixed_terms WHERE federation = ? AND run = ?", (federation, run)
            )
        return str(found)

    def begin(self, place: Place, state: str) -> None:
        """Enter a new attempt with its first state, and close all others of its run, durably.

        Raises:
            WireError: This attempt, or a later one of the run, was begun before.
        """
        with self._writing():
            newest = self._file.all(
                "SELECT round, attempt FROM attempts WHERE federation = ? AND run = ? "
                "ORDER BY round DESC, attempt DESC LIMIT 1",
                (place.federation, place.run),
            )
            if newest and tuple(newest[0]) >= (place.round, place.attempt):
                number, attempt = newest[0]
                raise WireError(
                    f"{place} comes after attempt {attempt} at round {number}, which was begun "
                    "before; begin a later attempt"
                )
            self._file.execute(
                "UPDATE attempts SET state = ?, record = NULL WHERE federation = ? AND run = ? "
                "AND state != ?",
                (CLOSED, place.federation, place.run, CLOSED),
            )
            self._file.execute(
                "INSERT INTO attempts VALUES (?, ?, ?, ?, ?, NULL)", (*_key(place), state)
            )

    def advance(self, place: Place, old: str, new: str, record: bytes | None = None) -> None:
        """Move an attempt from one state to the next, durably, with what must be kept of it.

        Args:
            place: The attempt.
            old: The state that it must have.
            new: The state that it gets.
            record: Bytes to keep with the state, such as a message that may be sent again.

        Raises:
            LedgerError: The attempt is not in the state `old`.
        """
        with self._writing():
            changed = self._file.execute(
                "UPDATE attempts SET state = ?, record = ? WHERE federation = ? AND run = ? "
                "AND round = ? AND attempt = ? AND state = ?",
                (new, record, *_key(place), old),
            ).rowcount
            if changed != 1:
                raise LedgerError(
                    f"{place} is in the state '{self.state(place)}', not '{old}'; another process "
                    "uses this journal, or the file was replaced; start a new attempt"
                )

    def close(self, place: Place) -> None:
        """Close one attempt, whatever its state; nothing happens if it was never begun."""
        with self._writing():
            self._file.execute(
                "UPDATE attempts SET state = ?, record = NULL WHERE federation = ? AND run = ? "
                "AND round = ? AND attempt = ?",
                (CLOSED, *_key(place)),
            )

    @property
    def in_transaction(self) -> bool:
        """Whether what is entered now is committed together with something else."""
        return self._file.in_transaction

    def state(self, place: Place) -> str | None:
        """Return the state of an attempt; None if it was never begun."""
        found = self._one("state", place)
        return None if found is None else str(found)

    def record(self, place: Place) -> bytes | None:
        """Return the bytes that are kept with an attempt's state, if there are any."""
        found: bytes | None = self._one("record", place)
        return found

    def newest_attempt(self, federation: bytes, run: str, number: int) -> int:
        """Return the number of the newest attempt at a round; 0 if there was none."""
        ((found,),) = self._file.all(
            "SELECT max(attempt) FROM attempts WHERE federation = ? AND run = ? AND round = ?",
            (federation, run, number),
        )
        return int(found or 0)

    def attempts(self, federation: bytes, run: str) -> int:
        """Return how many attempts of a run were begun, over all its rounds."""
        ((found,),) = self._file.all(
            "SELECT count(*) FROM attempts WHERE federation = ? AND run = ?", (federation, run)
        )
        return int(found)

    def close_all(self, *, keep: str = CLOSED) -> int:
        """Close every open attempt, as at a restart, and return how many there were.

        Args:
            keep: A state at whose record nothing secret is left, such as a published result.
        """
        with self._writing():
            return self._file.execute(
                "UPDATE attempts SET state = ?, record = NULL WHERE state NOT IN (?, ?)",
                (CLOSED, CLOSED, keep),
            ).rowcount

    def _one(self, column: Literal["state", "record"], place: Place) -> Any:
        # One column: a record may be large.
        rows = self._file.all(
            f"SELECT {column} FROM attempts WHERE federation = ? AND run = ? AND round = ? "  # noqa: S608 - a literal
            "AND attempt = ?",
            _key(place),
        )
        return rows[0][0] if rows else None

    def _writing(self) -> AbstractContextManager[None]:
        return nullcontext() if self._file.in_transaction else self._file.transaction()


def _key(place: Place) -> tuple[bytes, str, int, int]:
    return place.federation, place.run, place.round, place.attempt
