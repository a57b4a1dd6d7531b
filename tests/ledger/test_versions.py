"""Ledgers of other versions: 1 and 2 are brought up to date, others are left alone."""

import hashlib
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from ledger_files import contents, make_version_2

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import BudgetExhaustedError, LedgerError
from sottovoce.ledger import database
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.reader import LedgerReader
from sottovoce.ledger.records import Budget, Release
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.event_json import to_json
from sottovoce.privacy.events import PureDp, Repeated

ZERO_OUT = Adjacency.ZERO_OUT
DELTA = 1e-6
EVENT = PureDp(epsilon=0.5, adjacency=ZERO_OUT)
BUDGET = Budget(
    unit=Unit.CLIENT,
    epsilon=privacy_spent(Repeated(event=EVENT, count=4), DELTA).epsilon,
    delta=DELTA,
    adjacency=ZERO_OUT,
)

# What version 1 made, to the letter.
VERSION_1 = (
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
)
# Client, round, commitment, message: stored, lost or discarded with and without a commitment.
CHARGES: list[tuple[str, int, bytes | None, bytes | None]] = [
    ("ada", 1, b"commitment of 1.", b"first"),
    ("ada", 2, b"commitment of 2.", None),
    ("bob", 1, None, b"of bob"),
    ("bob", 2, None, None),
]


def link(previous: bytes, row: tuple[Any, ...]) -> bytes:
    text = json.dumps(row, separators=(",", ":"))
    return hashlib.blake2b(previous + text.encode(), digest_size=16).digest()


