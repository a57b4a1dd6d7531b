"""Relay and collector: messages a second on one core, everything on disk, and bytes of messages.

    python benchmarks/two_server.py [--clients 2000] [--together 64]

Objects without a network in one process and one thread; the work of clients is timed by itself. It
fails if a result is wrong, never because it is slow.
"""

import argparse
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

from sottovoce.ledger.journal import Journal
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.collector import Collector
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.hpke import HpkeKey
from sottovoce.protocol.secure.masks import bits_for_sum
from sottovoce.protocol.secure.merkle import leaf_digest
from sottovoce.protocol.secure.operators import Admission, Operators
from sottovoce.protocol.secure.relay import Relay
from sottovoce.protocol.secure.relay_intake import RECEIPT, seal_to_relay
from sottovoce.protocol.secure.roster import TrustKey
from sottovoce.protocol.secure.shuffle_client import ShuffleClient
from sottovoce.protocol.secure.shuffle_messages import ShuffleReport, split_proof
from sottovoce.protocol.secure.state_file import StateFile
from sottovoce.protocol.secure.two_server_client import TwoServerClient

OPENS, CLOSES, CONFIRM_BY, VALID_UNTIL = 1, 2, 3, 10
PAYLOAD_BYTES = 16
SUMS = ((500, 10_000), (20, 1_000_000))  # (clients, coordinates), one bit a coordinate
Result = TypeVar("Result")


