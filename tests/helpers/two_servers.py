"""Two operators and their clients, with real files, for tests."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.ledger.journal import Journal
from sottovoce.mechanisms.packing import UnsignedCodes
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.collector import Collector
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.hpke import HpkeKey
from sottovoce.protocol.secure.masks import bits_for_sum
from sottovoce.protocol.secure.merkle import leaf_digest
from sottovoce.protocol.secure.operators import Admission, Operators
from sottovoce.protocol.secure.relay import Relay
from sottovoce.protocol.secure.roster import TrustKey
from sottovoce.protocol.secure.shuffle_client import ShuffleClient
from sottovoce.protocol.secure.shuffle_messages import ShuffleReport, split_proof
from sottovoce.protocol.secure.state_file import StateFile
from sottovoce.protocol.secure.two_server_client import TwoServerClient

OPENS, CLOSES, CONFIRM_BY, FOREVER = 100, 200, 300, 10_000
CONTENT = b"a model"
PAYLOAD_BYTES = 16


@dataclasses.dataclass(frozen=True)
class Secrets:
    """The private keys of both operators; `operators` are their public ones."""

    relay: TrustKey
    relay_hpke: HpkeKey
    collector: TrustKey
    relay_admission: TrustKey
    collector_admission: TrustKey

    @classmethod
    def new(cls) -> "Secrets":
        return cls(
            TrustKey.generate(),
            HpkeKey.generate(),
            TrustKey.generate(),
            TrustKey.generate(),
            TrustKey.generate(),
        )

    @property
    def operators(self) -> Operators:
        return Operators(
            federation=b"f" * 16,
            relay=self.relay.public,
            relay_hpke=self.relay_hpke.public,
            collector=self.collector.public,
            relay_admission=self.relay_admission.public,
            collector_admission=self.collector_admission.public,
        )


class World:
    """Files and objects of one federation in a folder; objects may be built again on the files."""

    def __init__(self, folder: Path, clients: int = 4) -> None:
        self.folder = folder
        self.secrets = Secrets.new()
        self.operators = self.secrets.operators
        self.names = [f"client-{number:03d}" for number in range(clients)]
        self.keys = {name: TrustKey.generate() for name in self.names}
        self.removed: dict[str, set[str]] = {"relay": set(), "collector": set()}
        self._admissions: dict[str, Admission] = {}
        self._states: dict[str, StateFile] = {}
        self.relay = self.new_relay("relay.sqlite")
        self.collector = self.new_collector("collector.sqlite")

    def state(self, name: str) -> StateFile:
        """Return the open file of a party."""
        if name not in self._states:
            self._states[name] = StateFile(self.folder / name)
            # Tests kill objects, not machines, so they need not wait for the disk.
            self._states[name].execute("PRAGMA synchronous = OFF")
        return self._states[name]

    def restart(self, name: str) -> None:
        """Drop the party with this file, and begin it again on the file if it is an operator."""
        self._states.pop(name).close()
        if name == "relay.sqlite":
            self.relay = self.new_relay(name)
        elif name == "collector.sqlite":
            self.collector = self.new_collector(name)

    def new_relay(self, name: str) -> Relay:
        secrets = self.secrets
        return Relay(
            self.state(name),
            secrets.relay,
            secrets.relay_hpke,
            self.operators,
            1,
            3,
            lambda: self.listed("relay"),
        )

    def new_collector(self, name: str) -> Collector:
        return Collector(self.state(name), self.secrets.collector, self.operators, 1, 3)

    def listed(self, operator: str) -> dict[str, bytes]:
        """Return the clients that one of the operators admits now."""
        left = self.keys.keys() - self.removed[operator]
        return {name: self.keys[name].public for name in left}

    def close(self) -> None:
        for state in self._states.values():
            state.close()

    def admission(self, name: str, **changed: Any) -> Admission:
        """Return a certificate by both operators, with other fields if wanted."""
        fields = {"name": name, "key": self.keys[name].public, "valid_until": FOREVER, **changed}
        key = repr(fields)
        if key not in self._admissions:
            keys = self.secrets.relay_admission, self.secrets.collector_admission
            self._admissions[key] = Admission.issue(self.operators, *keys, **fields)
        return self._admissions[key]

    def journal(self, name: str) -> Journal:
        """Return the journal of a client."""
        return Journal(self.state(name))

    def attempt(self, **changed: Any) -> Attempt:
        fields = {
            "protocol": Protocol.TWO_SERVER_SUM,
            "parties": self.operators.digest,
            "federation": self.operators.federation,
            "run": "run",
            "round": 1,
            "attempt": 1,
            "dimension": 5,
            "uplinks": 2,
            "levels": 2,
            "most_clients": 50,
            "threshold": 3,
            "mechanism": "{}",
            "rotation_seed": b"",
            "adjacency": "zero-out",
            "unit": "client",
            "model_digest": hashlib.sha256(CONTENT).digest(),
            **changed,
        }
        if "bits" not in fields:
            fields["bits"] = bits_for_sum(fields["most_clients"] * (fields["levels"] - 1))
        return Attempt(**fields)

    def announce(self, **changed: Any) -> bytes:
        """Announce a sum at collector and relay."""
        message = self.collector.announce(
            self.attempt(**changed),
            opens=OPENS,
            closes=CLOSES,
            clients=self.listed("collector"),
        )
        self.relay.announce(message, CONTENT, OPENS)
        return message

    def announce_shuffle(self, *, slack: int = 0, confirm_by: int = CONFIRM_BY) -> bytes:
        message = self.collector.announce(
            self.attempt(protocol=Protocol.SHUFFLER),
            opens=OPENS,
            closes=CLOSES,
            confirm_by=confirm_by,
            slack=slack,
            payload_bytes=PAYLOAD_BYTES,
            clients=self.listed("collector"),
        )
        self.relay.announce(message, CONTENT, OPENS)
        return message

    def register(self) -> None:
        for name in self.names:
            self.relay.register(self.admission(name).to_bytes(), OPENS)

    def summer(self, name: str, **policy: Any) -> TwoServerClient:
        return TwoServerClient(
            name,
            self.keys[name],
            self.admission(name),
            self.operators,
            self.journal(name),
            **{"honest": 2, "colluders": 1, **policy},
        )

    def shuffler(self, name: str, **policy: Any) -> ShuffleClient:
        return ShuffleClient(
            name,
            self.keys[name],
            self.admission(name),
            self.operators,
            self.journal(name),
            **{"honest": 2, "colluders": 1, **policy},
        )

    def sum_report(self, name: str, announcement: bytes, codes: Sequence[UnsignedCodes]) -> bytes:
        return self.summer(name).report(
            announcement, OPENS, no_charge, lambda: codes, self.state(name).transaction
        )

    def shuffle_report(self, client: ShuffleClient, announcement: bytes, payload: bytes) -> bytes:
        return client.report(
            announcement, OPENS, no_charge, lambda: payload, self.state(client.name).transaction
        )

    def confirm(self, client: ShuffleClient, report: bytes, now: int = CLOSES) -> bytes:
        """Fetch root and path of a client's message and return its confirmation."""
        leaf = leaf_digest(ShuffleReport.read(report).ciphertext)
        return client.confirm(*split_proof(self.relay.root_for(leaf)), now)


def no_charge() -> None:
    """Charge nothing."""


def codes_of(
    rng: np.random.Generator, *, uplinks: int = 2, dimension: int = 5
) -> list[UnsignedCodes]:
    """Return random bits, one vector an uplink."""
    return [rng.integers(0, 2, dimension, dtype=np.uint8) for _ in range(uplinks)]


@contextlib.contextmanager
def world_in(folder: Path, clients: int = 4) -> Iterator[World]:
    """Make a federation whose clients are registered."""
    world = World(folder, clients)
    world.register()
    try:
        yield world
    finally:
        world.close()
