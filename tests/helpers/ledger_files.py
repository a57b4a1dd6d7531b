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