class MemoryFile:
    """A client's journal without a disk: the clients of this benchmark share one machine."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN")
        yield
        self._connection.execute("COMMIT")

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._connection.execute(statement, values).fetchall()


class Federation:
    """Two operators with their files, and clients that both admit."""

    def __init__(self, folder: Path, clients: int) -> None:
        relay, collector, *admission = (TrustKey.generate() for _ in range(4))
        relay_hpke = HpkeKey.generate()
        self.operators = Operators(
            federation=secrets.token_bytes(16),
            relay=relay.public,
            relay_hpke=relay_hpke.public,
            collector=collector.public,
            relay_admission=admission[0].public,
            collector_admission=admission[1].public,
        )
        states = [StateFile(folder / f"{name}.sqlite") for name in ("relay", "collector")]
        self.relay = Relay(states[0], relay, relay_hpke, self.operators, 1, 3)
        self.collector = Collector(states[1], collector, self.operators, 1, 3)
        self.seconds: dict[str, tuple[float, float]] = {}  # wall clock, processor
        self._keys = {f"d{number:06d}": TrustKey.generate() for number in range(clients)}
        self._admissions = {
            name: Admission.issue(
                self.operators, *admission, name=name, key=key.public, valid_until=VALID_UNTIL
            )
            for name, key in self._keys.items()
        }
        self.files = {name: MemoryFile() for name in self._keys}
        for each in self._admissions.values():
            self.relay.register(each.to_bytes(), OPENS)
        self.certificate_bytes = len(each.to_bytes())

    def clients(self, kind: Callable[..., Result], **policy: bool) -> dict[str, Result]:
        found = {}
        for name, key in self._keys.items():
            journal = Journal(self.files[name])
            admission = self._admissions[name]
            found[name] = kind(name, key, admission, self.operators, journal, 2, 1, **policy)
        return found

    def announce(
        self, protocol: Protocol, number: int, dimension: int = 1, *, confirmed: bool = False
    ) -> bytes:
        """Announce a round at both servers and return the announcement."""
        clients, shuffle = len(self._keys), protocol is Protocol.SHUFFLER
        attempt = Attempt(
            protocol=protocol, parties=self.operators.digest, round=number, attempt=1,
            federation=self.operators.federation, run=f"{protocol} {confirmed}", uplinks=1,
            dimension=dimension, levels=2, bits=bits_for_sum(clients), most_clients=clients,
            threshold=max(3, clients // 2), mechanism="{}", rotation_seed=b"", unit="client",
            adjacency="zero-out", model_digest=_EMPTY,
        )  # fmt: skip
        message = self.collector.announce(
            attempt,
            opens=OPENS,
            closes=CLOSES,
            confirm_by=CONFIRM_BY if confirmed else 0,
            payload_bytes=PAYLOAD_BYTES if shuffle else 0,
        )
        self.relay.announce(message, b"", OPENS)
        return message

    def timed(self, name: str, step: Callable[..., Result], *values: Any) -> Result:
        """Return the result of a step; its seconds are added up under a name."""
        start, worked = time.perf_counter(), time.process_time()
        found = step(*values)
        wall, cpu = self.seconds.get(name, (0.0, 0.0))
        worked = time.process_time() - worked
        self.seconds[name] = wall + time.perf_counter() - start, cpu + worked
        return found

    def send(
        self, name: str, take: Callable[[list[bytes]], list[Any]], sent: list[bytes], together: int
    ) -> None:
        """Let the relay take messages, several in each commit."""
        for start in range(0, len(sent), together):
            part = sent[start : start + together]
            assert self.timed(name, take, part) == [RECEIPT] * len(part)


_EMPTY = bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")  # of b""


def no_charge() -> None:
    """Charge nothing: the ledger has a benchmark of its own."""


def shuffle(federation: Federation, together: int, number: int, *, confirmed: bool) -> None:
    """Shuffle one payload of every client in a round, and print what it takes."""
    federation.seconds.clear()
    relay, collector, timed = federation.relay, federation.collector, federation.timed
    announcement = federation.announce(Protocol.SHUFFLER, number, confirmed=confirmed)
    clients = federation.clients(ShuffleClient, trusts_relay=not confirmed)
    payloads = {name: secrets.token_bytes(PAYLOAD_BYTES) for name in clients}
    sent = {
        name: timed(
            "client: report", client.report, announcement, OPENS, no_charge,
            lambda name=name: payloads[name], federation.files[name].transaction,
        )
        for name, client in clients.items()
    }  # fmt: skip
    reports = list(sent.values())
    federation.send("relay: reports", lambda r: relay.reports(r, OPENS), reports, together)
    listed = timed("relay: list", relay.shuffled_list, CLOSES)
    root = timed("collector: root", collector.root, listed)
    timed("relay: root", relay.root, root)
    batch = confirm(federation, clients, sent, together) if confirmed else None
    opened = timed("collector: open", collector.open, batch)
    assert opened == sorted(payloads.values())
    count = len(clients)
    what = "confirmed" if confirmed else "not confirmed"
    print(f"round {number}: {count} payloads of {PAYLOAD_BYTES} bytes, {together} a commit, {what}")
    _print_times(federation.seconds, count)
    if batch is None:
        _print_bytes(federation, announcement, reports[0])
        print(f"  {'list, for each client':<30} {len(listed) / count:>6.1f}")
    else:
        print(f"  {'batch, for each client':<30} {len(batch) / count:>6.1f}")


def confirm(
    federation: Federation, clients: dict[str, ShuffleClient], sent: dict[str, bytes], together: int
) -> bytes:
    """Let every client confirm, and return what the relay forwards."""
    relay, timed, given = federation.relay, federation.timed, []
    for name, client in clients.items():
        leaf = leaf_digest(ShuffleReport.read(sent[name]).ciphertext)
        proof = timed("relay: paths", relay.root_for, leaf)
        given.append(timed("client: confirm", client.confirm, *split_proof(proof), CLOSES))
    federation.send("relay: confirmations", relay.take_confirmations, given, together)
    print(f"  {'root and path':<30} {len(proof):>6} bytes")
    print(f"  {'confirmation':<30} {len(given[0]):>6} bytes")
    return timed("relay: batch", relay.confirmations, CONFIRM_BY)


def _print_bytes(federation: Federation, announcement: bytes, report: bytes) -> None:
    print("bytes")
    ann = Announcement.read(announcement).ann
    for name, content in (
        ("announcement", announcement),
        ("report", report),
        (
            "report sealed to the relay",
            seal_to_relay(report, federation.operators, ann),
        ),
        ("receipt", RECEIPT),
    ):
        print(f"  {name:<30} {len(content):>6}")
    print(f"  {'certificate, once':<30} {federation.certificate_bytes:>6}")


def _print_times(seconds: dict[str, tuple[float, float]], count: int) -> None:
    print(f"  {'us a client':<48} {'wall':>8} {'processor':>10}")
    for name, (wall, cpu) in seconds.items():
        print(f"  {name:<48} {1e6 * wall / count:>8.0f} {1e6 * cpu / count:>10.0f}")
    print(f"  {'messages a second on one core':<48} {'wall':>8} {'processor':>10}")
    for what, servers in (
        ("both servers", ""),
        ("relay alone", "relay"),
        ("collector", "collector"),
    ):
        used = [
            each
            for name, each in seconds.items()
            if name.startswith(servers) and not name.startswith("client")
        ]
        wall, cpu = (count / sum(column) for column in zip(*used, strict=True))
        print(f"  {what:<48} {wall:>8.0f} {cpu:>10.0f}")


def secure_sum(folder: Path, clients: int, dimension: int) -> None:
    """Add up one vector of every client, and print what it takes."""
    federation = Federation(folder, clients)
    relay, collector, timed = federation.relay, federation.collector, federation.timed
    announcement = federation.announce(Protocol.TWO_SERVER_SUM, 1, dimension)
    rng = np.random.default_rng(0)
    total, reports = np.zeros(dimension, dtype=np.uint32), []
    for name, client in federation.clients(TwoServerClient).items():
        codes = rng.integers(0, 2, dimension, dtype=np.uint8)
        total += codes
        reports.append(
            timed(
                "client: report", client.report, announcement, OPENS, no_charge,
                lambda codes=codes: [codes], federation.files[name].transaction,
            )
        )  # fmt: skip
    federation.send("relay: reports", lambda r: relay.reports(r, OPENS), reports, 8)
    frozen = timed("relay: list", relay.frozen, CLOSES)
    accepted = timed("collector: accept", collector.accept, frozen)
    summed = timed("relay: sum", relay.accepted, accepted)
    (found,) = timed("collector: release", collector.release, summed)
    np.testing.assert_array_equal(found, total)
    print(f"sum of {clients} clients, {dimension} coordinates of {bits_for_sum(clients)} bits")
    for name, (wall, cpu) in federation.seconds.items():
        ms = f"{1e3 * wall / clients:>8.2f} ms a client, processor {1e3 * cpu / clients:.2f}"
        print(f"  {name:<30} {ms}")
    print(
        f"  report {len(reports[0])} bytes, {len(reports[0]) / dimension:.4f} a coordinate;", end=""
    )
    print(f" list {len(frozen) / clients:.0f} bytes a client")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--together", type=int, default=64)
    chosen = parser.parse_args()
    with TemporaryDirectory() as folder:
        federation = Federation(Path(folder), chosen.clients)
        shuffle(federation, chosen.together, 1, confirmed=False)
        for number in (2, 3):  # In round 2 the collector checks certificates, too.
            shuffle(federation, chosen.together, number, confirmed=True)
    for clients, dimension in SUMS:
        with TemporaryDirectory() as folder:
            secure_sum(Path(folder), min(clients, chosen.clients), dimension)


if __name__ == "__main__":
    main()
