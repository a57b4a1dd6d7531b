"""What stands between the relay of the protocol and its HTTPS application: one call a request.

The relay raises one type of error for all that it refuses. Clients need to know of two reasons:
that the same request may be accepted later, and that their certificate is missing.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus

from sottovoce.core.errors import SottovoceError, WireError
from sottovoce.deployment.operators.application import (
    HttpRefusal,
    pack_announcement,
    unpack_request,
)
from sottovoce.deployment.operators.folders import RelayFolder
from sottovoce.deployment.operators.routes import Route
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.relay import Relay
from sottovoce.protocol.secure.relay_intake import SEALING_BYTES, is_sealed, largest_report
from sottovoce.protocol.secure.shuffle_messages import ShuffleReport
from sottovoce.protocol.secure.state_file import StateFile
from sottovoce.protocol.secure.two_server_messages import SumReport

STATE_NAME = "relay.sqlite"


class Desk:
    """A relay's state, as the application asks for it.

    Args:
        relay: The relay of the protocol.
    """

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._current: Announcement | None = None
        self._packed = b""
        self._load()

    @property
    def federation(self) -> bytes:
        """The federation's id."""
        return self._relay.operators.federation

    @property
    def collector_key(self) -> bytes:
        """The collector's pinned public key."""
        return self._relay.operators.collector

    @property
    def largest_report(self) -> int:
        """Largest number of bytes of a sealed report of the announced attempt; 0 without one."""
        return 0 if self._current is None else SEALING_BYTES + largest_report(self._current)

    def reports(self, bodies: Sequence[bytes], now: float) -> list[bytes | HttpRefusal]:
        """Take reports in one durable commit; return nothing for each, or why it is refused."""
        opened = [self._opened(body) for body in bodies]
        reports = [one for one in opened if isinstance(one, bytes)]
        taken = zip(reports, self._relay.reports(reports, int(now)), strict=True)
        answers = list[bytes | HttpRefusal]()
        for one in opened:
            report, outcome = (b"", one) if isinstance(one, WireError) else next(taken)
            if isinstance(outcome, WireError):
                answers.append(self._refusal(report, outcome, now))
            else:
                answers.append(b"")
        return answers

    def _opened(self, body: bytes) -> bytes | WireError:
        """Return a report as its client made it, or why it cannot be opened."""
        try:
            return self._relay.open_sealed(body) if is_sealed(body) else body
        except WireError as error:
            return error

    def roots(self, leaves: Sequence[bytes], now: float) -> list[bytes | HttpRefusal]:
        """Return root and path of each leaf, in hexadecimal digits, or why there is none."""
        found = list[bytes | WireError]()
        for leaf in leaves:
            try:
                found.append(self._relay.root_for(_leaf(leaf)))
            except WireError as error:
                found.append(error)
        return self._explained(found, Route.ROOT_OF, now)

    def take_confirmations(self, bodies: Sequence[bytes], now: float) -> list[bytes | HttpRefusal]:
        """Take confirmations in one durable commit; return nothing, or why each is refused."""
        try:
            found = self._relay.take_confirmations(bodies)
        except WireError as error:
            found = [error for _ in bodies]
        taken = [one if isinstance(one, WireError) else b"" for one in found]
        return self._explained(taken, Route.CONFIRM, now)

    def _explained(
        self, outcomes: Sequence[bytes | WireError], route: Route, now: float
    ) -> list[bytes | HttpRefusal]:
        is_early = now < self._earliest(route)
        status = HTTPStatus.TOO_EARLY if is_early else HTTPStatus.BAD_REQUEST
        return [
            HttpRefusal(status, str(each)) if isinstance(each, WireError) else each
            for each in outcomes
        ]

    def answer(self, route: Route, body: bytes, now: float) -> bytes:
        """Return the content of the answer to a request of a kind that is answered one by one.

        Raises:
            HttpRefusal: It is too early.
            SottovoceError: The relay refuses the request.
        """
        relay, seconds = self._relay, int(now)
        try:
            match route:
                case Route.ANNOUNCEMENT:
                    return self._announcement()
                case Route.ANNOUNCED:
                    return self._announced()
                case Route.LEAVES:
                    return relay.leaves()
                case Route.REGISTER:
                    relay.register(body, seconds)
                case Route.ANNOUNCE:
                    self._announce(body, seconds)
                case Route.FROZEN:
                    return relay.frozen(seconds)
                case Route.ACCEPTED:
                    return relay.accepted(body)
                case Route.LIST:
                    return relay.shuffled_list(seconds)
                case Route.ROOT:
                    relay.root(body)
                case Route.CONFIRMATIONS:
                    return relay.confirmations(seconds)
                case _:
                    raise HttpRefusal(HTTPStatus.NOT_FOUND, "a relay has no such path")
        except SottovoceError as error:
            if now < self._earliest(route):
                raise HttpRefusal(HTTPStatus.TOO_EARLY, str(error)) from None
            raise
        return b""

    def _announcement(self) -> bytes:
        self._announced()
        return self._packed

    def _announced(self) -> bytes:
        if self._current is None:
            raise HttpRefusal(HTTPStatus.TOO_EARLY, "the collector has announced nothing yet")
        return self._current.ann

    def _announce(self, body: bytes, now: int) -> None:
        clients, announcement, content = unpack_request(body)
        self._relay.announce(announcement, content, now, clients)
        self._load()

    def _load(self) -> None:
        """Read the announcement that the relay hands out, once for all clients."""
        with contextlib.suppress(WireError):
            announcement = self._relay.announcement()
            self._current = Announcement.read(announcement)
            self._packed = pack_announcement(announcement, self._relay.content())

    def _earliest(self, route: Route) -> float:
        """Return the time before which a refused request may be accepted if it is sent again."""
        current = self._current
        if current is None:
            return 0.0
        match route:
            case Route.REPORT:
                return current.opens
            case Route.FROZEN | Route.LIST:
                return current.closes
            case Route.ROOT_OF | Route.LEAVES | Route.CONFIRM | Route.CONFIRMATIONS:
                return current.confirm_by
            case _:
                return 0.0

    def _refusal(self, body: bytes, error: WireError, now: float) -> HttpRefusal:
        if now < self._earliest(Route.REPORT):
            return HttpRefusal(HTTPStatus.TOO_EARLY, str(error))
        read: Callable[[bytes], SumReport | ShuffleReport] = SumReport.read
        if self._current is not None and self._current.attempt.protocol is Protocol.SHUFFLER:
            read = ShuffleReport.read
        try:
            name = read(body).name
        except WireError:
            return HttpRefusal(HTTPStatus.BAD_REQUEST, str(error))
        # Who has another certificate, such as a renewed one, is to send it.
        known = self._relay.can_report(name)
        status = HTTPStatus.BAD_REQUEST if known else HTTPStatus.UNAUTHORIZED
        return HttpRefusal(status, str(error))


def _leaf(digits: bytes) -> bytes:
    try:
        return bytes.fromhex(digits.decode())
    except ValueError:
        raise WireError("expected the digest of a ciphertext in hexadecimal digits") from None


@contextlib.contextmanager
def open_desk(folder: RelayFolder) -> Iterator[Desk]:
    """Open the relay of a folder with its state.

    Raises:
        DeploymentError: The operators are not paired, or a key is missing.
        LedgerError: The state cannot be opened, or another process uses it.
    """
    state = StateFile(folder.state_folder / STATE_NAME)
    try:
        yield Desk(
            Relay(
                state,
                folder.signing_key,
                folder.encryption_key,
                folder.operators.keys,
                folder.colluders,
                folder.threshold,
                folder.clients,
            )
        )
    finally:
        state.close()
