"""The file in which a relay or a collector keeps what it must not forget.

A small SQLite file: a commit is on disk before the caller continues, and what is deleted is
overwritten. Journals lie in it, and whatever tables its owner makes.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sottovoce.core import files
from sottovoce.core.errors import LedgerError

_BUSY_SECONDS = 0.2
_SHARED_SECONDS = 30.0


class StateFile:
    """A SQLite file with durable transactions, for one process and one thread at a time.

    Args:
        path: The file; it is made, readable by its owner only, if it does not exist.
        shared: Whether other processes may use the file, too.

    Raises:
        LedgerError: It cannot be opened, or another process uses it and it is not shared.
    """

    def __init__(self, path: Path | str, *, shared: bool = False) -> None:
        self.path = Path(path).absolute()
        try:
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT, files.PRIVATE))
            files.sync_folder(self.path.parent)
        except OSError as error:
            raise LedgerError(
                f"cannot open {self.path}: {error.strerror or error}; check the folder"
            ) from error
        with self._explained():
            self._connection = sqlite3.connect(
                self.path,
                isolation_level=None,
                timeout=_SHARED_SECONDS if shared else _BUSY_SECONDS,
                check_same_thread=False,
            )
            for setting in (
                # Of a relay a second process would answer a step a second time.
                f"locking_mode = {'NORMAL' if shared else 'EXCLUSIVE'}",
                "journal_mode = WAL",
                "synchronous = FULL",
                "secure_delete = ON",
            ):
                self._connection.execute(f"PRAGMA {setting}")
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute("COMMIT")
        if not shared:
            # A process that was killed may have left it in SQLite's log.
            self.overwrite_deleted()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._connection.in_transaction

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a block in one transaction that is on disk when the block ends; an error undoes it.

        Raises:
            LedgerError: The file cannot be written.
        """
        with self._explained():
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Execute one statement."""
        return self._connection.execute(statement, values)

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute one statement for each row of values."""
        self._connection.executemany(statement, rows)

    def all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a query."""
        with self._explained():
            return self._connection.execute(statement, values).fetchall()

    def overwrite_deleted(self) -> None:
        """Remove what was deleted from SQLite's log, too, so that no file has it any more."""
        with self._explained():
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LedgerError(
                f"cannot use {self.path}: {error}; check that no other process uses it, the disk's "
                "free space and the file's permissions"
            ) from error
