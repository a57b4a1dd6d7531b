"""Charges per client in SQLite: before encoding, never refunded, durable before anything leaves.

The ledger stores events, never epsilons; epsilon is recomputed from them by today's accountants.
A charge is keyed (run, client, round, uplink, attempt). The sealed message is stored beside it, so
that a retry sends the same bytes again instead of releasing anything new.

Every row carries a digest chained to the row before it, so `verify` notices a row that was edited,
removed or reordered by hand. It is no protection against someone who recomputes the chain.
"""

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sottovoce import parameters
from sottovoce.adjacency import Adjacency
from sottovoce.errors import AdjacencyMismatchError, BudgetExhaustedError, LedgerError
from sottovoce.privacy import events
from sottovoce.privacy.accounting import PrivacySpent, privacy_spent
from sottovoce.privacy.events import PrivacyEvent

SCHEMA_VERSION = 1

_SCHEMA = """
CREATE TABLE meta (schema_version INTEGER NOT NULL);
CREATE TABLE budgets (
    client TEXT PRIMARY KEY, epsilon REAL NOT NULL, delta REAL NOT NULL, adjacency TEXT NOT NULL);
CREATE TABLE events (id INTEGER PRIMARY KEY, json TEXT NOT NULL UNIQUE);
CREATE TABLE charges (
    id INTEGER PRIMARY KEY, run TEXT NOT NULL, client TEXT NOT NULL, round INTEGER NOT NULL,
    uplink INTEGER NOT NULL, attempt INTEGER NOT NULL, event INTEGER NOT NULL REFERENCES events(id),
    commitment BLOB, chain BLOB NOT NULL,
    UNIQUE (run, client, round, uplink, attempt));
CREATE INDEX charges_by_client ON charges (client, event);
CREATE TABLE messages (
    charge INTEGER PRIMARY KEY REFERENCES charges(id), message BLOB NOT NULL);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most a client may spend, over everything in the ledger."""

    epsilon: float
    delta: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        parameters.epsilon(self.epsilon)
        parameters.delta(self.delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One vector that a client is asked to send."""

    run: str
    client: str
    round: int
    uplink: int

    def __str__(self) -> str:
        return f"client '{self.client}', round {self.round}, uplink {self.uplink}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A charge in the ledger, with the sealed message once it has been stored."""

    id: int
    release: Release
    attempt: int
    event: PrivacyEvent
    commitment: bytes | None
    message: bytes | None


class Ledger:
    """A SQLite file of charges. Use as a context manager; one writer at a time."""

    def __init__(self, path: Path | str, *, must_exist: bool = False) -> None:
        self.path = Path(path)
        if must_exist and not self.path.is_file():
            raise LedgerError(f"no ledger at {self.path}; name a run folder or a ledger file")
        with self._explained("open"):
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=30.0)
            # FULL: a commit is on disk before the caller goes on, even if the power fails.
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA foreign_keys = ON")
            self._prepare_schema(may_create=not must_exist)
        self._last_chain: bytes | None = None

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    # -- writing ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Group charges or messages into one durable commit (a whole cohort costs one sync)."""
        with self._explained("write to"):
            self._db.execute("BEGIN IMMEDIATE")
            self._last_chain = None  # another process may have written since
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise

    def set_budget(self, client: str, budget: Budget) -> None:
        """Give a client its budget, once: nobody can raise it later."""
        with self._writing():
            present = self.budget(client)
            if present not in (None, budget):
                raise LedgerError(
                    f"client '{client}' has another budget already: {present}; "
                    "start a new ledger to change it"
                )
            self._db.execute(
                "INSERT OR IGNORE INTO budgets VALUES (?, ?, ?, ?)",
                (client, budget.epsilon, budget.delta, budget.adjacency),
            )

    def charge(
        self, release: Release, attempt: int, event: PrivacyEvent, commitment: bytes | None
    ) -> Charge:
        """Enter a charge, or raise BudgetExhaustedError and enter nothing."""
        with self._writing():
            self._check_budget(release, event)
            text = events.to_json(event)
            self._db.execute("INSERT OR IGNORE INTO events (json) VALUES (?)", (text,))
            row = (*_key(release), attempt, text, None if commitment is None else commitment.hex())
            chain = _link(self._chain_end(), row)
            try:
                inserted = self._db.execute(
                    "INSERT INTO charges (run, client, round, uplink, attempt, event, commitment, "
                    "chain) SELECT ?, ?, ?, ?, ?, id, ?, ? FROM events WHERE json = ? RETURNING id",
                    (*_key(release), attempt, commitment, chain, text),
                ).fetchone()
            except sqlite3.IntegrityError:
                raise LedgerError(f"{release}, attempt {attempt} has been charged before") from None
            self._last_chain = chain
        return Charge(
            id=inserted[0],
            release=release,
            attempt=attempt,
            event=event,
            commitment=commitment,
            message=None,
        )

    def store_message(self, charge: Charge, message: bytes) -> None:
        """Keep the sealed message, so that a retry sends these bytes and no others."""
        with self._writing():
            self._db.execute("INSERT INTO messages VALUES (?, ?)", (charge.id, message))

    def discard_messages(self, run: str, before_round: int) -> None:
        """Drop stored messages of finished rounds; their charges stay."""
        with self._writing():
            self._db.execute(
                "DELETE FROM messages WHERE charge IN "
                "(SELECT id FROM charges WHERE run = ? AND round < ?)",
                (run, before_round),
            )

    # -- reading ---------------------------------------------------------------------------

    def latest(self, release: Release) -> Charge | None:
        """The newest attempt at a release, if there is one."""
        with self._explained("read"):
            row = self._db.execute(
                "SELECT charges.id, attempt, json, commitment, message FROM charges "
                "JOIN events ON events.id = charges.event "
                "LEFT JOIN messages ON messages.charge = charges.id "
                "WHERE run = ? AND client = ? AND round = ? AND uplink = ? "
                "ORDER BY attempt DESC LIMIT 1",
                _key(release),
            ).fetchone()
        if row is None:
            return None
        return Charge(
            id=row[0],
            release=release,
            attempt=row[1],
            event=events.from_json(row[2]),
            commitment=row[3],
            message=row[4],
        )

    def clients(self) -> list[str]:
        """Everyone with a charge or a budget."""
        with self._explained("read"):
            rows = self._db.execute(
                "SELECT client FROM charges UNION SELECT client FROM budgets ORDER BY client"
            ).fetchall()
        return [row[0] for row in rows]

    def budget(self, client: str) -> Budget | None:
        with self._explained("read"):
            row = self._db.execute(
                "SELECT epsilon, delta, adjacency FROM budgets WHERE client = ?", (client,)
            ).fetchone()
        if row is None:
            return None
        return Budget(epsilon=row[0], delta=row[1], adjacency=Adjacency(row[2]))

    def history(self, client: str) -> list[tuple[PrivacyEvent, int]]:
        """Every event charged to a client, with its count."""
        with self._explained("read"):
            rows = self._db.execute(
                "SELECT json, COUNT(*) FROM charges JOIN events ON events.id = charges.event "
                "WHERE client = ? GROUP BY event ORDER BY event",
                (client,),
            ).fetchall()
        return [(events.from_json(text), count) for text, count in rows]

    def spent(self, client: str, delta: float) -> PrivacySpent | None:
        """What a client has spent; None if nothing."""
        history = self.history(client)
        return privacy_spent(events.multiset(history), delta) if history else None

    def largest_spent(
        self, delta: float, *, run: str | None = None, through_round: int | None = None
    ) -> PrivacySpent | None:
        """What the client that has spent most has spent; None if nobody has.

        With `run` and `through_round`, later rounds of that run do not count yet.
        """
        with self._explained("read"):
            rows = self._db.execute(
                "SELECT client, json, COUNT(*) FROM charges "
                "JOIN events ON events.id = charges.event "
                "WHERE ?1 IS NULL OR run != ?1 OR round <= ?2 "
                "GROUP BY client, event ORDER BY event",
                (run, through_round),
            ).fetchall()
        histories: dict[str, list[tuple[str, int]]] = {}
        for client, text, count in rows:
            histories.setdefault(client, []).append((text, count))
        # Clients mostly share a history: each distinct one is accounted once.
        totals = [
            privacy_spent(
                events.multiset((events.from_json(text), count) for text, count in history), delta
            )
            for history in {tuple(history) for history in histories.values()}
        ]
        return max(totals, key=lambda spent: spent.epsilon, default=None)

    def rows(self, client: str | None = None) -> Iterator[dict[str, object]]:
        """The charges in order, as plain data."""
        with self._explained("read"):
            cursor = self._db.execute(
                "SELECT charges.id, run, client, round, uplink, attempt, json, "
                "EXISTS (SELECT 1 FROM messages WHERE charge = charges.id) FROM charges "
                "JOIN events ON events.id = charges.event "
                "WHERE ?1 IS NULL OR client = ?1 ORDER BY charges.id",
                (client,),
            )
            for id_, run, name, round_number, uplink, attempt, text, stored in cursor:
                yield {
                    "id": id_,
                    "run": run,
                    "client": name,
                    "round": round_number,
                    "uplink": uplink,
                    "attempt": attempt,
                    "event": json.loads(text),
                    "message_stored": bool(stored),
                }

    def verify(self) -> list[str]:
        """Everything that is wrong with the ledger, in sentences; empty if all is well."""
        with self._explained("read"):
            problems = [
                f"SQLite reports: {row[0]}"
                for row in self._db.execute("PRAGMA integrity_check")
                if row[0] != "ok"
            ]
            chain = b""
            for row in self._db.execute(
                "SELECT charges.id, run, client, round, uplink, attempt, json, commitment, chain "
                "FROM charges LEFT JOIN events ON events.id = charges.event ORDER BY charges.id"
            ):
                id_, *content, commitment, stored = row
                expected = _link(
                    chain, (*content, None if commitment is None else commitment.hex())
                )
                if stored != expected:
                    problems.append(f"charge {id_} was altered, or a row before it was removed")
                chain = stored
        for client in self.clients():
            budget = self.budget(client)
            spent = self.spent(client, budget.delta) if budget else None
            if budget and spent and spent.epsilon > budget.epsilon:
                problems.append(
                    f"client '{client}' has spent epsilon {spent.epsilon:.6g}, "
                    f"more than its budget {budget.epsilon:g}"
                )
        return problems

    # -- inside ----------------------------------------------------------------------------

    def _check_budget(self, release: Release, event: PrivacyEvent) -> None:
        budget = self.budget(release.client)
        if budget is None:
            return
        if event.adjacency is not budget.adjacency:
            raise AdjacencyMismatchError(
                f"{release}: the event is {event.adjacency}, the budget {budget.adjacency}"
            )
        counts = dict(self.history(release.client))
        counts[event] = counts.get(event, 0) + 1
        after = privacy_spent(events.multiset(counts.items()), budget.delta)
        if after.epsilon > budget.epsilon:
            raise BudgetExhaustedError(
                f"{release}: epsilon would reach {after.epsilon:.6g} at delta {budget.delta:g} "
                f"({budget.adjacency}), above the budget {budget.epsilon:g}; nothing is sent"
            )

    def _chain_end(self) -> bytes:
        if self._last_chain is None:
            row = self._db.execute("SELECT chain FROM charges ORDER BY id DESC LIMIT 1").fetchone()
            self._last_chain = row[0] if row else b""
        return self._last_chain

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """The surrounding transaction, or one of its own."""
        if self._db.in_transaction:
            yield
        else:
            with self.transaction():
                yield

    def _prepare_schema(self, *, may_create: bool) -> None:
        tables = {r[0] for r in self._db.execute("SELECT name FROM sqlite_master")}
        if not tables and may_create:
            self._db.executescript(
                f"BEGIN IMMEDIATE;{_SCHEMA}INSERT INTO meta VALUES ({SCHEMA_VERSION});COMMIT;"
            )
            return
        if "meta" not in tables:
            raise LedgerError(f"{self.path} is not a Sottovoce ledger")
        version = self._db.execute("SELECT schema_version FROM meta").fetchone()[0]
        if version != SCHEMA_VERSION:
            raise LedgerError(
                f"{self.path} has ledger version {version}, this Sottovoce reads {SCHEMA_VERSION}"
            )

    @contextlib.contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LedgerError(
                f"cannot {action} the ledger {self.path}: {error}; "
                "check the disk's free space and the file's permissions"
            ) from error


def _key(release: Release) -> tuple[str, str, int, int]:
    return release.run, release.client, release.round, release.uplink


def _link(previous: bytes, row: tuple[object, ...]) -> bytes:
    text = json.dumps(row, separators=(",", ":"))
    return hashlib.blake2b(previous + text.encode(), digest_size=16).digest()
