"""The gate of a link: a proxy that passes on only calls which registered sites have signed.

A SuperLink serves sites, operators and its own apps on one port and authenticates only sites.
Anyone who reaches that port may start a run, which executes a program on the link's machine.
Therefore the SuperLink listens on this machine only, and this gate in front of it, with the same
certificate, passes on calls that a registered site has signed and no others. Signature and declared
length are checked before any of a body is read, because a SuperLink holds whole bodies in memory.

The gate also counts the bytes of HTTP in both directions, before encryption: messages and all of
Flower's calls around them. Only this machine may ask for the count.

It limits what a site may send: the length of a body, the number of calls at once, and the total. A
SuperLink stores what sites push until its server has pulled it or the run has ended. For each order
that a site was given it may push a few times the largest reply that is due.
"""

import asyncio
import json
import re
import ssl
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from sottovoce.core import printable_text
from sottovoce.deployment.machines.federation import Federation
from sottovoce.deployment.machines.limited_server import Connections, Limits, serve
from sottovoce.deployment.machines.site_signatures import SignatureError, SiteKeys, UnknownKeyError
from sottovoce.deployment.post import OVERHEAD_BYTES, ExpectedReplies
from sottovoce.flower.witness_endpoint import witness_route

ACTIVATE, PULL = "/v1/fleet/activate-node", "/v1/fleet/pull-messages"
_PUSHES = {"/v1/fleet/push-messages", "/v1/fleet/push-object"}
_CALL = re.compile(r"/v1/fleet/[a-z-]+")
_TRIES = 4  # How often a reply may be pushed: nodes retry when a connection breaks.
_MOST_ORDERS = 4  # How many orders may have outstanding replies.
_SHARES = 4  # How many sites may send their largest replies at once.
_WAIT_SECONDS = 30.0
_LOG_SECONDS = 60.0

_LOG = printable_text.logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits(Limits):
    """The gate's limits on connections, calls, seconds and bytes.

    A connection is anonymous until a site's signature has come over it.
    """

    calls: int = 32  # Calls that the SuperLink handles at once; it has 40 threads.
    calls_per_site: int = 8
    body_bytes: int = 2**26  # Of all bodies together, which the SuperLink holds in memory.


