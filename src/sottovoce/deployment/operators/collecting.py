"""The collector's side of an attempt, as a client of the relay over HTTPS."""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from sottovoce.core import printable_text
from sottovoce.core.errors import AbandonedError, DeploymentError
from sottovoce.deployment.operators.application import pack_request
from sottovoce.deployment.operators.calls import RefusedError, RelayAwayError, RelayCalls
from sottovoce.deployment.operators.folders import CollectorFolder
from sottovoce.deployment.operators.routes import CLOCK_SECONDS, Route, sign_request
from sottovoce.mechanisms.packing import UnsignedCodes
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.collector import Check, Collector
from sottovoce.protocol.secure.state_file import StateFile
from sottovoce.protocol.secure.two_server_messages import Accepted

STATE_NAME = "collector.sqlite"
_LATE_SECONDS = 30.0  # How far the relay's clock may be behind.
_AWAY_SECONDS = 30.0  # How long the relay may be away, as while it is started again.
_POLL_SECONDS = 0.5
_LOG = printable_text.logger()
Wait = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportWindow:
    """When clients may answer an attempt.

    Attributes:
        report_seconds: How long reports are accepted, from the announcement on.
        confirm_seconds: How long the clients of a shuffle may confirm, after that; 0 for a sum, and
            for a shuffle whose relay is trusted to forward all and add nothing.
        slack: How many confirmations may be missing.
    """

    report_seconds: int
    confirm_seconds: int = 0
    slack: int = 0


