"""A durable ledger in SQLite that is charged before encoding and never refunds.

The ledger stores events, never epsilons; the installed accountants recompute epsilon from them. A
charge is identified by (run, client, round, uplink, attempt). The sealed message is stored with its
charge before it is sent, so a retry sends the same bytes again and releases nothing new. So the
charge of a client's message that has no stored message has released nothing and may still be used.

Charges, budgets and stored messages carry digests that are chained from row to row. A row that was
edited, removed or reordered by hand is detected by `verify` and before anything is written. The
chain is unkeyed: it does not protect against someone who recomputes it.
"""

import contextlib
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.core.errors import BudgetExhaustedError, LedgerError
from sottovoce.ledger import accounts, database, records, verification
from sottovoce.ledger.accounts import Accounts
from sottovoce.ledger.journal import Journal
from sottovoce.ledger.reader import LedgerReader, add_if_affordable, group_by_round
from sottovoce.ledger.records import Budget, Cell, Charge, PendingCharge, Release
from sottovoce.ledger.verification import Chain
from sottovoce.privacy.events import PrivacyEvent

_Row = tuple[tuple[Cell, ...], tuple[Any, ...]]  # (what its digest covers, what is stored)

LEDGER_NAME = "ledger.sqlite"  # in the folder of a run, a site or a question


