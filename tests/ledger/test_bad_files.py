"""Ledger files that are damaged, or in somebody else's hands.

Run as a script, this file is the process that keeps a ledger locked.
"""

import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import sottovoce
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import LedgerError
from sottovoce.ledger import database
from sottovoce.ledger.copies import back_up
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import PendingCharge, Release
from sottovoce.privacy.events import PureDp

EVENT = PureDp(epsilon=0.1, adjacency=Adjacency.ZERO_OUT)


def a_due(number: int) -> PendingCharge:
    release = Release(unit=Unit.CLIENT, run="run", client="ada", round=number, uplink=0)
    return PendingCharge(release=release, attempt=0, event=EVENT)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of some pages."""
    path = tmp_path / "ledger.db"
    with Ledger(path, create=True) as ledger:
        ledger.charge_all([a_due(number) for number in range(500)])
    return path


def use(path: Path) -> list[str]:
    """What is found to be wrong, sooner or later."""
    try:
        with Ledger(path) as ledger:
            problems = ledger.verify()
            ledger.charge_all([a_due(number) for number in range(1000, 1010)])
    except LedgerError as error:
        return [str(error)]
    return problems


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.95])
def test_a_truncated_ledger_is_an_error_and_never_an_empty_one(path: Path, share: float) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    problems = use(path)
    assert problems
    assert "\n" not in problems[0]


@pytest.mark.parametrize("seed", range(4))
def test_garbage_within_a_ledger_is_noticed(path: Path, seed: int) -> None:
    content = bytearray(path.read_bytes())
    generator = random.Random(seed)
    start = generator.randrange(4096, len(content) - 4096)
    content[start : start + 4096] = generator.randbytes(4096)
    path.write_bytes(content)
    problems = use(path)
    assert problems


@pytest.mark.parametrize("garbage", [b"x", b"SQLite format 3\0" + bytes(200), bytes(5000)])
def test_garbage_in_place_of_a_ledger_is_refused_and_left_alone(
    tmp_path: Path, garbage: bytes
) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(garbage)
    with pytest.raises(LedgerError):
        Ledger(path)
    assert path.read_bytes() == garbage


def test_a_link_where_nothing_can_be_written_leads_to_every_charge(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of a ledger in use lies beside the ledger, not beside a link to it."""
    (tmp_path / "readers").mkdir()
    link = tmp_path / "readers" / "ledger.db"
    link.symlink_to(path)
    with Ledger(path) as ledger:
        ledger.charge_all([a_due(1000)])  # in the log, as long as the ledger is open
        for locked in ([link.parent], [link.parent, tmp_path]):
            # As root every folder is writable, so the answer of the operating system is planted.
            monkeypatch.setattr(os, "access", lambda folder, _, locked=locked: folder not in locked)
            with Ledger(link) as reader:
                assert reader.num_charges == 501
                back_up(reader, tmp_path / f"copy-{len(locked)}")
            monkeypatch.undo()
            with Ledger(tmp_path / f"copy-{len(locked)}") as copy:
                assert copy.num_charges == 501


def test_a_ledger_that_another_process_keeps_locked_is_waited_for_a_while_and_then_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.05)
    source = str(Path(sottovoce.__file__).parents[1])
    holder = subprocess.Popen(
        [sys.executable, "-W", "error", __file__, str(path)],
        env={**os.environ, "PYTHONPATH": source},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    with Ledger(path, create=True) as ledger:
        with pytest.raises(LedgerError, match=r"locked.*another process.*fuser.*nothing is lost"):
            ledger.charge_all([a_due(1000)])
        assert ledger.num_charges == 500  # reading goes on
        holder.communicate("done\n", timeout=60)
        ledger.charge_all([a_due(1000)])
        assert ledger.num_charges == 501
        assert ledger.verify() == []


def _keep_locked(path: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    print("locked", flush=True)
    sys.stdin.readline()
    db.execute("ROLLBACK")
    db.close()


if __name__ == "__main__":
    _keep_locked(sys.argv[1])
