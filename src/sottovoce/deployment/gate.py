"""The link's door: what sites may call reaches Flower's link, and nothing else does.

Flower serves sites, operators and its own apps on one port, and asks only sites who they are:
whoever reaches that port may start a run, which is to run a program on the link's machine. So the
link itself listens on this machine alone, and this gate in front of it, with the same certificate,
lets through the calls that are signed with a site's key.
"""

import re
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

_CALL = re.compile(r"/v1/fleet/[a-z-]+")
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

    return Starlette(
        lifespan=lifespan,
        routes=[
            Route("/health", _health),
            Route("/{path:path}", _forward, methods=["POST"]),
        ],
    )


async def _health(_: Request) -> Response:
    return PlainTextResponse("ok")


async def _forward(request: Request) -> Response:
    path: str = request.scope["path"]  # as it was sent; a URL would take it apart anew
    if not _CALL.fullmatch(path):
        return PlainTextResponse("only sites' calls pass here", status_code=403)
    client: httpx.AsyncClient = request.state.client
    call = client.build_request(
        "POST", path, headers=_end_to_end(request.headers), content=request.stream()
    )
    try:
        answer = await client.send(call, stream=True)
    except httpx.TransportError:
        return PlainTextResponse("the link does not answer", status_code=503)
    return StreamingResponse(
        answer.aiter_raw(),
        status_code=answer.status_code,
        headers=_end_to_end(answer.headers),
        background=BackgroundTask(answer.aclose),
    )


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