class CollectorLink:
    """A collector with its connection to the relay; one attempt after another.

    Args:
        folder: The collector's folder.
        state: The file in which it keeps what it must not forget.
        wait: Sleeps for a number of seconds.
    """

    def __init__(
        self,
        folder: CollectorFolder,
        state: StateFile,
        *,
        wait: Wait = time.sleep,
    ) -> None:
        operators = folder.operators
        self.keys = operators.keys
        self._folder = folder
        self._key = folder.signing_key
        self._collector = Collector(state, self._key, self.keys, folder.colluders, folder.threshold)
        self._calls = RelayCalls(operators.relay.address, operators.relay.certificate)
        self._wait = wait
        self._announced: Announcement | None = None

    def reach(self) -> None:
        """Return once the relay answers.

        Raises:
            AbandonedError: It does not answer for half a minute.
            DeploymentError: The program that answers is not the pinned relay.
        """
        self._patiently(Route.HEALTH)

    def check_enough(self, clients: Collection[str], threshold: int) -> None:
        """Raise DeploymentError if fewer clients than needed are on the collector's list."""
        left = len(self._folder.clients().keys() & set(clients))
        if left < threshold:
            raise DeploymentError(
                f"{left} of its clients are on the list of {self._folder.folder}, and each round "
                f"needs {threshold}; no client was charged for this one. Admit more with "
                "'sottovoce deploy admit', then resume the run"
            )

    def announce(
        self,
        attempt: Attempt,
        content: bytes,
        window: ReportWindow,
        *,
        payload_bytes: int = 0,
        clients: Collection[str] | None = None,
    ) -> Announcement:
        """Begin an attempt and hand its announcement to the relay, which gives it to all clients.

        Args:
            attempt: What all parties agree on.
            content: What clients get with it, such as a model.
            window: When clients may answer.
            payload_bytes: Size of every payload of a shuffle; 0 for a sum.
            clients: Names of the clients that count, if they are admitted; None for all who are.

        Returns:
            The announcement.

        Raises:
            SottovoceError: The attempt is not allowed, or the relay does not take it.
        """
        now = int(time.time())
        closes = now + window.report_seconds
        listed = {
            name: key
            for name, key in self._folder.clients().items()
            if clients is None or name in clients
        }
        message = self._collector.announce(
            attempt,
            opens=now - int(CLOCK_SECONDS),  # Clients whose clocks are behind may answer, too.
            closes=closes,
            confirm_by=closes + window.confirm_seconds if window.confirm_seconds else 0,
            slack=window.slack,
            payload_bytes=payload_bytes,
            clients=listed,
        )
        self._announced = Announcement.read(message)
        try:
            self._ask(Route.ANNOUNCE, pack_request(message, content, listed))
        except RefusedError as refused:
            if refused.is_busy:
                raise
            self._collector.abandon()  # Another attempt of this kind would be refused, too.
            raise DeploymentError(
                f"the relay's operator does not allow this, and no client was asked: {refused}; "
                "change the request, or ask the operator to allow it"
            ) from None
        return self._announced

    def sums(self, check: Check | None = None) -> tuple[list[UnsignedCodes], int]:
        """Wait until a sum closes; return the sums, one an uplink, and the number of clients.

        Args:
            check: Raises unless the sums of so many clients are plausible.

        Raises:
            SottovoceError: Too few clients have reported, or the sums are refused. The attempt is
                abandoned.
        """
        with self._abandoning() as announced:
            frozen = self._ask_later(Route.FROZEN, announced.closes)
            accepted = self._collector.accept(frozen)
            summed = self._ask(Route.ACCEPTED, accepted)
            return self._collector.release(summed, check), len(Accepted.read(accepted).names)

    def payloads(self) -> list[bytes]:
        """Wait until a shuffle closes and is confirmed; return the opened payloads, sorted.

        Raises:
            SottovoceError: Too few clients have reported or confirmed. The attempt is abandoned and
                nothing of it is ever opened.
        """
        with self._abandoning() as announced:
            root = self._collector.root(self._ask_later(Route.LIST, announced.closes))
            confirmations = None
            if announced.is_confirmed:
                self._ask(Route.ROOT, root)
                confirmations = self._ask_later(Route.CONFIRMATIONS, announced.confirm_by)
            return self._collector.open(confirmations)

    def close(self) -> None:
        """Close the connection."""
        self._calls.close()

    @contextlib.contextmanager
    def _abandoning(self) -> Iterator[Announcement]:
        """Yield the attempt; if the block raises, the attempt is over and its key deleted."""
        if self._announced is None:
            raise DeploymentError("no attempt is open; start one with `announce`")
        try:
            yield self._announced
        except BaseException:
            self._collector.abandon()
            raise
        finally:
            self._announced = None

    def _ask_later(self, route: Route, seconds: int) -> bytes:
        """Ask at a time or a little later, if the relay's clock is behind."""
        self._wait(max(0.0, seconds - time.time()))
        deadline = time.monotonic() + _LATE_SECONDS
        while True:
            try:
                return self._ask(route)
            except RefusedError as refused:
                if not refused.is_too_early or time.monotonic() > deadline:
                    raise
            self._wait(_POLL_SECONDS)

    def _ask(self, route: Route, body: bytes = b"") -> bytes:
        return self._patiently(route, body)

    def _patiently(self, route: Route, body: bytes = b"") -> bytes:
        """Ask, and ask again for half a minute if the relay is away or too busy.

        The relay answers a second time as the first time, so nothing is lost by asking again.
        """
        deadline, told = time.monotonic() + _AWAY_SECONDS, False
        while True:
            signed = ""
            if route is not Route.HEALTH:
                signed = sign_request(self._key, self.keys.federation, route, body, time.time())
            try:
                return self._calls.ask(route, body, authorization=signed)
            except RelayAwayError as error:
                if time.monotonic() > deadline:
                    raise AbandonedError(str(error)) from None
                reason = str(error)
            except RefusedError as refused:
                if not refused.is_busy or time.monotonic() > deadline:
                    raise
                reason = str(refused)
            if not told:
                _LOG.warning("asking again for %.0f seconds: %s", _AWAY_SECONDS, reason)
                told = True
            self._wait(_POLL_SECONDS)


@contextlib.contextmanager
def open_collector(folder: CollectorFolder, *, wait: Wait = time.sleep) -> Iterator[CollectorLink]:
    """Open the collector of a folder, and its connection to the relay when it is needed.

    Args:
        folder: The collector's folder.
        wait: Sleeps for a number of seconds; what it raises ends the attempt.

    Raises:
        LedgerError: Another process uses the state.
    """
    state = StateFile(folder.state_folder / STATE_NAME)
    try:
        link = CollectorLink(folder, state, wait=wait)
        with contextlib.closing(link):
            yield link
    finally:
        state.close()
