"""The SQLite file under the ledger: schema, durable transactions, errors with a remedy."""

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sottovoce.errors import LedgerError

SCHEMA_VERSION = 1
_BUSY_SECONDS = 30.0

# meta keeps the length and the end of both chains, so that rows missing at the end are noticed.
_SCHEMA = (
    """CREATE TABLE meta (
        schema_version INTEGER NOT NULL,
        charges INTEGER NOT NULL, charges_end BLOB NOT NULL,
        budgets INTEGER NOT NULL, budgets_end BLOB NOT NULL)""",
    """CREATE TABLE budgets (
        id INTEGER PRIMARY KEY AUTOINCREMENT, client TEXT NOT NULL UNIQUE,
        epsilon REAL NOT NULL, delta REAL NOT NULL, adjacency TEXT NOT NULL, unit TEXT NOT NULL,
        chain BLOB NOT NULL)""",
    "CREATE TABLE events (id INTEGER PRIMARY KEY, json TEXT NOT NULL UNIQUE)",
    """CREATE TABLE charges (
        id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, client TEXT NOT NULL,
        round INTEGER NOT NULL, uplink INTEGER NOT NULL, attempt INTEGER NOT NULL,
        unit TEXT NOT NULL, event INTEGER NOT NULL REFERENCES events(id), commitment BLOB,
        chain BLOB NOT NULL,
        UNIQUE (run, client, round, uplink, attempt))""",
    "CREATE INDEX charges_by_client ON charges (client, event)",
    """CREATE TABLE messages (
        charge INTEGER PRIMARY KEY REFERENCES charges(id), message BLOB NOT NULL)""",
    f"INSERT INTO meta VALUES ({SCHEMA_VERSION}, 0, x'', 0, x'')",
)


class Database:
    """One connection; sqlite3 errors come out as LedgerError."""

    def __init__(self, path: Path, *, must_exist: bool) -> None:
        # Absolute, so that ':memory:' is a file like any other: a ledger must outlive its process.
        self.path = path.absolute()
        if must_exist and not self.path.is_file():
            raise LedgerError(f"no ledger at {path}; name a run folder or a ledger file")
        with self.explained("open"):
            self._connection = self._connect(archived=must_exist and self._is_archived())
        try:
            with self.explained("open"):
                self._open(may_create=not must_exist)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Every row of a query."""
        with self.explained("read"):
            return self.execute(statement, values).fetchall()

    def one(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """The first row of a query, or None."""
        with self.explained("read"):
            return self.execute(statement, values).fetchone()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and on disk when it is left."""
        with self.explained("write to"):
            try:
                self.execute("BEGIN IMMEDIATE")
                yield
                self.execute("COMMIT")
            except BaseException:
                if self.in_transaction:
                    self._roll_back()
                raise

    @contextlib.contextmanager
    def explained(self, action: str) -> Iterator[None]:
        """Turn SQLite's errors into one sentence."""
        try:
            yield
        except sqlite3.Error as error:
            remedy = (
                "check the disk's free space and the file's permissions"
                if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error)
                else "restore it from a backup: a new ledger would forget what was spent"
            )
            raise LedgerError(
                f"cannot {action} the ledger {self.path}: {error}; {remedy}"
            ) from error

    def _is_archived(self) -> bool:
        """Whether the ledger lies, whole, where nothing can be written."""
        log = self.path.with_name(f"{self.path.name}-wal")
        return not os.access(self.path.parent, os.W_OK) and not log.exists()

    def _connect(self, *, archived: bool) -> sqlite3.Connection:
        # SQLite wants to write beside a database even to read it, unless it is told not to.
        target = f"{self.path.as_uri()}?immutable=1" if archived else self.path
        return sqlite3.connect(target, uri=archived, isolation_level=None, timeout=_BUSY_SECONDS)

    def _roll_back(self) -> None:
        try:
            self.execute("ROLLBACK")
        except sqlite3.Error:
            # Never go on inside a transaction of unknown state; reopening recovers the file.
            self._connection.close()

    def _open(self, *, may_create: bool) -> None:
        if not self._tables() and may_create:
            self._create()
        if "meta" not in self._tables():
            raise LedgerError(f"{self.path} is not a Sottovoce ledger")
        row = self.execute("SELECT schema_version FROM meta").fetchone()
        if row is None or row[0] != SCHEMA_VERSION:
            found = "no" if row is None else row[0]
            raise LedgerError(
                f"{self.path} has ledger version {found}, this Sottovoce reads {SCHEMA_VERSION}"
            )
        # FULL: a commit is on disk before the caller goes on, even if the power fails.
        self.execute("PRAGMA synchronous = FULL")
        self.execute("PRAGMA foreign_keys = ON")

    def _tables(self) -> set[str]:
        return {row[0] for row in self.execute("SELECT name FROM sqlite_master")}

    def _create(self) -> None:
        self._use_write_ahead_log()
        with self.transaction():
            if not self._tables():  # another process may have been first
                for statement in _SCHEMA:
                    self.execute(statement)

    def _use_write_ahead_log(self) -> None:
        """Switch modes; SQLite does not wait for the lock that this needs, so we do."""
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                self.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
