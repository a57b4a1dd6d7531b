"""Ways in which a ledger could be fooled, damaged or shared, each once a bug."""

import contextlib
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import (
    AdjacencyMismatchError,
    BudgetExhaustedError,
    LedgerError,
    SottovoceError,
)
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Budget, Release
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.events import GaussianNoise, PureDp, Repeated

Z = Adjacency.ZERO_OUT


def rel(n: int, client: str = "ada") -> Release:
    return Release(unit=Unit.CLIENT, run="run", client=client, round=n, uplink=0)


def test_equal_events_written_differently_all_count_against_the_budget(
    tmp_path: Path,
) -> None:
    with Ledger(tmp_path / "l.db", create=True) as ledger:
        exact = privacy_spent(Repeated(event=PureDp(epsilon=1.0, adjacency=Z), count=5), 1e-6)
        ledger.set_budget(
            "ada", Budget(unit=Unit.CLIENT, epsilon=exact.epsilon, delta=1e-6, adjacency=Z)
        )
        for n in range(4):
            ledger.charge(rel(n), 0, PureDp(epsilon=1, adjacency=Z))
        ledger.charge(rel(4), 0, PureDp(epsilon=1.0, adjacency=Z))
        with pytest.raises(BudgetExhaustedError):
            ledger.charge(rel(5), 0, PureDp(epsilon=1.0, adjacency=Z))


def test_deleting_the_last_charge_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with Ledger(path, create=True) as ledger:
        for n in range(3):
            ledger.charge(rel(n), 0, PureDp(epsilon=1.0, adjacency=Z))
    db = sqlite3.connect(path)
    db.execute("DELETE FROM charges WHERE id = 3")
    db.commit()
    db.close()
    with Ledger(path) as ledger:
        assert ledger.verify()


def test_processes_may_create_the_ledger_at_once(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom sottovoce.ledger.ledger import Ledger\nprint(flush=True)\n"
        "for path in sys.stdin: Ledger(path.strip(), create=True).close(); print(flush=True)"
    )
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(4)
        ]
        pipes = [(child.stdin, child.stdout) for child in children]
        assert all(answers is not None and answers.readline() for _, answers in pipes)
        for attempt in range(20):
            for paths, _ in pipes:
                assert paths is not None
                print(tmp_path / f"{attempt}.db", file=paths, flush=True)
            assert all(answers is not None and answers.readline() for _, answers in pipes)
        for paths, _ in pipes:
            assert paths is not None
            paths.close()
    assert [child.returncode for child in children] == [0] * 4


def test_verify_notices_a_budget_of_another_adjacency_than_the_charges(
    tmp_path: Path,
) -> None:
    with Ledger(tmp_path / "l.db", create=True) as ledger:
        ledger.charge(rel(0), 0, GaussianNoise(mu=1.0, adjacency=Z))
        budget = Budget(unit=Unit.CLIENT, epsilon=5.0, delta=1e-6, adjacency=Adjacency.REPLACE_ONE)
        try:
            ledger.set_budget("ada", budget)
        except SottovoceError:
            return  # refused: just as good
        assert ledger.verify()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET json = '{' WHERE id = 1",
        "UPDATE events SET json = replace(json, 'zero-out', 'replace-one') WHERE id = 1",
        "UPDATE budgets SET adjacency = 'sideways'",
        "UPDATE budgets SET epsilon = -1",
    ],
)
def test_verify_lists_damage_instead_of_raising(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "l.db"
    with Ledger(path, create=True) as ledger:
        ledger.set_budget("ada", Budget(unit=Unit.CLIENT, epsilon=9.0, delta=1e-6, adjacency=Z))
        ledger.charge(rel(0), 0, GaussianNoise(mu=0.1, adjacency=Z))
        ledger.charge(rel(1), 0, GaussianNoise(mu=0.2, adjacency=Z))
    db = sqlite3.connect(path)
    db.execute(statement)
    db.commit()
    db.close()
    with Ledger(path) as ledger:
        assert ledger.verify()


def test_a_foreign_database_is_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE recipes (name TEXT)")
    db.commit()
    db.close()
    before = path.read_bytes()
    with pytest.raises(LedgerError):
        Ledger(path)
    assert path.read_bytes() == before


def test_a_ledger_without_a_version_is_a_ledger_error(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    Ledger(path, create=True).close()
    db = sqlite3.connect(path)
    db.execute("DELETE FROM meta")
    db.commit()
    db.close()
    with pytest.raises(LedgerError):
        Ledger(path)


def test_a_ledger_in_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        with Ledger(":memory:", create=True):
            assert (tmp_path / ":memory:").exists()
    except LedgerError:
        pass


def test_an_archived_ledger_can_be_read_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "l.db"
    with Ledger(path, create=True) as ledger:
        ledger.charge(rel(0), 0, PureDp(epsilon=1.0, adjacency=Z))
    # As root every folder is writable, so the answer of the operating system is planted.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with Ledger(path) as archive:
        assert archive.verify() == []
        assert len(list(archive.rows())) == 1
        with pytest.raises(LedgerError, match="readonly"):
            archive.charge(rel(1), 0, PureDp(epsilon=1.0, adjacency=Z))


def test_charges_per_sample_and_per_client_are_never_added_up(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db", create=True) as ledger:
        event = GaussianNoise(mu=1.0, adjacency=Z)
        ledger.charge(rel(0), 0, event)
        per_sample = replace(rel(1), unit=Unit.SAMPLE)
        with pytest.raises(AdjacencyMismatchError, match="per client in this ledger"):
            ledger.charge(per_sample, 0, event)
        with pytest.raises(AdjacencyMismatchError, match="per client in this ledger"):
            ledger.set_budget("ada", Budget(unit=Unit.SAMPLE, epsilon=9.0, delta=1e-6, adjacency=Z))
        ledger.charge(replace(per_sample, client="bob"), 0, event)
        assert len(list(ledger.rows())) == 2


def test_a_history_whose_events_are_gone_is_an_error_not_nothing(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with Ledger(path, create=True) as ledger:
        ledger.charge(rel(0), 0, GaussianNoise(mu=1.0, adjacency=Z))
    db = sqlite3.connect(path)
    db.execute("DELETE FROM events")
    db.commit()
    db.close()
    with Ledger(path) as ledger:
        with pytest.raises(LedgerError, match="event that is missing"):
            ledger.spent("ada", 1e-6)
        with pytest.raises(LedgerError, match="event that is missing"):
            ledger.largest_spent(1e-6)
