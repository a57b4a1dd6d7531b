"""Whole copies of a ledger."""

import sqlite3
import stat
from pathlib import Path

import pytest

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import LedgerError
from sottovoce.ledger.copies import back_up
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Release
from sottovoce.privacy.events import PureDp

EVENT = PureDp(epsilon=0.5, adjacency=Adjacency.ZERO_OUT)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def charge(ledger: Ledger, number: int) -> None:
    release = Release(unit=Unit.CLIENT, run="run", client="ada", round=number, uplink=0)
    ledger.store_message(ledger.charge(release, 0, EVENT), b"sealed")


def test_a_backup_has_every_charge_of_a_ledger_in_use(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "backup.sqlite"
    with Ledger(path, create=True) as ledger, Ledger(path) as other:
        for number in range(3):
            charge(ledger, number)
        with other.snapshot():  # a reader: nothing reaches the file itself
            assert other.num_charges == 3
            charge(ledger, 3)
            standing = back_up(ledger, out)
        assert standing == ledger.position()
        charge(ledger, 4)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert sorted(one.name for one in tmp_path.iterdir()) == ["backup.sqlite", "ledger.sqlite"]
    with Ledger(out) as copy:
        assert copy.verify() == []
        assert copy.position() == standing
        assert standing.charges == 4


def test_a_backup_overwrites_nothing(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "backup.sqlite"
    out.write_bytes(b"precious")
    with Ledger(path, create=True) as ledger:
        with pytest.raises(LedgerError, match="exists"):
            back_up(ledger, out)
        assert out.read_bytes() == b"precious"
        with pytest.raises(LedgerError, match="exists"):
            back_up(ledger, path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["backup.sqlite", "ledger.sqlite"]


def test_an_altered_ledger_is_not_backed_up(path: Path, tmp_path: Path) -> None:
    with Ledger(path, create=True) as ledger:
        charge(ledger, 1)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE charges SET round = 7")
    db.close()
    with Ledger(path) as ledger, pytest.raises(LedgerError, match="is not copied"):
        back_up(ledger, tmp_path / "backup.sqlite")
    assert [one.name for one in tmp_path.iterdir()] == ["ledger.sqlite"]
