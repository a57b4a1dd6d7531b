"""The gate by itself, in front of something that only tells what it was told."""

import asyncio
import contextlib
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from signed_calls import call, head, is_closed, signed_headers, tls_connection

from sottovoce.deployment import post
from sottovoce.deployment.machines import certificates, site_signatures
from sottovoce.deployment.machines.address import Address, free_port
from sottovoce.deployment.machines.federation import Federation, create_federation
from sottovoce.deployment.machines.limited_server import (
    Connection,
    Connections,
    Limits,
    address_group,
)
from sottovoce.deployment.machines.site_signatures import SiteKeys
from sottovoce.flower import gate as gate_calls
from sottovoce.flower.gate import PULL, GateLimits, Refusal, SiteCalls
from sottovoce.flower.link import gate_command

pytest.importorskip("flwr")
from flwr.supercore.error import FlowerError

PUSH, HEARTBEAT = "/v1/fleet/push-object", "/v1/fleet/send-node-heartbeat"
SMALL = post.OVERHEAD_BYTES
# Few connections, or short times: a test of the one must not wait for the other.
FEW = {"anonymous_per_address": 4, "handshake_seconds": 600.0, "header_seconds": 600.0}
SHORT = dict.fromkeys(("handshake_seconds", "header_seconds", "body_seconds", "idle_seconds"), 1.0)


class _Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    paths: list[str] = []  # noqa: RUF012  (for all)

    def do_POST(self) -> None:
        self.paths.append(self.path)
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200 if self.path == PULL else 418)
        self.send_header("x-path", self.path)
        self.send_header("x-signature", self.headers["flwr-signature"])
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _federation(folder: Path) -> Federation:
    """A federation of one site, whose private key is `node.key` in its folder."""
    address = Address(host="127.0.0.1", port=free_port())
    federation = create_federation(folder, address=address, sites=["a"])
    federation.replies_due_folder.mkdir()
    certificates.create_node_key(folder / "node.key", folder / "node.pub", comment="a")
    return federation.add_site("a", folder / "node.pub")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return _federation(tmp_path_factory.mktemp("gate") / "federation")


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


def _serve(
    federation: Federation, inner: Address, limits: dict[str, float]
) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([*gate_command(federation, inner), json.dumps(limits)])
    deadline = time.monotonic() + 60
    while federation.address.is_free():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return process


@pytest.fixture(scope="module")
def process(
    federation: Federation, link: ThreadingHTTPServer
) -> "Iterator[subprocess.Popen[bytes]]":
    process = _serve(federation, Address(host="127.0.0.1", port=link.server_address[1]), FEW)
    yield process
    process.terminate()
    process.wait(30)


@pytest.fixture
def gate(federation: Federation, process: object) -> Federation:
    """A gate whose site has just been given an order."""
    assert _call(federation, PULL, b"an order")[0] == 200
    _Echo.paths.clear()
    return federation


def _signed(federation: Federation, **how: float) -> dict[str, str]:
    return signed_headers(federation.folder / "node.key", **how)


def _call(federation: Federation, path: str, body: bytes) -> tuple[int, bytes]:
    status, _, answer = call(federation, path, body, _signed(federation))
    return status, answer


