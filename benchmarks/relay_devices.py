"""The clients of the benchmarks of a relay: many devices in one process, over HTTPS.

They do what a device does on the wire and compute what it would send. What every device would
compute alike is computed once: the check of the announcement and of the root. They have no ledger.
"""

import hashlib
import os
import secrets
import socket
import ssl
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))

from relay import relay_to

from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines.address import Address, free_port
from sottovoce.deployment.operators.calls import RelayCalls, pinned_context
from sottovoce.deployment.operators.folders import (
    CollectorFolder,
    RelayFolder,
    create_collector,
    create_relay,
)
from sottovoce.deployment.operators.relay_program import is_healthy
from sottovoce.deployment.operators.routes import Route
from sottovoce.protocol.secure import shuffle_messages
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.merkle import leaf_digest, top_of
from sottovoce.protocol.secure.operators import Admission, Operators
from sottovoce.protocol.secure.roster import TrustKey, check_signature
from sottovoce.protocol.secure.shuffle_client import ShuffleClient
from sottovoce.protocol.secure.shuffle_messages import (
    Confirmation,
    Root,
    ShuffleReport,
    split_proof,
)
from sottovoce.protocol.secure.shuffle_messages import (
    Path as TreePath,
)

_START_SECONDS = 60.0
_VALID_SECONDS = 10 * 3600
_NEW_TOGETHER = 8
CONTENT = b"a model"
_PROGRAM = "sottovoce.deployment.operators.relay_program"


