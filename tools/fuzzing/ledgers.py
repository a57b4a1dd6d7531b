"""Ledger files: changed by hand in SQL, and in their bytes."""

import json
import sqlite3
from pathlib import Path
from random import Random

from fuzzing.harness import Case, Entrance, check
from fuzzing.mutation import bytes_mutated, odd_value, plain_mutated
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import LedgerError
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Budget, Release
from sottovoce.privacy import event_json
from sottovoce.privacy.events import (
    Composed,
    FinitePair,
    GaussianNoise,
    LaplaceNoise,
    MetricDp,
    OneBit,
    PrivacyEvent,
    PureDp,
    RenyiCurve,
    Repeated,
    Shuffled,
    ZeroConcentrated,
)

_Z = Adjacency.ZERO_OUT
_PURE = PureDp(epsilon=0.5, adjacency=_Z)
_COLUMNS = {
    "meta": (
        "schema_version",
        "charges",
        "charges_end",
        "budgets",
        "budgets_end",
        "messages",
        "identity",
        "bound",
    ),
    "budgets": ("id", "client", "epsilon", "delta", "adjacency", "unit", "chain"),
    "events": ("id", "json"),
    "charges": ("id", "run", "client", "round", "uplink", "attempt", "unit", "event", "chain"),
    "spending": ("client", "event", "unit", "count"),
    "messages": ("id", "charge", "commitment", "digest", "message", "chain"),
    "sqlite_sequence": ("name", "seq"),
}


def _release(number: int, client: str = "ada") -> Release:
    return Release(unit=Unit.CLIENT, run="run", client=client, round=number, uplink=0)


def _filled(path: Path) -> bytes:
    with Ledger(path, create=True) as ledger:
        for client in ("ada", "bob"):
            ledger.set_budget(
                client, Budget(unit=Unit.CLIENT, epsilon=9.0, delta=1e-6, adjacency=_Z)
            )
            for number in range(3):
                event = _PURE if number else GaussianNoise(mu=0.1, adjacency=_Z)
                charge = ledger.charge(_release(number, client), 0, event)
                ledger.store_message(charge, b"sealed", b"commitment" if number else None)
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = DELETE")  # one file, whole
    db.close()
    return path.read_bytes()


def _try_it(path: Path) -> None:
    """Call everything that reads or charges; an altered ledger must not be charged."""
    try:
        with Ledger(path) as ledger:
            problems = ledger.verify()
            altered = False
            try:
                ledger.check_unaltered()
            except LedgerError:
                altered = True
            check(not altered or bool(problems), "verify passes what check_unaltered refuses")
            _read(ledger)
            before = ledger.num_charges
            try:
                ledger.charge(_release(9), 0, _PURE)
            finally:
                after = ledger.num_charges
                check(not altered or after == before, "an altered ledger was charged")
            check(after == before + 1, "a charge was lost")
    finally:
        for extra in ("-wal", "-shm", "-journal"):
            path.with_name(path.name + extra).unlink(missing_ok=True)


def _read(ledger: Ledger) -> None:
    questions = (
        lambda: ledger.clients(),
        lambda: ledger.budgets(),
        lambda: ledger.histories(),
        lambda: ledger.history_of_all(Unit.CLIENT),
        lambda: ledger.latest(_release(1)),
        lambda: list(ledger.rows()),
        lambda: ledger.rounds_charged("run"),
        lambda: ledger.charges_by_round("ada", "run"),
        lambda: ledger.discarded_messages("run"),
        lambda: ledger.position(),
        lambda: ledger.head_after(2),
    )
    for ask in questions:
        try:
            ask()
        except LedgerError:
            continue


def _by_sql(folder: Path) -> Case:
    path = folder / "ledger.sqlite"
    whole = _filled(path)

    def case(random: Random) -> None:
        path.write_bytes(whole)
        db = sqlite3.connect(path)
        try:
            for _ in range(random.choice((1, 1, 2))):
                _alter(random, db)
            db.commit()
        except (sqlite3.Error, OverflowError, UnicodeError, ValueError):
            db.rollback()  # SQLite itself refuses: the ledger is as it was
        finally:
            db.close()
        _try_it(path)

    return case


def _alter(random: Random, db: sqlite3.Connection) -> None:
    table = random.choice(list(_COLUMNS))
    column = random.choice(_COLUMNS[table])
    what = random.randrange(10)
    if what < 7:
        value = odd_value(random)
        if not isinstance(value, str | int | float | bytes | None):
            value = str(value)
        if random.random() < 0.3:
            other = random.choice(_COLUMNS[table])
            statement = f"UPDATE {table} SET {column} = (SELECT {other} FROM {table} LIMIT 1)"  # noqa: S608  (our own names of tables)
            db.execute(statement)
        else:
            where = f" WHERE rowid = {random.randrange(1, 8)}" if table != "spending" else ""
            db.execute(f"UPDATE {table} SET {column} = ?{where}", (value,))  # noqa: S608  (our own names of tables)
    elif what == 7:
        db.execute(f"DELETE FROM {table} WHERE {column} = (SELECT MAX({column}) FROM {table})")  # noqa: S608  (our own names of tables)
    elif what == 8:
        kind, name = random.choice(
            [("TRIGGER", "every_charge_counts"), ("TRIGGER", "no_message_is_forgotten"),
             ("INDEX", "messages_kept"), ("TABLE", "events"), ("TABLE", "messages")]
        )  # fmt: skip
        db.execute(f"DROP {kind} {name}")
    else:
        db.execute("UPDATE spending SET count = count + ?", (random.choice((-1, 0, 1, 1.5)),))


def _by_bytes(folder: Path) -> Case:
    path = folder / "ledger.sqlite"
    whole = _filled(path)

    def case(random: Random) -> None:
        path.write_bytes(bytes_mutated(random, whole))
        _try_it(path)

    return case


def _events(_: Path) -> Case:
    examples: list[PrivacyEvent] = [
        _PURE,
        GaussianNoise(mu=0.1, adjacency=_Z),
        LaplaceNoise(shift=0.5, dimension=3, adjacency=_Z),
        ZeroConcentrated(rho=0.5, adjacency=_Z),
        MetricDp(epsilon=1.0, metric="l1", distance=2.0, adjacency=_Z),
        OneBit(shift=0.5, dimension=3, adjacency=_Z),
        Shuffled(event=PureDp(epsilon=0.5, adjacency=Adjacency.REPLACE_ONE), clients=100),
        FinitePair(first=(0.25, 0.75), second=(0.5, 0.5), adjacency=_Z),
        RenyiCurve(orders=(2.0, 4.0), divergences=(0.1, 0.3), adjacency=_Z),
        Repeated(event=_PURE, count=3),
        Composed(events=(_PURE, GaussianNoise(mu=0.1, adjacency=_Z))),
    ]
    plain = [json.loads(event_json.to_json(event)) for event in examples]

    def case(random: Random) -> None:
        changed = plain_mutated(random, random.choice(plain))
        try:
            text = json.dumps(changed)
        except (TypeError, ValueError):
            text = str(changed)
        event = event_json.from_json(text)
        written = event_json.to_json(event)
        again = event_json.to_json(event_json.from_json(written))
        check(again == written, "an event changes when it is written down")

    return case


ENTRANCES = (
    Entrance(name="ledgers-by-sql", share=8_000, prepare=_by_sql),
    Entrance(name="ledgers-by-bytes", share=12_000, prepare=_by_bytes),
    Entrance(name="events", share=150_000, prepare=_events),
)
