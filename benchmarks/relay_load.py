"""How many reports a second a relay and a collector take, and what a report costs in bytes.

A relay of real processes on this machine, pinned to one core, and devices on another core, whose
reports are made before. Every report is checked, and on disk when it is answered. The machine may
be busy with other work, so rates count a core's own seconds; seconds on the clock are shown, too.

    python benchmarks/relay_load.py [--devices 5000] [--connections 64] [--dimension 128]
"""

import argparse
import asyncio
import hashlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))

from relay import relay_to

from sottovoce.deployment.machines.address import Address, free_port
from sottovoce.deployment.operators.application import pack_announcement, unpack_announcement
from sottovoce.deployment.operators.calls import RelayCalls, pinned_context
from sottovoce.deployment.operators.desk import open_desk
from sottovoce.deployment.operators.folders import (
    CollectorFolder,
    RelayFolder,
    create_collector,
    create_relay,
)
from sottovoce.deployment.operators.relay_program import is_healthy
from sottovoce.deployment.operators.routes import Route, sign_request
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.collector import Collector
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.operators import Admission
from sottovoce.protocol.secure.roster import TrustKey
from sottovoce.protocol.secure.state_file import StateFile
from sottovoce.protocol.secure.two_server_client import TwoServerClient
from sottovoce.protocol.secure.two_server_messages import Accepted

_START_SECONDS = 60.0
_OPEN_SECONDS = 3600
_PROGRAM = "sottovoce.deployment.operators.relay_program"


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """The folders of both operators, with one announced attempt and the reports of its devices."""

    relay: RelayFolder
    collector: CollectorFolder
    party: Collector
    announcement: bytes
    admissions: list[bytes]
    reports: list[bytes]

    def ask(self, calls: RelayCalls, route: Route, body: bytes = b"") -> bytes:
        """Send a request of the collector."""
        key, now = self.collector.signing_key, time.time()
        signed = sign_request(key, self.relay.card.federation, route, body, now)
        return calls.ask(route, body, authorization=signed)


def prepare(folder: Path, devices: int, dimension: int) -> Federation:
    """Make both operators and the signed, encrypted reports of all devices."""
    address = Address(host="localhost", port=free_port())
    relay = create_relay(folder / "relay", address=address)
    collector = create_collector(folder / "collector", relay=relay.folder / "relay.pub")
    operators = relay.pin(collector.folder / "collector.pub").keys
    now, content = int(time.time()), secrets.token_bytes(1000)
    attempt = Attempt(
        protocol=Protocol.TWO_SERVER_SUM,
        parties=operators.digest,
        federation=operators.federation,
        run="benchmark",
        round=1,
        attempt=1,
        dimension=dimension,
        uplinks=1,
        levels=2,
        bits=devices.bit_length(),
        most_clients=devices,
        threshold=3,
        mechanism="{}",
        rotation_seed=b"",
        adjacency="zero-out",
        unit="client",
        model_digest=hashlib.sha256(content).digest(),
    )
    state = StateFile(collector.state_folder / "collector.sqlite")
    party = Collector(state, collector.signing_key, operators, 1, 3)
    announcement = party.announce(attempt, opens=now - 1, closes=now + _OPEN_SECONDS)
    found = Announcement.read(announcement)
    keys = relay.admission_key, collector.admission_key
    codes = np.random.default_rng(1).integers(0, 2, dimension, dtype=np.uint8)
    admissions, reports = [], []
    for number in range(devices):
        name, key = f"phone-{number:06d}", TrustKey.generate()
        until = now + 10 * _OPEN_SECONDS
        admission = Admission.issue(operators, *keys, name=name, key=key.public, valid_until=until)
        client = TwoServerClient.__new__(TwoServerClient)  # without a ledger's journal
        client.name, client._key = name, key
        admissions.append(admission.to_bytes())
        reports.append(client._encode(found, [codes]))
    return Federation(
        relay=relay,
        collector=collector,
        party=party,
        announcement=pack_announcement(announcement, content),
        admissions=admissions,
        reports=reports,
    )


