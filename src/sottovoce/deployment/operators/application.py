"""The relay as an ASGI application.

All work with the relay's state is done by one thread, so that there is one order of events. Reports
that arrive while the thread is busy are handed to it together, and one durable commit accepts all
of them; so it is with confirmations and with questions for a root. Nothing is logged but the type
and the place of an unforeseen error: no name, no address, no time of a client.
"""

import asyncio
import hashlib
import struct
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from sottovoce.core import printable_text
from sottovoce.core.errors import LedgerError, SottovoceError, WireError
from sottovoce.deployment.operators.arrivals import (
    Arrival,
    Arrivals,
    CutOffError,
    NoSpaceError,
    Receive,
)
from sottovoce.deployment.operators.routes import Route, check_request

Scope = Mapping[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]

COLLECTOR_BYTES = 2**31  # The largest body of the collector, such as a model.
_SMALL_BODY = 2**13
_WAITING_BYTES = 2**28  # Of all bodies of devices that arrive or wait for an answer.
_BATCH = 512
_CHUNK = 2**15  # Of an answer, so that a slow reader holds little memory.
_LOG = printable_text.logger()


class HttpRefusal(Exception):
    """The reason why a request is refused; the client receives it with an HTTP status."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class RelayDesk(Protocol):
    """What the application needs of a relay: one answer to each request.

    Each method raises HttpRefusal or a SottovoceError for a request that is not accepted.
    """

    @property
    def federation(self) -> bytes:
        """The federation's id."""

    @property
    def collector_key(self) -> bytes:
        """The collector's pinned public key."""

    @property
    def largest_report(self) -> int:
        """Largest number of bytes of a report of the announced attempt."""

    def answer(self, route: Route, body: bytes, now: float) -> bytes:
        """Return the content of the answer to a request of a kind that is answered one by one."""

    def reports(self, bodies: Sequence[bytes], now: float) -> Sequence[bytes | HttpRefusal]:
        """Take reports in one durable commit; return nothing for each, or why it is refused."""

    def roots(self, leaves: Sequence[bytes], now: float) -> Sequence[bytes | HttpRefusal]:
        """Return root and path of each leaf, in hexadecimal digits, or why there is none."""

    def take_confirmations(
        self, bodies: Sequence[bytes], now: float
    ) -> Sequence[bytes | HttpRefusal]:
        """Take confirmations in one durable commit; return nothing, or why each is refused."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    body: bytes
    done: "asyncio.Future[bytes | HttpRefusal]"


class _Group:
    """Messages of one kind that wait for the relay's thread, which takes them together.

    Args:
        thread: The relay's thread.
        take: Takes several messages at a time, as `RelayDesk.reports` does.
    """

    def __init__(
        self,
        thread: ThreadPoolExecutor,
        take: Callable[[Sequence[bytes], float], Sequence[bytes | HttpRefusal]],
    ) -> None:
        self._thread, self._take = thread, take
        self._waiting: list[_Waiting] = []
        self._wake = asyncio.Event()
        self._passing: asyncio.Task[None] | None = None

    async def add(self, body: bytes) -> bytes:
        """Wait until a message is taken, and return the answer or raise the HttpRefusal of it."""
        waiting = _Waiting(body, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._wake.set()
        outcome = await waiting.done
        if isinstance(outcome, HttpRefusal):
            raise outcome
        return outcome

    def start(self) -> None:
        """Begin to pass messages on."""
        self._passing = asyncio.create_task(self._pass_on())

    def stop(self) -> None:
        """Pass no more messages on."""
        if self._passing is not None:
            self._passing.cancel()

    async def _pass_on(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
            if not self._waiting:
                self._wake.clear()
            try:
                bodies = [one.body for one in batch]
                outcomes = await loop.run_in_executor(self._thread, self._take, bodies, time.time())
                for one, outcome in zip(batch, outcomes, strict=True):
                    if not one.done.done():
                        one.done.set_result(outcome)
            except Exception as error:
                for one in batch:
                    if not one.done.done():
                        one.done.set_exception(error)


class RelayApplication:
    """An ASGI application that answers devices and the collector.

    Args:
        desk: The relay.
    """

    def __init__(self, desk: RelayDesk) -> None:
        self._desk = desk
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._groups = {
            Route.REPORT: _Group(self._thread, desk.reports),
            Route.ROOT_OF: _Group(self._thread, desk.roots),
            Route.CONFIRM: _Group(self._thread, desk.take_confirmations),
        }
        # Devices never take the space of the collector, whose requests are signed.
        self._devices, self._collectors = Arrivals(_WAITING_BYTES), Arrivals(COLLECTOR_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        close = False
        try:
            status, content = HTTPStatus.OK, await self._answer(scope, receive)
        except HttpRefusal as refusal:
            status, content = refusal.status, str(refusal).encode()
            close = status is HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        except SottovoceError as error:
            status, content = status_of(error), str(error).encode()
        except Exception as error:  # Its text may name a client, so it is not logged.
            where = traceback.extract_tb(error.__traceback__)[-1]
            _LOG.error("%s in %s:%s", type(error).__name__, where.filename, where.lineno)
            status, content = HTTPStatus.INTERNAL_SERVER_ERROR, b"the relay has failed; try again"
        await _reply(send, status, content, close=close)

    async def _answer(self, scope: Scope, receive: Receive) -> bytes:
        route, of = _route(scope)
        headers = dict(scope["headers"])
        length = _length(headers)
        if route is Route.HEALTH:
            return b"ok"
        now, expected, space, most = time.time(), None, self._devices, _SMALL_BODY
        if route in _COLLECTORS:
            expected = self._check_collector(route, headers, length, now)
            space, most = self._collectors, COLLECTOR_BYTES
        elif route is Route.REPORT:
            most = max(most, self._desk.largest_report)
        if length > most:
            reason = f"a request of this kind has at most {most} bytes, got {length}"
            raise HttpRefusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        with space.arrival(scope) as arrival:
            body = await _read(arrival, receive)
            if expected is not None and hashlib.sha256(body).digest() != expected:
                raise HttpRefusal(HTTPStatus.FORBIDDEN, "the body is not the one that was signed")
            if route in self._groups:
                return await self._groups[route].add(of or body)
            content: bytes = await self._work(self._desk.answer, route, body, now)
            return content

    def _check_collector(
        self, route: Route, headers: Mapping[bytes, bytes], length: int, now: float
    ) -> bytes:
        """Return the digest of the body that the collector has signed."""
        header = headers.get(b"authorization", b"").decode("latin-1")
        desk = self._desk
        try:
            return check_request(header, desk.collector_key, desk.federation, route, length, now)
        except WireError as error:
            raise HttpRefusal(HTTPStatus.FORBIDDEN, str(error)) from None

    async def _work(self, call: Callable[..., Any], *given: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *given)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Start and stop with the server."""
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                for group in self._groups.values():
                    group.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                for group in self._groups.values():
                    group.stop()
                self._thread.shutdown()
                await send({"type": "lifespan.shutdown.complete"})
                return