class Refusal(Exception):
    """The reason why a site's call is not passed on; the site receives it with an HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def is_call(path: str) -> bool:
    """Return whether a URL path is one that sites call, such as /v1/fleet/pull-messages."""
    return _CALL.fullmatch(path) is not None


class SiteCalls:
    """The calls of all sites in progress, and how much each site may still push."""

    def __init__(self, due: Path, keys: SiteKeys, limits: GateLimits) -> None:
        self._due = ExpectedReplies(due)
        self._keys = keys
        self._limits = limits
        self._calls: dict[str, int] = {}
        # What each site pushed, in units of the largest reply, less what its orders allow.
        self._pushed: dict[str, float] = {}
        # Bytes of long bodies in progress, in total and by site.
        self._bytes = 0
        self._sending: dict[str, int] = {}
        self._freed = asyncio.Condition()
        self.turn = asyncio.Semaphore(limits.calls)  # Held while the SuperLink handles a call.
        self._logged_at: dict[str, float] = {}

    def largest_push_bytes(self) -> int:
        """Return the most bytes that one call with a reply, or a part of it, may have now."""
        return OVERHEAD_BYTES + max(self._due.largest_bytes(), self._keys.largest_reply_bytes)

    def order_delivered(self, site: str) -> None:
        """Record that the SuperLink gave a site an order, so the site may push one more reply."""
        left = self._pushed.get(site, 0.0) - _TRIES
        self._pushed[site] = max(left, -_TRIES * (_MOST_ORDERS - 1))

    @asynccontextmanager
    async def one(self, site: str, path: str, length: int) -> AsyncIterator[None]:
        """Hold a slot for one call of a site with a body of `length` bytes, while the block runs.

        Raises Refusal if the site makes too many calls at once, if the body is too long or more
        than its orders allow, or if no memory for the body is free within 30 s.
        """
        if self._calls.get(site, 0) >= self._limits.calls_per_site:
            raise Refusal(503, f"a site makes at most {self._limits.calls_per_site} calls at once")
        self._check_length(site, path, length)
        self._calls[site] = self._calls.get(site, 0) + 1
        try:
            async with self._body(site, length):
                share = self._count_push(site, path, length)
                try:
                    yield
                except Refusal:  # It was not passed on, so the site will try again.
                    self._pushed[site] = self._pushed.get(site, 0.0) - share
                    raise
        finally:
            self._calls[site] -= 1

    def _check_length(self, site: str, path: str, length: int) -> None:
        most = self.largest_push_bytes() if path in _PUSHES else OVERHEAD_BYTES
        if length > most:
            self._log_refusal(site, f"{path} with {length} bytes", f"at most {most} are due")
            raise Refusal(413, f"this call may have at most {most} bytes now, got {length}")

    def _count_push(self, site: str, path: str, length: int) -> float:
        """Count what a site pushes against its orders; return its share of the largest reply."""
        if path not in _PUSHES:
            return 0.0
        most = self.largest_push_bytes()
        pushed = self._pushed.get(site, 0.0) + length / most
        if pushed > _TRIES:
            self._log_refusal(
                site, "more replies", f"its orders allow {_TRIES} times {most} bytes each"
            )
            raise Refusal(413, "the site has sent all the bytes that its orders allow")
        self._pushed[site] = pushed
        return length / most

    @asynccontextmanager
    async def _body(self, site: str, length: int) -> AsyncIterator[None]:
        """Wait until memory for a body is free, because a SuperLink holds every body in memory.

        Short calls never wait. No site uses more than its share, so a site that sends slowly does
        not block the others.
        """
        if length <= OVERHEAD_BYTES:
            yield
            return
        share = self.largest_push_bytes()
        most = max(self._limits.body_bytes, _SHARES * share)

        def fits() -> bool:
            own = self._sending.get(site, 0) + length
            return self._bytes + length <= most and own <= share

        try:
            async with asyncio.timeout(_WAIT_SECONDS), self._freed:
                await self._freed.wait_for(fits)
                self._add(site, length)
        except TimeoutError:
            raise Refusal(503, "too much is being sent at once; try again") from None
        try:
            yield
        finally:
            self._add(site, -length)
            async with self._freed:
                self._freed.notify_all()

    def _add(self, site: str, length: int) -> None:
        self._bytes += length
        self._sending[site] = self._sending.get(site, 0) + length

    def _log_refusal(self, site: str, what: str, why: str) -> None:
        """Log a refusal, at most once a minute per site."""
        now = time.monotonic()
        if now - self._logged_at.get(site, -_LOG_SECONDS) >= _LOG_SECONDS:
            self._logged_at[site] = now
            _LOG.warning(
                "'%s' is refused %s: %s. If your app sends more, set largest_reply_bytes in "
                "federation.toml",
                site,
                what,
                why,
            )


TRAFFIC_PATH = "/traffic"
_TIMEOUT_SECONDS = 60.0
_KEEP_SECONDS = 4.0
_MOST_DISCARDED_BYTES = 2**25
_MOST_UNREAD_BYTES = 2**12  # Of unsigned calls; a node's first call is shorter.
# Headers about the connection, which are not passed on.
_HOP_HEADERS = {"connection", "host", "keep-alive", "te", "transfer-encoding", "upgrade"}
# A SuperLink's answer to an unknown key, which SuperNodes understand.
_UNKNOWN_KEY = {"code": 2004, "detail": "Failed to activate SuperNode.", "extra": None}


@dataclass
class Traffic:
    """Bytes from sites (up) and to sites (down)."""

    up: int = 0
    down: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GateState:
    """The state that all calls of the gate share."""

    keys: SiteKeys
    calls: SiteCalls
    connections: Connections
    traffic: Traffic


def gate(link: str, authority: str, door: GateState) -> Starlette:
    """Return an application that passes sites' calls on to the SuperLink and refuses others.

    `link` is the SuperLink's address on this machine, `authority` the path of the federation's
    ca.crt, and `door` the state that all calls share.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
        async with httpx.AsyncClient(
            base_url=f"https://{link}",
            verify=ssl.create_default_context(cafile=authority),
            timeout=_TIMEOUT_SECONDS,
            # No limit, since sites may read responses slowly. Idle connections are closed before
            # the SuperLink closes them.
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEP_SECONDS),
            trust_env=False,
        ) as client:
            yield {"client": client}

    app = Starlette(
        lifespan=lifespan,
        routes=[
            Route("/health", _health),
            Route(TRAFFIC_PATH, _traffic),
            witness_route(Path(authority)),
            Route("/{path:path}", _forward, methods=["POST"]),
        ],
    )
    app.state.door = door
    return app


async def _traffic(request: Request) -> Response:
    if request.client is None or request.client.host not in ("127.0.0.1", "::1"):
        return PlainTextResponse("only the link's machine may read the count", status_code=403)
    traffic: Traffic = request.app.state.door.traffic
    return JSONResponse({"up": traffic.up, "down": traffic.down})


