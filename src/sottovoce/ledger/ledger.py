"""Charges per client in SQLite: before encoding, never refunded, durable before anything leaves.

The ledger stores events, never epsilons; epsilon is recomputed from them by today's accountants.
A charge is keyed (run, client, round, uplink, attempt). The sealed message is stored beside it, so
that a retry sends the same bytes again instead of releasing anything new; a charge beside which
nothing was ever stored has released nothing, and may still be used.

Charges, budgets and stored messages carry digests chained from row to row, so a row that was
edited, removed or reordered by hand is noticed: by `verify`, and before anything is written. It is
no protection against someone who recomputes the chain.
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
from sottovoce.ledger.reader import LedgerReader, by_round, count_in
from sottovoce.ledger.records import Budget, Cell, Charge, Due, Release
from sottovoce.ledger.verification import Chain
from sottovoce.privacy.events import PrivacyEvent

_Row = tuple[tuple[Cell, ...], tuple[Any, ...]]  # what its digest covers, and what is stored

LEDGER_NAME = "ledger.sqlite"  # in the folder of a run, a site or a question


class Ledger(LedgerReader):
    """A file of charges. Use as a context manager; several processes may share it.

    The file must be there: a new one in its place would forget what was spent. With `create` an
    empty ledger is made where nothing has the name yet.
    """

    def __init__(self, path: Path | str, *, create: bool = False) -> None:
        self._open(Path(path), "create" if create else "write")

    def checkpoint(self) -> None:
        """Make the file whole without the log beside it, so that a copy of it has every charge."""
        self._db.checkpoint()

    def bind(self) -> None:
        """Note that the ledger has a seal: from now on a missing one is a loss."""
        with self._db.transaction():
            self._db.execute("UPDATE meta SET bound = 1")

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """Group charges or messages into one durable commit (a whole cohort costs one sync)."""
        return self._db.transaction()

    def set_budgets(self, budgets: Mapping[str, Budget]) -> None:
        """Give clients their budgets in one durable commit."""
        with self.transaction():
            for client, budget in budgets.items():
                self.set_budget(client, budget)

    def set_budget(self, client: str, budget: Budget) -> None:
        """Give a client its budget, once: nobody can raise it later."""
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
        """Enter a charge, or raise BudgetExhaustedError and enter nothing."""
        (outcome,) = self.charge_all([Due(release=release, attempt=attempt, event=event)])
        if isinstance(outcome, BudgetExhaustedError):
            raise outcome
        return outcome

    def charge_all(self, dues: Sequence[Due]) -> list[Charge | BudgetExhaustedError]:
        """Enter charges in one commit; nothing is entered for those whose budget has no room.

        Each is checked against the client's whole history, with those before it in `dues`. A charge
        that is there already, or of another unit or adjacency than its client's, raises, and then
        nothing is entered for anybody.
        """
        texts = accounts.texts_of(dues)
        with self._writing():
            book = Accounts(self._db, (due.release.client for due in dues))
            self._check_not_charged(dues)
            refusals = [count_in(book, due, text) for due, text in zip(dues, texts, strict=True)]
            accepted = [
                (due, text)
                for due, text, refusal in zip(dues, texts, refusals, strict=True)
                if refusal is None
            ]
            ids = iter(self._enter(accepted))
        return [
            Charge(id=next(ids), release=due.release, attempt=due.attempt, event=due.event)
            if refusal is None
            else refusal
            for due, refusal in zip(dues, refusals, strict=True)
        ]

    def store_message(
        self, charge: Charge, message: bytes, commitment: bytes | None = None
    ) -> None:
        """Keep the sealed message, so that a retry sends these bytes and no others."""
        self.store_messages([(charge, message, commitment)])

    def store_messages(self, sealed: Sequence[tuple[Charge, bytes, bytes | None]]) -> None:
        """Keep sealed messages, each with a commitment to what it encodes, in one commit.

        A charge pays for one message: whoever comes second with other bytes is refused, and must
        not send them. A discarded message may come back, if it is the same.
        """
        with self._writing():
            stored = {
                charge: row
                for charge, *row in self._db.of_many(
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
                        f"{charge.release}, attempt {charge.attempt} has another message already; "
                        "this one is not sent (a retry sends the other)"
                    )
            self._append("messages", "charge, commitment, digest, message", new)
            self._db.execute_many(
                "UPDATE messages SET message = ? WHERE charge = ? AND message IS NULL", again
            )

    def discard_messages(self, run: str, before_round: int) -> None:
        """Drop stored messages of finished rounds; their charges and digests stay."""
        with self._writing():
            self._db.execute(
                "UPDATE messages SET message = NULL WHERE message IS NOT NULL AND EXISTS "
                "(SELECT 1 FROM charges WHERE id = charge AND run = ? AND round < ?)",
                (run, before_round),
            )

    # -- inside ----------------------------------------------------------------------------

    def _check_not_charged(self, dues: Sequence[Due]) -> None:
        """Every attempt is charged once, in the ledger and in one call."""
        earlier: set[tuple[object, ...]] = set()
        for (run, number), clients in by_round([due.release for due in dues]).items():
            earlier.update(
                self._db.of_many(
                    "SELECT run, client, round, uplink, attempt FROM charges "
                    "WHERE run = ? AND round = ? AND client IN ({names})",
                    clients,
                    run,
                    number,
                )
            )
        for due in dues:
            key = (*due.release.key, due.attempt)
            if key in earlier:
                raise LedgerError(f"{due} has been charged before")
            earlier.add(key)

    def _enter(self, dues: Sequence[tuple[Due, str]]) -> list[int]:
        """Write checked charges; their ids, in order."""
        if not dues:
            return []
        texts = list(dict.fromkeys(text for _, text in dues))
        self._db.execute_many(
            "INSERT OR IGNORE INTO events (json) VALUES (?)", ((text,) for text in texts)
        )
        events_by_text = dict(
            self._db.of_many("SELECT json, id FROM events WHERE json IN ({names})", texts)
        )
        last = self._db.one("SELECT seq FROM sqlite_sequence WHERE name = 'charges'")
        if last and type(last[0]) is not int:
            raise LedgerError(
                f"the ledger {self._db.path} has lost count of its charges; restore it"
            )
        first = (last[0] if last else 0) + 1
        rows: list[_Row] = []
        for number, (due, text) in enumerate(dues, start=first):
            release = due.release
            key = (*release.key, due.attempt, str(release.unit))
            # The last place is version 1's commitment, which its digests cover.
            drawn = None if rows else _nonce()
            content = (*key, text, records.as_hex(drawn))
            rows.append((content, (number, *key, events_by_text[text], drawn)))
        columns = "id, run, client, round, uplink, attempt, unit, event, commitment"
        self._append("charges", columns, rows)
        return list(range(first, first + len(dues)))

    def _append(
        self,
        table: Chain,
        columns: str,
        rows: Sequence[_Row],
    ) -> None:
        """Write (what the digest covers, what is stored) and move the end of the chain on."""
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
        """The surrounding transaction, or one of its own; nothing is added to an altered ledger."""
        if self._db.in_transaction:
            self.check_unaltered()
            yield
        else:
            with self._db.transaction():
                self.check_unaltered()
                yield


@contextlib.contextmanager
def temporary_ledger() -> Iterator[Ledger]:
    """Open a new ledger that is thrown away afterwards, with all that was charged."""
    with (
        tempfile.TemporaryDirectory(prefix="sottovoce-") as folder,
        Ledger(Path(folder) / LEDGER_NAME, create=True) as ledger,
    ):
        yield ledger


def _nonce() -> bytes:
    """What tells the rows of a commit from those of any copy of the ledger."""
    return secrets.token_bytes(database.NONCE_BYTES)


def _is_the_same(
    stored: Sequence[bytes | None], message: bytes, digest: bytes, commitment: bytes | None
) -> bool:
    """Whether a message is the one stored before, or one that was discarded and came back."""
    old_commitment, old_digest, old_message = stored
    if old_message is not None:
        return old_message == message
    if old_digest is not None:
        return old_digest == digest
    # Discarded by version 1, which kept no digest: the same key and input give the same message.
    return commitment is not None and old_commitment == commitment