_COLLECTORS = {
    Route.ANNOUNCE,
    Route.FROZEN,
    Route.ACCEPTED,
    Route.LIST,
    Route.ROOT,
    Route.CONFIRMATIONS,
}
_EXACT = {route.value: route for route in Route if route is not Route.ROOT_OF}


def status_of(error: SottovoceError) -> HTTPStatus:
    """Return the HTTP status of an error that a relay has raised."""
    match error:
        case WireError():
            return HTTPStatus.BAD_REQUEST
        case LedgerError():  # Of the relay's own file: the same request may be accepted later.
            return HTTPStatus.SERVICE_UNAVAILABLE
        case _:
            return HTTPStatus.CONFLICT


def _route(scope: Scope) -> tuple[Route, bytes]:
    """Return the route of a request, and what follows its path."""
    asked = f"{scope['method']} {scope['path']}"
    found = _EXACT.get(asked)
    if found is not None:
        return found, b""
    if asked.startswith(Route.ROOT_OF):
        return Route.ROOT_OF, asked.removeprefix(Route.ROOT_OF).encode()
    raise HttpRefusal(HTTPStatus.NOT_FOUND, "a relay has no such path")


def _length(headers: Mapping[bytes, bytes]) -> int:
    """Return the declared length of the body."""
    if b"transfer-encoding" in headers:
        raise HttpRefusal(
            HTTPStatus.LENGTH_REQUIRED, "a request must declare the length of its body"
        )
    given = headers.get(b"content-length", b"0")
    return int(given) if given.isdigit() else 0  # The parser has refused anything else.


async def _read(arrival: Arrival, receive: Receive) -> bytes:
    """Return the body, of which uvicorn passes on no more bytes than were declared."""
    try:
        return await arrival.read(receive)
    except NoSpaceError:
        reason = "too much arrives at once; try again"
        raise HttpRefusal(HTTPStatus.SERVICE_UNAVAILABLE, reason) from None
    except CutOffError:
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, "the request was cut off") from None


async def _reply(send: Send, status: HTTPStatus, content: bytes, *, close: bool) -> None:
    if status is HTTPStatus.OK and not content:
        await send({"type": "http.response.start", "status": HTTPStatus.NO_CONTENT, "headers": []})
        await send({"type": "http.response.body"})
        return
    headers = [(b"content-length", str(len(content)).encode())]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for start in range(0, max(1, len(content)), _CHUNK):
        end = start + _CHUNK
        more = end < len(content)
        part = content[start:end]
        await send({"type": "http.response.body", "body": part, "more_body": more})


def pack_announcement(announcement: bytes, content: bytes) -> bytes:
    """Return an announcement and the content that clients train on, as one text of bytes."""
    return struct.pack("<I", len(announcement)) + announcement + content


def unpack_announcement(packed: bytes) -> tuple[bytes, bytes]:
    """Return the announcement and the content that `pack_announcement` has joined.

    Raises:
        WireError: They are cut off.
    """
    if len(packed) < 4 or len(packed) < 4 + (length := struct.unpack_from("<I", packed)[0]):
        raise WireError("expected an announcement and its content, got fewer bytes")
    return packed[4 : 4 + length], packed[4 + length :]


def pack_request(announcement: bytes, content: bytes, clients: Iterable[str]) -> bytes:
    """Return the collector's request to announce: whom it asks, an announcement and its content."""
    names = "\n".join(clients).encode()
    return struct.pack("<I", len(names)) + names + pack_announcement(announcement, content)


def unpack_request(packed: bytes) -> tuple[frozenset[str], bytes, bytes]:
    """Return the names of clients, the announcement and the content that `pack_request` has joined.

    Raises:
        WireError: They are cut off, or the names are no text.
    """
    names, rest = unpack_announcement(packed)
    try:
        clients = frozenset(names.decode().splitlines())
    except UnicodeDecodeError:
        raise WireError("expected names of clients as text, got other bytes") from None
    return (clients, *unpack_announcement(rest))
