"""What is wrong with a ledger, in sentences."""

from typing import Literal

from sottovoce.errors import LedgerError, SottovoceError
from sottovoce.ledger import accounts, chain
from sottovoce.ledger.database import Database
from sottovoce.privacy import compositions
from sottovoce.privacy.accounting import privacy_spent, show_epsilon

Chain = Literal["charges", "budgets", "messages"]

_CONTENT: dict[Chain, str] = {
    "charges": "SELECT charges.id, run, client, round, uplink, attempt, unit, json, "
    "CASE WHEN commitment IS NOT NULL THEN lower(hex(commitment)) END, chain "
    "FROM charges LEFT JOIN events ON events.id = charges.event ORDER BY charges.id",
    "budgets": "SELECT id, client, epsilon, delta, adjacency, unit, chain FROM budgets ORDER BY id",
    "messages": "SELECT id, charge, "
    "CASE WHEN commitment IS NOT NULL THEN lower(hex(commitment)) END, "
    "CASE WHEN digest IS NOT NULL THEN lower(hex(digest)) END, chain FROM messages ORDER BY id",
}


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


def chain_end(db: Database, table: Chain) -> tuple[int, bytes]:
    """How many rows a chain has, and its last link."""
    count, end = db.one(f"SELECT {table}, {table}_end FROM meta")
    return count, end


def _problems_of_rows(db: Database) -> list[str]:
    found = []
    if db.all("PRAGMA foreign_key_check"):
        found.append("a message or charge refers to a row that is gone")
    for table in _CONTENT:
        found += _chain_problems(db, table)
    found += [
        f"message {row_id} was altered"
        for row_id, digest, message in db.each(
            "SELECT id, digest, message FROM messages "
            "WHERE message IS NOT NULL AND digest IS NOT NULL"
        )
        if chain.digest(message) != digest
    ]
    found += [
        f"client '{client}': what is counted as spent is not the number of its charges"
        for (client,) in db.all(
            "SELECT DISTINCT client FROM (SELECT client, event, unit, 1 AS count FROM charges "
            "UNION ALL SELECT client, event, unit, -count FROM spending) "
            "GROUP BY client, event, unit HAVING SUM(count) != 0"
        )
    ]
    return found + _budget_problems(db)


def _chain_problems(db: Database, table: Chain) -> list[str]:
    count, end = chain_end(db, table)
    link, number = b"", 0
    found = []
    for row_id, *content, stored in db.each(_CONTENT[table]):
        if stored != chain.link(link, tuple(content)):
            found.append(
                f"{table.removesuffix('s')} {row_id} was altered, or a row before it removed"
            )
        link = stored
        number += 1
    if (number, link) != (count, end):
        found.append(f"{table} holds {number} rows where {count} were written")
    return found


def _budget_problems(db: Database) -> list[str]:
    found = []
    for (client,) in db.all("SELECT client FROM budgets ORDER BY client"):
        try:
            budget = accounts.budgets(db, [client])[client]
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
                f"more than its budget {budget.epsilon:g}"
            )
    return found
