"""A SuperLink's database keeps nothing of what was deleted."""

import contextlib
import sqlite3
from pathlib import Path

import pytest

pytest.importorskip("flwr")
from flwr.supercore.sql_mixin import SqlMixin

from sottovoce.flower.superlink import overwrite_deleted, with_secure_delete

SECRET = b"a report " * 2_000


def kept(database: Path) -> list[str]:
    return [path.name for path in database.parent.iterdir() if SECRET[:900] in path.read_bytes()]


@pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")
def test_what_is_deleted_is_overwritten(tmp_path: Path) -> None:
    database = tmp_path / "flower.sqlite"
    overwrite_deleted(database)  # It does not exist yet.
    with with_secure_delete():
        state = SqlMixin(str(database))
        state.initialize()
    state.query("CREATE TABLE sent (content BLOB)")
    state.query("INSERT INTO sent VALUES (:content)", {"content": SECRET})
    overwrite_deleted(database)
    assert kept(database) == ["flower.sqlite"]
    state.query("DELETE FROM sent")
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM sent").fetchall()
        overwrite_deleted(database)  # It is busy; the next time comes in seconds.
    overwrite_deleted(database)
    assert kept(database) == []
