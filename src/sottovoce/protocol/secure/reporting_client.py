"""What a client of two servers does in a sum and in a shuffle: check, charge, encode, store, send.

The charge and the journal's entry are one commit, before anything is drawn. What is sent is stored
before it leaves; asked again, the client returns these bytes and nothing else. So it answers one
announcement of an attempt once, whatever servers do and wherever it is interrupted.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ClassVar, Generic, TypeVar

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError, PolicyError, WireError
from sottovoce.ledger.journal import Journal
from sottovoce.protocol.secure import hpke
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.encoding import DIGEST_BYTES, Protocol
from sottovoce.protocol.secure.operators import Admission, Operators
from sottovoce.protocol.secure.roster import TrustKey

CHARGED, REPORTED, CONFIRMED = "charged", "reported", "confirmed"
_LEAST_HONEST = 2
Drawn = TypeVar("Drawn")


class ReportingClient(ABC, Generic[Drawn]):
    """A client that sends one report to the relay in each attempt.

    Args:
        name: Its name.
        key: Its signing key.
        admission: The certificate by which both operators admit it.
        operators: The pinned keys of both operators.
        journal: What it has done; it lies in the ledger's file.
        honest: The least number of honest clients, itself included, at which it takes part.
        colluders: How many clients may collude with an operator.
        most_attempts: How many attempts of a run it takes part in at most; None for any number.
    """

    protocol: ClassVar[Protocol]

    def __init__(
        self,
        name: str,
        key: TrustKey,
        admission: Admission,
        operators: Operators,
        journal: Journal,
        honest: int,
        colluders: int,
        *,
        most_attempts: int | None = None,
    ) -> None:
        parameter_rules.integer("honest", honest, low=_LEAST_HONEST, high=2**31)
        parameter_rules.integer("colluders", colluders, low=1, high=2**31)
        if (admission.name, admission.key) != (name, key.public):
            raise ParameterError(f"the admission is not one of '{name}' with this key; ask for one")
        admission.check(operators, 0)
        self.name = name
        self.operators = operators
        self._key = key
        self._admission = admission
        self._journal = journal
        self._honest = honest
        self._colluders = colluders
        self._most_attempts = most_attempts
        self._current: Announcement | None = None

    def honest_clients(self, announcement: Announcement) -> int:
        """Return how many honest clients, this one included, a charge for an attempt may count on.

        Args:
            announcement: The attempt.

        Returns:
            The minimum of clients less the colluders.

        Raises:
            PolicyError: There are fewer than two, so nothing would hide a client's message.
        """
        honest = announcement.attempt.threshold - self._colluders
        if honest < _LEAST_HONEST:
            raise self._too_few(announcement, _LEAST_HONEST)
        return honest

    def _too_few(self, announcement: Announcement, honest: int) -> PolicyError:
        return PolicyError(
            f"{announcement.attempt.threshold} clients with {self._colluders} colluders leave "
            f"fewer than {honest} honest ones; ask for a larger minimum"
        )

    def open(self, announcement: bytes) -> Announcement:
        """Return an announcement if the pinned collector signed it for this protocol.

        Raises:
            WireError: It did not.
        """
        found = Announcement.read(announcement)
        found.check(self.operators, self.protocol)
        return found

    def continue_in(self, journal: Journal) -> None:
        """Use a journal of the same file that was opened again."""
        self._journal = journal

    def report(
        self,
        announcement: bytes,
        now: int,
        charge: Callable[[], None],
        draw: Callable[[], Drawn],
        transaction: Callable[[], AbstractContextManager[None]],
    ) -> bytes:
        """Return the report of an attempt: a new one once, and the stored bytes after that.

        Args:
            announcement: What the relay handed out.
            now: The time in seconds.
            charge: Enters the charge in the ledger, for `honest_clients` honest clients.
            draw: Draws what is sent; it is called once, after the charge is on disk.
            transaction: Opens a transaction of the file in which ledger and journal lie.

        Returns:
            The report for the relay.

        Raises:
            WireError: The announcement is not one that the client answers, or the attempt was begun
                before and nothing of it may be sent.
            PolicyError: The client's policy does not allow it. Nothing was charged.
        """
        found = self.open(announcement)
        self._current = found
        place = found.place
        if self._journal.state(place) is not None:
            return self._stored(found)
        self._check_policy(found, now)
        with transaction():
            self._check_terms(found)
            self._journal.begin(place, CHARGED)
            charge()
        report = self._encode(found, draw())
        self._journal.advance(place, CHARGED, REPORTED, found.ann + report)
        return report

    def _check_terms(self, announcement: Announcement) -> None:
        place, terms = announcement.place, announcement.terms.hex()
        if self._journal.fix(place.federation, place.run, terms) != terms:
            raise WireError(
                f"the run '{place.run}' was begun with other terms; what its charges depend on "
                "must not change, so begin another run"
            )

    @abstractmethod
    def _encode(self, announcement: Announcement, drawn: Drawn) -> bytes:
        """Return the report that hides what was drawn."""

    def _stored(self, announcement: Announcement) -> bytes:
        """Return the stored report of an attempt; WireError if there is none that may be sent."""
        record = self._journal.record(announcement.place)
        if self._journal.state(announcement.place) != REPORTED or record is None:
            raise WireError(f"{announcement.place} is over for this client; begin a later attempt")
        if record[:DIGEST_BYTES] != announcement.ann:
            raise WireError(f"expected the one announcement of {announcement.place}, got a second")
        return record[DIGEST_BYTES:]

    def _check_policy(self, announcement: Announcement, now: int) -> None:
        place = announcement.place
        if not announcement.opens <= now < announcement.closes:
            raise WireError(f"{place} is not open at this time")
        if self._admission.valid_until < announcement.closes:
            raise WireError("the client's admission expires before the attempt closes; renew it")
        if self.honest_clients(announcement) < self._honest:
            raise self._too_few(announcement, self._honest)
        begun = self._journal.attempts(place.federation, place.run)
        if self._most_attempts is not None and begun >= self._most_attempts:
            raise PolicyError(
                f"the policy allows {self._most_attempts} attempts of the run '{place.run}', which "
                "were begun; raise it or stop the run"
            )
        hpke.check_public(announcement.hpke_key)
