"""The gate by itself, in front of something that only tells what it was told."""

import asyncio
import contextlib
import http.client
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from sottovoce.deployment.machines import gate as gate_module
from sottovoce.deployment.machines.address import Address, free_port
from sottovoce.deployment.machines.federation import Federation, create_federation
from sottovoce.deployment.machines.link import gate_command

pytest.importorskip("flwr")
CALL = "/v1/fleet/push-object"


class _Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(418)
        self.send_header("x-path", self.path)
        self.send_header("x-signature", self.headers["flwr-signature"])
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    address = Address(host="127.0.0.1", port=free_port())
    return create_federation(tmp_path_factory.mktemp("gate"), address=address, sites=["a"])


@pytest.fixture(scope="module")
def link(federation: Federation) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(federation.certificate, federation.certificate_key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def _call(
    federation: Federation, path: str, body: bytes
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Status, headers and body of the gate's answer."""
    context = ssl.create_default_context(cafile=str(federation.authority))
    connection = http.client.HTTPSConnection(str(federation.address), context=context, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", path, body=body, headers={"flwr-signature": "mine"})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def _serve(federation: Federation, inner: Address) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(gate_command(federation, inner))
    deadline = time.monotonic() + 60
    while federation.address.is_free():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return process


@pytest.fixture(scope="module")
def gate(federation: Federation, link: ThreadingHTTPServer) -> Iterator[Federation]:
    process = _serve(federation, Address(host="127.0.0.1", port=link.server_address[1]))
    yield federation
    process.terminate()
    process.wait(30)


@pytest.mark.parametrize("size", [0, 1, 20_000_000])
def test_a_call_passes_as_it_is_both_ways(gate: Federation, size: int) -> None:
    body = bytes(range(251)) * (size // 251) + bytes(size % 251)
    status, headers, returned = _call(gate, CALL, body)
    assert (status, headers["x-path"], headers["x-signature"]) == (418, CALL, "mine")
    assert returned == body


@pytest.mark.parametrize(
    "path",
    ["/", "/v1/fleet", "/v1/fleet/", "/v1/control/start-run", "/v1/fleet/a/b", "/v1/fleet/..",
     "/v1/fleet/%2e%2e%2fcontrol%2fstart-run", "/v1/fleet/a%3fb", "/V1/fleet/a", "/v1//fleet/a"],
)  # fmt: skip
def test_nothing_else_passes(gate: Federation, path: str) -> None:
    assert _call(gate, path, b"x")[0] == 403


def test_a_link_that_is_away_is_said_so_that_nodes_try_again(tmp_path: Path) -> None:
    address = Address(host="127.0.0.1", port=free_port())
    federation = create_federation(tmp_path / "f", address=address, sites=["a"])
    process = _serve(federation, Address(host="127.0.0.1", port=free_port()))
    try:
        assert _call(federation, CALL, b"x")[0] == 503
    finally:
        process.terminate()
        assert process.wait(30) is not None


def test_a_body_that_would_fill_the_memory_is_refused_before_it_comes(gate: Federation) -> None:
    context = ssl.create_default_context(cafile=str(gate.authority))
    host, length = gate.address.host, gate_module.MOST_BODY_BYTES + 1
    with (
        socket.create_connection((host, gate.address.port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        head = f"POST {CALL} HTTP/1.1\r\nhost: gate\r\ncontent-length: {length}\r\n\r\n"
        secure.sendall(head.encode())
        assert secure.recv(4096).startswith(b"HTTP/1.1 413")


async def _status(authority: Path, chunks: list[bytes]) -> int:
    """What the gate answers to a body that comes in chunks and says no length."""

    async def link(request: httpx.Request) -> httpx.Response:
        assert await request.aread() == b"".join(chunks)
        return httpx.Response(200, stream=httpx.ByteStream(b""))

    coming: list[dict[str, Any]] = [
        *({"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks),
        {"type": "http.request", "body": b"", "more_body": False},
    ]
    statuses = []

    async def receive() -> dict[str, Any]:
        return coming.pop(0) if coming else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    transport = httpx.MockTransport(link)
    async with httpx.AsyncClient(transport=transport, base_url="https://link") as client:
        scope = {"type": "http", "method": "POST", "path": CALL, "headers": [], "query_string": b""}
        application = gate_module.gate("localhost:1", str(authority))
        await application({**scope, "state": {"client": client}}, receive, send)
    return int(statuses[0])


@pytest.mark.parametrize(("length", "status"), [(0, 200), (100, 200), (101, 413), (1000, 413)])
def test_a_body_that_says_no_length_is_counted(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, length: int, status: int
) -> None:
    monkeypatch.setattr(gate_module, "MOST_BODY_BYTES", 100)
    chunks = [b"x" * min(30, length - start) for start in range(0, length, 30)]
    assert asyncio.run(_status(federation.authority, chunks)) == status
