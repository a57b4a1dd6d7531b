"""The folders of two operators and of their clients, and a relay of real processes."""

import contextlib
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_line import call

from sottovoce.deployment.machines.address import Address, free_port
from sottovoce.deployment.operators.admission_file import admit
from sottovoce.deployment.operators.cards import PinnedOperators
from sottovoce.deployment.operators.device import DeviceFolder, create_device
from sottovoce.deployment.operators.folders import (
    CollectorFolder,
    RelayFolder,
    create_collector,
    create_relay,
)
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.masks import bits_for_sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """Two operators who know each other, in a folder."""

    folder: Path
    relay: RelayFolder
    collector: CollectorFolder
    pinned: PinnedOperators

    def devices(self, count: int) -> list[DeviceFolder]:
        """Make clients that both operators have admitted."""
        made = [
            create_device(
                self.folder / f"phone-{number:02d}",
                name=f"phone-{number:02d}",
                operators=self.relay.folder / "operators.toml",
                digest=self.pinned.digest,
            )
            for number in range(count)
        ]
        for operator in (self.relay, self.collector):
            admit(operator, [one.admission_path for one in made])
        return made

    def attempt(self, content: bytes, **changed: Any) -> Attempt:
        """Return the parameters of a sum of bits that three clients may form."""
        keys = self.pinned.keys
        fields = {
            "protocol": Protocol.TWO_SERVER_SUM,
            "parties": keys.digest,
            "federation": keys.federation,
            "run": "run",
            "round": 1,
            "attempt": 1,
            "dimension": 16,
            "uplinks": 1,
            "levels": 2,
            "most_clients": 100,
            "threshold": 3,
            "mechanism": "{}",
            "rotation_seed": b"",
            "adjacency": "zero-out",
            "unit": "client",
            "model_digest": hashlib.sha256(content).digest(),
            **changed,
        }
        bits = bits_for_sum(fields["most_clients"] * (fields["levels"] - 1))
        return Attempt(**{"bits": bits, **fields})


def create_operators(folder: Path) -> Operators:
    """Create the folders of two operators who have exchanged their cards."""
    address = Address(host="localhost", port=free_port())
    relay = create_relay(folder / "relay", address=address)
    collector = create_collector(folder / "collector", relay=relay.folder / "relay.pub")
    pinned = relay.pin(collector.folder / "collector.pub")
    return Operators(folder=folder, relay=relay, collector=collector, pinned=pinned)


@contextlib.contextmanager
def running_relay(relay: RelayFolder) -> Iterator[None]:
    """Run a relay in the background, as its operator does."""
    with _in_background("relay", relay.folder):
        yield


@contextlib.contextmanager
def running_collector(collector: CollectorFolder) -> Iterator[None]:
    """Run a collector in the background, as its operator does."""
    with _in_background("collector", collector.folder):
        yield


@contextlib.contextmanager
def running_operators(operators: Operators) -> Iterator[None]:
    """Run a relay and its collector in the background."""
    with running_relay(operators.relay), running_collector(operators.collector):
        yield


@contextlib.contextmanager
def _in_background(what: str, folder: Path) -> Iterator[None]:
    start_in_background(what, folder)
    try:
        yield
    finally:
        assert call("deploy", "stop", str(folder)).code == 0


def start_in_background(what: str, folder: Path) -> None:
    """Start the program of an operator's folder, and wait until it is ready."""
    command = [sys.executable, "-m", "sottovoce", "deploy", what, str(folder), "--background"]
    subprocess.run(command, check=True, capture_output=True)