class Load:
    """Devices that post over TLS, from this process.

    Args:
        relay: The relay.
        pid: Its process.
    """

    def __init__(self, relay: RelayFolder, pid: int) -> None:
        self._relay, self._pid = relay, pid
        self._context = pinned_context(relay.card.certificate)

    def measure(self, path: str, bodies: Sequence[bytes], connections: int, *, keep: bool) -> str:
        """Post all bodies; return the rates as text."""
        before, began = cpu_seconds(self._pid), time.monotonic()
        answered = asyncio.run(self._post_all(path, bodies, connections, keep))
        wall, used = time.monotonic() - began, cpu_seconds(self._pid) - before
        assert answered == len(bodies), f"{answered} of {len(bodies)} were taken"
        return f"{answered / used:7.0f} a CPU-second of the relay, {answered / wall:7.0f} a second"

    async def _post_all(
        self, path: str, bodies: Sequence[bytes], connections: int, keep: bool
    ) -> int:
        shares = [bodies[i::connections] for i in range(connections)]
        done = await asyncio.gather(*(self._post(path, share, keep) for share in shares))
        return sum(done)

    async def _post(self, path: str, bodies: Iterable[bytes], keep: bool) -> int:
        streams, taken = None, 0
        for body in bodies:
            if streams is None:
                address = self._relay.address
                streams = await asyncio.open_connection(
                    address.host, address.port, ssl=self._context
                )
            reader, writer = streams
            head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            taken += answer.startswith(b"HTTP/1.1 204")
            if not keep:
                writer.close()
                streams = None
        if streams is not None:
            streams[1].close()
        return taken


def cpu_seconds(pid: int) -> float:
    """Return the seconds that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def count_bytes(federation: Federation, reports: Sequence[bytes]) -> tuple[int, int]:
    """Return the TCP payload, both ways, of a report on a new and on a kept connection."""
    card, found = federation.relay.card, []
    with relay_to(card.address.port) as counted:
        near = Address(host="localhost", port=counted.port)
        with RelayCalls(near, card.certificate) as calls:
            for report in reports[:2]:
                before = counted.up + counted.down
                calls.ask(Route.REPORT, report)
                found.append(counted.up + counted.down - before)
    return found[0], found[1]


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=5000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--dimension", type=int, default=128)
    asked = parser.parse_args(arguments)
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="sottovoce-") as name:
        federation = prepare(Path(name), asked.devices, asked.dimension)
        program = subprocess.Popen(
            [sys.executable, "-m", _PROGRAM, str(federation.relay.folder)],
            preexec_fn=lambda: os.sched_setaffinity(0, cores[:1]),
        )
        try:
            os.sched_setaffinity(0, cores[1:2] or cores)
            _wait(lambda: is_healthy(federation.relay), program)
            _measure(federation, program.pid, asked.connections)
        finally:
            program.terminate()
            program.wait()
        _measure_collector(federation)


def _measure(federation: Federation, pid: int, connections: int) -> None:
    card = federation.relay.card
    load, reports = Load(federation.relay, pid), federation.reports
    print(f"this core checks {_checks_a_second():.0f} signatures a CPU-second")
    with RelayCalls(card.address, card.certificate) as calls:
        federation.ask(calls, Route.ANNOUNCE, federation.announcement)
        kept = load.measure("/1/register", federation.admissions, connections, keep=True)
        print(f"certificates, kept connections:  {kept}")
        new, old = count_bytes(federation, reports)
        print(
            f"bytes of a report: {old} on a kept connection, {new} on a new one "
            f"({len(reports[0])} of it the report)"
        )
        cut = max(3, len(reports) - 1000)
        print(
            f"reports, kept connections:       "
            f"{load.measure('/1/report', reports[2:cut], connections, keep=True)}"
        )
        print(
            f"reports, new connections:        "
            f"{load.measure('/1/report', reports[cut:], connections, keep=False)}"
        )


def _measure_collector(federation: Federation) -> None:
    """Close the attempt and measure the collector's part, in this process and without a network."""
    announcement, _ = unpack_announcement(federation.announcement)
    found = Announcement.read(announcement)
    with open_desk(federation.relay) as desk:
        frozen = desk.answer(Route.FROZEN, "", b"", float(found.closes))
        began = time.process_time()
        accepted = federation.party.accept(frozen)
        opened = time.process_time()
        summed = desk.answer(Route.ACCEPTED, "", accepted, float(found.closes))
        middle = time.process_time()
        federation.party.release(summed)
        ended = time.process_time()
    clients = len(Accepted.read(accepted).names)
    print(f"collector, certificates and seeds: {clients / (opened - began):5.0f} a CPU-second")
    print(f"relay, sums:                       {clients / (middle - opened):5.0f} a CPU-second")
    print(f"collector, masks:                  {clients / (ended - middle):5.0f} a CPU-second")


def _checks_a_second() -> float:
    """Return how many signatures this core checks in a second of its own, to compare machines."""
    key, text = Ed25519PrivateKey.generate(), bytes(200)
    public, signature = key.public_key(), key.sign(text)
    began = time.process_time()
    for _ in range(2000):
        public.verify(signature, text)
    return 2000 / (time.process_time() - began)


def _wait(ready: Callable[[], bool], program: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not ready():
        assert program.poll() is None, "the relay has ended"
        assert time.monotonic() < deadline, "the relay did not start"
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1:])