def release(client: str, number: int) -> Release:
    return Release(unit=Unit.CLIENT, run="run", client=client, round=number, uplink=0)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A ledger of version 1."""
    path = tmp_path / "ledger.db"
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    for statement in VERSION_1:
        db.execute(statement)
    text, end = to_json(EVENT), b""
    db.execute("INSERT INTO events VALUES (1, ?)", (text,))
    for number, (client, round_number, commitment, message) in enumerate(CHARGES, start=1):
        key = ("run", client, round_number, 0, 0, "client")
        end = link(end, (*key, text, commitment.hex() if commitment else None))
        db.execute(
            "INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?, ?)",
            (number, *key, commitment, end),
        )
        if message is not None:
            db.execute("INSERT INTO messages VALUES (?, ?)", (number, message))
    budget = ("ada", BUDGET.epsilon, BUDGET.delta, "zero-out", "client")
    last = link(b"", budget)
    db.execute("INSERT INTO budgets VALUES (1, ?, ?, ?, ?, ?, ?)", (*budget, last))
    db.execute("INSERT INTO meta VALUES (1, 4, ?, 1, ?)", (end, last))
    db.commit()
    db.close()
    return path


def version(path: Path) -> int:
    db = sqlite3.connect(path)
    (found,) = db.execute("SELECT schema_version FROM meta").fetchone()
    db.close()
    return int(found)


def test_version_1_is_brought_up_to_date_and_still_verifies(old: Path) -> None:
    with Ledger(old) as ledger:
        assert ledger.verify() == []
        assert ledger.num_charges == 4
        assert ledger.clients() == ["ada", "bob"]
        assert ledger.budget("ada") == BUDGET
        assert ledger.history("ada") == ledger.history("bob") == [(EVENT, 2)]
        assert [row["message_stored"] for row in ledger.rows()] == [True, False, True, False]
        for client, number, commitment, message in CHARGES:
            latest = ledger.latest(release(client, number))
            assert latest is not None
            # Version 1 forgot which of its messages left: all of them may have.
            assert latest.sealed
            assert (latest.commitment, latest.message) == (commitment, message)
        # And it goes on: two more fit into ada's budget.
        for number in (3, 4):
            ledger.store_message(ledger.charge(release("ada", number), 0, EVENT), b"new")
        with pytest.raises(BudgetExhaustedError):
            ledger.charge(release("ada", 5), 0, EVENT)
        assert ledger.verify() == []
    assert version(old) == database.SCHEMA_VERSION
    before = contents(old)
    Ledger(old).close()
    assert contents(old) == before


def test_a_discarded_message_of_version_1_comes_back_by_its_commitment_only(old: Path) -> None:
    with Ledger(old) as ledger:
        lost = ledger.latest(release("ada", 2))
        unknown = ledger.latest(release("bob", 2))
        assert lost is not None
        assert unknown is not None
        with pytest.raises(LedgerError, match="another message"):
            ledger.store_message(lost, b"second", b"of something els")
        with pytest.raises(LedgerError, match="another message"):
            ledger.store_message(unknown, b"second")
        ledger.store_message(lost, b"second", b"commitment of 2.")
        again = ledger.latest(release("ada", 2))
        assert again is not None
        assert again.message == b"second"
        assert ledger.verify() == []


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM charges WHERE id = 4",
        "UPDATE charges SET round = 9 WHERE id = 2",
        "UPDATE charges SET commitment = NULL WHERE id = 2",
        "UPDATE budgets SET epsilon = 100",
    ],
)
def test_what_was_damaged_in_version_1_is_found_damaged_after(old: Path, damage: str) -> None:
    db = sqlite3.connect(old)
    db.execute(damage)
    db.commit()
    db.close()
    with Ledger(old) as ledger:
        assert ledger.verify()


def test_a_migration_that_fails_leaves_version_1_as_it_was(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(old)
    monkeypatch.setattr(database, "SCHEMA", (*database.SCHEMA, "INSERT INTO nowhere VALUES (1)"))
    with pytest.raises(LedgerError, match="no such table"):
        Ledger(old)
    assert contents(old) == before
    monkeypatch.undo()
    with Ledger(old) as ledger:
        assert ledger.verify() == []


def test_version_1_is_read_where_nothing_can_be_written(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = old.read_bytes()
    # As root every folder is writable, so the answer of the operating system is planted.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with Ledger(old) as archive:
        assert archive.verify() == []
        assert archive.history("ada") == [(EVENT, 2)]
        with pytest.raises(LedgerError, match="readonly"):
            archive.charge(release("ada", 3), 0, EVENT)
    assert old.read_bytes() == before


@pytest.mark.parametrize("number", [0, database.SCHEMA_VERSION + 1, 99])
@pytest.mark.parametrize("create", [False, True])
def test_a_ledger_of_an_unknown_version_is_left_alone(
    tmp_path: Path, number: int, create: bool
) -> None:
    path = tmp_path / "ledger.db"
    Ledger(path, create=True).close()
    db = sqlite3.connect(path)
    db.execute(f"UPDATE meta SET schema_version = {number}")
    db.commit()
    db.close()
    before = path.read_bytes()
    with pytest.raises(
        LedgerError, match=rf"version {number}.*reads versions 1 to 3.*nothing was changed"
    ):
        Ledger(path, create=create)
    assert path.read_bytes() == before


def test_a_ledger_says_which_one_it_is_and_how_far_it_has_come(tmp_path: Path) -> None:
    with (
        Ledger(tmp_path / "one.db", create=True) as ledger,
        Ledger(tmp_path / "two.db", create=True) as other,
    ):
        empty = ledger.position()
        assert (empty.charges, empty.charges_head) == (0, "")
        assert len(empty.identity) == 32
        assert empty.identity != other.position().identity
        heads = [empty.charges_head]
        for number in (1, 2, 3):
            ledger.charge(release("ada", number), 0, EVENT)
            now = ledger.position()
            assert (now.identity, now.charges) == (empty.identity, number)
            heads.append(now.charges_head)
        assert len(set(heads)) == 4
        assert [ledger.head_after(number) for number in range(4)] == heads
        assert ledger.head_after(4) is ledger.head_after(-1) is None


def test_version_2_gets_an_identity_that_all_its_copies_share(tmp_path: Path) -> None:
    path, copy = tmp_path / "ledger.db", tmp_path / "copy.db"
    with Ledger(path, create=True) as ledger:
        ledger.charge(release("ada", 1), 0, EVENT)
    make_version_2(path)
    copy.write_bytes(path.read_bytes())
    with Ledger(path) as ledger, Ledger(copy) as other:
        assert ledger.verify() == other.verify() == []
        assert ledger.position() == other.position()
        before = ledger.position()
        ledger.charge(release("ada", 2), 0, EVENT)
        assert ledger.head_after(1) == before.charges_head
    with Ledger(path) as ledger:
        assert ledger.position().identity == before.identity
    assert version(path) == database.SCHEMA_VERSION


def test_version_2_is_read_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    with Ledger(path, create=True) as ledger:
        ledger.charge(release("ada", 1), 0, EVENT)
    make_version_2(path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "access", lambda *_: False)
    identities = set()
    for _ in range(2):
        with Ledger(path) as archive:
            assert archive.verify() == []
            identities.add(archive.position().identity)
    assert len(identities) == 1
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "command", ["show", "verify", "export", "total", "compare", "backup"], ids=str
)
def test_commands_that_read_leave_a_ledger_of_an_earlier_version_as_it_is(
    tmp_path: Path, command: str
) -> None:
    path, copy = tmp_path / "ledger.db", tmp_path / "copy.db"
    with Ledger(path, create=True) as ledger:
        ledger.charge(release("ada", 1), 0, EVENT)
    make_version_2(path)
    more = {"total": ["--client", "ada"], "compare": [str(path)], "backup": [str(copy)]}
    before = path.read_bytes()
    shown = call("ledger", command, str(path), *more.get(command, []))
    assert shown.code == 0, shown.text
    assert path.read_bytes() == before
    assert version(path) == 2
    if command == "backup":
        assert version(copy) == database.SCHEMA_VERSION
        assert sqlite3.connect(copy).execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_reader_changes_nothing(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db", create=True) as ledger:
        ledger.charge(release("ada", 1), 0, EVENT)
        with LedgerReader(tmp_path / "ledger.db") as reader:
            assert reader.num_charges == 1
            ledger.charge(release("ada", 2), 0, EVENT)
            assert reader.num_charges == 2
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                reader._db.execute("UPDATE meta SET bound = 0")


def test_a_lost_identity_is_an_alteration(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db", create=True) as ledger:
        ledger._db.execute("UPDATE meta SET identity = 'none'")
        assert "no valid identity" in ledger.verify()[0]
        with pytest.raises(LedgerError, match="no valid identity"):
            ledger.charge(release("ada", 1), 0, EVENT)
