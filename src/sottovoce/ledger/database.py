"""The SQLite file of a ledger: its schema, durable transactions, and errors that name a remedy.

A ledger of an earlier version is converted to this version when it is opened. The tables:

charges    One row for each attempt at a release. `commitment` is used by version 1, whose digests
           cover it. In newer rows it is NULL, except in the first row of each commit, where it is
           a random number. So the chains of two ledgers that were charged separately differ,
           whatever was charged and answered.
messages   What was encoded under a charge, written before it may leave. A row is never deleted: a
           discarded message leaves its digests, so a charge without a row has released nothing.
           If there is no commitment, the first row of each commit has a random number there, too.
spending   How often each event was charged to each client. A trigger counts the charges, so no
           charge can be entered without being counted.
meta       Length and last link of each chain, so that rows missing at the end are noticed; the
           identity of the ledger; and `bound`, which is 0 only for a ledger that an earlier
           version made and that no site has used since.
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
NONCE_BYTES = 8  # size of a random number in place of a commitment, which is longer
# Prefix of an identity that was derived instead of drawn at random: two ledgers may share it.
DERIVED_PREFIX = "0" * 8
COUNTING_TRIGGER = "every_charge_counts"  # the trigger that adds each charge to `spending`

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
    # Rounds arrive in order, so an index that starts with the round grows at its end.
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
    # Blocks the DELETE by which an earlier version discards messages, in a process that opened the
    # file before its conversion.
    """CREATE TRIGGER no_message_is_forgotten BEFORE DELETE ON messages BEGIN
        SELECT RAISE(ABORT, 'messages are discarded, not deleted'); END""",
    "CREATE INDEX messages_kept ON messages (charge) WHERE message IS NOT NULL",
)


def triggers() -> dict[str, str]:
    """Return the triggers of a ledger by name, as SQLite stores them."""
    found = [statement for statement in SCHEMA if statement.startswith("CREATE TRIGGER")]
    return {statement.split()[2]: statement for statement in found}


def create(connection: sqlite3.Connection) -> None:
    """Create the tables of an empty ledger inside the caller's transaction."""
    for statement in SCHEMA:
        connection.execute(statement)
    _begin(connection, identity=secrets.token_hex(16), bound=True)


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Convert a ledger of old `version`, 1 or 2, to SCHEMA_VERSION in the caller's transaction."""
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
    """Return an identity for a ledger that has none; it is the same for all copies of a ledger.

    It is derived from the first charge, which all copies have. Two runs of one spec also have the
    same first charge, hence the same derived identity. Without a charge the identity is random.
    """
    first = connection.execute("SELECT chain FROM charges ORDER BY id LIMIT 1").fetchone()
    if first is None or not isinstance(first[0], bytes):
        return secrets.token_hex(16)
    digest = hashlib.blake2b(first[0], digest_size=12, person=b"ledger identity")
    return DERIVED_PREFIX + digest.hexdigest()


