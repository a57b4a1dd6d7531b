"""How many reports of sums a second a relay and a collector take, and the bytes of a report.

A relay of real processes on this machine, pinned to one core, and devices on another core, whose
reports are made before. Every report is checked, and on disk when it is answered. The machine may
be busy with other work, so rates count a core's own seconds; seconds on the clock are shown, too.
`relay_shuffle.py` does the same for shuffles.

    python benchmarks/relay_load.py [--devices 5000] [--connections 64] [--dimension 128]
"""

import argparse
import hashlib
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

sys.path.insert(0, str(Path(__file__).parent))

from relay_devices import (
    KeptConnections,
    ask_on_new_connections,
    count_bytes,
    cpu_seconds,
    create_operators,
    post,
    running_relay,
)

from sottovoce.deployment.operators.application import pack_request, unpack_request
from sottovoce.deployment.operators.calls import RelayCalls
from sottovoce.deployment.operators.desk import open_desk
from sottovoce.deployment.operators.folders import (
    CollectorFolder,
    RelayFolder,
)
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

_OPEN_SECONDS = 3600


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
    relay, collector, operators = create_operators(folder)
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
    admissions, reports, listed = [], [], {}
    for number in range(devices):
        name, key = f"phone-{number:06d}", TrustKey.generate()
        until = now + 10 * _OPEN_SECONDS
        admission = Admission.issue(operators, *keys, name=name, key=key.public, valid_until=until)
        client = TwoServerClient.__new__(TwoServerClient)  # without a ledger's journal
        client.name, client._key = name, key
        admissions.append(admission.to_bytes())
        listed[name] = key.public
        reports.append(client._encode(found, [codes]))
    relay.add_clients(listed)
    return Federation(
        relay=relay,
        collector=collector,
        party=party,
        announcement=pack_request(announcement, content, listed),
        admissions=admissions,
        reports=reports,
    )


def measure(
    federation: Federation, pid: int, path: str, bodies: Sequence[bytes], connections: int
) -> str:
    """Post all bodies over some kept connections, 0 for new ones; return the rates as text."""
    requests = [post(path, body) for body in bodies]
    before, began = cpu_seconds(pid), time.monotonic()
    if connections:
        with KeptConnections(federation.relay, connections) as kept:
            answered = sum(1 for _ in kept.ask(requests))
    else:
        answered = len(ask_on_new_connections(federation.relay, requests))
    wall, used = time.monotonic() - began, cpu_seconds(pid) - before
    return f"{answered / used:7.0f} a CPU-second of the relay, {answered / wall:7.0f} a second"


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
        with running_relay(federation.relay, cores[0]) as pid:
            os.sched_setaffinity(0, cores[1:2] or cores)
            _measure(federation, pid, asked.connections)
        _measure_collector(federation)


def _measure(federation: Federation, pid: int, connections: int) -> None:
    card, reports = federation.relay.card, federation.reports
    print(f"this core checks {_checks_a_second():.0f} signatures a CPU-second")
    with RelayCalls(card.address, card.certificate) as calls:
        federation.ask(calls, Route.ANNOUNCE, federation.announcement)
    found = measure(federation, pid, "register", federation.admissions, connections)
    print(f"certificates, kept connections:  {found}")
    first = [(Route.REPORT, each, "") for each in reports[:2]]
    new, kept = count_bytes(federation.relay, first)
    size = len(reports[0])
    print(f"bytes of a report: {kept} on a kept connection, {new} on a new one ({size} the report)")
    cut = max(3, len(reports) - min(1000, len(reports) // 5))
    found = measure(federation, pid, "report", reports[2:cut], connections)
    print(f"reports, kept connections:       {found}")
    found = measure(federation, pid, "report", reports[cut:], 0)
    print(f"reports, new connections:        {found}")


def _measure_collector(federation: Federation) -> None:
    """Close the attempt and measure the collector's part, in this process and without a network."""
    _, announcement, _ = unpack_request(federation.announcement)
    found = Announcement.read(announcement)
    with open_desk(federation.relay) as desk:
        frozen = desk.answer(Route.FROZEN, b"", float(found.closes))
        began = time.process_time()
        accepted = federation.party.accept(frozen)
        opened = time.process_time()
        summed = desk.answer(Route.ACCEPTED, accepted, float(found.closes))
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


if __name__ == "__main__":
    main(sys.argv[1:])
