"""The link's door: what sites may call reaches Flower's link, and nothing else does.

Flower serves sites, operators and its own apps on one port, and asks only sites who they are:
whoever reaches that port may start a run, which is to run a program on the link's machine. So the
link itself listens on this machine alone, and this gate in front of it, with the same certificate,
lets through sites' calls and no others, of 512 MiB at most: whoever reaches the port could fill
the link's memory otherwise. Flower's link then asks each for a site's signature.

It also counts what passes, both ways: messages with all of Flower's calls around them, in HTTP,
before encryption. This machine may ask for the count.
"""

import re
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from sottovoce.deployment.machines.witness_endpoint import witness_route

TRAFFIC_PATH = "/traffic"
_CALL = re.compile(r"/v1/fleet/[a-z-]+")
MOST_BODY_BYTES = 512 * 2**20  # of one call: a part of a message, and Flower's are far smaller
_TIMEOUT_SECONDS = 60.0
_STOP_SECONDS = 3
# About this connection, not about the message in it.
_HOP_HEADERS = {"connection", "host", "keep-alive", "te", "transfer-encoding", "upgrade"}


def gate(link: str, authority: str) -> Starlette:
    """An application that passes sites' calls on to the link, as they are, and refuses others."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
        async with httpx.AsyncClient(
            base_url=f"https://{link}",
            verify=ssl.create_default_context(cafile=authority),
            timeout=_TIMEOUT_SECONDS,
            limits=httpx.Limits(max_connections=None),  # as many as there are sites
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
    app.state.traffic = Traffic()
    return app


@dataclass
class Traffic:
    """Bytes from sites, and back to them."""

    up: int = 0
    down: int = 0


async def _traffic(request: Request) -> Response:
    if request.client is None or request.client.host not in ("127.0.0.1", "::1"):
        return PlainTextResponse("only this machine may ask", status_code=403)
    traffic: Traffic = request.app.state.traffic
    return JSONResponse({"up": traffic.up, "down": traffic.down})


async def _health(_: Request) -> Response:
    return PlainTextResponse("ok")


async def _forward(request: Request) -> Response:
    path: str = request.scope["path"]  # as it was sent; a URL would take it apart anew
    if not _CALL.fullmatch(path):
        return PlainTextResponse("only sites' calls pass here", status_code=403)
    if int(request.headers.get("content-length", "0")) > MOST_BODY_BYTES:
        return _too_large()
    client: httpx.AsyncClient = request.state.client
    traffic: Traffic = request.app.state.traffic
    traffic.up += _head_bytes(path, request.headers)

    async def coming() -> AsyncIterator[bytes]:
        length = 0
        async for chunk in request.stream():
            traffic.up += len(chunk)
            length += len(chunk)
            if length > MOST_BODY_BYTES:
                raise _TooLargeError
            yield chunk

    call = client.build_request(
        "POST", path, headers=_end_to_end(request.headers), content=coming()
    )
    try:
        answer = await client.send(call, stream=True)
    except _TooLargeError:
        return _too_large()
    except httpx.TransportError:
        return PlainTextResponse("the link does not answer", status_code=503)
    except ClientDisconnect:  # nobody hears it; a traceback for each would let anybody fill the log
        return PlainTextResponse("the call was cut off", status_code=400)
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


class _TooLargeError(Exception):
    """A call whose body goes on and on, whatever it announced."""


def _too_large() -> Response:
    return PlainTextResponse(
        f"a call's body has at most {MOST_BODY_BYTES} bytes",
        status_code=413,
        headers={"connection": "close"},  # what still comes is not waited for
    )


def _head_bytes(first: str, headers: Mapping[str, str]) -> int:
    """What the lines before a body take: 'POST PATH HTTP/1.1', or 'HTTP/1.1 200 REASON'."""
    lines = sum(len(name) + len(value) + 4 for name, value in headers.items())
    return len(first) + 16 + lines + 2


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_HEADERS}


def main(host: str, port: str, link: str, certificate: str, key: str, authority: str) -> None:
    """Serve until a signal ends it."""
    uvicorn.run(
        gate(link, authority),
        host=host,
        port=int(port),
        ssl_certfile=certificate,
        ssl_keyfile=key,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
