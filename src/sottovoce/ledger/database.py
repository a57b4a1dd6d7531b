"""The SQLite file under the ledger: schema, durable transactions, errors with a remedy.

A ledger of an earlier version becomes one of this version. The tables:

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

import contextlib
import hashlib
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from sottovoce.core import files
from sottovoce.core.errors import LedgerError
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


_BUSY_SECONDS = 30.0
_NAMES_TOGETHER = 1000  # well below the number of variables that SQLite allows in a statement


Access = Literal["read", "write", "create"]


class Database:
    """One connection; sqlite3 errors come out as LedgerError.

    With `read` nothing is changed: a ledger of an earlier version is brought up to date in memory.
    With `create` an empty ledger is made where nothing has the name yet.
    """

    def __init__(self, path: Path, access: Access) -> None:
        # Absolute, so that ':memory:' is a file like any other: a ledger must outlive its process.
        self.path = path.absolute()
        has_log = self._log.exists()  # before the file: whoever makes the file makes the log later
        if access == "create" and not os.path.lexists(self.path):
            self._create(has_log=has_log)
        self._check_file(path)
        archived = access != "create" and self._is_archived()
        with self.explained("open"):
            self._connection = self._connect(archived=archived)
        try:
            with self.explained("open"):
                self._open(read_only=archived or access == "read")
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    @property
    def version_of_others(self) -> int:
        """A number that changes whenever another connection has changed the file."""
        return int(self.one("PRAGMA data_version")[0])

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Every row of a query."""
        with self.explained("read"):
            return self.execute(statement, values).fetchall()

    def one(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """The first row of a query, or None."""
        with self.explained("read"):
            return self.execute(statement, values).fetchone()

    def each(self, statement: str) -> Iterator[Any]:
        """The rows of a query one by one, for tables that are larger than memory should be."""
        with self.explained("read"):
            yield from self.execute(statement)

    def of_many(self, statement: str, names: Sequence[Any], *values: Any) -> Iterator[Any]:
        """The rows of a query with `IN ({names})` at its end, for however many names.

        Names are bound one by one: SQL and JSON text would not bring every name back as it was.
        """
        for start in range(0, len(names), _NAMES_TOGETHER):
            part = names[start : start + _NAMES_TOGETHER]
            marks = ",".join("?" * len(part))
            yield from self.all(statement.replace("{names}", marks), (*values, *part))

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(statement, rows)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and on disk when it is left."""
        with self.explained("write to"):
            try:
                self.execute("BEGIN IMMEDIATE")
                yield
                self.execute("COMMIT")
            except BaseException:
                if self.in_transaction:
                    self._roll_back()
                raise

    def checkpoint(self) -> None:
        """Bring all commits from the log into the file, which is then whole without its log.

        Waits for readers of earlier commits. Not possible within a transaction.
        """
        deadline = time.monotonic() + _BUSY_SECONDS
        while self._is_checkpoint_busy():
            if time.monotonic() > deadline:
                raise LedgerError(f"cannot write to the ledger {self.path}: {self._when_busy()}")
            time.sleep(0.02)  # SQLite does not wait for the checkpoint of another connection

    def _is_checkpoint_busy(self) -> bool:
        with self.explained("write to"):
            is_busy, *_ = self.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return bool(is_busy)

    def copy_to(self, path: Path) -> None:
        """Write a copy, of one moment and without a log, to a file that is empty or absent."""
        with self.explained("copy"), contextlib.closing(sqlite3.connect(path)) as copy:
            self._connection.backup(copy)
            copy.execute("PRAGMA journal_mode = WAL")  # as a new one, also if it was in memory

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything read within is of one moment, whatever others write meanwhile."""
        with self.explained("read"):
            self.execute("BEGIN")
            try:
                yield
            finally:
                self._roll_back()

    @contextlib.contextmanager
    def explained(self, action: str) -> Iterator[None]:
        """Turn SQLite's errors into one sentence."""
        try:
            yield
        # Of a damaged file even the name in SQLite's own error may be no text.
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise LedgerError(
                f"cannot {action} the ledger {self.path}: {error}; {self._remedy(error)}"
            ) from error

    def _remedy(self, error: Exception) -> str:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            return self._when_busy()
        if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
            return "it was closed in this program; open it again"
        if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error):
            return "check the disk's free space and the file's permissions"
        restore = "restore it from a backup: a new ledger would forget what was spent"
        is_other = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB
        if is_other and self.path.suffix != ".sqlite":
            return f"name a folder with a ledger, or a ledger file; if it was one, {restore}"
        return restore

    def _when_busy(self) -> str:
        return (
            f"another process has kept it locked for {_BUSY_SECONDS:g} s (on Linux, "
            f"'fuser {self.path}' names it); try again when it is done: nothing is lost"
        )

    @property
    def _log(self) -> Path:
        """SQLite's log of commits that are not in the file itself yet."""
        return self._file.with_name(f"{self._file.name}-wal")

    @property
    def _file(self) -> Path:
        """Where the ledger itself lies: SQLite keeps the log there, not beside a link to it."""
        return Path(os.path.realpath(self.path))

    def _check_file(self, given: Path) -> None:
        """Refuse what is no file with anything in it: SQLite would make an empty ledger of it."""
        restore = "restore it from a backup; a new ledger would forget what was spent"
        if self.path.is_symlink() and not self.path.exists():
            raise LedgerError(f"{self.path} is a link to a file that is gone: {restore}")
        if not self.path.is_file():
            raise LedgerError(
                f"no ledger at {given}; name a run folder or a ledger file (if one was there, "
                "restore it; a new one is made by Ledger(path, create=True))"
            )
        if not self.path.stat().st_size:
            raise LedgerError(f"{self.path} is empty: {restore} (remove it if it never held one)")

    def _is_archived(self) -> bool:
        """Whether the ledger lies, whole, where nothing can be written."""
        return not os.access(self._file.parent, os.W_OK) and not self._log.exists()

    def _connect(self, *, archived: bool) -> sqlite3.Connection:
        # SQLite wants to write beside a database even to read it, unless it is told not to.
        target = f"{self._file.as_uri()}?immutable=1" if archived else self.path
        return sqlite3.connect(target, uri=archived, isolation_level=None, timeout=_BUSY_SECONDS)

    def _roll_back(self) -> None:
        try:
            self.execute("ROLLBACK")
        except sqlite3.Error:
            # Never go on inside a transaction of unknown state; reopening recovers the file.
            self._connection.close()

    def _open(self, *, read_only: bool) -> None:
        if "meta" not in self._tables():
            raise LedgerError(f"{self.path} is not a Sottovoce ledger")
        if self._version() in EARLIER_VERSIONS:
            if read_only:
                self._copy_to_memory()
            with self.transaction():
                version = self._version()  # another process may have been first
                if version in EARLIER_VERSIONS:
                    migrate(self._connection, version)
        if read_only:
            self.execute("PRAGMA query_only = ON")
        version = self._version()
        if version != SCHEMA_VERSION:
            raise LedgerError(
                f"{self.path} has ledger version {version}, this Sottovoce reads "
                f"{SCHEMA_VERSION}; nothing was changed: use the Sottovoce that wrote it"
            )
        # FULL: a commit is on disk before the caller goes on, even if the power fails.
        self.execute("PRAGMA synchronous = FULL")
        self.execute("PRAGMA foreign_keys = ON")

    def _version(self) -> Any:
        row = self.execute("SELECT schema_version FROM meta").fetchone()
        return "no" if row is None else row[0]

    def _copy_to_memory(self) -> None:
        """What is not brought up to date where it lies is read from a copy."""
        copy = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.backup(copy)
        self._connection.close()
        self._connection = copy

    def _tables(self) -> set[str]:
        return {row[0] for row in self.execute("SELECT name FROM sqlite_master")}

    def _create(self, *, has_log: bool) -> None:
        """Make an empty ledger under another name first: it is whole, or it is not there.

        Where another process is first, its ledger is the one that is opened.
        """
        if has_log:
            raise LedgerError(
                f"{self.path} is gone, but its log {self._log} is there: restore both from a "
                "backup; a new ledger would forget what was spent"
            )
        temporary = self.path.with_name(f".{self.path.name[:100]}.{secrets.token_hex(8)}")
        try:
            # Its owner's alone: it holds messages with their senders until they are discarded.
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, files.PRIVATE))
            with (
                self.explained("open"),
                contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as connection,
            ):
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN")
                create(connection)
                connection.execute("COMMIT")
            files.place_new(temporary, self.path)
        except OSError as error:
            raise LedgerError(
                f"cannot open the ledger {self.path}: {error.strerror or error}; check the disk's "
                "free space and the folder's permissions"
            ) from error
        finally:
            temporary.unlink(missing_ok=True)
