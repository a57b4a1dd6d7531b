"""Ledgers as they lie on disk."""

import sqlite3
from pathlib import Path


def contents(path: Path) -> list[str]:
    """Everything in the file, read by a connection of its own: so only what is committed."""
    database = sqlite3.connect(path)
    try:
        return list(database.iterdump())
    finally:
        database.close()


def make_version_2(path: Path) -> None:
    """Turn a ledger into what version 2 wrote: it had no identity."""
    database = sqlite3.connect(path)
    database.execute("UPDATE meta SET schema_version = 2")
    for column in ("identity", "bound"):
        database.execute(f"ALTER TABLE meta DROP COLUMN {column}")
    database.commit()
    database.close()
