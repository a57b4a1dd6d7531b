"""The tables of a ledger, and how a ledger of an earlier version becomes one of this version.

charges    one row for each attempt at a release. `commitment` is that of version 1, whose digests
           cover it. In newer rows it is NULL, but for the first of each commit: there it is a
           random number, so that the chains of two ledgers that went on apart differ, whatever
           was charged and answered.
messages   what was encoded under a charge, from the moment it may leave. A row is never deleted: a
           discarded message leaves its digests behind, so that whatever has no row never left.
           Without a commitment the first of each commit has a random number in its place, too.
spending   how often each event was charged to each client: the charges counted, by a trigger, so
           that no charge can be entered without it.
meta       length and end of each chain, so that rows missing at the end are noticed; the identity
           of the ledger; and whether it is `bound`: 0 only for a ledger that an earlier version
           made and that no site has taken over since.
"""

import hashlib
import secrets
import sqlite3

from sottovoce.ledger import records

SCHEMA_VERSION = 3
EARLIER_VERSIONS = (1, 2)
NONCE_BYTES = 8  # of a random number in the place of a commitment, which is longer
# Begins an identity that was worked out and not drawn: two ledgers may share it.
DERIVED = "0" * 8
COUNTING = "every_charge_counts"  # the trigger without which a charge would cost nothing

SCHEMA = (
    """CREATE TABLE meta (
        schema_version INTEGER NOT NULL,
        charges INTEGER NOT NULL, charges_end BLOB NOT NULL,
        budgets INTEGER NOT NULL, budgets_end BLOB NOT NULL,
        messages INTEGER NOT NULL, messages_end BLOB NOT NULL,
        identity TEXT NOT NULL, bound INTEGER NOT NULL)""",
    """CREATE TABLE budgets (
        id INTEGER PRIMARY KEY AUTOINCREMENT, client TEXT NOT NULL UNIQUE,
        epsilon REAL NOT NULL, delta REAL NOT NULL, adjacency TEXT NOT NULL, unit TEXT NOT NULL,
        chain BLOB NOT NULL)""",
    "CREATE TABLE events (id INTEGER PRIMARY KEY, json TEXT NOT NULL UNIQUE)",
    # Rounds come one after another, so with the round first the index grows at its end.
    """CREATE TABLE charges (
        id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, client TEXT NOT NULL,
        round INTEGER NOT NULL, uplink INTEGER NOT NULL, attempt INTEGER NOT NULL,
        unit TEXT NOT NULL, event INTEGER NOT NULL REFERENCES events(id), commitment BLOB,
        chain BLOB NOT NULL,
        UNIQUE (run, round, client, uplink, attempt))""",
    """CREATE TABLE spending (
        client TEXT NOT NULL, event INTEGER NOT NULL, unit TEXT NOT NULL, count INTEGER NOT NULL,
        PRIMARY KEY (client, event, unit)) WITHOUT ROWID""",
    """CREATE TRIGGER every_charge_counts AFTER INSERT ON charges BEGIN
        INSERT INTO spending VALUES (NEW.client, NEW.event, NEW.unit, 1)
        ON CONFLICT (client, event, unit) DO UPDATE SET count = count + 1; END""",
    """CREATE TABLE messages (
        id INTEGER PRIMARY KEY AUTOINCREMENT, charge INTEGER NOT NULL UNIQUE REFERENCES charges(id),
        commitment BLOB, digest BLOB, message BLOB, chain BLOB NOT NULL)""",
    # An earlier version's way to discard, in a process that had the file open before.
    """CREATE TRIGGER no_message_is_forgotten BEFORE DELETE ON messages BEGIN
        SELECT RAISE(ABORT, 'messages are discarded, not deleted'); END""",
    "CREATE INDEX messages_kept ON messages (charge) WHERE message IS NOT NULL",
)


def triggers() -> dict[str, str]:
    """The triggers of a ledger, by name, as SQLite keeps them."""
    found = [statement for statement in SCHEMA if statement.startswith("CREATE TRIGGER")]
    return {statement.split()[2]: statement for statement in found}


def create(connection: sqlite3.Connection) -> None:
    """The tables of an empty ledger, within the transaction around it."""
    for statement in SCHEMA:
        connection.execute(statement)
    _begin(connection, identity=secrets.token_hex(16), bound=True)


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Bring a ledger of version 1 or 2 up to date, within the transaction around it."""
    if version == 1:
        _migrate_from_1(connection)
        return
    for statement in (
        "ALTER TABLE meta ADD COLUMN identity TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE meta ADD COLUMN bound INTEGER NOT NULL DEFAULT 0",
    ):
        connection.execute(statement)
    connection.execute(
        "UPDATE meta SET schema_version = ?, identity = ?", (SCHEMA_VERSION, _derived(connection))
    )


def _begin(connection: sqlite3.Connection, *, identity: str, bound: bool) -> None:
    connection.execute(
        "INSERT INTO meta VALUES (?, 0, x'', 0, x'', 0, x'', ?, ?)",
        (SCHEMA_VERSION, identity, int(bound)),
    )


def _derived(connection: sqlite3.Connection) -> str:
    """An identity for a ledger that has none: the same for every copy of it, however old.

    It follows from the first charge, which all copies share, and so do two runs of one spec.
    Without a charge one is drawn.
    """
    first = connection.execute("SELECT chain FROM charges ORDER BY id LIMIT 1").fetchone()
    if first is None or not isinstance(first[0], bytes):
        return secrets.token_hex(16)
    digest = hashlib.blake2b(first[0], digest_size=12, person=b"ledger identity")
    return DERIVED + digest.hexdigest()


def _migrate_from_1(connection: sqlite3.Connection) -> None:
    """Copy a ledger of version 1 into tables of this version.

    Charges, budgets and events are copied as they are, with their digests: what was damaged before
    is found damaged after. Version 1 deleted discarded messages, so a charge without one may have
    been sent: each gets a row that says so, with the commitment that its charge has.
    """
    (*ends,) = connection.execute(
        "SELECT charges, charges_end, budgets, budgets_end FROM meta"
    ).fetchone()
    for statement in (
        "DROP INDEX charges_by_client",
        "ALTER TABLE messages RENAME TO old_messages",
        "ALTER TABLE charges RENAME TO old_charges",
        "DROP TABLE meta",
    ):
        connection.execute(statement)
    kept = ("CREATE TABLE budgets", "CREATE TABLE events")
    for statement in SCHEMA:
        if not statement.startswith(kept):
            connection.execute(statement)
    _begin(connection, identity="", bound=False)
    connection.execute("INSERT INTO charges SELECT * FROM old_charges ORDER BY id")
    last = b""
    count = 0
    for charge, commitment, message in connection.execute(
        "SELECT id, commitment, message FROM old_charges "
        "LEFT JOIN old_messages ON old_messages.charge = old_charges.id ORDER BY id"
    ):
        digest = None if message is None else records.digest(message)
        last = records.link(last, (charge, records.as_hex(commitment), records.as_hex(digest)))
        count += 1
        connection.execute(
            "INSERT INTO messages (charge, commitment, digest, message, chain) "
            "VALUES (?, ?, ?, ?, ?)",
            (charge, commitment, digest, message, last),
        )
    connection.execute(
        "UPDATE meta SET charges = ?, charges_end = ?, budgets = ?, budgets_end = ?, "
        "messages = ?, messages_end = ?, identity = ?",
        (*ends, count, last, _derived(connection)),
    )
    connection.execute("DROP TABLE old_messages")
    connection.execute("DROP TABLE old_charges")
