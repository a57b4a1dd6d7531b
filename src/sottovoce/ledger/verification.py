"""What is wrong with a ledger, in sentences."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from sottovoce.core.display import show_epsilon
from sottovoce.core.errors import LedgerError, SottovoceError
from sottovoce.ledger import accounts, database, records
from sottovoce.ledger.database import Database
from sottovoce.privacy import compositions
from sottovoce.privacy.accounting import privacy_spent

Chain = Literal["charges", "budgets", "messages"]

_CONTENT: dict[Chain, str] = {
    "charges": "SELECT id, run, client, round, uplink, attempt, unit, event, "
    "CASE WHEN commitment IS NOT NULL THEN lower(hex(commitment)) END, chain "
    "FROM charges ORDER BY id",
    "budgets": "SELECT id, client, epsilon, delta, adjacency, unit, chain FROM budgets ORDER BY id",
    "messages": "SELECT id, charge, "
    "CASE WHEN commitment IS NOT NULL THEN lower(hex(commitment)) END, "
    "CASE WHEN digest IS NOT NULL THEN lower(hex(digest)) END, chain "
    "FROM messages ORDER BY id",
}
_IDENTITY = re.compile(r"[0-9a-f]{32}")
_CLIENT, _UNIT, _EVENT = 1, 5, 6  # places in the content of a charge


def problems(db: Database) -> list[str]:
    """Everything that is found; empty if all is well."""
    found = [
        f"SQLite reports: {row[0]}" for row in db.all("PRAGMA integrity_check") if row[0] != "ok"
    ]
    try:
        found += _problems_of_rows(db)
    except LedgerError as error:  # a file too damaged to be read to its end
        found.append(str(error))
    return found


def check_unaltered(db: Database) -> None:
    """Refuse a ledger whose rows are not those that were written.

    Every chain is followed to its end, and what is counted as spent is counted anew: a figure read
    from an altered ledger is no bound, and a charge to it would be checked against a lie.
    """
    for problem in alterations(db):
        raise LedgerError(
            f"the ledger {db.path} was altered by hand or damaged: {problem}; nothing is charged "
            "and no figure of it holds: restore it from a backup ('sottovoce ledger verify' lists "
            "everything that is wrong)"
        )


def chain_end(db: Database, table: Chain) -> tuple[int, bytes]:
    """How many rows a chain has, and its last link."""
    row = db.one(f"SELECT {table}, {table}_end FROM meta")  # noqa: S608  (our own names of tables)
    if row is None or type(row[0]) is not int or not isinstance(row[1], bytes):
        raise LedgerError(f"the ledger {db.path} does not say where its {table} end; restore it")
    return row[0], row[1]


def identity(db: Database) -> str:
    """Which ledger it is."""
    row = db.one("SELECT identity FROM meta")
    if row is None or not isinstance(row[0], str) or not _IDENTITY.fullmatch(row[0]):
        raise LedgerError(f"the ledger {db.path} has lost its identity; restore it from a backup")
    return row[0]


def link_after(db: Database, table: Chain, count: int) -> bytes | None:
    """The stored link of the row that is number `count` of its chain; None if there is none."""
    row = db.one(
        f"SELECT chain FROM {table} ORDER BY id LIMIT 1 OFFSET ?",  # noqa: S608  (our own names of tables)
        (count - 1,),
    )
    if row is not None and not isinstance(row[0], bytes):
        raise LedgerError(f"{table.removesuffix('s')} {count} of {db.path} was altered; restore it")
    return None if row is None else row[0]


def links(db: Database, table: Chain) -> Iterator[bytes]:
    """The stored link of each row of a chain, in order."""
    for (link,) in db.each(f"SELECT chain FROM {table} ORDER BY id"):  # noqa: S608  (our own names of tables)
        yield link


def alterations(db: Database) -> Iterator[str]:
    """What was changed in a ledger but by charging, setting budgets and storing messages."""
    try:
        identity(db)
    except LedgerError as error:
        yield str(error)
    yield from _program_problems(db)
    counted: Counter[tuple[Any, Any, Any]] = Counter()
    for table in _CONTENT:
        yield from _chain_problems(db, table, counted)
    yield from _count_problems(db, counted)


def _problems_of_rows(db: Database) -> list[str]:
    found = []
    if db.all("PRAGMA foreign_key_check"):
        found.append("a message or charge refers to a row that is gone")
    found += alterations(db)
    found += [
        f"message {row_id} was altered"
        for row_id, digest, message in db.each(
            "SELECT id, digest, message FROM messages WHERE message IS NOT NULL"
        )
        if not is_message(message, digest)
    ]
    return found + _budget_problems(db)


def is_message(message: object, digest: object) -> bool:
    """Whether stored bytes are those whose digest was written beside them.

    Version 1 wrote none for messages that it had discarded; those come back by their commitment.
    """
    return digest is None or (isinstance(message, bytes) and records.digest(message) == digest)


def _program_problems(db: Database) -> Iterator[str]:
    """Triggers are part of the file, and do what they say: only our own may be there."""
    rows = db.all("SELECT type, name, sql FROM sqlite_master WHERE type IN ('trigger', 'view')")
    expected = database.triggers()
    for kind, name, text in rows:
        if expected.get(name) != text:
            yield f"the {kind} '{name}' is not one that a ledger has"
    if database.COUNTING not in {name for _, name, _ in rows}:
        yield "the trigger that counts every charge is gone"


def _chain_problems(
    db: Database, table: Chain, counted: Counter[tuple[Any, Any, Any]]
) -> Iterator[str]:
    """Follow a chain; charges are counted by client, event and unit on the way."""
    count, end = chain_end(db, table)
    link, number = b"", 0
    texts = dict(db.all("SELECT id, json FROM events")) if table == "charges" else {}
    for row_id, *content, stored in db.each(_CONTENT[table]):
        if table == "charges":
            event = content[_EVENT]
            counted[content[_CLIENT], event, content[_UNIT]] += 1
            content[_EVENT] = texts.get(event)  # what the digest covers is the event itself
        if not isinstance(stored, bytes) or stored != _link(link, tuple(content)):
            yield f"{table.removesuffix('s')} {row_id} was altered, or a row before it removed"
        link = stored if isinstance(stored, bytes) else b""
        number += 1
    if (number, link) != (count, end):
        yield f"{table} holds {number} rows where {count} were written"


def _link(previous: bytes, content: tuple[Any, ...]) -> bytes | None:
    """None for a row of a kind that nobody writes, such as bytes in place of a name."""
    try:
        return records.link(previous, content)
    except TypeError:
        return None


def _count_problems(db: Database, counted: Counter[tuple[Any, Any, Any]]) -> Iterator[str]:
    """What is counted as spent must be the number of charges, for each client and event."""
    spending = {
        (client, event, unit): count
        for client, event, unit, count in db.each("SELECT client, event, unit, count FROM spending")
    }
    if spending == dict(counted):
        return
    keys = spending.keys() | counted.keys()
    wrong = {str(key[0]) for key in keys if spending.get(key, 0) != counted.get(key, 0)}
    for client in sorted(wrong):
        yield f"client '{client}': what is counted as spent is not the number of its charges"


def _budget_problems(db: Database) -> list[str]:
    found = []
    for (client,) in db.all("SELECT client FROM budgets ORDER BY client"):
        try:
            budget = accounts.budgets(db, [client]).get(client)
            if budget is None:
                raise LedgerError("its budget cannot be found again")
            history = accounts.histories(db, [client]).get(client, {})
            past = accounts.composition(history)
            accounts.check_adjacency(f"client '{client}'", budget.adjacency, past, None)
            if not past:
                continue
            spent = privacy_spent(compositions.multiset(past), budget.delta)
        except SottovoceError as error:
            found.append(f"client '{client}': {error}")
            continue
        if spent.epsilon > budget.epsilon:
            found.append(
                f"client '{client}' has spent epsilon {show_epsilon(spent.epsilon)}, "
                f"more than its budget {budget.epsilon:.15g}"
            )
    return found
