"""What the collector does in a sum and in a shuffle: announce, keep a key, release or abandon.

The key that opens seeds or payloads exists in memory only, so a restart abandons the attempt.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sottovoce.core.errors import ParameterError, WireError
from sottovoce.ledger.journal import Journal, Place
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.hpke import HpkeKey
from sottovoce.protocol.secure.operator_policy import (
    check_listed,
    check_operator_numbers,
    check_operator_policy,
)
from sottovoce.protocol.secure.operators import Admission, Operators
from sottovoce.protocol.secure.roster import SIGNATURE_BYTES, TrustKey
from sottovoce.protocol.secure.shuffle_messages import Root
from sottovoce.protocol.secure.state_file import StateFile

ANNOUNCED, RELEASED = "announced", "released"


@dataclass(slots=True)
class OpenAttempt:
    """What the collector knows of an attempt, in memory only.

    Attributes:
        announcement: What it announced.
        key: The key that opens what clients sealed.
        clients: The keys of the clients that count, by name; None for all who were admitted.
        taken: The bytes of the list that it has taken.
        seeds: The seed of each accepted client.
        root: The root that it signed, and the list.
    """

    announcement: Announcement
    key: HpkeKey
    clients: Mapping[str, bytes] | None = None
    taken: bytes = b""
    seeds: dict[str, bytes] = field(default_factory=dict)
    listed: tuple[Root, tuple[bytes, ...]] | None = None


class CollectorOfAttempt:
    """The part of the collector that is the same in sums and in shuffles.

    Args:
        state: Where it keeps what it must not forget; a new object on the same file abandons the
            attempts that were not released.
        key: The collector's signing key.
        operators: Keys of both operators.
        colluders: How many clients may collude with an operator.
        minimum: The smallest number of clients for which it announces anything.
    """

    def __init__(
        self,
        state: StateFile,
        key: TrustKey,
        operators: Operators,
        colluders: int,
        minimum: int,
    ) -> None:
        check_operator_numbers(minimum, colluders)
        if key.public != operators.collector:
            raise ParameterError("the key is not the collector's of the operators; check it")
        self.operators = operators
        self._key = key
        self._colluders = colluders
        self._minimum = minimum
        self._journal = Journal(state)
        self._journal.close_all(keep=RELEASED)
        self._open: OpenAttempt | None = None
        self._checked: dict[bytes, Admission] = {}

    def announce(
        self,
        attempt: Attempt,
        *,
        opens: int,
        closes: int,
        confirm_by: int = 0,
        slack: int = 0,
        payload_bytes: int = 0,
        clients: Mapping[str, bytes] | None = None,
    ) -> bytes:
        """Begin an attempt with a new key and return its announcement for the relay.

        Args:
            attempt: What all parties agree on; its protocol says whether it is a sum or a shuffle.
            opens: Time in seconds from which clients may report.
            closes: Time in seconds at which the attempt closes.
            confirm_by: Time in seconds at which confirmations of a shuffle end; 0 trusts the relay
                to forward all and add nothing.
            slack: How many confirmations may be missing.
            payload_bytes: Size of every payload of a shuffle.
            clients: The keys of the clients that count, by name; None for everyone whom both
                operators have signed.

        Returns:
            The announcement.

        Raises:
            WireError: The attempt or a later one was begun before, or has too few clients.
        """
        if attempt.parties != self.operators.digest:
            raise ParameterError("parties must be the digest of the operators; set it")
        if attempt.federation != self.operators.federation:
            raise ParameterError("federation must be the operators'; set it")
        key = HpkeKey.generate()
        found = Announcement(
            attempt=attempt,
            opens=opens,
            closes=closes,
            confirm_by=confirm_by,
            slack=slack,
            payload_bytes=payload_bytes,
            hpke_key=key.public,
            signature=bytes(SIGNATURE_BYTES),
        ).signed(self._key)
        check_operator_policy(found, self._minimum, self._colluders)
        self.abandon()
        self._journal.begin(found.place, ANNOUNCED)
        self._open = OpenAttempt(found, key, clients)
        return found.to_bytes()

    def result(self, place: Place) -> bytes | None:
        """Return what was released of an attempt, also after a restart; None if nothing was.

        Sums are unsigned integers of 32 bits, little-endian, one uplink after another; payloads
        stand in their sorted order.
        """
        return self._journal.record(place) if self._journal.state(place) == RELEASED else None

    def abandon(self) -> None:
        """Delete the key of the attempt and close it: nothing of it can be opened any more."""
        self._open = None
        self._journal.close_all(keep=RELEASED)

    def _release(self, found: OpenAttempt, result: bytes) -> None:
        """Write the result and forget the key and all seeds."""
        place = found.announcement.place
        before = self._journal.state(place) or ""
        self._open = None
        self._journal.advance(place, before, RELEASED, result)

    def _current(self, protocol: Protocol) -> OpenAttempt:
        if self._open is None or self._open.announcement.attempt.protocol is not protocol:
            raise WireError("no attempt of this kind is open; announce a new one")
        return self._open

    def _least(self, found: OpenAttempt) -> int:
        return max(self._minimum, found.announcement.attempt.threshold)

    def _again(self, found: OpenAttempt, content: bytes, state: str) -> bytes:
        record = self._journal.record(found.announcement.place)
        if content != found.taken or record is None:
            raise WireError(f"expected the list that was {state}, got a second one")
        return record

    def _check_admission(self, found: OpenAttempt, admission: Admission) -> None:
        """Raise unless both operators admitted a client; a certificate's signatures once."""
        check_listed(found.clients, admission)
        content = admission.to_bytes()
        if content not in self._checked:
            admission.check(self.operators, found.announcement.closes)
            self._checked[content] = admission
        if admission.valid_until < found.announcement.closes:
            raise WireError(f"the admission of '{admission.name}' has expired; renew it")

    @staticmethod
    def _check_ann(expected: bytes, found: bytes) -> None:
        if found != expected:
            raise WireError("expected a message of this attempt, got one of another")
