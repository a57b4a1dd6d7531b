"""The link's door: what sites may call reaches Flower's link, and nothing else does.

Flower serves sites, operators and its own apps on one port, and asks only sites who they are:
whoever reaches that port may start a run, which is to run a program on the link's machine. So the
link itself listens on this machine alone, and this gate in front of it, with the same certificate,
lets through calls that a registered site has signed and no others. Signature and declared length
are checked before any of a body is read, since Flower's link holds whole bodies in memory.

It also counts what passes, both ways: messages with all of Flower's calls around them, in HTTP,
before encryption. This machine may ask for the count.
"""

import json
import resource
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from sottovoce.deployment.machines.federation import Federation
from sottovoce.deployment.machines.site_signatures import SignatureError, SiteKeys, UnknownKeyError
from sottovoce.flower.gate_calls import ACTIVATE, PULL, Refusal, SiteCalls, is_call
from sottovoce.flower.gate_connections import Connections, GateServer, Limits
from sottovoce.flower.witness_endpoint import witness_route

TRAFFIC_PATH = "/traffic"
_TIMEOUT_SECONDS = 60.0
_STOP_SECONDS = 3
_KEEP_SECONDS = 4.0
_MOST_DISCARDED_BYTES = 2**25
_MOST_UNREAD_BYTES = 2**12  # of calls that nobody has signed: a node's first one is shorter
# About this connection, not about the message in it.
_HOP_HEADERS = {"connection", "host", "keep-alive", "te", "transfer-encoding", "upgrade"}
# What Flower's link says to a key that it does not know, and its nodes understand.
_UNKNOWN_KEY = {"code": 2004, "detail": "Failed to activate SuperNode.", "extra": None}


@dataclass
class Traffic:
    """Bytes from sites, and back to them."""

    up: int = 0
    down: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What the gate's calls share."""

    keys: SiteKeys
    calls: SiteCalls
    connections: Connections
    traffic: Traffic


def gate(link: str, authority: str, door: Door) -> Starlette:
    """An application that passes sites' calls on to the link, as they are, and refuses others."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
        async with httpx.AsyncClient(
            base_url=f"https://{link}",
            verify=ssl.create_default_context(cafile=authority),
            timeout=_TIMEOUT_SECONDS,
            # As many as sites read answers; those kept are dropped before the link drops them.
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
        return PlainTextResponse("only this machine may ask", status_code=403)
    traffic: Traffic = request.app.state.door.traffic
    return JSONResponse({"up": traffic.up, "down": traffic.down})


async def _health(_: Request) -> Response:
    return PlainTextResponse("ok")


async def _forward(request: Request) -> Response:
    """Pass a site's call on, or refuse it by what its headers say."""
    path: str = request.scope["path"]  # as it was sent; a URL would take it apart anew
    length = request.headers.get("content-length", "")
    if not is_call(path):
        return await _refused(request, 403, "only sites' calls pass here")
    door: Door = request.app.state.door
    try:
        site = door.keys.site_of(request.headers)
    except UnknownKeyError:
        if path == ACTIVATE:
            return await _refused(request, 412, json.dumps(_UNKNOWN_KEY))
        return await _refused(request, 401, "the key is no site's")
    except SignatureError:
        return await _refused(request, 401, "the call is not signed by a site")
    connection = getattr(request.state, "connection", None)
    if connection is not None:
        door.connections.belongs_to(connection, site)
    if not length.isdecimal() or "transfer-encoding" in request.headers:
        return await _refused(request, 411, "a call declares the length of its body")
    try:
        async with door.calls.one(site, path, int(length)):
            return await _passed_on(request, path, site, door)
    except Refusal as refusal:
        # A site that is told why does not try again, but it reads the answer after it has sent all.
        discarded = int(length) <= _MOST_DISCARDED_BYTES
        return PlainTextResponse(
            str(refusal),
            status_code=refusal.status,
            headers={} if discarded else {"connection": "close"},
        )


async def _passed_on(request: Request, path: str, site: str, door: Door) -> Response:
    client: httpx.AsyncClient = request.state.client
    traffic = door.traffic
    traffic.up += _head_bytes(path, request.headers)
    try:
        body = await request.body()  # all of it first: who sends slowly keeps no call of the link's
        traffic.up += len(body)
        headers = _end_to_end(request.headers)
        call = client.build_request("POST", path, headers=headers, content=body)
        async with door.calls.turn:
            answer = await client.send(call, stream=True)
    except httpx.TransportError:
        raise Refusal(503, "the link does not answer") from None
    except ClientDisconnect:  # nothing was passed on, so it costs the site nothing
        raise Refusal(400, "the call was cut off") from None
    if path == PULL and answer.is_success and answer.headers.get("content-length", "0") != "0":
        door.calls.order_delivered(site)
    traffic.down += _head_bytes(answer.reason_phrase, answer.headers)

    async def going() -> AsyncIterator[bytes]:
        async for chunk in answer.aiter_raw():
            traffic.down += len(chunk)
            yield chunk

    return StreamingResponse(
        going(),
        status_code=answer.status_code,
        headers=_end_to_end(answer.headers),
        background=BackgroundTask(answer.aclose),
    )


async def _refused(request: Request, status: int, text: str) -> Response:
    """Say no to somebody of whom nothing is known, and close the connection.

    A short body is read and forgotten first: closing a connection over bytes that were not read
    resets it, and a site with a wrong clock or an unknown key would never see why.
    """
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) <= _MOST_UNREAD_BYTES:
        with suppress(ClientDisconnect):
            async for _ in request.stream():
                pass
    return PlainTextResponse(text, status_code=status, headers={"connection": "close"})


def _head_bytes(first: str, headers: Mapping[str, str]) -> int:
    """What the lines before a body take: 'POST PATH HTTP/1.1', or 'HTTP/1.1 200 REASON'."""
    lines = sum(len(name) + len(value) + 4 for name, value in headers.items())
    return len(first) + 16 + lines + 2


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_HEADERS}


def main(folder: str, link: str, limits: str = "{}") -> None:
    """Serve the federation in `folder` until a signal ends it; `limits` are JSON, for tests."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    federation, chosen = Federation.read(Path(folder)), Limits(**json.loads(limits))
    keys, connections = SiteKeys(federation.folder), Connections(chosen)
    calls = SiteCalls(federation.replies_due_folder, keys, chosen)
    door = Door(keys=keys, calls=calls, connections=connections, traffic=Traffic())
    config = uvicorn.Config(
        gate(link, str(federation.authority), door),
        host=federation.address.bind_host,
        port=federation.address.port,
        ssl_certfile=federation.certificate,
        ssl_keyfile=federation.certificate_key,
        http="httptools",
        ws="none",
        access_log=False,
        log_level="error",  # a warning for every malformed request would let anybody fill the log
        server_header=False,
        timeout_keep_alive=int(chosen.idle_seconds),
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    GateServer(config, chosen, connections).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
