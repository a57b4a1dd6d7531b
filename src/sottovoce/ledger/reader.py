"""What can be asked of a ledger."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import BudgetExhaustedError, LedgerError
from sottovoce.ledger import accounts, verification
from sottovoce.ledger.accounts import Accounts, Before
from sottovoce.ledger.database import NONCE_BYTES, Access, Database
from sottovoce.ledger.records import FIRST_EVENT, Budget, Charge, Due, Release, Standing
from sottovoce.privacy import compositions
from sottovoce.privacy.accounting import PrivacySpent, privacy_spent
from sottovoce.privacy.event_json import from_json
from sottovoce.privacy.events import PrivacyEvent


@dataclass(frozen=True, slots=True)
class Entry:
    """A charge, whether its message was stored, and the commitment to what a seeded one encodes."""

    id: int
    run: str
    client: str
    round: int
    uplink: int
    attempt: int
    unit: Unit
    event: str
    is_stored: bool
    commitment: bytes | None

    @property
    def key(self) -> tuple[str, str, int, int, int]:
        return self.run, self.client, self.round, self.uplink, self.attempt

    @classmethod
    def of_row(cls, *row: Any) -> "Entry":
        try:
            cells = [*row[:6], Unit(row[6]), row[7], bool(row[8]), _commitment(row[9])]
            return cls(*cells)
        except ValueError as error:
            raise LedgerError(f"charge {row[0]} is damaged: {error}; restore the ledger") from None


class LedgerReader:
    """A file of charges, to be read; `Ledger` adds what changes anything.

    The file is left as it is, also where an earlier version has written it.
    """

    def __init__(self, path: Path | str) -> None:
        self._open(Path(path), "read")

    def _open(self, path: Path, access: Access) -> None:
        self._db = Database(path, access)
        self._found_whole_at: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def copy_to(self, path: Path) -> None:
        """Write a copy, of one moment, to an empty file; `copies.back_up` verifies it, too."""
        self._db.copy_to(path)

    @property
    def path(self) -> Path:
        return self._db.path

    def snapshot(self) -> contextlib.AbstractContextManager[None]:
        """Answers to all questions within are of one moment, while others go on charging."""
        return self._db.snapshot()

    def check_unaltered(self) -> None:
        """Refuse a ledger that was altered by hand, or damaged: LedgerError.

        Reads everything once. After that this object's own charges are the only changes, until
        SQLite says that somebody else has written; then everything is read again.
        """
        if not self._db.in_transaction:
            with self.snapshot():
                self.check_unaltered()
            return
        version = self._db.version_of_others
        if version != self._found_whole_at:
            verification.check_unaltered(self._db)
            self._found_whole_at = version

    def latest(self, release: Release) -> Charge | None:
        """The newest attempt at a release, if there is one."""
        return self.latest_of([release]).get(release)

    def latest_of(self, releases: Sequence[Release]) -> dict[Release, Charge]:
        """The newest attempt at each release that has one; one of another unit raises."""
        wanted = {release.key: release for release in releases}
        found: dict[Release, Charge] = {}
        for (run, number), clients in by_round(releases).items():
            for (
                client,
                uplink,
                row_id,
                attempt,
                unit,
                text,
                sealed,
                commitment,
                digest,
                message,
            ) in self._db.of_many(
                "SELECT client, uplink, charges.id, attempt, unit, json, messages.id IS NOT NULL, "
                "messages.commitment, digest, message FROM charges "
                "LEFT JOIN events ON events.id = charges.event "
                "LEFT JOIN messages ON messages.charge = charges.id "
                "WHERE run = ? AND round = ? AND client IN ({names})",
                clients,
                run,
                number,
            ):
                release = wanted.get((run, client, number, uplink))
                if release is None or (release in found and found[release].attempt > attempt):
                    continue
                # Equal events of two units are two things: one pays nothing for the other.
                accounts.check_unit(client, release.unit, [unit])
                if message is not None and not verification.is_message(message, digest):
                    raise LedgerError(
                        f"{release}: the stored message is not the one that was sent; restore the "
                        "ledger from a backup"
                    )
                found[release] = Charge(
                    id=row_id,
                    release=release,
                    attempt=attempt,
                    event=from_json(text),
                    sealed=bool(sealed),
                    commitment=_commitment(commitment),
                    message=message,
                )
        return found

    def affords(self, dues: Sequence[Due], *, before: Before | None = None) -> frozenset[str]:
        """Clients who could pay for all their `dues`. Nothing is entered, nothing is promised.

        `before` = (run, round): as it was before that round of that run.
        """
        book = Accounts(self._db, (due.release.client for due in dues), before=before)
        texts = accounts.texts_of(dues)
        short = {
            due.release.client
            for due, text in zip(dues, texts, strict=True)
            if count_in(book, due, text) is not None
        }
        return frozenset(due.release.client for due in dues) - short

    def clients(self) -> list[str]:
        """Everyone with a charge or a budget."""
        rows = self._db.all(
            "SELECT client FROM spending UNION SELECT client FROM budgets WHERE client != ? "
            "ORDER BY client",
            (FIRST_EVENT,),
        )
        for (name,) in rows:
            if not isinstance(name, str):
                raise LedgerError(f"a client's name is damaged ({name!r}); restore the ledger")
        return [row[0] for row in rows]

    def budget(self, client: str) -> Budget | None:
        return accounts.budgets(self._db, [client]).get(client)

    def budgets(self) -> dict[str, Budget]:
        """The budget of everyone who has one."""
        return accounts.budgets(self._db, self.clients())

    def histories(self) -> dict[str, PrivacyEvent]:
        """Everything that was charged to each client, as one event; equal ones are one object."""
        made: dict[tuple[tuple[str | None, int], ...], PrivacyEvent] = {}
        found = {}
        for client, history in accounts.histories(self._db).items():
            key = tuple(history.items())
            if key not in made:
                made[key] = compositions.multiset(accounts.composition(history))
            found[client] = made[key]
        return found

    def charges_by_round(self, client: str, run: str) -> list[tuple[int, PrivacyEvent, int]]:
        """(round, event, count) of a client in a run, in the order of rounds.

        Charges of other runs come first, as of round 0.
        """
        rows = self._db.all(
            "SELECT CASE WHEN run = ?2 THEN round ELSE 0 END AS at, json, COUNT(*) FROM charges "
            "JOIN events ON events.id = charges.event WHERE client = ?1 "
            "GROUP BY at, event ORDER BY at, event",
            (client, run),
        )
        return [(number, from_json(text), count) for number, text, count in rows]

    def history(self, client: str) -> list[tuple[PrivacyEvent, int]]:
        """Every event charged to a client, with its count."""
        found = accounts.histories(self._db, [client])
        return accounts.composition(found.get(client, {}))

    def everything(self, unit: Unit) -> list[tuple[PrivacyEvent, int]]:
        """Every event charged to anybody, in the order of first use, with its count.

        A charge of another unit raises.
        For a ledger that is one site's own: whatever name it went by, its records are the same.
        """
        found: accounts.History = {}
        for client, event, of_unit, text, count in self._db.all(
            "SELECT MIN(client), event, unit, json, SUM(count) FROM spending "
            "LEFT JOIN events ON events.id = event GROUP BY unit, event ORDER BY event"
        ):
            accounts.check_counted(client, event, of_unit, count)
            accounts.check_unit(client, unit, [of_unit])
            found[text] = count
        return accounts.composition(found)

    def spent(self, client: str, delta: float) -> PrivacySpent | None:
        """What a client has spent; None if nothing."""
        history = self.history(client)
        return privacy_spent(compositions.multiset(history), delta) if history else None

    def largest_spent(
        self, delta: float, *, through: tuple[str, int] | None = None
    ) -> PrivacySpent | None:
        """What the client that has spent most has spent; None if nobody has.

        `through` = (run, round): rounds of that run after `round` do not count yet.
        """
        before = None if through is None else (through[0], through[1] + 1)
        histories = accounts.histories(self._db, before=before)
        # Clients mostly share a history: each distinct one is accounted once.
        totals = [
            privacy_spent(compositions.multiset(accounts.composition(dict(history))), delta)
            for history in {tuple(history.items()) for history in histories.values()}
        ]
        return max(totals, key=lambda spent: spent.epsilon, default=None)

    def rounds_charged(self, run: str) -> dict[str, int]:
        """In how many rounds of a run each client was charged."""
        rows = self._db.all(
            "SELECT client, COUNT(DISTINCT round) FROM charges WHERE run = ? GROUP BY client",
            (run,),
        )
        return dict(rows)

    def events_of(self, run: str, number: int) -> list[tuple[PrivacyEvent, int]]:
        """Return how often each event was charged for a round of a run, to whomever."""
        rows = self._db.all(
            "SELECT json, COUNT(*) FROM charges JOIN events ON events.id = charges.event "
            "WHERE run = ? AND round = ? GROUP BY json",
            (run, number),
        )
        return [(from_json(text), count) for text, count in rows]

    def charges_after(self, count: int) -> list[tuple[str, int, PrivacyEvent]]:
        """(run, round, event) of every charge but the first `count`, in order."""
        rows = self._db.all(
            "SELECT run, round, json FROM charges JOIN events ON events.id = charges.event "
            "WHERE charges.id > ? ORDER BY charges.id",
            (count,),
        )
        return [(run, number, from_json(text)) for run, number, text in rows]

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
        plain: dict[str, object] = {}
        for *values, text, stored in self._db.all(
            "SELECT charges.id, run, client, round, uplink, attempt, unit, json, "
            "message IS NOT NULL FROM charges JOIN events ON events.id = charges.event "
            "LEFT JOIN messages ON messages.charge = charges.id "
            "WHERE ?1 IS NULL OR client = ?1 ORDER BY charges.id",
            (client,),
        ):
            if text not in plain:
                from_json(text)  # refuses what is no event
                plain[text] = json.loads(text)
            event = plain[text]
            yield dict(zip(names, (*values, event, bool(stored)), strict=True))

    def entries(self, clients: Sequence[str]) -> list["Entry"]:
        """The charges of some clients, in order.

        Ask within a `snapshot`, after `check_unaltered`.
        """
        rows = self._db.of_many(
            "SELECT charges.id, run, client, round, uplink, attempt, unit, json, "
            "digest IS NOT NULL, messages.commitment FROM charges "
            "JOIN events ON events.id = charges.event "
            "LEFT JOIN messages ON messages.charge = charges.id WHERE client IN ({names})",
            clients,
        )
        return sorted((Entry.of_row(*row) for row in rows), key=lambda entry: entry.id)

    def runs(self) -> frozenset[str]:
        """The runs that anybody was charged for."""
        return frozenset(run for (run,) in self._db.all("SELECT DISTINCT run FROM charges"))

    @property
    def num_charges(self) -> int:
        """How many charges were ever made: a ledger only grows."""
        return verification.chain_end(self._db, "charges")[0]

    def standing(self) -> Standing:
        """Return which ledger this is, how many charges and messages it holds, and their links."""
        if not self._db.in_transaction:
            with self.snapshot():
                return self.standing()
        charges, charges_end = verification.chain_end(self._db, "charges")
        messages, messages_end = verification.chain_end(self._db, "messages")
        return Standing(
            identity=verification.identity(self._db),
            charges=charges,
            charges_head=charges_end.hex(),
            messages=messages,
            messages_head=messages_end.hex(),
        )

    def head_after(self, count: int, table: verification.Chain = "charges") -> str | None:
        """Return the chain link after that many rows, in hexadecimal; None if there are fewer.

        Two ledgers with the same link after a number of charges hold the same charges up to there.
        """
        if count < 0:
            return None
        link = verification.link_after(self._db, table, count) if count else b""
        return None if link is None else link.hex()

    @property
    def is_bound(self) -> bool:
        """Whether a missing seal is a loss: not so for what an earlier version has left."""
        return bool(self._db.one("SELECT bound FROM meta") != (0,))

    def links(self, table: verification.Chain) -> Iterator[bytes]:
        """The link of each row of a chain, in order: a digest of all rows up to it."""
        yield from verification.links(self._db, table)

    def discarded_messages(self, run: str) -> bool:
        """Whether rounds before the run's last one have charges but no messages any more."""
        found = self._db.one(
            "SELECT 1 FROM charges JOIN messages ON messages.charge = charges.id "
            "WHERE run = ?1 AND round < (SELECT MAX(round) FROM charges WHERE run = ?1) "
            "AND message IS NULL LIMIT 1",
            (run,),
        )
        return found is not None

    def verify(self) -> list[str]:
        """Everything that is wrong with the ledger, in sentences; empty if all is well."""
        return verification.problems(self._db)


def _commitment(stored: bytes | None) -> bytes | None:
    """A commitment; None for the random number that stands in its place."""
    return None if isinstance(stored, bytes) and len(stored) == NONCE_BYTES else stored


def count_in(book: Accounts, due: Due, text: str) -> BudgetExhaustedError | None:
    """Count a charge in, or say why it cannot be paid."""
    refusal = book.refusal(due, text)
    if refusal is None:
        book.add(due, text)
    return refusal


def by_round(releases: Iterable[Release]) -> dict[tuple[str, int], list[str]]:
    """The clients of each (run, round), which is how the table is sorted."""
    found: dict[tuple[str, int], dict[str, None]] = {}
    for release in releases:
        found.setdefault((release.run, release.round), {})[release.client] = None
    return {key: list(clients) for key, clients in found.items()}