def _migrate_from_1(connection: sqlite3.Connection) -> None:
    """Copy a ledger of version 1 into tables of this version.

    Charges, budgets and events keep their digests, so damage from before is still detected after.
    Version 1 deleted discarded messages, so a charge without a message may have been sent: each
    gets a message row that says so, with the commitment of its charge.
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
_NAMES_TOGETHER = 1000  # well below the number of parameters that SQLite allows in a statement


Access = Literal["read", "write", "create"]


class Database:
    """One connection to a ledger file; errors of sqlite3 are raised as LedgerError.

    With access `read` the file is not changed: a ledger of an earlier version is converted in
    memory. With `create` an empty ledger is made if the path does not exist; otherwise a missing
    file raises LedgerError. With `write`, a ledger in a read-only folder can only be read.
    `execute` and `execute_many` convert errors only inside `transaction` or `snapshot`.
    """

    def __init__(self, path: Path, access: Access) -> None:
        # Absolute, so that ':memory:' names a file: a ledger must outlive its process.
        self.path = path.absolute()
        # Checked before the file: a process that creates the ledger creates its log last.
        has_log = self._log.exists()
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
        """Close the connection."""
        self._connection.close()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction or snapshot is open."""
        return self._connection.in_transaction

    @property
    def data_version(self) -> int:
        """A number that changes whenever another connection changes the file."""
        return int(self.one("PRAGMA data_version")[0])

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Execute one statement; errors of sqlite3 are not converted."""
        return self._connection.execute(statement, values)

    def all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a query."""
        with self.explained("read"):
            return self.execute(statement, values).fetchall()

    def one(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """Return the first row of a query, or None."""
        with self.explained("read"):
            return self.execute(statement, values).fetchone()

    def each(self, statement: str) -> Iterator[Any]:
        """Yield the rows of a query one by one, without holding the table in memory."""
        with self.explained("read"):
            yield from self.execute(statement)

    def select_in(self, statement: str, names: Sequence[Any], *values: Any) -> Iterator[Any]:
        """Yield the rows of a query that contains `IN ({names})`, for any number of names.

        The names are bound as parameters, in several statements if there are many. SQL or JSON text
        would not preserve every name exactly.
        """
        for start in range(0, len(names), _NAMES_TOGETHER):
            part = names[start : start + _NAMES_TOGETHER]
            marks = ",".join("?" * len(part))
            yield from self.all(statement.replace("{names}", marks), (*values, *part))

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute one statement for each row of values; errors of sqlite3 are not converted."""
        self._connection.executemany(statement, rows)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in one transaction that is on disk when the block ends.

        An error in the block undoes everything. Transactions cannot be nested. Raises LedgerError
        if another process keeps the file locked for 30 seconds.
        """
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
        """Move all commits from the log into the file, which is then complete without its log.

        Waits for readers of earlier commits, and raises LedgerError after 30 seconds. Cannot be
        called inside a transaction.
        """
        deadline = time.monotonic() + _BUSY_SECONDS
        while self._is_checkpoint_busy():
            if time.monotonic() > deadline:
                raise LedgerError(f"cannot write to the ledger {self.path}: {self._busy_remedy()}")
            time.sleep(0.02)  # SQLite does not wait for the checkpoint of another connection

    def _is_checkpoint_busy(self) -> bool:
        with self.explained("write to"):
            is_busy, *_ = self.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return bool(is_busy)

    def copy_to(self, path: Path) -> None:
        """Write a copy of one moment, without a log, to a file that is empty or absent."""
        with self.explained("copy"), contextlib.closing(sqlite3.connect(path)) as copy:
            self._connection.backup(copy)
            copy.execute(
                "PRAGMA journal_mode = WAL"
            )  # as in a new ledger, also for a copy of memory

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let all reads of the block see the ledger at one moment, whatever others write."""
        with self.explained("read"):
            self.execute("BEGIN")
            try:
                yield
            finally:
                self._roll_back()

    @contextlib.contextmanager
    def explained(self, action: str) -> Iterator[None]:
        """Convert errors of SQLite in the block to a LedgerError that names a remedy.

        Its message starts with "cannot `action` the ledger".
        """
        try:
            yield
        # SQLite's error for a damaged file may contain bytes that are not text.
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise LedgerError(
                f"cannot {action} the ledger {self.path}: {error}; {self._remedy(error)}"
            ) from error

    def _remedy(self, error: Exception) -> str:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            return self._busy_remedy()
        if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
            return "this program closed it before; open it again"
        if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error):
            return "check the disk's free space and the file's permissions"
        restore = "restore it from a backup; a new ledger would omit what was spent"
        is_not_sqlite = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB
        if is_not_sqlite and self.path.suffix != ".sqlite":
            return f"name a folder with a ledger, or a ledger file; if this was a ledger, {restore}"
        return restore

    def _busy_remedy(self) -> str:
        return (
            f"another process has kept it locked for {_BUSY_SECONDS:g} s (on Linux, "
            f"'fuser {self.path}' names it); try again when that process is done, nothing is lost"
        )

    @property
    def _log(self) -> Path:
        """SQLite's log of commits that are not yet in the file."""
        return self._file.with_name(f"{self._file.name}-wal")

    @property
    def _file(self) -> Path:
        """The ledger file itself: SQLite keeps its log there, not next to a link."""
        return Path(os.path.realpath(self.path))

    def _check_file(self, given: Path) -> None:
        """Raise LedgerError for an absent or empty file, which SQLite would initialize."""
        if self.path.is_symlink() and not self.path.exists():
            raise LedgerError(
                f"{self.path} is a link to a missing file; restore it from a backup, because a new "
                "ledger would omit what was spent"
            )
        if not self.path.is_file():
            raise LedgerError(
                f"no ledger at {given}; name a run folder or a ledger file. If a ledger was there, "
                "restore it from a backup; Ledger(path, create=True) creates a new one"
            )
        if not self.path.stat().st_size:
            raise LedgerError(
                f"{self.path} is empty; restore it from a backup, because a new ledger would omit "
                "what was spent. Remove the file if it never held a ledger"
            )

    def _is_archived(self) -> bool:
        """Return whether the ledger is complete and in a folder that is read-only."""
        return not os.access(self._file.parent, os.W_OK) and not self._log.exists()

    def _connect(self, *, archived: bool) -> sqlite3.Connection:
        # SQLite writes files next to a database even to read it, unless the URI forbids it.
        target = f"{self._file.as_uri()}?immutable=1" if archived else self.path
        return sqlite3.connect(target, uri=archived, isolation_level=None, timeout=_BUSY_SECONDS)

    def _roll_back(self) -> None:
        try:
            self.execute("ROLLBACK")
        except sqlite3.Error:
            # The state of the transaction is unknown; reopening the file recovers it.
            self._connection.close()

    def _open(self, *, read_only: bool) -> None:
        if "meta" not in self._tables():
            raise LedgerError(
                f"{self.path} is not a Sottovoce ledger; name a ledger file or a run folder"
            )
        if self._version() in EARLIER_VERSIONS:
            if read_only:
                self._copy_to_memory()
            with self.transaction():
                version = self._version()  # another process may have converted it
                if version in EARLIER_VERSIONS:
                    migrate(self._connection, version)
        if read_only:
            self.execute("PRAGMA query_only = ON")
        version = self._version()
        if version != SCHEMA_VERSION:
            raise LedgerError(
                f"{self.path} has ledger version {version}, but this version of Sottovoce reads "
                f"versions {min(EARLIER_VERSIONS)} to {SCHEMA_VERSION}; nothing was changed. Use "
                "the version of Sottovoce that wrote it"
            )
        # FULL: a commit is on disk before the caller continues, so it survives a power failure.
        self.execute("PRAGMA synchronous = FULL")
        self.execute("PRAGMA foreign_keys = ON")

    def _version(self) -> Any:
        row = self.execute("SELECT schema_version FROM meta").fetchone()
        return "no" if row is None else row[0]

    def _copy_to_memory(self) -> None:
        """Replace the connection by a copy in memory, which can be converted."""
        copy = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.backup(copy)
        self._connection.close()
        self._connection = copy

    def _tables(self) -> set[str]:
        return {row[0] for row in self.execute("SELECT name FROM sqlite_master")}

    def _create(self, *, has_log: bool) -> None:
        """Create an empty ledger under a temporary name and rename it: it is complete or absent.

        If another process is faster, its ledger is the one that is opened.
        """
        if has_log:
            raise LedgerError(
                f"{self.path} is missing, but its log {self._log} exists; restore both from a "
                "backup, because a new ledger would omit what was spent"
            )
        temporary = self.path.with_name(f".{self.path.name[:100]}.{secrets.token_hex(8)}")
        try:
            # Readable by its owner only: it holds messages with their senders until they are
            # discarded.
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
            files.rename_if_absent(temporary, self.path)
        except OSError as error:
            raise LedgerError(
                f"cannot create the ledger {self.path}: {error.strerror or error}; check the "
                "disk's free space and the folder's permissions"
            ) from error
        finally:
            temporary.unlink(missing_ok=True)