# -- what passes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, SMALL])
def test_a_call_passes_as_it_is_both_ways(gate: Federation, size: int) -> None:
    body, headers = (bytes(range(251)) * (size // 251 + 1))[:size], _signed(gate)
    status, answered, returned = call(gate, PUSH, body, headers)
    assert (status, answered["x-path"]) == (418, PUSH)
    assert answered["x-signature"] == headers["flwr-signature"]
    assert returned == body


@pytest.mark.parametrize(
    "path",
    ["/", "/v1/fleet", "/v1/fleet/", "/v1/control/start-run", "/v1/fleet/a/b", "/v1/fleet/..",
     "/v1/fleet/%2e%2e%2fcontrol%2fstart-run", "/v1/fleet/a%3fb", "/V1/fleet/a", "/v1//fleet/a"],
)  # fmt: skip
def test_nothing_else_passes(gate: Federation, path: str) -> None:
    assert _call(gate, path, b"x")[0] == 403


def test_a_link_that_is_away_is_said_and_who_does_not_go_on_is_cut(tmp_path: Path) -> None:
    federation = _federation(tmp_path / "f")
    process = _serve(federation, Address(host="127.0.0.1", port=free_port()), SHORT)
    address = (federation.address.host, federation.address.port)
    try:
        assert _call(federation, PUSH, b"x")[0] == 503  # so that nodes try again
        with (
            socket.create_connection(address, timeout=30) as handshake,
            tls_connection(federation) as header,
            tls_connection(federation) as body,
            tls_connection(federation) as answered,
        ):
            header.sendall(b"POST / HTTP/1.1\r\n")
            body.sendall(head(PUSH, _signed(federation) | {"content-length": "1000"}) + b"half")
            answered.sendall(head(PUSH, _signed(federation) | {"content-length": "70000"}))
            assert answered.recv(4096).startswith(b"HTTP/1.1 413")
            answered.sendall(bytes(70_000))  # all that was declared, and nothing more
            assert all(map(is_closed, (handshake, header, body, answered)))
    finally:
        process.terminate()
        assert process.wait(30) is not None


# -- signatures ----------------------------------------------------------------------------------


def test_what_is_not_signed_by_a_site_is_refused_before_its_body(gate: Federation) -> None:
    stranger = gate.folder / "stranger.key"
    if not stranger.exists():
        certificates.create_node_key(stranger, gate.folder / "stranger.pub", comment="x")
    good = _signed(gate)
    other = signed_headers(stranger)
    for headers in (
        {},
        _signed(gate, seconds_ago=400.0),
        _signed(gate, seconds_ago=-60.0),
        good | {"flwr-signature": other["flwr-signature"]},
        good | {"flwr-signature": "&"},
        good | {"flwr-timestamp": "yesterday"},
        good | {"flwr-timestamp": good["flwr-timestamp"].partition("+")[0]},
        other,
    ):
        with tls_connection(gate) as connection:
            connection.sendall(head(PUSH, {**headers, "content-length": "400000000"}))
            assert connection.recv(4096).startswith(b"HTTP/1.1 401"), headers
            assert is_closed(connection)
    assert _Echo.paths == []
    # Flower's node tells its keeper of this code that the link does not know its key.
    status, _, answer = call(gate, gate_calls.ACTIVATE, b"", other)
    said = FlowerError.from_json(answer.decode())
    assert said is not None
    assert (status, said.code) == (412, 2004)


def test_signatures_are_checked_as_flower_does() -> None:
    from flwr.common import constant
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER

    assert site_signatures.TIMESTAMP_HEADER == constant.TIMESTAMP_HEADER
    assert site_signatures.PUBLIC_KEY_HEADER == FLEET_HTTP_PUBLIC_KEY_HEADER
    assert site_signatures.SIGNATURE_HEADER == FLEET_HTTP_SIGNATURE_HEADER
    assert site_signatures.MOST_AHEAD_SECONDS == constant.SYSTEM_TIME_TOLERANCE
    most = constant.TIMESTAMP_TOLERANCE + constant.SYSTEM_TIME_TOLERANCE
    assert most == site_signatures.MOST_AGE_SECONDS


def test_keys_are_read_again_when_the_operator_changes_them(tmp_path: Path) -> None:
    federation = _federation(tmp_path / "f")
    keys = SiteKeys(federation.folder)
    certificates.create_node_key(tmp_path / "b.key", tmp_path / "b.pub", comment="b")
    headers = signed_headers(tmp_path / "b.key")
    with pytest.raises(site_signatures.UnknownKeyError):
        keys.site_of(headers)
    grown = federation.add_site("b", tmp_path / "b.pub")
    assert keys.site_of(headers) == "b"
    (federation.folder / "federation.toml").write_text("sites = [")  # half of a change
    assert keys.site_of(headers) == "b"
    replace(grown, sites=("a",)).write()
    with pytest.raises(site_signatures.UnknownKeyError):
        keys.site_of(headers)


# -- lengths -------------------------------------------------------------------------------------


def _status_of_head(gate: Federation, path: str, **headers: str) -> int:
    """What the gate answers to a head alone."""
    with tls_connection(gate) as connection:
        connection.sendall(head(path, _signed(gate) | headers))
        return int(connection.recv(4096).split()[1])


def test_a_reply_that_is_longer_than_what_is_due_is_refused_by_its_length(
    gate: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = {"content-length": "150000000"}
    assert _status_of_head(gate, PUSH, **length) == 413
    assert _status_of_head(gate, HEARTBEAT, **{"content-length": str(SMALL + 1)}) == 413
    assert _status_of_head(gate, PUSH, **{"transfer-encoding": "chunked"}) == 411
    assert _Echo.paths == []
    body = bytes(SMALL + 100_000)
    status, answer = _call(gate, PUSH, body)  # a node hears why, though it sends all first
    assert (status, answer) == (413, b"this call may have at most 65536 bytes now, got 165536")
    monkeypatch.setenv(post.FOLDER_VARIABLE, str(gate.replies_due_folder))
    post.announce(100_000, seconds=9.0)
    assert _call(gate, PUSH, body) == (418, body)
    assert _call(gate, PUSH, body + b"x")[0] == 413
    assert _call(gate, HEARTBEAT, body)[0] == 413
    post.announce(100_000, seconds=-99.0)  # over
    assert _call(gate, PUSH, body)[0] == 413
    left = gate.replies_due_folder / "1.json"  # by a server that has ended
    left.write_text('{"bytes": 100000, "until": 1.0}')
    post.announce(1, seconds=9.0)
    assert not left.exists()


def test_the_operator_allows_longer_replies_of_apps_that_announce_none(gate: Federation) -> None:
    body = bytes(20_000_000)
    replace(gate, largest_reply_bytes=len(body)).write()
    try:
        assert _call(gate, PUSH, body) == (418, body)
    finally:
        gate.write()


def test_a_site_pushes_a_few_times_what_its_order_allows_and_no_more(gate: Federation) -> None:
    statuses: list[int] = []
    while len(statuses) < 30 and 413 not in statuses:
        statuses.append(_call(gate, PUSH, bytes(SMALL))[0])
    assert statuses[-1] == 413
    assert set(statuses[:-1]) == {418}
    assert _call(gate, HEARTBEAT, b"x")[0] == 418
    assert _call(gate, PULL, b"")[0] == 200  # no order
    assert _call(gate, PUSH, bytes(SMALL))[0] == 413
    assert _call(gate, PULL, b"an order")[0] == 200
    assert _call(gate, PUSH, bytes(SMALL))[0] == 418


def test_a_reply_that_is_cut_off_on_its_way_costs_a_site_nothing(gate: Federation) -> None:
    for _ in range(20):
        with tls_connection(gate) as connection:
            headers = _signed(gate) | {"content-length": str(SMALL)}
            connection.sendall(head(PUSH, headers) + b"half")
    assert _call(gate, PUSH, bytes(SMALL))[0] == 418


def test_bodies_wait_for_room_and_a_site_makes_few_calls_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = _federation(tmp_path / "f")
    limits = GateLimits(body_bytes=300_000, calls_per_site=2)
    calls = SiteCalls(federation.replies_due_folder, SiteKeys(federation.folder), limits)
    monkeypatch.setattr(gate_calls, "_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(gate_calls, "_SHARES", 1)
    monkeypatch.setattr(SiteCalls, "largest_push_bytes", lambda _: 200_000)

    async def status(site: str, length: int) -> int:
        try:
            async with calls.one(site, PUSH, length):
                return 200
        except Refusal as refusal:
            return refusal.status

    async def crowded() -> list[int]:
        async with calls.one("a", PUSH, 200_000):
            found = [await status("b", 150_000), await status("b", 90_000)]
            async with calls.one("a", HEARTBEAT, 0):
                found.append(await status("a", 0))
            later = asyncio.create_task(status("b", 150_000))
            await asyncio.sleep(0)
        return [*found, await later]

    assert asyncio.run(crowded()) == [503, 200, 503, 200]


# -- connections ---------------------------------------------------------------------------------


def _memory_bytes(process: "subprocess.Popen[bytes]") -> int:
    """The most memory that a process has held (Linux)."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def test_an_endless_header_is_cut(gate: Federation, process: "subprocess.Popen[bytes]") -> None:
    before, sent, piece = _memory_bytes(process), 0, bytes(2**16).replace(b"\0", b"x")
    with tls_connection(gate) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nx-endless: ")
        with contextlib.suppress(OSError):
            while sent < 2**26:
                connection.sendall(piece)
                sent += len(piece)
    assert sent < 2**26
    assert _memory_bytes(process) - before < 2**24
    assert _call(gate, HEARTBEAT, b"x")[0] == 418


@pytest.mark.parametrize("with_tls", [True, False])
def test_connections_that_say_nothing_keep_no_site_out(gate: Federation, with_tls: bool) -> None:
    with contextlib.ExitStack() as stack:
        opened: list[socket.socket] = []
        address = (gate.address.host, gate.address.port)
        with tls_connection(gate) as known:  # a site's own connection is not among them
            known.sendall(head(HEARTBEAT, _signed(gate) | {"content-length": "0"}))
            assert known.recv(4096).startswith(b"HTTP/1.1 418")
            for _ in range(12):
                if with_tls:
                    opened.append(stack.enter_context(tls_connection(gate)))
                    opened[-1].sendall(b"POST / HTTP/1.1\r\nx-half: ")
                else:
                    opened.append(
                        stack.enter_context(socket.create_connection(address, timeout=60))
                    )
            assert all(is_closed(one) for one in opened[:8])  # cut for the next ones
            known.sendall(head(HEARTBEAT, _signed(gate) | {"content-length": "0"}))
            assert known.recv(4096).startswith(b"HTTP/1.1 418")
        assert _call(gate, HEARTBEAT, b"x")[0] == 418


@pytest.mark.parametrize(("requests", "statuses"), [(2, {b"418"}), (3, {b"400"})])
def test_one_request_waits_for_the_answer_to_another_but_not_more(
    gate: Federation, requests: int, statuses: set[bytes]
) -> None:
    with tls_connection(gate) as connection:
        *first, last = [_signed(gate) | {"content-length": "0"} for _ in range(requests)]
        heads = [head(HEARTBEAT, headers) for headers in (*first, last | {"connection": "close"})]
        connection.sendall(b"".join(heads))
        answers = b""
        with contextlib.suppress(OSError):
            while piece := connection.recv(4096):
                answers += piece
    assert {line[9:12] for line in answers.splitlines() if line[:9] == b"HTTP/1.1 "} == statuses


def test_the_oldest_of_the_address_with_the_most_connections_makes_room() -> None:
    cut: list[str] = []
    table = Connections(Limits(anonymous=4, anonymous_per_address=3, connections_per_site=2))

    def opened(name: str, address: str) -> Connection:
        connection = Connection(socket.socket(), address)
        connection.socket.close()
        connection.set_closer(lambda: cut.append(name))
        table.admit(connection)
        return connection

    first = [opened(f"x{number}", "x") for number in range(4)]
    assert cut == ["x0"]
    sites = [opened("y0", "y"), opened("y1", "y")]
    assert cut == ["x0", "x1"]
    for connection in (*sites, first[2]):
        table.assign_site(connection, "a")
    assert cut == ["x0", "x1", "y0"]
    assert table.anonymous == 1
    table.release(first[3])
    table.release(first[3])
    assert table.anonymous == 0


def test_the_addresses_of_one_ipv6_network_are_counted_together() -> None:
    one, two, other = "2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"
    assert address_group(one) == address_group(two) != address_group(other)
    assert address_group("fe80::1%eth0") == address_group("fe80::2")
    assert address_group("192.0.2.1") != address_group("192.0.2.2")
    assert address_group("::ffff:192.0.2.1") != address_group("::ffff:192.0.2.2")


def test_a_call_that_finds_no_room_costs_a_site_nothing_and_short_ones_always_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = create_federation(
        tmp_path / "fed", address=Address(host="127.0.0.1", port=free_port()), sites=["a", "b"]
    )
    monkeypatch.setattr(gate_calls, "_WAIT_SECONDS", 0.01)
    calls = SiteCalls(federation.replies_due_folder, SiteKeys(federation.folder), GateLimits())
    monkeypatch.setattr(SiteCalls, "largest_push_bytes", lambda _: 2**27)
    monkeypatch.setattr(gate_calls, "_SHARES", 1)

    async def scenario() -> None:
        async with calls.one("a", PUSH, 2**27):  # announced, and sent slowly
            for _ in range(10):
                with pytest.raises(Refusal, match="try again"):
                    async with calls.one("b", PUSH, 2**27):
                        raise AssertionError("there is no room")
            async with calls.one("b", HEARTBEAT, 300), calls.one("b", PUSH, SMALL):
                pass
        for _ in range(9):  # the link is away: nor does that cost anything
            with pytest.raises(Refusal, match="does not answer"):
                async with calls.one("b", PUSH, 2**27):
                    raise Refusal(503, "the link does not answer")
        async with calls.one("b", PUSH, 2**27):
            pass

    asyncio.run(scenario())