class Ledger(LedgerReader):
    """A ledger file that can be charged; use it as a context manager.

    Several processes may share the file. It must exist, since a new file in its place would omit
    what was spent; with `create` an empty ledger is made if the path does not exist. A file of an
    earlier version is converted when it is opened.

    Args:
        path: The ledger file.
        create: Whether to make an empty ledger if there is no file.

    Raises:
        LedgerError: There is no ledger at `path`, or it cannot be read.
    """

    def __init__(self, path: Path | str, *, create: bool = False) -> None:
        self._open(Path(path), "create" if create else "write")

    def checkpoint(self) -> None:
        """Move all commits from SQLite's log into the file, so that its copy has every charge.

        Raises:
            LedgerError: Another process has kept the ledger locked for 30 seconds.
        """
        self._db.checkpoint()

    def bind(self) -> None:
        """Record in the ledger that it has a seal file, which states what it must contain.

        From then on a site that finds the ledger without that file takes it for lost and stops.
        """
        with self._db.transaction():
            self._db.execute("UPDATE meta SET bound = 1")

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """Group charges or messages into one durable commit, so that a whole cohort costs one sync.

        Returns:
            A context manager, which cannot be nested. The commit is on disk when it ends; an error
            undoes all of it.
        """
        return self._db.transaction()

    def journal(self) -> Journal:
        """Return the journal of the protocols in which this ledger's owner takes part.

        It lies in the ledger's file, so `transaction` commits a charge and a step together.

        Returns:
            The journal.
        """
        return Journal(self._db)

    def set_budgets(self, budgets: Mapping[str, Budget]) -> None:
        """Give clients their budgets in one durable commit.

        A budget that is already set may be given again. After an error, no budget is set.

        Args:
            budgets: The budget of each client.

        Raises:
            LedgerError: A client already has another budget, or the ledger was altered.
            AdjacencyMismatchError: A client was charged under another unit or adjacency.
        """
        with self.transaction():
            for client, budget in budgets.items():
                self.set_budget(client, budget)

    def set_budget(self, client: str, budget: Budget) -> None:
        """Give a client its budget, which cannot be changed later; the same one may be given again.

        Args:
            client: Name of the client.
            budget: The most that it may spend.

        Raises:
            LedgerError: The client already has another budget, or the ledger was altered.
            AdjacencyMismatchError: The client was charged under another unit or adjacency.
        """
        with self._writing():
            present = self.budget(client)
            if present == budget:
                return
            budget.check_not_replacing(present, client)
            who = f"client '{client}'"
            accounts.check_adjacency(who, budget.adjacency, self.history(client), None)
            units = self._db.all("SELECT DISTINCT unit FROM spending WHERE client = ?", (client,))
            accounts.check_unit(client, budget.unit, (unit for (unit,) in units))
            row = (
                client,
                float(budget.epsilon),
                float(budget.delta),
                str(budget.adjacency),
                str(budget.unit),
            )
            self._append("budgets", "client, epsilon, delta, adjacency, unit", [(row, row)])

    def charge(self, release: Release, attempt: int, event: PrivacyEvent) -> Charge:
        """Charge one release durably, before anything of it is encoded.

        Args:
            release: What is charged for.
            attempt: Number of the attempt, from 0.
            event: The privacy event of the release.

        Returns:
            The charge.

        Raises:
            BudgetExhaustedError: The client's budget does not cover it; nothing is charged.
            LedgerError: The attempt was charged before, or the ledger was altered.
            AdjacencyMismatchError: The client is accounted under another unit or adjacency.
        """
        (outcome,) = self.charge_all([PendingCharge(release=release, attempt=attempt, event=event)])
        if isinstance(outcome, BudgetExhaustedError):
            raise outcome
        return outcome

    def charge_all(self, pending: Sequence[PendingCharge]) -> list[Charge | BudgetExhaustedError]:
        """Charge several releases in one commit, except those that a budget does not cover.

        Each charge is checked against the client's whole history, including those before it in
        `pending`.

        Args:
            pending: The charges to make.

        Returns:
            For each pending charge, in the same order, the charge, or (not raised) the error for
            which it was not made.

        Raises:
            LedgerError: An attempt was charged before, or the ledger was altered. Nothing is
                charged to any client then.
            AdjacencyMismatchError: A charge has another unit or adjacency than its client's
                account. Nothing is charged to any client then.
        """
        texts = accounts.serialize_events(pending)
        with self._writing():
            book = Accounts(self._db, (due.release.client for due in pending))
            self._check_not_charged(pending)
            refusals = [
                add_if_affordable(book, due, text) for due, text in zip(pending, texts, strict=True)
            ]
            accepted = [
                (due, text)
                for due, text, refusal in zip(pending, texts, refusals, strict=True)
                if refusal is None
            ]
            ids = iter(self._enter(accepted))
        return [
            Charge(id=next(ids), release=due.release, attempt=due.attempt, event=due.event)
            if refusal is None
            else refusal
            for due, refusal in zip(pending, refusals, strict=True)
        ]

    def store_message(
        self, charge: Charge, message: bytes, commitment: bytes | None = None
    ) -> None:
        """Store a sealed message, so that a retry sends exactly these bytes.

        The same message may be stored again.

        Args:
            charge: The charge that pays for the message.
            message: The bytes to be sent.
            commitment: A keyed digest of what is encoded, where the same keystream can be derived
                again; else None.

        Raises:
            LedgerError: Another message is stored for the charge, or the ledger was altered.
        """
        self.store_messages([(charge, message, commitment)])

    def store_messages(self, sealed: Sequence[tuple[Charge, bytes, bytes | None]]) -> None:
        """Store sealed messages in one commit.

        A charge pays for one message. If two processes encode under one charge, the second is
        refused and must not send its bytes. A discarded message may be stored again if it is the
        same.

        Args:
            sealed: (charge, message, commitment) of each message; see `store_message`.

        Raises:
            LedgerError: Another message is stored for a charge, or the ledger was altered. Nothing
                is stored then.
        """
        with self._writing():
            stored = {
                charge: row
                for charge, *row in self._db.select_in(
                    "SELECT charge, commitment, digest, message FROM messages "
                    "WHERE charge IN ({names})",
                    [charge.id for charge, _, _ in sealed],
                )
            }
            new: list[_Row] = []
            again = []
            for charge, message, commitment in sealed:
                digest = records.digest(message)
                if charge.id not in stored:
                    stored[charge.id] = [commitment, digest, message]
                    drawn = commitment if commitment is not None or new else _nonce()
                    content = (charge.id, records.as_hex(drawn), records.as_hex(digest))
                    new.append((content, (charge.id, drawn, digest, message)))
                elif _is_the_same(stored[charge.id], message, digest, commitment):
                    again.append((message, charge.id))
                else:
                    raise LedgerError(
                        f"another message is stored for {charge.release}, attempt "
                        f"{charge.attempt}; this one must not be sent. Repeat the round: a retry "
                        "sends the stored message"
                    )
            self._append("messages", "charge, commitment, digest, message", new)
            self._db.execute_many(
                "UPDATE messages SET message = ? WHERE charge = ? AND message IS NULL", again
            )

    def discard_messages(self, run: str, before_round: int) -> None:
        """Discard stored messages of finished rounds; their charges and digests stay.

        Args:
            run: Name of the run.
            before_round: Messages of rounds before this one are discarded.
        """
        with self._writing():
            self._db.execute(
                "UPDATE messages SET message = NULL WHERE message IS NOT NULL AND EXISTS "
                "(SELECT 1 FROM charges WHERE id = charge AND run = ? AND round < ?)",
                (run, before_round),
            )

    # -- helpers ---------------------------------------------------------------------------

    def _check_not_charged(self, pending: Sequence[PendingCharge]) -> None:
        """Raise LedgerError if an attempt is charged twice, here or in the ledger."""
        earlier: set[tuple[object, ...]] = set()
        for (run, number), clients in group_by_round([due.release for due in pending]).items():
            earlier.update(
                self._db.select_in(
                    "SELECT run, client, round, uplink, attempt FROM charges "
                    "WHERE run = ? AND round = ? AND client IN ({names})",
                    clients,
                    run,
                    number,
                )
            )
        for due in pending:
            key = (*due.release.key, due.attempt)
            if key in earlier:
                raise LedgerError(
                    f"{due} was charged before; resume the run, or start one with a new name"
                )
            earlier.add(key)

    def _enter(self, pending: Sequence[tuple[PendingCharge, str]]) -> list[int]:
        """Write checked charges and return their ids in order."""
        if not pending:
            return []
        texts = list(dict.fromkeys(text for _, text in pending))
        self._db.execute_many(
            "INSERT OR IGNORE INTO events (json) VALUES (?)", ((text,) for text in texts)
        )
        events_by_text = dict(
            self._db.select_in("SELECT json, id FROM events WHERE json IN ({names})", texts)
        )
        last = self._db.one("SELECT seq FROM sqlite_sequence WHERE name = 'charges'")
        if last and type(last[0]) is not int:
            raise LedgerError(
                f"the ledger {self._db.path} has a damaged count of its charges; restore it from a "
                "backup"
            )
        first = (last[0] if last else 0) + 1
        rows: list[_Row] = []
        for number, (due, text) in enumerate(pending, start=first):
            release = due.release
            key = (*release.key, due.attempt, str(release.unit))
            # The last column held the commitment in version 1, and digests still cover it.
            drawn = None if rows else _nonce()
            content = (*key, text, records.as_hex(drawn))
            rows.append((content, (number, *key, events_by_text[text], drawn)))
        columns = "id, run, client, round, uplink, attempt, unit, event, commitment"
        self._append("charges", columns, rows)
        return list(range(first, first + len(pending)))

    def _append(
        self,
        table: Chain,
        columns: str,
        rows: Sequence[_Row],
    ) -> None:
        """Write (what the digest covers, what is stored) for each row and extend the chain."""
        if not rows:
            return
        count, end = verification.chain_end(self._db, table)
        values = []
        for content, row in rows:
            end = records.link(end, content)
            values.append((*row, end))
        marks = ", ".join("?" * len(values[0]))
        self._db.execute_many(f"INSERT INTO {table} ({columns}, chain) VALUES ({marks})", values)  # noqa: S608  (our own names of tables)
        self._db.execute(f"UPDATE meta SET {table} = ?, {table}_end = ?", (count + len(rows), end))  # noqa: S608  (our own names of tables)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Use the current transaction or start one; refuse to write to an altered ledger."""
        if self._db.in_transaction:
            self.check_unaltered()
            yield
        else:
            with self._db.transaction():
                self.check_unaltered()
                yield


@contextlib.contextmanager
def temporary_ledger() -> Iterator[Ledger]:
    """Open a new ledger in a temporary folder; after the block both are deleted."""
    with (
        tempfile.TemporaryDirectory(prefix="sottovoce-") as folder,
        Ledger(Path(folder) / LEDGER_NAME, create=True) as ledger,
    ):
        yield ledger


def _nonce() -> bytes:
    """Return a random number that distinguishes a commit from those of any copy of the ledger."""
    return secrets.token_bytes(database.NONCE_BYTES)


def _is_the_same(
    stored: Sequence[bytes | None], message: bytes, digest: bytes, commitment: bytes | None
) -> bool:
    """Return whether a message equals the stored one, or the one that was discarded."""
    old_commitment, old_digest, old_message = stored
    if old_message is not None:
        return old_message == message
    if old_digest is not None:
        return old_digest == digest
    # Version 1 discarded messages without a digest. The same key and input give the same message,
    # which an equal commitment shows.
    return commitment is not None and old_commitment == commitment
