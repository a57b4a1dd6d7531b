"""A SuperLink that overwrites what it deletes, run as a module with Flower's arguments.

It stores messages of sites until they were delivered. What is deleted then must not stay in unused
parts of its database, nor in the log that SQLite keeps next to it.
"""

import contextlib
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from flwr.supercore import sql_mixin
from flwr.superlink.cli import flower_superlink

_TIDY_SECONDS = 5.0
_BUSY_SECONDS = 0.2  # Others cannot write while this waits for readers.
_DATABASE = "--database"


def overwrite_deleted(database: Path) -> None:
    """Remove what was deleted from SQLite's log, unless the database is busy or does not exist."""
    log = database.with_name(f"{database.name}-wal")
    with contextlib.suppress(OSError, sqlite3.Error):
        if log.stat().st_size:
            opened = sqlite3.connect(database, isolation_level=None, timeout=_BUSY_SECONDS)
            with contextlib.closing(opened) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


@contextlib.contextmanager
def with_secure_delete() -> Iterator[None]:
    """Let connections that Flower opens in the block overwrite what they delete."""
    assert hasattr(sql_mixin, "SQLITE_PRAGMAS"), "in the declared versions of Flower"
    before = sql_mixin.SQLITE_PRAGMAS
    sql_mixin.SQLITE_PRAGMAS = (*before, ("secure_delete", "ON"))
    try:
        yield
    finally:
        sql_mixin.SQLITE_PRAGMAS = before


def _keep_tidy(database: Path) -> None:
    while True:
        time.sleep(_TIDY_SECONDS)
        overwrite_deleted(database)


def main() -> None:
    """Run Flower's SuperLink with settings of its own for its database."""
    if _DATABASE in sys.argv:
        database = Path(sys.argv[sys.argv.index(_DATABASE) + 1])
        threading.Thread(target=_keep_tidy, args=(database,), daemon=True).start()
    with with_secure_delete():
        flower_superlink()


if __name__ == "__main__":
    main()
