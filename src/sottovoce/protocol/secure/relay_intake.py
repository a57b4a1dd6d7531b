"""What the relay does until an attempt closes: announce, admit clients, and take their reports.

All of it is on disk before the relay answers. Several reports share one commit. A name is kept with
its report until the attempt closes; no time is ever kept.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from sottovoce.core.errors import ParameterError, WireError
from sottovoce.ledger.journal import Journal
from sottovoce.mechanisms.packing import check_rows
from sottovoce.protocol.secure import hpke, shuffle_messages, two_server_messages
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.encoding import Protocol, labeled
from sottovoce.protocol.secure.hpke import HpkeKey
from sottovoce.protocol.secure.operator_policy import (
    ListedClients,
    check_listed,
    check_operator_numbers,
    check_operator_policy,
)
from sottovoce.protocol.secure.operators import Admission, Operators
from sottovoce.protocol.secure.roster import SIGNATURE_BYTES, TrustKey, check_signature
from sottovoce.protocol.secure.shuffle_messages import ShuffleReport
from sottovoce.protocol.secure.state_file import StateFile
from sottovoce.protocol.secure.two_server_messages import SumReport
from sottovoce.protocol.secure.wire import MAX_NAME_BYTES, Kind

ANNOUNCED = "announced"
RECEIPT = bytes([Kind.RECEIPT])
_TABLES = (
    """CREATE TABLE IF NOT EXISTS announcement (
        id INTEGER PRIMARY KEY CHECK (id = 1), message BLOB NOT NULL, content BLOB NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS clients (
        name TEXT PRIMARY KEY, key BLOB NOT NULL UNIQUE, certificate BLOB NOT NULL)
        WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS arrivals (
        name TEXT PRIMARY KEY, ciphertext BLOB NOT NULL UNIQUE, signature BLOB NOT NULL)
        WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS vectors (name TEXT PRIMARY KEY, vectors BLOB NOT NULL)",
    """CREATE TABLE IF NOT EXISTS confirmations (
        name TEXT PRIMARY KEY, signature BLOB NOT NULL) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS listed (name TEXT PRIMARY KEY, key BLOB NOT NULL) WITHOUT ROWID",
)
FORGET_ARRIVALS = ("DELETE FROM arrivals", "DELETE FROM vectors")
_FORGET_ALL = (*FORGET_ARRIVALS, "DELETE FROM announcement", "DELETE FROM confirmations")
_LIST_CLIENTS = "INSERT INTO listed VALUES (?, ?)"


SEALING_BYTES = 1 + hpke.OVERHEAD_BYTES  # What a sealed report is longer.
_HEAD_BYTES = 2 + MAX_NAME_BYTES + 2 * SIGNATURE_BYTES


def largest_report(announcement: Announcement) -> int:
    """Return the largest number of bytes of a report of an attempt, before it is sealed."""
    vectors = 0
    if announcement.attempt.protocol is Protocol.TWO_SERVER_SUM:
        vectors = announcement.attempt.uplinks * two_server_messages.vector_bytes(announcement)
    return _HEAD_BYTES + announcement.ciphertext_bytes + vectors


def seal_to_relay(report: bytes, operators: Operators, ann: bytes) -> bytes:
    """Return a report encrypted to the relay, for a way whose connection does not end there.

    Over HTTPS to the relay's own pinned certificate this would encrypt a second time, and is not
    needed. Where a report passes through Flower or through another's proxy, it is.

    Args:
        report: What a client's `report` returned.
        operators: The pinned keys.
        ann: Digest of the announcement that it answers; the relay opens it for no other.

    Returns:
        The report for `RelayIntake.open_sealed`, 49 bytes longer.
    """
    sealed = hpke.seal(operators.relay_hpke, report, _sealed_info(operators, ann))
    return bytes([Kind.SEALED]) + sealed


def is_sealed(content: bytes) -> bool:
    """Return whether a message claims to be one of `seal_to_relay`."""
    return content[:1] == bytes([Kind.SEALED])


def _sealed_info(operators: Operators, ann: bytes) -> bytes:
    return labeled(Protocol.TWO_SERVER_SUM, "to the relay", operators.digest, ann)


class RelayIntake:
    """The part of the relay that takes reports.

    Args:
        state: Where it keeps what it must not forget; a new object on the same file continues.
        key: The relay's signing key.
        hpke_key: The key that opens reports which were sealed to the relay.
        operators: Keys of both operators.
        colluders: How many clients may collude with an operator.
        minimum: The smallest number of clients whose reports the relay forwards.
        clients: Whom the relay admits, asked for each announcement; None for everyone whom both
            operators have signed.
    """

    def __init__(
        self,
        state: StateFile,
        key: TrustKey,
        hpke_key: HpkeKey,
        operators: Operators,
        colluders: int,
        minimum: int,
        clients: ListedClients | None = None,
    ) -> None:
        check_operator_numbers(minimum, colluders)
        if (key.public, hpke_key.public) != (operators.relay, operators.relay_hpke):
            raise ParameterError("the relay's keys are not those of the operators; check them")
        self.operators = operators
        self._state = state
        self._key = key
        self._hpke_key = hpke_key
        self._colluders = colluders
        self._minimum = minimum
        self._clients = clients
        self._journal = Journal(state)
        with state.transaction():
            for table in _TABLES:
                state.execute(table)
        rows = state.all("SELECT message FROM announcement")
        self._current = Announcement.read(rows[0][0]) if rows else None
        # The list of the announcement, also if it has changed since.
        self._listed: Mapping[str, bytes] | None = None
        if clients is not None:
            kept = state.all("SELECT name, key FROM listed") if rows else clients().items()
            self._listed = dict(kept)
        ((self._arrived,),) = state.all("SELECT count(*) FROM arrivals")
        self._admissions: dict[str, Admission] = {}

    def _list_clients(self, asked: Collection[str] | None) -> dict[str, bytes] | None:
        """Return the clients that the relay admits and the collector asks; None for everyone."""
        if self._clients is None:
            return None
        listed = self._clients()
        return {name: key for name, key in listed.items() if asked is None or name in asked}

    def announce(
        self,
        announcement: bytes,
        content: bytes,
        now: int,
        asked: Collection[str] | None = None,
    ) -> None:
        """Begin an attempt that the collector announces; the one before it is closed for ever.

        Args:
            announcement: The collector's message.
            content: What clients get with it, such as a model.
            now: The time in seconds.
            asked: Names of the clients that the collector asks; None for all whom the relay admits.

        Raises:
            WireError: It is not the collector's, the relay's policy refuses it, it is over, or it
                is a second announcement of its attempt.
        """
        found = Announcement.read(announcement)
        found.check(self.operators)
        found.check_content(content)
        if self._current is not None and self._current.ann == found.ann:
            return
        check_operator_policy(found, self._minimum, self._colluders)
        if now >= found.closes:
            raise WireError("expected an attempt that closes later, got one that is over")
        listed = self._list_clients(asked)
        with self._state.transaction():
            self._journal.close_all()
            self._state.execute("DELETE FROM listed")
            self._state.execute_many(_LIST_CLIENTS, (listed or {}).items())
            self._journal.begin(found.place, ANNOUNCED)
            for statement in _FORGET_ALL:
                self._state.execute(statement)
            self._state.execute(
                "INSERT INTO announcement VALUES (1, ?, ?)", (announcement, content)
            )
        self._current, self._arrived, self._listed = found, 0, listed
        self._state.overwrite_deleted()

    def announcement(self) -> bytes:
        """Return the current announcement, which clients get from the relay only."""
        return bytes(self._announced()[0])

    def content(self) -> bytes:
        """Return what belongs to the announcement, such as a model."""
        return bytes(self._announced()[1])

    def _announced(self) -> tuple[bytes, bytes]:
        rows: list[tuple[bytes, bytes]] = self._state.all(
            "SELECT message, content FROM announcement"
        )
        if not rows:
            raise WireError("expected an announcement by the collector, but there is none yet")
        return rows[0]

    def register(self, certificate: bytes, now: int) -> None:
        """Keep a client's certificate, so that its reports need not carry it.

        Args:
            certificate: An `Admission`; it replaces an older one of the same name.
            now: The time in seconds.

        Raises:
            WireError: An operator did not sign it, it has expired, a longer one or the one on the
                operator's list is known, or another client has the same key.
        """
        found = Admission.read(certificate)
        found.check(self.operators, now)
        with self._state.transaction():
            known = self._state.all(
                "SELECT name, certificate FROM clients WHERE name = ? OR key = ?",
                (found.name, found.key),
            )
            for name, content in known:
                other = Admission.read(content)
                if self._is_listed(found) and not self._is_listed(other):
                    continue  # Of a client that was removed; REPLACE deletes its row.
                if name != found.name:
                    raise WireError("another client is registered with the same key")
                if self._is_listed(other) and not self._is_listed(found):
                    raise WireError("the client's key is not the one on the operator's list")
                if other.valid_until > found.valid_until:
                    raise WireError("a certificate that is valid for longer is registered")
            self._state.execute(
                "REPLACE INTO clients VALUES (?, ?, ?)", (found.name, found.key, certificate)
            )
        for name in {found.name, *(name for name, _ in known)}:
            self._admissions.pop(name, None)

    def _is_listed(self, admission: Admission) -> bool:
        return self._listed is None or self._listed.get(admission.name) == admission.key

    def can_report(self, name: str) -> bool:
        """Return whether the certificate that is known of a client counts in the attempt."""
        try:
            if self._current is None:
                self.admission(name)
            else:
                self._admitted(self._current, name)
        except WireError:
            return False
        return True

    def admission(self, name: str) -> Admission:
        """Return the certificate of a client; WireError if it is not registered."""
        if name not in self._admissions:
            rows = self._state.all("SELECT certificate FROM clients WHERE name = ?", (name,))
            if not rows:
                raise WireError("expected a registered client; register its certificate first")
            self._admissions[name] = Admission.read(rows[0][0])
        return self._admissions[name]

    def open_sealed(self, sealed: bytes) -> bytes:
        """Return the report inside a message of `seal_to_relay`.

        Raises:
            WireError: It was not sealed to this relay for the current announcement, or is longer
                than a report of it.
        """
        if not is_sealed(sealed):
            raise WireError("expected a sealed report, got another message")
        if self._current is None:
            raise WireError("no attempt is open")
        most = SEALING_BYTES + largest_report(self._current)
        if len(sealed) > most:
            raise WireError(f"a sealed report has at most {most} bytes now, got {len(sealed)}")
        return self._hpke_key.open(sealed[1:], _sealed_info(self.operators, self._current.ann))

    def report(self, report: bytes, now: int) -> bytes:
        """Take one report and return a receipt; the report is on disk by then.

        Raises:
            WireError: It is refused.
        """
        (found,) = self.reports([report], now)
        if isinstance(found, WireError):
            raise found
        return found

    def reports(self, reports: Sequence[bytes], now: int) -> list[bytes | WireError]:
        """Take several reports in one commit.

        Args:
            reports: What clients sent.
            now: The time in seconds.

        Returns:
            A receipt for each report, or why it was refused.
        """
        current = self._current
        if current is None or self._journal.state(current.place) != ANNOUNCED:
            return [WireError("no attempt is open") for _ in reports]
        if not current.opens <= now < current.closes:
            return [WireError(f"{current.place} is not open at this time") for _ in reports]
        checked = [self._checked(current, each) for each in reports]
        arrived, answers = self._arrived, list[bytes | WireError]()
        with self._state.transaction():
            for each in checked:
                try:
                    arrived += self._enter(current, each, arrived)
                    answers.append(RECEIPT)
                except WireError as error:
                    answers.append(error)
        self._arrived = arrived
        return answers

    def _checked(
        self, current: Announcement, content: bytes
    ) -> SumReport | ShuffleReport | WireError:
        try:
            if current.attempt.protocol is Protocol.SHUFFLER:
                return self._checked_message(current, ShuffleReport.read(content))
            return self._checked_vectors(current, SumReport.read(content))
        except WireError as error:
            return error

    def _admitted(self, current: Announcement, name: str) -> Admission:
        found = self.admission(name)
        check_listed(self._listed, found)
        if found.valid_until < current.closes:
            raise WireError("the client's admission expires before the attempt closes; renew it")
        return found

    def _checked_message(self, current: Announcement, report: ShuffleReport) -> ShuffleReport:
        if len(report.ciphertext) != current.ciphertext_bytes:
            raise WireError(
                f"expected a ciphertext of {current.ciphertext_bytes} bytes, got "
                f"{len(report.ciphertext)}"
            )
        key = self._admitted(current, report.name).key
        statement = shuffle_messages.report_statement(current.ann, report.ciphertext)
        check_signature(key, report.signature, Protocol.SHUFFLER, "for the relay", *statement)
        return report

    def _checked_vectors(self, current: Announcement, report: SumReport) -> SumReport:
        asked, size = current.attempt, two_server_messages.vector_bytes(current)
        if len(report.vectors) != asked.uplinks * size:
            raise WireError(
                f"expected {asked.uplinks} vectors of {size} bytes, got {len(report.vectors)} bytes"
            )
        rows = np.frombuffer(report.vectors, dtype=np.uint8).reshape(asked.uplinks, size)
        check_rows(rows, count=asked.dimension, levels=2**asked.bits)
        key, ann = self._admitted(current, report.name).key, current.ann
        for label, signature, statement in (
            (
                "for the relay",
                report.for_relay,
                two_server_messages.relay_statement(
                    ann, report.name, report.vectors, report.ciphertext
                ),
            ),
            (
                "for the collector",
                report.for_collector,
                two_server_messages.collector_statement(ann, report.name, report.ciphertext),
            ),
        ):
            check_signature(key, signature, Protocol.TWO_SERVER_SUM, label, *statement)
        return report

    def _enter(
        self, current: Announcement, report: SumReport | ShuffleReport | WireError, arrived: int
    ) -> int:
        """Write a report; return 1 if it is new and 0 if the same one was written before."""
        if isinstance(report, WireError):
            raise report
        known = self._state.all(
            "SELECT name, ciphertext FROM arrivals WHERE name = ? OR ciphertext = ?",
            (report.name, report.ciphertext),
        )
        if known == [(report.name, report.ciphertext)]:
            return 0  # The client's signature covers the rest, so nothing else can have changed.
        if known:
            raise WireError("a client's first report counts, and no ciphertext counts twice")
        if arrived >= current.attempt.most_clients:
            raise WireError(f"{current.place} has all the clients that it can take")
        # Of a message to be shuffled no signature is kept: it would link the name to the list.
        signature = report.for_collector if isinstance(report, SumReport) else b""
        self._state.execute(
            "INSERT INTO arrivals VALUES (?, ?, ?)", (report.name, report.ciphertext, signature)
        )
        if isinstance(report, SumReport):
            self._state.execute("INSERT INTO vectors VALUES (?, ?)", (report.name, report.vectors))
        return 1
