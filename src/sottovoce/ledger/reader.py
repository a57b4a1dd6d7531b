"""Read access to a ledger: charges, budgets, spending, and verification."""

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
from sottovoce.ledger.records import (
    FIRST_EVENT_ACCOUNT,
    Budget,
    Charge,
    LedgerPosition,
    PendingCharge,
    Release,
)
from sottovoce.privacy import compositions
from sottovoce.privacy.accounting import PrivacySpent, privacy_spent
from sottovoce.privacy.event_json import from_json
from sottovoce.privacy.events import PrivacyEvent


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One charge in a ledger.

    Attributes:
        id: The number of the row, from 1.
        run: Name of the run.
        client: Name of the client.
        round: The round.
        uplink: Which of the vectors that a client sends in a round, from 0.
        attempt: Number of the attempt at the same release, from 0.
        unit: The unit that is protected.
        event: The privacy event as JSON text.
        is_stored: Whether a message was stored under this charge, even if it was discarded since.
            False if version 1 of the ledger discarded it.
        commitment: A keyed digest of what was encoded with a seeded keystream; None for other
            keystreams.
    """

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
        """The columns (run, client, round, uplink, attempt)."""
        return self.run, self.client, self.round, self.uplink, self.attempt

    @classmethod
    def of_row(cls, *row: Any) -> "LedgerEntry":
        """Return the entry in a row of the database; raise LedgerError if the row is damaged."""
        try:
            cells = [*row[:6], Unit(row[6]), row[7], bool(row[8]), _commitment(row[9])]
            return cls(*cells)
        except ValueError as error:
            raise LedgerError(
                f"charge {row[0]} is damaged: {error}; restore the ledger from a backup"
            ) from None


class LedgerReader:
    """A ledger file that is only read; `Ledger` adds the methods that change it.

    The file is not changed, even if an earlier version wrote it. Use it as a context manager.

    Args:
        path: The ledger file.

    Raises:
        LedgerError: There is no ledger at `path`, or it cannot be read.
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
        """Close the file."""
        self._db.close()

    def copy_to(self, path: Path) -> None:
        """Write a copy of the ledger at one moment to an empty file; `back_up` also verifies it.

        Args:
            path: A file that is empty or absent.
        """
        self._db.copy_to(path)

    @property
    def path(self) -> Path:
        """The absolute path of the ledger file."""
        return self._db.path

    def snapshot(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager in which all reads see the ledger as it was at one moment.

        Other processes may add charges meanwhile; reads in the `with` block do not see them.

        Returns:
            The context manager; it has no value.
        """
        return self._db.snapshot()

    def check_unaltered(self) -> None:
        """Raise if the ledger was altered by hand or damaged.

        The first call reads everything. Later calls read everything again only if SQLite reports
        that another connection has written, since otherwise this object made all changes.

        Raises:
            LedgerError: A row was changed, removed, reordered or miscounted.
        """
        if not self._db.in_transaction:
            with self.snapshot():
                self.check_unaltered()
            return
        version = self._db.data_version
        if version != self._found_whole_at:
            verification.check_unaltered(self._db)
            self._found_whole_at = version

    def latest(self, release: Release) -> Charge | None:
        """Return the newest charge for a release, if there is one.

        Args:
            release: The run, client, round and uplink.

        Returns:
            The charge with the largest attempt, or None.

        Raises:
            AdjacencyMismatchError: The release was charged for another unit.
            LedgerError: The stored message differs from the one that was sent.
        """
        return self.latest_of([release]).get(release)

    def latest_of(self, releases: Sequence[Release]) -> dict[Release, Charge]:
        """Return the newest charge for each release that was charged.

        Args:
            releases: The runs, clients, rounds and uplinks.

        Returns:
            The charge with the largest attempt of each release that was charged.

        Raises:
            AdjacencyMismatchError: A release was charged for another unit.
            LedgerError: A stored message differs from the one that was sent.
        """
        wanted = {release.key: release for release in releases}
        found: dict[Release, Charge] = {}
        for (run, number), clients in group_by_round(releases).items():
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
            ) in self._db.select_in(
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
                # An equal event under another unit is another guarantee, so its charge does not
                # count.
                accounts.check_unit(client, release.unit, [unit])
                if message is not None and not verification.is_message(message, digest):
                    raise LedgerError(
                        f"{release}: the stored message differs from the one that was sent; "
                        "restore the ledger from a backup"
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

    def clients_with_budget(
        self, pending: Sequence[PendingCharge], *, before: Before | None = None
    ) -> frozenset[str]:
        """Return the clients whose budgets cover all their pending charges.

        Nothing is charged or reserved.

        Args:
            pending: Charges that could be made.
            before: (run, round); charges of that run from that round on are not counted.

        Returns:
            Names of those clients of `pending` whose budgets cover all their own charges in it, or
            that have no budget.

        Raises:
            AdjacencyMismatchError: A client is accounted under another unit or adjacency.
        """
        book = Accounts(self._db, (due.release.client for due in pending), before=before)
        texts = accounts.serialize_events(pending)
        short = {
            due.release.client
            for due, text in zip(pending, texts, strict=True)
            if add_if_affordable(book, due, text) is not None
        }
        return frozenset(due.release.client for due in pending) - short

    def clients(self) -> list[str]:
        """Return the names of all clients with a charge or a budget.

        Returns:
            The names in alphabetical order.

        Raises:
            LedgerError: A name is damaged.
        """
        rows = self._db.all(
            "SELECT client FROM spending UNION SELECT client FROM budgets WHERE client != ? "
            "ORDER BY client",
            (FIRST_EVENT_ACCOUNT,),
        )
        for (name,) in rows:
            if not isinstance(name, str):
                raise LedgerError(
                    f"a client's name is damaged ({name!r}); restore the ledger from a backup"
                )
        return [row[0] for row in rows]

    def budget(self, client: str) -> Budget | None:
        """Return a client's budget.

        Args:
            client: Name of the client.

        Returns:
            The budget; None if it has none.
        """
        return accounts.budgets(self._db, [client]).get(client)

    def budgets(self) -> dict[str, Budget]:
        """Return the budgets of all clients that have one.

        Returns:
            The budget by client.
        """
        return accounts.budgets(self._db, self.clients())

    def histories(self) -> dict[str, PrivacyEvent]:
        """Return everything that was charged to each client, as one composed event.

        Returns:
            The event by client, without clients that have no charge. Clients with equal histories
            share one object.
        """
        made: dict[tuple[tuple[str | None, int], ...], PrivacyEvent] = {}
        found = {}
        for client, history in accounts.histories(self._db).items():
            key = tuple(history.items())
            if key not in made:
                made[key] = compositions.compose_repeated(accounts.composition(history))
            found[client] = made[key]
        return found

    def charges_by_round(self, client: str, run: str) -> list[tuple[int, PrivacyEvent, int]]:
        """Return all charges of a client: those of one run by its rounds, all others as round 0.

        Args:
            client: Name of the client.
            run: Name of the run whose rounds are told apart.

        Returns:
            (round, event, count): in this round the client was charged `count` times with this
            event. Entries are in the order of rounds. Rounds of `run` are counted from 1, so the
            charges of all other runs, as round 0, come first.
        """
        rows = self._db.all(
            "SELECT CASE WHEN run = ?2 THEN round ELSE 0 END AS at, json, COUNT(*) FROM charges "
            "JOIN events ON events.id = charges.event WHERE client = ?1 "
            "GROUP BY at, event ORDER BY at, event",
            (client, run),
        )
        return [(number, from_json(text), count) for number, text, count in rows]

    def history(self, client: str) -> list[tuple[PrivacyEvent, int]]:
        """Return every event charged to a client over all runs.

        Args:
            client: Name of the client.

        Returns:
            (event, number of times that it was charged), in the order in which the events were
            first charged to any client; an empty list without a charge.
        """
        found = accounts.histories(self._db, [client])
        return accounts.composition(found.get(client, {}))

    def history_of_all(self, unit: Unit) -> list[tuple[PrivacyEvent, int]]:
        """Return every event charged to any client.

        This is the account of a ledger that belongs to one site: under whatever names the site was
        charged, its records are the same.

        Args:
            unit: The unit that all charges must protect.

        Returns:
            (event, number of times that it was charged), in the order of first use; an empty list
            without a charge.

        Raises:
            AdjacencyMismatchError: A charge protects another unit.
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
        """Return what a client has spent over everything in the ledger.

        Args:
            client: Name of the client.
            delta: Delta at which epsilon is computed.

        Returns:
            The composed guarantee; None without a charge, also for an unknown name.
        """
        history = self.history(client)
        return privacy_spent(compositions.compose_repeated(history), delta) if history else None

    def largest_spent(
        self, delta: float, *, through: tuple[str, int] | None = None
    ) -> PrivacySpent | None:
        """Return the spending of the client that has spent most.

        Args:
            delta: Delta at which epsilon is computed.
            through: (run, round); rounds of that run after `round` are not counted.

        Returns:
            The guarantee with the largest epsilon; None without a charge.
        """
        before = None if through is None else (through[0], through[1] + 1)
        histories = accounts.histories(self._db, before=before)
        # Most clients share a history, so each distinct one is accounted once.
        totals = [
            privacy_spent(compositions.compose_repeated(accounts.composition(dict(history))), delta)
            for history in {tuple(history.items()) for history in histories.values()}
        ]
        return max(totals, key=lambda spent: spent.epsilon, default=None)

    def rounds_charged(self, run: str) -> dict[str, int]:
        """Return in how many rounds of a run each client was charged.

        Args:
            run: Name of the run.

        Returns:
            The number of rounds by client; several charges in a round count once, and clients
            without a charge are absent.
        """
        rows = self._db.all(
            "SELECT client, COUNT(DISTINCT round) FROM charges WHERE run = ? GROUP BY client",
            (run,),
        )
        return dict(rows)

    def events_of(self, run: str, number: int) -> list[tuple[PrivacyEvent, int]]:
        """Return how often each event was charged for a round, over all clients.

        Args:
            run: Name of the run.
            number: The round.

        Returns:
            (event, number of times that it was charged); an empty list without a charge.
        """
        rows = self._db.all(
            "SELECT json, COUNT(*) FROM charges JOIN events ON events.id = charges.event "
            "WHERE run = ? AND round = ? GROUP BY json",
            (run, number),
        )
        return [(from_json(text), count) for text, count in rows]

    def charges_after(self, count: int) -> list[tuple[str, int, PrivacyEvent]]:
        """Return every charge except the first `count`.

        Args:
            count: Number of charges to leave out.

        Returns:
            (run, round, event) in the order of charging.
        """
        rows = self._db.all(
            "SELECT run, round, json FROM charges JOIN events ON events.id = charges.event "
            "WHERE charges.id > ? ORDER BY charges.id",
            (count,),
        )
        return [(run, number, from_json(text)) for run, number, text in rows]

    def rows(self, client: str | None = None) -> Iterator[dict[str, object]]:
        """Yield the charges in order, as JSON data.

        Args:
            client: Only the charges of this client; None for all.

        Yields:
            For each charge a dictionary with the keys id, run, client, round, uplink, attempt,
            unit, event (nested data) and message_stored: whether its message is still stored.
        """
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
                from_json(text)  # raises for anything that is not an event
                plain[text] = json.loads(text)
            event = plain[text]
            yield dict(zip(names, (*values, event, bool(stored)), strict=True))

    def entries(self, clients: Sequence[str]) -> list["LedgerEntry"]:
        """Return the charges of some clients in the order in which they were made.

        Call it inside a `snapshot`, after `check_unaltered`.

        Args:
            clients: Names of the clients.

        Returns:
            The charges, with whether a message was stored.
        """
        rows = self._db.select_in(
            "SELECT charges.id, run, client, round, uplink, attempt, unit, json, "
            "digest IS NOT NULL, messages.commitment FROM charges "
            "JOIN events ON events.id = charges.event "
            "LEFT JOIN messages ON messages.charge = charges.id WHERE client IN ({names})",
            clients,
        )
        return sorted((LedgerEntry.of_row(*row) for row in rows), key=lambda entry: entry.id)

    def runs(self) -> frozenset[str]:
        """Return the runs for which any client was charged.

        Returns:
            The names of the runs.
        """
        return frozenset(run for (run,) in self._db.all("SELECT DISTINCT run FROM charges"))

    @property
    def num_charges(self) -> int:
        """The number of charges ever made; a ledger only grows."""
        return verification.chain_end(self._db, "charges")[0]

    def position(self) -> LedgerPosition:
        """Return the identity of the ledger, and the length and last link of its hash chains.

        Returns:
            The position of the ledger at this moment.
        """
        if not self._db.in_transaction:
            with self.snapshot():
                return self.position()
        charges, charges_end = verification.chain_end(self._db, "charges")
        messages, messages_end = verification.chain_end(self._db, "messages")
        return LedgerPosition(
            identity=verification.identity(self._db),
            charges=charges,
            charges_head=charges_end.hex(),
            messages=messages,
            messages_head=messages_end.hex(),
        )

    def head_after(self, count: int, table: verification.Chain = "charges") -> str | None:
        """Return the link of a hash chain after its first `count` rows.

        Two ledgers with the same link after a number of charges have the same charges up to there.

        Args:
            count: Number of rows.
            table: The table whose rows are chained.

        Returns:
            The link in hexadecimal, empty for 0 rows; None if there are fewer rows.
        """
        if count < 0:
            return None
        link = verification.link_after(self._db, table, count) if count else b""
        return None if link is None else link.hex()

    @property
    def is_bound(self) -> bool:
        """Whether a site must find a seal file next to this ledger, or else take it for lost.

        False only for a ledger that an earlier version made and that no site has used since.
        """
        return bool(self._db.one("SELECT bound FROM meta") != (0,))

    def links(self, table: verification.Chain) -> Iterator[bytes]:
        """Yield the link of each row of a chain in order; a link is a digest of all rows up to it.

        Args:
            table: The table whose rows are chained.

        Yields:
            The links, as bytes.
        """
        yield from verification.links(self._db, table)

    def discarded_messages(self, run: str) -> bool:
        """Return whether stored messages of a run were discarded in rounds before its last one.

        Args:
            run: Name of the run.

        Returns:
            True if a round before the last one has a charge whose stored message was discarded.
        """
        found = self._db.one(
            "SELECT 1 FROM charges JOIN messages ON messages.charge = charges.id "
            "WHERE run = ?1 AND round < (SELECT MAX(round) FROM charges WHERE run = ?1) "
            "AND message IS NULL LIMIT 1",
            (run,),
        )
        return found is not None

    def verify(self) -> list[str]:
        """Return everything found to be wrong with the ledger, budgets that are exceeded included.

        The chain has no key: rows of someone who has recomputed it are not found.

        Returns:
            One sentence for each problem; empty if none was found.
        """
        return verification.problems(self._db)


def _commitment(stored: bytes | None) -> bytes | None:
    """Return a stored commitment; None for the random number that may be stored in its place."""
    return None if isinstance(stored, bytes) and len(stored) == NONCE_BYTES else stored


def add_if_affordable(book: Accounts, due: PendingCharge, text: str) -> BudgetExhaustedError | None:
    """Add a charge to its client's account and return None, or return why the budget is exceeded.

    The ledger is not changed, and the error is not raised.

    Args:
        book: The accounts, a snapshot in memory.
        due: The charge.
        text: Its event, as JSON.
    """
    refusal = book.refusal(due, text)
    if refusal is None:
        book.add(due, text)
    return refusal


def group_by_round(releases: Iterable[Release]) -> dict[tuple[str, int], list[str]]:
    """Return the clients of the releases for each (run, round), each name once."""
    found: dict[tuple[str, int], dict[str, None]] = {}
    for release in releases:
        found.setdefault((release.run, release.round), {})[release.client] = None
    return {key: list(clients) for key, clients in found.items()}
