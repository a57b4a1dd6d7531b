"""Checks of a ledger's integrity, and descriptions of what is wrong."""

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
_CLIENT, _UNIT, _EVENT = 1, 5, 6  # columns in the content of a charge


def problems(db: Database) -> list[str]:
    """Return one sentence for each thing that is wrong with a ledger; empty if it is intact."""
    found = [
        f"SQLite reports: {row[0]}" for row in db.all("PRAGMA integrity_check") if row[0] != "ok"
    ]
    try:
        found += _problems_of_rows(db)
    except LedgerError as error:  # a file too damaged to be read to its end
        found.append(str(error))
    return found


def check_unaltered(db: Database) -> None:
    """Raise LedgerError if the rows of a ledger are not those that were written.

    Every chain is followed to its end and the spending is counted again. An epsilon from an altered
    ledger is no bound, and a charge to it would be checked against wrong numbers.
    """
    for problem in alterations(db):
        raise LedgerError(
            f"the ledger {db.path} was altered by hand or damaged: {problem}. Nothing is charged, "
            "and no number from it is valid; restore it from a backup. Run 'sottovoce ledger "
            "verify' for a list of everything that is wrong"
        )


def chain_end(db: Database, table: Chain) -> tuple[int, bytes]:
    """Return the recorded number of rows of a chain, and the chain link (digest) of its last row.

    The link is empty without rows. Raises LedgerError if the record is damaged.
    """
    row = db.one(f"SELECT {table}, {table}_end FROM meta")  # noqa: S608  (our own names of tables)
    if row is None or type(row[0]) is not int or not isinstance(row[1], bytes):
        raise LedgerError(
            f"the ledger {db.path} has no valid end of its {table}; restore it from a backup"
        )
    return row[0], row[1]


def identity(db: Database) -> str:
    """Return the identity of a ledger; LedgerError if it is damaged."""
    row = db.one("SELECT identity FROM meta")
    if row is None or not isinstance(row[0], str) or not _IDENTITY.fullmatch(row[0]):
        raise LedgerError(f"the ledger {db.path} has no valid identity; restore it from a backup")
    return row[0]


def link_after(db: Database, table: Chain, count: int) -> bytes | None:
    """Return the stored link of row `count`, from 1, of a chain; None if there is no such row.

    A link is a digest of all rows up to its own. Raises LedgerError if it is not bytes.
    """
    row = db.one(
        f"SELECT chain FROM {table} ORDER BY id LIMIT 1 OFFSET ?",  # noqa: S608  (our own names of tables)
        (count - 1,),
    )
    if row is not None and not isinstance(row[0], bytes):
        raise LedgerError(
            f"{table.removesuffix('s')} {count} of {db.path} was altered; restore the ledger from "
            "a backup"
        )
    return None if row is None else row[0]


def links(db: Database, table: Chain) -> Iterator[bytes]:
    """Yield the stored link of each row of a chain in order: a digest of all rows up to it."""
    for (link,) in db.each(f"SELECT chain FROM {table} ORDER BY id"):  # noqa: S608  (our own names of tables)
        yield link


def alterations(db: Database) -> Iterator[str]:
    """Yield a sentence for each change not made by charging, budgeting or storing a message.

    Raises LedgerError if the recorded end of a chain is damaged.
    """
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
        found.append("a message or charge refers to a missing row")
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
    """Return whether stored bytes match the digest that was stored with them.

    True if `digest` is None: version 1 stored no digest for messages that it discarded.
    """
    return digest is None or (isinstance(message, bytes) and records.digest(message) == digest)


def _program_problems(db: Database) -> Iterator[str]:
    """Yield triggers and views that a ledger does not have, and a missing counting trigger.

    Triggers are part of the file and run on every write, so only the expected ones may be there.
    """
    rows = db.all("SELECT type, name, sql FROM sqlite_master WHERE type IN ('trigger', 'view')")
    expected = database.triggers()
    for kind, name, text in rows:
        if expected.get(name) != text:
            yield f"the {kind} '{name}' does not belong to a ledger"
    if database.COUNTING_TRIGGER not in {name for _, name, _ in rows}:
        yield "the trigger that counts every charge is missing"


def _chain_problems(
    db: Database, table: Chain, counted: Counter[tuple[Any, Any, Any]]
) -> Iterator[str]:
    """Yield the problems of a chain; count charges by client, event and unit on the way."""
    count, end = chain_end(db, table)
    link, number = b"", 0
    texts = dict(db.all("SELECT id, json FROM events")) if table == "charges" else {}
    for row_id, *content, stored in db.each(_CONTENT[table]):
        if table == "charges":
            event = content[_EVENT]
            counted[content[_CLIENT], event, content[_UNIT]] += 1
            content[_EVENT] = texts.get(event)  # the digest covers the event itself, not its id
        if not isinstance(stored, bytes) or stored != _link(link, tuple(content)):
            yield f"{table.removesuffix('s')} {row_id} was altered, or a row before it removed"
        link = stored if isinstance(stored, bytes) else b""
        number += 1
    if (number, link) != (count, end):
        yield f"{table} has {number} rows, but {count} were written"


def _link(previous: bytes, content: tuple[Any, ...]) -> bytes | None:
    """Return the chain link of a row; None if it holds values that no version writes."""
    try:
        return records.link(previous, content)
    except TypeError:
        return None


def _count_problems(db: Database, counted: Counter[tuple[Any, Any, Any]]) -> Iterator[str]:
    """Yield the clients whose spending is not the number of their charges."""
    spending = {
        (client, event, unit): count
        for client, event, unit, count in db.each("SELECT client, event, unit, count FROM spending")
    }
    if spending == dict(counted):
        return
    keys = spending.keys() | counted.keys()
    wrong = {str(key[0]) for key in keys if spending.get(key, 0) != counted.get(key, 0)}
    for client in sorted(wrong):
        yield f"client '{client}': the spending that is counted differs from the charges"


def _budget_problems(db: Database) -> list[str]:
    found = []
    for (client,) in db.all("SELECT client FROM budgets ORDER BY client"):
        try:
            budget = accounts.budgets(db, [client]).get(client)
            if budget is None:
                raise LedgerError("its budget cannot be found; restore the ledger from a backup")
            history = accounts.histories(db, [client]).get(client, {})
            past = accounts.composition(history)
            accounts.check_adjacency(f"client '{client}'", budget.adjacency, past, None)
            if not past:
                continue
            spent = privacy_spent(compositions.compose_repeated(past), budget.delta)
        except SottovoceError as error:
            found.append(f"client '{client}': {error}")
            continue
        if spent.epsilon > budget.epsilon:
            found.append(
                f"client '{client}' has spent epsilon {show_epsilon(spent.epsilon)}, "
                f"more than its budget {budget.epsilon:.15g}"
            )
    return found
