"""A SuperLink that overwrites what it deletes, run as a module with Flower's arguments.

It stores messages of sites until they were delivered. What is deleted then must not stay in unused
parts of its database, nor in the log that SQLite keeps next to it.
"""

import contextlib
import sqlite3
import sys
import threading
import time
from pathlib import Path

from flwr.supercore import sql_mixin
from flwr.superlink.cli import flower_superlink

_TIDY_SECONDS = 5.0
_DATABASE = "--database"


def overwrite_deleted(database: Path) -> None:
    """Remove what was deleted from SQLite's log, unless the database is busy or does not exist."""
    log = database.with_name(f"{database.name}-wal")
    with contextlib.suppress(OSError, sqlite3.Error):
        if log.stat().st_size:
            with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _keep_tidy(database: Path) -> None:
    while True:
        time.sleep(_TIDY_SECONDS)
        overwrite_deleted(database)


def main() -> None:
    """Run Flower's SuperLink with settings of its own for its database."""
    assert hasattr(sql_mixin, "SQLITE_PRAGMAS"), "in the declared versions of Flower"
    sql_mixin.SQLITE_PRAGMAS = (*sql_mixin.SQLITE_PRAGMAS, ("secure_delete", "ON"))
    if _DATABASE in sys.argv:
        database = Path(sys.argv[sys.argv.index(_DATABASE) + 1])
        threading.Thread(target=_keep_tidy, args=(database,), daemon=True).start()
    flower_superlink()


if __name__ == "__main__":
    main()