def cpu_seconds(pid: int) -> float:
    """Return the seconds that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def create_operators(folder: Path) -> tuple[RelayFolder, CollectorFolder, Operators]:
    """Create the folders of both operators, who know each other."""
    address = Address(host="localhost", port=free_port())
    relay = create_relay(folder / "relay", address=address)
    collector = create_collector(folder / "collector", relay=relay.folder / "relay.pub")
    return relay, collector, relay.pin(collector.folder / "collector.pub").keys


@contextmanager
def running_relay(relay: RelayFolder, core: int | None = None) -> Iterator[int]:
    """Run the program that `sottovoce deploy relay` supervises, and yield its process id."""
    program = subprocess.Popen(
        [sys.executable, "-m", _PROGRAM, str(relay.folder)],
        preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
    )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not is_healthy(relay):
            assert program.poll() is None, "the relay has ended"
            assert time.monotonic() < deadline, "the relay did not start"
            time.sleep(0.1)
        yield program.pid
    finally:
        program.terminate()
        program.wait()


class KeptConnections:
    """Several TLS connections over which requests are sent in turn, and stay open.

    Args:
        relay: The relay.
        count: The number of connections.
    """

    def __init__(self, relay: RelayFolder, count: int) -> None:
        context = pinned_context(relay.card.certificate)
        with ExitStack() as opening:
            self._sockets = [opening.enter_context(_connect(relay, context)) for _ in range(count)]
            self._stack = opening.pop_all()

    def ask(self, requests: Iterable[bytes]) -> Iterator[bytes]:
        """Send requests, and yield the content of each answer in the order of the requests."""
        free, waiting = deque(self._sockets), deque[ssl.SSLSocket]()
        for request in requests:
            if not free:
                first = waiting.popleft()
                yield read_answer(first)
                free.append(first)
            one = free.popleft()
            one.sendall(request)
            waiting.append(one)
        while waiting:
            yield read_answer(waiting.popleft())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def ask_on_new_connections(relay: RelayFolder, requests: Sequence[bytes]) -> list[bytes]:
    """Send each request over a connection of its own, some at the same time."""
    context = pinned_context(relay.card.certificate)

    def ask(request: bytes) -> bytes:
        with _connect(relay, context) as one:
            one.sendall(request)
            return read_answer(one)

    with ThreadPoolExecutor(_NEW_TOGETHER) as threads:
        return list(threads.map(ask, requests))


def _connect(relay: RelayFolder, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", relay.address.port))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(plain)


def post(path: str, body: bytes) -> bytes:
    """Return a POST request with as few headers as a device sends."""
    head = f"POST /1/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def read_answer(one: ssl.SSLSocket) -> bytes:
    """Return the content of one answer; DeploymentError if the request was refused."""
    found = bytearray()
    while (end := found.find(b"\r\n\r\n")) < 0:
        found += _received(one)
    head, content = bytes(found[:end]), found[end + 4 :]
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    while len(content) < length:
        content += _received(one)
    if not head.startswith(b"HTTP/1.1 2"):
        raise DeploymentError(f"the relay refuses: {content.decode()}")
    return bytes(content)


def _received(one: ssl.SSLSocket) -> bytes:
    data = one.recv(1 << 16)
    assert data, "the relay has closed the connection"
    return data


def count_bytes(relay: RelayFolder, requests: Sequence[tuple[Route, bytes, str]]) -> list[int]:
    """Return the TCP payload, both ways, of requests over one connection that is new."""
    found = []
    with relay_to(relay.card.address.port) as counted:
        near = Address(host="localhost", port=counted.port)
        with RelayCalls(near, relay.card.certificate) as calls:
            for route, body, of in requests:
                before = counted.up + counted.down
                calls.ask(route, body, of=of)
                found.append(counted.up + counted.down - before)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Clients that both operators have admitted.

    Attributes:
        operators: The pinned operators.
        keys: The signing key of each client by its name.
        admissions: Their certificates, in the same order.
    """

    operators: Operators
    keys: dict[str, TrustKey]
    admissions: list[bytes]

    @classmethod
    def admit(cls, relay: RelayFolder, collector: CollectorFolder, count: int) -> Self:
        """Create clients, whom both operators admit."""
        operators = collector.operators.keys
        both = relay.admission_key, collector.admission_key
        until = int(time.time()) + _VALID_SECONDS
        keys = {f"d{number:06d}": TrustKey.generate() for number in range(count)}
        admissions = [
            Admission.issue(operators, *both, name=name, key=key.public, valid_until=until)
            for name, key in keys.items()
        ]
        for operator in (relay, collector):
            operator.add_clients({name: key.public for name, key in keys.items()})
        return cls(operators=operators, keys=keys, admissions=[a.to_bytes() for a in admissions])

    def reports(
        self, announcement: Announcement, payloads: Iterable[bytes]
    ) -> Iterator[ShuffleReport]:
        """Encrypt and sign one payload of each client."""
        announcement.check(self.operators, Protocol.SHUFFLER)
        for (name, key), payload in zip(self.keys.items(), payloads, strict=True):
            client = ShuffleClient.__new__(ShuffleClient)  # without a ledger's journal
            client.name, client._key = name, key
            yield ShuffleReport.read(client._encode(announcement, payload))

    def confirmations(
        self, announcement: Announcement, leaves: Iterable[bytes], proofs: Iterable[bytes]
    ) -> Iterator[bytes]:
        """Check that the leaf of each client is under the collector's root, and sign that it is."""
        known: dict[bytes, Root] = {}
        for (name, key), leaf, proof in zip(self.keys.items(), leaves, proofs, strict=False):
            root, path = split_proof(proof)
            if root not in known:
                known[root] = self._checked(announcement, root)
            found, way = known[root], TreePath.read(path)
            assert top_of(leaf, way.index, found.count, way.siblings) == found.top
            statement = shuffle_messages.confirmation_statement(found, name)
            signature = key.sign(Protocol.SHUFFLER, "confirmation", *statement)
            yield Confirmation(name=name, signature=signature).to_bytes()

    def _checked(self, announcement: Announcement, root: bytes) -> Root:
        found = Root.read(root)
        assert found.ann == announcement.ann
        key, statement = self.operators.collector, found.statement
        check_signature(key, found.signature, Protocol.SHUFFLER, "root", *statement)
        return found


def root_request(leaf: bytes) -> bytes:
    """Return the request for the root and the path of a leaf."""
    return f"GET /1/root/{leaf.hex()} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


def leaf_of(report: ShuffleReport) -> bytes:
    """Return the leaf of a client's own message."""
    return leaf_digest(report.ciphertext)


def shuffle_attempt(
    operators: Operators, *, run: str, place: tuple[int, int], clients: int, mechanism: str
) -> Attempt:
    """Return an attempt (round, number) at a shuffle that exactly so many clients answer."""
    number, attempt = place
    return Attempt(
        protocol=Protocol.SHUFFLER,
        parties=operators.digest,
        federation=operators.federation,
        run=run,
        round=number,
        attempt=attempt,
        dimension=1,
        uplinks=1,
        levels=2,
        bits=1,
        most_clients=clients,
        threshold=clients,
        mechanism=mechanism,
        rotation_seed=b"",
        adjacency="replace-one",
        unit="client",
        model_digest=hashlib.sha256(CONTENT).digest(),
    )


def random_payloads(count: int, size: int = 16) -> list[bytes]:
    """Return payloads as random as seeds are."""
    return [secrets.token_bytes(size) for _ in range(count)]
