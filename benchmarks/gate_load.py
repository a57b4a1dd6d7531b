"""The load that a link's gate sustains: sites that poll, with and without an attack.

A link of real processes on this machine, and sites that call as Flower's nodes do, each over its
own connection with its own signature. Attackers have another address (127.0.0.2), or the sites'.

    python benchmarks/gate_load.py [--sites 100] [--seconds 15]
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import re
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))

from federation_faults import pids_of
from federations import rehearsal
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse, PullMessagesRequest
from flwr.proto.node_pb2 import Node
from signed_calls import Headers, head, signed_headers

from sottovoce.deployment.machines import certificates
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.machines.federation import Federation

_LENGTH = re.compile(rb"content-length: ([0-9]+)")
_BODY = {"content-type": "application/protobuf", "accept": "application/protobuf"}
_ATTACKERS = 4
_POLL_SECONDS = 3.0  # as Flower's node looks for orders


class Site:
    """The node of a site: one open connection, signed calls, and the time of each."""

    def __init__(self, federation: Federation, name: str) -> None:
        self._federation = federation
        self._headers = signed_headers(federation.folder / "sites" / name / "node.key") | _BODY
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._node = Node()
        self.public_key = certificates.to_flower_key(federation.public_keys()[name])
        self.seconds: list[float] = []
        self.failures = 0

    async def activate(self) -> None:
        request = ActivateNodeRequest(public_key=self.public_key, heartbeat_interval=1800)
        answer = await self._call("activate-node", request.SerializeToString())
        self._node = Node(node_id=ActivateNodeResponse.FromString(answer).node_id)

    async def poll(self) -> None:
        """Look for an order, and try again where the connection breaks, as nodes do."""
        body, started = PullMessagesRequest(node=self._node).SerializeToString(), time.monotonic()
        while True:
            try:
                await self._call("pull-messages", body)
                self.seconds.append(time.monotonic() - started)
                return
            except (OSError, asyncio.IncompleteReadError):
                self.failures += 1
                self._streams = None
                await asyncio.sleep(0.1)

    async def _call(self, name: str, body: bytes) -> bytes:
        address = self._federation.address
        if self._streams is None:
            context = ssl.create_default_context(cafile=str(self._federation.authority))
            self._streams = await asyncio.open_connection(address.host, address.port, ssl=context)
        reader, writer = self._streams
        headers: Headers = {**self._headers, "content-length": str(len(body))}
        writer.write(head(f"/v1/fleet/{name}", headers) + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(answer[:60].decode())
        found = _LENGTH.search(answer)
        return await reader.readexactly(int(found[1]) if found else 0)


async def _polling(sites: list[Site], seconds: float, every_seconds: float) -> float:
    """Let all sites poll for a while, and return the calls per second."""
    ends, started = time.monotonic() + seconds, time.monotonic()

    async def keep_on(site: Site, number: int) -> None:
        await asyncio.sleep(every_seconds * number / len(sites))
        while time.monotonic() < ends:
            begun = time.monotonic()
            await site.poll()
            await asyncio.sleep(max(0.0, begun + every_seconds - time.monotonic()))

    for site in sites:
        site.seconds, site.failures = [], 0
    await asyncio.gather(*(keep_on(site, number) for number, site in enumerate(sites)))
    return sum(len(site.seconds) for site in sites) / (time.monotonic() - started)


# -- attacks ---------------------------------------------------------------------------------


def _connection(address: Address, source: str, *, tls: bool) -> socket.socket:
    plain = socket.create_connection((address.host, address.port), 10.0, (source, 0))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain) if tls else plain


def _hold(address: Address, source: str, *, tls: bool) -> None:
    """Hold 1,000 connections that never send a whole request; reopen those that are cut."""
    held: list[socket.socket] = []
    while True:
        with contextlib.suppress(OSError):
            held.append(_connection(address, source, tls=tls))
            if tls:
                held[-1].sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nx-half: ")
        for old in held[: len(held) - 1000 // _ATTACKERS]:
            old.close()
        del held[: len(held) - 1000 // _ATTACKERS]


def _endless_header(address: Address, source: str) -> None:
    while True:
        with contextlib.suppress(OSError), _connection(address, source, tls=True) as connection:
            connection.sendall(b"POST / HTTP/1.1\r\nx-endless: ")
            while True:
                connection.sendall(b"x" * 2**20)


def _large_posts(address: Address, source: str, headers: Headers) -> None:
    """Send bodies of 400 MB, one after the other."""
    while True:
        with contextlib.suppress(OSError), _connection(address, source, tls=True) as connection:
            length = {"content-length": "400000000"}
            connection.sendall(head("/v1/fleet/push-object", headers | length))
            for _ in range(400):
                connection.sendall(bytes(1_000_000))


def _politely(
    attack: Callable[..., None], arguments: tuple[object, ...], named: dict[str, object]
) -> None:
    """Run an attack at low priority: attackers would have their own machines."""
    os.nice(19)
    attack(*arguments, **named)


@contextlib.contextmanager
def _attackers(
    attack: Callable[..., None], count: int, *arguments: object, **named: object
) -> Iterator[None]:
    processes = [
        multiprocessing.Process(target=_politely, args=(attack, arguments, named), daemon=True)
        for _ in range(count)
    ]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


# -- what is measured ------------------------------------------------------------------------


def _peak_mib(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+([0-9]+)", text)[1]) // 1024  # type: ignore[index]


def _forget_peak(pid: int) -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _row(
    name: str, sites: list[Site], rate: float, gate: int, link: int, used: tuple[float, float]
) -> str:
    found = sorted(second for site in sites for second in site.seconds)
    middle, last = statistics.median(found), found[int(0.99 * (len(found) - 1))]
    failures = sum(site.failures for site in sites)
    return (
        f"| {name} | {rate:.0f} | {middle * 1000:.0f} | {last * 1000:.0f} | "
        f"{found[-1] * 1000:.0f} | {failures} | {_peak_mib(gate)} | {_peak_mib(link)} | "
        f"{used[0]:.1f} | {used[1]:.1f} |"
    )


def _cases(
    federation: Federation,
) -> Iterator[tuple[str, float, contextlib.AbstractContextManager[None]]]:
    address, other = federation.address, "127.0.0.2"
    site = signed_headers(federation.folder / "sites" / federation.sites[0] / "node.key")
    yield "all sites as fast as they are answered", 0.0, contextlib.nullcontext()
    yield "every site every 3 s", _POLL_SECONDS, contextlib.nullcontext()
    for where, source in (("", other), (", from the sites' address", "127.0.0.1")):
        attack = _attackers(_hold, _ATTACKERS, address, source, tls=True)
        yield f"and 1,000 half-sent requests{where}", _POLL_SECONDS, attack
    attack = _attackers(_hold, _ATTACKERS, address, other, tls=False)
    yield "and 1,000 connections without TLS", _POLL_SECONDS, attack
    yield "and an endless header", _POLL_SECONDS, _attackers(_endless_header, 1, address, other)
    yield (
        "and six posts of 400 MB, unsigned",
        _POLL_SECONDS,
        _attackers(_large_posts, 6, address, other, {}),
    )
    attack = _attackers(_large_posts, 1, address, other, site)
    yield "and posts of 400 MB, signed by a site", _POLL_SECONDS, attack


async def _measure(federation: Federation, seconds: float) -> None:
    sites = [Site(federation, name) for name in federation.sites]
    for site in sites:
        await site.activate()
    (gate,) = pids_of("sottovoce.flower.gate", str(federation.folder))
    (link,) = pids_of("sottovoce.flower.superlink", str(federation.folder))
    print(
        "| load | calls/s | median ms | 99% ms | most ms | retries | gate MiB | link MiB | "
        "gate CPU s | link CPU s |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, every_seconds, attack in _cases(federation):
        _forget_peak(gate)
        _forget_peak(link)
        before = _cpu_seconds(gate), _cpu_seconds(link)
        with attack:
            rate = await _polling(sites, seconds, every_seconds)
        used = _cpu_seconds(gate) - before[0], _cpu_seconds(link) - before[1]
        print(_row(name, sites, rate, gate, link, used), flush=True)


def _with_sites(federation: Federation, count: int) -> Federation:
    """Register further sites, whose nodes never run."""
    for number in range(1, count):
        name = f"site-{number:04d}"
        folder = federation.folder / "sites" / name
        folder.mkdir()
        certificates.create_node_key(folder / "node.key", folder / "node.pub", comment=name)
        federation = federation.add_site(name, folder / "node.pub")
    return federation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=15.0)
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        rehearsal(Path(folder), sites=["site-0000"], start=False) as running,
    ):
        federation = _with_sites(running.federation, chosen.sites)
        running.start_link()
        asyncio.run(_measure(federation, chosen.seconds))


if __name__ == "__main__":
    main()
