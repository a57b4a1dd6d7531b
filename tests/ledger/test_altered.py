"""A ledger that was altered by hand buys nothing: no charge, no figure, no second message."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import BudgetExhaustedError, LedgerError
from sottovoce.ledger.database import Database
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Budget, Release
from sottovoce.privacy.events import GaussianNoise, PureDp

Z = Adjacency.ZERO_OUT
CHEAP, DEAR = PureDp(epsilon=0.5, adjacency=Z), PureDp(epsilon=1.0, adjacency=Z)


def rel(number: int, client: str = "ada") -> Release:
    return Release(unit=Unit.CLIENT, run="run", client=client, round=number, uplink=0)


def filled(path: Path) -> Path:
    """Ada has budget for one more cheap charge; bob has none set."""
    with Ledger(path, create=True) as ledger:
        ledger.set_budget("ada", Budget(unit=Unit.CLIENT, epsilon=3.6, delta=1e-6, adjacency=Z))
        for number, event in enumerate((CHEAP, CHEAP, DEAR, DEAR)):
            charge = ledger.charge(rel(number), 0, event)
            ledger.store_message(charge, b"sealed %d" % number)
        ledger.charge(rel(0, "bob"), 0, DEAR)
    return path


def alter(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path)
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


ALTERED = {
    "counts set to 1": ["UPDATE spending SET count = 1"],
    "a count lowered": ["UPDATE spending SET count = 1 WHERE client = 'ada' AND event = 1"],
    "counts moved to the cheaper event": [
        "UPDATE spending SET count = 3 WHERE client = 'ada' AND event = 1",
        "UPDATE spending SET count = 1 WHERE client = 'ada' AND event = 2",
    ],
    "counts moved to another client": [
        "UPDATE spending SET count = 1 WHERE client = 'ada' AND event = 2",
        "UPDATE spending SET count = 2 WHERE client = 'bob' AND event = 2",
    ],
    "spending forgotten": ["DELETE FROM spending"],
    "a text in place of a count": ["UPDATE spending SET count = 'few'"],
    "the last charge removed with its count": [
        "UPDATE spending SET count = 1 WHERE client = 'ada' AND event = 2",
        "DROP TRIGGER no_message_is_forgotten",
        "DELETE FROM messages WHERE charge = 4",
        "DELETE FROM charges WHERE id = 4",
    ],
    "an event made cheaper": ["UPDATE events SET json = replace(json, '1.0', '0.1')"],
    "a budget raised": ["UPDATE budgets SET epsilon = 900"],
    "a budget removed": ["DELETE FROM budgets"],
    "a charge of another client": ["UPDATE charges SET client = 'bob' WHERE id = 2"],
    "bytes in place of a name": ["UPDATE charges SET client = x'00ff' WHERE id = 1"],
    "no link": ["UPDATE charges SET chain = 'x' WHERE id = 2"],
    "charges are not counted any more": ["DROP TRIGGER every_charge_counts"],
    "a trigger that forgets": [
        "CREATE TRIGGER forget AFTER INSERT ON charges BEGIN DELETE FROM spending; END"
    ],
    "a sent message forgotten, so that its charge would pay again": [
        "DROP TRIGGER no_message_is_forgotten",
        "DELETE FROM messages WHERE charge = 4",
    ],
    "the chain's end": ["UPDATE meta SET charges = 4"],
    "the chain's end is no number": ["UPDATE meta SET charges = 'x'"],
}


@pytest.mark.parametrize("how", ALTERED)
def test_nothing_is_charged_to_an_altered_ledger(tmp_path: Path, how: str) -> None:
    path = filled(tmp_path / "l.db")
    alter(path, *ALTERED[how])
    before = sqlite3.connect(path).execute("SELECT * FROM charges").fetchall()
    with Ledger(path, create=True) as ledger:
        with pytest.raises(LedgerError, match="restore it"):
            ledger.charge(rel(9), 0, CHEAP)
        with pytest.raises(LedgerError, match="restore it"):
            ledger.set_budget("eve", Budget(unit=Unit.CLIENT, epsilon=1.0, delta=1e-6, adjacency=Z))
        assert ledger.verify()
    assert sqlite3.connect(path).execute("SELECT * FROM charges").fetchall() == before


def test_an_alteration_while_the_ledger_is_open_is_noticed_too(tmp_path: Path) -> None:
    path = filled(tmp_path / "l.db")
    with Ledger(path, create=True) as ledger:
        ledger.charge(rel(8), 0, CHEAP)  # everything was read now, and found whole
        with pytest.raises(BudgetExhaustedError):
            ledger.charge(rel(9), 0, CHEAP)
        alter(path, "UPDATE spending SET count = 1")
        with pytest.raises(LedgerError, match="was altered"):
            ledger.charge(rel(9), 0, CHEAP)


def test_another_process_that_charges_is_no_alteration(tmp_path: Path) -> None:
    path = filled(tmp_path / "l.db")
    with Ledger(path, create=True) as one, Ledger(path) as other:
        for number in range(10, 16):
            (one if number % 2 else other).charge(rel(number, "bob"), 0, DEAR)
        assert one.verify() == []


def test_what_this_object_wrote_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sottovoce.ledger import verification

    read = []
    follow = verification.alterations

    def counted(db: Database) -> Iterator[str]:
        read.append(db.path)
        return follow(db)

    monkeypatch.setattr(verification, "alterations", counted)
    with Ledger(filled(tmp_path / "l.db")) as ledger:
        for number in range(10, 15):
            ledger.charge(rel(number, "bob"), 0, DEAR)
    assert len(read) == 2  # once by `filled`, once here


def test_an_altered_message_is_not_sent_again(tmp_path: Path) -> None:
    path = filled(tmp_path / "l.db")
    alter(path, "UPDATE messages SET message = 'another' WHERE charge = 1")
    with Ledger(path, create=True) as ledger:
        with pytest.raises(LedgerError, match="differs from the one that was sent"):
            ledger.latest(rel(0))
        assert ledger.latest(rel(1)) is not None


@pytest.mark.parametrize("command", ["show", "export"])
def test_figures_of_an_altered_ledger_are_not_printed(
    cli: Any, tmp_path: Path, command: str
) -> None:
    path = filled(tmp_path / "l.db")
    delta = ["--delta", "1e-6"] if command == "show" else []
    assert cli("ledger", command, path, *delta).code == 0
    alter(path, "UPDATE spending SET count = 1")
    done = cli("ledger", command, path, *delta)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("error: the ledger")
    assert done.err.count("\n") == 1


def test_copies_are_compared(cli: Any, tmp_path: Path) -> None:
    first = filled(tmp_path / "first.db")
    second = tmp_path / "second.db"
    second.write_bytes(first.read_bytes())
    assert cli("ledger", "compare", first, second).code == 0

    with Ledger(first, create=True) as ledger:
        ledger.charge(rel(20), 0, CHEAP)
    longer = cli("ledger", "compare", first, second, "--json")
    assert longer.code == 1
    found = json.loads(longer.out)
    assert found["parts_at"] is None
    assert found["tables"][0] == {
        "table": "charges",
        "shared": 5,
        "only_first": 1,
        "only_second": 0,
        "agree": False,
        "parts_at": None,
    }
    with Ledger(second, create=True) as ledger:
        ledger.charge(rel(20, "bob"), 0, GaussianNoise(mu=1.0, adjacency=Z))
    parted = cli("ledger", "compare", first, second)
    assert parted.code == 1
    assert "diverge at charge 6" in parted.out
    assert "budgets: both copies have the same rows (1)" in parted.out

    alter(second, "UPDATE spending SET count = 1")
    assert cli("ledger", "compare", first, second).code == 2
