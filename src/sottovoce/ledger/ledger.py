"""Charges per client in SQLite: before encoding, never refunded, durable before anything leaves.

The ledger stores events, never epsilons; epsilon is recomputed from them by today's accountants.
A charge is keyed (run, client, round, uplink, attempt). The sealed message is stored beside it, so
that a retry sends the same bytes again instead of releasing anything new.

Charges and budgets carry digests chained from row to row, so `verify` notices a row that was
edited, removed or reordered by hand. It is no protection against someone who recomputes the chain.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from sottovoce.adjacency import Adjacency, Unit
from sottovoce.errors import (
    AdjacencyMismatchError,
    BudgetExhaustedError,
    LedgerError,
    SottovoceError,
)
from sottovoce.ledger.database import Database
from sottovoce.ledger.records import Budget, Charge, Release
from sottovoce.privacy import events
from sottovoce.privacy.accounting import PrivacySpent, privacy_spent, show_epsilon, within
from sottovoce.privacy.event_json import from_json, to_json
from sottovoce.privacy.events import PrivacyEvent

Chain = Literal["charges", "budgets"]


class Ledger:
    """A file of charges. Use as a context manager; several processes may share it."""

    def __init__(self, path: Path | str, *, must_exist: bool = False) -> None:
        self._db = Database(Path(path), must_exist=must_exist)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    # -- writing ---------------------------------------------------------------------------

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """Group charges or messages into one durable commit (a whole cohort costs one sync)."""
        return self._db.transaction()

    def set_budget(self, client: str, budget: Budget) -> None:
        """Give a client its budget, once: nobody can raise it later."""
        with self._writing():
            present = self.budget(client)
            if present == budget:
                return
            if present is not None:
                raise LedgerError(
                    f"client '{client}' has another budget already (epsilon {present.epsilon:g} "
                    f"at delta {present.delta:g}, {present.adjacency}, per {present.unit}); a "
                    "budget is set once"
                )
            for event, _ in self.history(client):
                _check_adjacency(f"client '{client}'", event, budget)
            self._check_unit(client, budget.unit)
            row = (
                client,
                float(budget.epsilon),
                float(budget.delta),
                str(budget.adjacency),
                str(budget.unit),
            )
            self._db.execute(
                "INSERT INTO budgets (client, epsilon, delta, adjacency, unit, chain) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (*row, self._extend("budgets", row)),
            )

    def charge(
        self, release: Release, attempt: int, event: PrivacyEvent, commitment: bytes | None
    ) -> Charge:
        """Enter a charge, or raise BudgetExhaustedError and enter nothing."""
        text = to_json(event)
        with self._writing():
            self._check_unit(release.client, release.unit)
            self._check_budget(release, event)
            taken = self._db.one(
                "SELECT 1 FROM charges WHERE run = ? AND client = ? AND round = ? AND uplink = ? "
                "AND attempt = ?",
                (*release.key, attempt),
            )
            if taken:
                raise LedgerError(f"{release}, attempt {attempt} has been charged before")
            self._db.execute("INSERT OR IGNORE INTO events (json) VALUES (?)", (text,))
            row = (*release.key, attempt, str(release.unit), text, _hex(commitment))
            chain = self._extend("charges", row)
            (charge_id,) = self._db.execute(
                "INSERT INTO charges (run, client, round, uplink, attempt, unit, event, "
                "commitment, chain) SELECT ?, ?, ?, ?, ?, ?, id, ?, ? FROM events WHERE json = ? "
                "RETURNING id",
                (*release.key, attempt, str(release.unit), commitment, chain, text),
            ).fetchone()
        return Charge(
            id=charge_id,
            release=release,
            attempt=attempt,
            event=event,
            commitment=commitment,
            message=None,
        )

    def store_message(self, charge: Charge, message: bytes) -> None:
        """Keep the sealed message, so that a retry sends these bytes and no others."""
        with self._writing():
            stored = self._db.one("SELECT message FROM messages WHERE charge = ?", (charge.id,))
            if stored is None:
                self._db.execute("INSERT INTO messages VALUES (?, ?)", (charge.id, message))
            elif stored[0] != message:
                raise LedgerError(
                    f"{charge.release}, attempt {charge.attempt} has another message already"
                )

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
        row = self._db.one(
            "SELECT charges.id, attempt, json, commitment, message FROM charges "
            "LEFT JOIN events ON events.id = charges.event "
            "LEFT JOIN messages ON messages.charge = charges.id "
            "WHERE run = ? AND client = ? AND round = ? AND uplink = ? "
            "ORDER BY attempt DESC LIMIT 1",
            release.key,
        )
        if row is None:
            return None
        return Charge(
            id=row[0],
            release=release,
            attempt=row[1],
            event=from_json(row[2]),
            commitment=row[3],
            message=row[4],
        )

    def clients(self) -> list[str]:
        """Everyone with a charge or a budget."""
        rows = self._db.all(
            "SELECT client FROM charges UNION SELECT client FROM budgets ORDER BY client"
        )
        return [row[0] for row in rows]

    def budget(self, client: str) -> Budget | None:
        row = self._db.one(
            "SELECT epsilon, delta, adjacency, unit FROM budgets WHERE client = ?", (client,)
        )
        if row is None:
            return None
        try:
            return Budget(
                epsilon=row[0], delta=row[1], adjacency=Adjacency(row[2]), unit=Unit(row[3])
            )
        except ValueError as error:
            raise LedgerError(f"the budget of client '{client}' is damaged: {error}") from None

    def history(self, client: str) -> list[tuple[PrivacyEvent, int]]:
        """Every event charged to a client, with its count."""
        rows = self._db.all(
            "SELECT json, COUNT(*) FROM charges LEFT JOIN events ON events.id = charges.event "
            "WHERE client = ? GROUP BY event ORDER BY event",
            (client,),
        )
        return [(from_json(text), count) for text, count in rows]

    def spent(self, client: str, delta: float) -> PrivacySpent | None:
        """What a client has spent; None if nothing."""
        history = self.history(client)
        return privacy_spent(events.multiset(history), delta) if history else None

    def largest_spent(
        self, delta: float, *, through: tuple[str, int] | None = None
    ) -> PrivacySpent | None:
        """What the client that has spent most has spent; None if nobody has.

        `through` = (run, round): rounds of that run after `round` do not count yet.
        """
        rows = self._db.all(
            "SELECT client, json, COUNT(*) FROM charges "
            "LEFT JOIN events ON events.id = charges.event "
            "WHERE ?1 IS NULL OR run != ?1 OR round <= ?2 "
            "GROUP BY client, event ORDER BY event",
            through or (None, None),
        )
        histories: dict[str, list[tuple[str, int]]] = {}
        for client, text, count in rows:
            histories.setdefault(client, []).append((text, count))
        # Clients mostly share a history: each distinct one is accounted once.
        totals = [
            privacy_spent(
                events.multiset((from_json(text), count) for text, count in history), delta
            )
            for history in {tuple(history) for history in histories.values()}
        ]
        return max(totals, key=lambda spent: spent.epsilon, default=None)

    def rows(self, client: str | None = None) -> Iterator[dict[str, object]]:
        """The charges in order, as plain data."""
        names = [
            "id",
            "run",
            "client",
            "round",
            "uplink",
            "attempt",
            "unit",
            "event",
            "message_stored",
        ]
        for *values, text, stored in self._db.all(
            "SELECT charges.id, run, client, round, uplink, attempt, unit, json, "
            "EXISTS (SELECT 1 FROM messages WHERE charge = charges.id) FROM charges "
            "JOIN events ON events.id = charges.event "
            "WHERE ?1 IS NULL OR client = ?1 ORDER BY charges.id",
            (client,),
        ):
            yield dict(zip(names, (*values, json.loads(text), bool(stored)), strict=True))

    @property
    def num_charges(self) -> int:
        """How many charges were ever made: a ledger only grows."""
        return self._chain_end("charges")[0]

    def discarded_messages(self, run: str) -> bool:
        """Whether rounds before the run's last one have charges but no messages any more."""
        found = self._db.one(
            "SELECT 1 FROM charges LEFT JOIN messages ON messages.charge = charges.id "
            "WHERE run = ?1 AND round < (SELECT MAX(round) FROM charges WHERE run = ?1) "
            "GROUP BY client, round, uplink HAVING COUNT(message) = 0 LIMIT 1",
            (run,),
        )
        return found is not None

    # -- checking --------------------------------------------------------------------------

    def verify(self) -> list[str]:
        """Everything that is wrong with the ledger, in sentences; empty if all is well."""
        problems = [
            f"SQLite reports: {row[0]}"
            for row in self._db.all("PRAGMA integrity_check")
            if row[0] != "ok"
        ]
        if self._db.all("PRAGMA foreign_key_check"):
            problems.append("a message or charge refers to a row that is gone")
        problems += self._chain_problems(
            "charges",
            "SELECT charges.id, run, client, round, uplink, attempt, unit, json, "
            "CASE WHEN commitment IS NOT NULL THEN lower(hex(commitment)) END, chain "
            "FROM charges LEFT JOIN events ON events.id = charges.event ORDER BY charges.id",
        )
        problems += self._chain_problems(
            "budgets",
            "SELECT id, client, epsilon, delta, adjacency, unit, chain FROM budgets ORDER BY id",
        )
        for client in self.clients():
            problems += self._client_problems(client)
        return problems

    def _chain_problems(self, table: Chain, query: str) -> list[str]:
        rows = self._db.all(query)
        count, end = self._chain_end(table)
        link = b""
        problems = []
        for row_id, *content, stored in rows:
            if stored != _link(link, tuple(content)):
                problems.append(
                    f"{table.removesuffix('s')} {row_id} was altered, or a row before it removed"
                )
            link = stored
        if (len(rows), link) != (count, end):
            problems.append(f"{table} holds {len(rows)} rows where {count} were written")
        return problems

    def _client_problems(self, client: str) -> list[str]:
        try:
            budget = self.budget(client)
            if budget is None:
                return []
            for event, _ in self.history(client):
                _check_adjacency(f"client '{client}'", event, budget)
            spent = self.spent(client, budget.delta)
        except SottovoceError as error:
            return [f"client '{client}': {error}"]
        if spent is None or spent.epsilon <= budget.epsilon:
            return []
        return [
            f"client '{client}' has spent epsilon {show_epsilon(spent.epsilon)}, "
            f"more than its budget {budget.epsilon:g}"
        ]

    # -- inside ----------------------------------------------------------------------------

    def _check_unit(self, client: str, unit: Unit) -> None:
        """A client's charges protect one unit: epsilons of samples and clients do not add up."""
        for (present,) in self._db.all(
            "SELECT unit FROM charges WHERE client = ?1 UNION "
            "SELECT unit FROM budgets WHERE client = ?1",
            (client,),
        ):
            if present != unit:
                raise AdjacencyMismatchError(
                    f"client '{client}' is accounted per {present} in this ledger, and this is "
                    f"per {unit}; use another ledger"
                )

    def _check_budget(self, release: Release, event: PrivacyEvent) -> None:
        budget = self.budget(release.client)
        if budget is None:
            return
        _check_adjacency(str(release), event, budget)
        after = events.multiset([*self.history(release.client), (event, 1)])
        if within(after, budget.delta, budget.epsilon):
            return
        spent = privacy_spent(after, budget.delta)
        raise BudgetExhaustedError(
            f"{release}: epsilon would reach {show_epsilon(spent.epsilon)} at delta "
            f"{budget.delta:g} ({budget.adjacency}), above the budget {budget.epsilon:g}; "
            "nothing is sent"
        )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """The surrounding transaction, or one of its own."""
        if self._db.in_transaction:
            yield
        else:
            with self._db.transaction():
                yield

    def _chain_end(self, table: Chain) -> tuple[int, bytes]:
        count, end = self._db.one(f"SELECT {table}, {table}_end FROM meta")
        return count, end

    def _extend(self, table: Chain, row: tuple[Any, ...]) -> bytes:
        """The digest of a new row; the end of the chain moves on within the same transaction."""
        link = _link(self._chain_end(table)[1], row)
        self._db.execute(f"UPDATE meta SET {table} = {table} + 1, {table}_end = ?", (link,))
        return link


def _check_adjacency(who: str, event: PrivacyEvent, budget: Budget) -> None:
    if event.adjacency is not budget.adjacency:
        raise AdjacencyMismatchError(
            f"{who}: the event is {event.adjacency}, the budget {budget.adjacency}"
        )


def _hex(commitment: bytes | None) -> str | None:
    return None if commitment is None else commitment.hex()


def _link(previous: bytes, row: tuple[Any, ...]) -> bytes:
    text = json.dumps(row, separators=(",", ":"))
    return hashlib.blake2b(previous + text.encode(), digest_size=16).digest()