async def _health(_: Request) -> Response:
    return PlainTextResponse("ok")


async def _forward(request: Request) -> Response:
    """Pass a site's call on, or refuse it based on its headers."""
    path: str = request.scope["path"]  # As it was sent: a URL object would parse it again.
    length = request.headers.get("content-length", "")
    if not is_call(path):
        return await _refuse(request, 403, "only calls of sites are accepted here")
    door: GateState = request.app.state.door
    try:
        site = door.keys.site_of(request.headers)
    except UnknownKeyError:
        if path == ACTIVATE:
            return await _refuse(request, 412, json.dumps(_UNKNOWN_KEY))
        return await _refuse(request, 401, "the key belongs to no site of the federation")
    except SignatureError:
        return await _refuse(request, 401, "the call is not signed by a site")
    connection = getattr(request.state, "connection", None)
    if connection is not None:
        door.connections.assign_site(connection, site)
    if not length.isdecimal() or "transfer-encoding" in request.headers:
        return await _refuse(request, 411, "a call must declare the length of its body")
    try:
        async with door.calls.one(site, path, int(length)):
            return await _pass_on(request, path, site, door)
    except Refusal as refusal:
        # A site that reads the reason does not retry, but it reads only after it has sent all.
        discarded = int(length) <= _MOST_DISCARDED_BYTES
        return PlainTextResponse(
            str(refusal),
            status_code=refusal.status,
            headers={} if discarded else {"connection": "close"},
        )


async def _pass_on(request: Request, path: str, site: str, door: GateState) -> Response:
    """Send a call to the SuperLink and stream its response back."""
    client: httpx.AsyncClient = request.state.client
    traffic = door.traffic
    traffic.up += _head_bytes(path, request.headers)
    try:
        # The whole body first, so that a slow sender does not occupy the SuperLink.
        body = await request.body()
        traffic.up += len(body)
        headers = _end_to_end(request.headers)
        call = client.build_request("POST", path, headers=headers, content=body)
        async with door.calls.turn:
            answer = await client.send(call, stream=True)
    except httpx.TransportError:
        raise Refusal(503, "the SuperLink behind the gate does not answer") from None
    except ClientDisconnect:  # Nothing was passed on, so it does not count for the site.
        raise Refusal(400, "the call was cut off") from None
    if path == PULL and answer.is_success and answer.headers.get("content-length", "0") != "0":
        door.calls.order_delivered(site)
    traffic.down += _head_bytes(answer.reason_phrase, answer.headers)

    async def chunks() -> AsyncIterator[bytes]:
        async for chunk in answer.aiter_raw():
            traffic.down += len(chunk)
            yield chunk

    return StreamingResponse(
        chunks(),
        status_code=answer.status_code,
        headers=_end_to_end(answer.headers),
        background=BackgroundTask(answer.aclose),
    )


async def _refuse(request: Request, status: int, text: str) -> Response:
    """Refuse a call that is not authenticated, and close the connection.

    A short body is read and discarded first: closing a connection with unread bytes resets it, and
    a site with a wrong clock or an unknown key would never see the reason.
    """
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) <= _MOST_UNREAD_BYTES:
        with suppress(ClientDisconnect):
            async for _ in request.stream():
                pass
    return PlainTextResponse(text, status_code=status, headers={"connection": "close"})


def _head_bytes(first: str, headers: Mapping[str, str]) -> int:
    """Return the bytes before a body, from 'POST PATH HTTP/1.1' or 'HTTP/1.1 200 REASON' on."""
    lines = sum(len(name) + len(value) + 4 for name, value in headers.items())
    return len(first) + 16 + lines + 2


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_HEADERS}


def main(folder: str, link: str, limits: str = "{}") -> None:
    """Serve the gate of the federation in `folder` until a signal ends it.

    `link` is the SuperLink's address on this machine. `limits` is a JSON object with fields of
    `GateLimits`, for tests.
    """
    federation, chosen = Federation.read(Path(folder)), GateLimits(**json.loads(limits))
    keys, connections = SiteKeys(federation.folder), Connections(chosen)
    calls = SiteCalls(federation.replies_due_folder, keys, chosen)
    door = GateState(keys=keys, calls=calls, connections=connections, traffic=Traffic())
    serve(
        gate(link, str(federation.authority), door),
        host=federation.address.bind_host,
        port=federation.address.port,
        certificate=federation.certificate,
        key=federation.certificate_key,
        limits=chosen,
        table=connections,
        tells_time=True,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
