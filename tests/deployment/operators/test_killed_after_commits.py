"""Relay, collector and client killed after each durable write, before what is to be sent leaves.

Each process is killed by itself after a commit, and started again. The round is complete or lost
with a reason, and the next one works.
"""

import contextlib
import itertools
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lying_relay import HONEST, LIE
from mortal import DIES_AT
from party_process import Party, PartyEndedError, answered_rounds, sent_by
from relayed_mechanisms import SHUFFLER, SUM
from two_operators import Operators, create_operators

from sottovoce.deployment.machines.processes import wait_until
from sottovoce.deployment.operators.device import DeviceFolder
from sottovoce.deployment.operators.relay_program import is_healthy
from sottovoce.protocol.secure.encoding import Protocol

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.slow
CLIENTS = 4
SECONDS = 4
TRIES = 4
RELAY, COLLECTOR, CLIENT = "relay", "collector", "phone-00"


@dataclass
class MortalParties:
    """Processes of two operators and their clients that are started again when they have ended."""

    operators: Operators
    devices: list[DeviceFolder]
    protocol: Protocol
    running: dict[str, Party] = field(default_factory=dict)
    round: int = 0
    _starting: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def folder(self, name: str) -> Path:
        return self.operators.folder / name

    def start(self, name: str) -> Party:
        """Start a party, if it does not run."""
        with self._starting:
            return self._started(name)

    def _started(self, name: str) -> Party:
        if name in self.running and self.running[name].process.poll() is None:
            return self.running[name]
        if name in self.running:
            self.running[name].stop()
        program, *more = {
            RELAY: ["lying_relay"],
            COLLECTOR: ["asking_collector"],
        }.get(name, ["sending_device", str(self.protocol)])
        self.running[name] = Party(program, str(self.folder(name)), *more)
        if name == RELAY:
            wait_until(
                lambda: is_healthy(self.operators.relay), [], what="relay", timeout_seconds=60.0
            )
        return self.running[name]

    def ask(self, name: str, do: str, **values: Any) -> Any:
        """Ask a client, again if it or the relay has ended."""
        said: Any = "never asked"
        for _ in range(TRIES):
            try:
                said = self.start(name).ask(do, **values)
            except PartyEndedError:
                if do == "confirm":  # After its start it must look for its report.
                    self.ask(name, "send")
                continue
            if "does not answer" not in said:
                return said
            self.start(RELAY)
        return said

    def hold(self) -> str:
        """Hold a round, and return what comes of it."""
        self.round += 1
        collector = self.start(COLLECTOR)
        try:
            with self._supervised_relay():
                return self._hold(collector)
        except PartyEndedError:
            return "refused: the collector was killed"
        finally:
            for name in (RELAY, COLLECTOR, *(device.name for device in self.devices)):
                self.start(name)

    @contextlib.contextmanager
    def _supervised_relay(self) -> Iterator[None]:
        """Start the relay again whenever it has ended, as its supervisor does."""
        ended = threading.Event()

        def supervise() -> None:
            while not ended.wait(0.2):
                self.start(RELAY)

        thread = threading.Thread(target=supervise)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _hold(self, collector: Party) -> str:
        more = {"confirm_seconds": 2 * SECONDS} if self.protocol is SHUFFLER else {}
        announced = collector.ask(
            "announce", protocol=str(self.protocol), seconds=SECONDS, round=self.round, **more
        )
        if announced.startswith("refused"):
            return str(announced)
        for device in self.devices:
            self.ask(device.name, "send")
        collector.tell("payloads" if self.protocol is SHUFFLER else "sums")
        if self.protocol is SHUFFLER:
            for device in self.devices:
                self.ask(device.name, "confirm", seconds=2 * SECONDS)
        released = collector.answer()
        if isinstance(released, str):
            return released
        count = len(released) if isinstance(released, list) else released["clients"]
        return f"{count} clients"

    def check(self) -> None:
        """Raise unless what was sent was charged, and each announcement has one answer."""
        for device in self.devices:
            spent = self.ask(device.name, "spent")
            assert spent["problems"] == 0
            assert sum(answered_rounds(device.folder).values()) <= spent["charges"] <= self.round
            assert all(len(digests) == 1 for digests in sent_by(device.folder).values())


@contextlib.contextmanager
def mortal_parties(folder: Path, protocol: Protocol) -> Iterator[MortalParties]:
    operators = create_operators(folder)
    (operators.relay.folder / LIE).write_text(HONEST)
    parties = MortalParties(operators, operators.devices(CLIENTS), protocol)
    try:
        for name in (RELAY, COLLECTOR, *(device.name for device in parties.devices)):
            parties.start(name)
        for device in parties.devices:
            parties.ask(device.name, "spent")
        yield parties
    finally:
        for party in parties.running.values():
            party.stop()


@pytest.mark.parametrize("protocol", [SUM, SHUFFLER], ids=["sum", "shuffle"])
@pytest.mark.parametrize(("victim", "fewest"), [(RELAY, 6), (COLLECTOR, 3), (CLIENT, 2)])
def test_a_party_killed_after_any_commit_loses_a_round_at_most(
    tmp_path: Path, protocol: Protocol, victim: str, fewest: int
) -> None:
    whole, outcomes = f"{CLIENTS} clients", []
    with mortal_parties(tmp_path, protocol) as parties:
        assert parties.hold() == whole
        dies_at = parties.folder(victim) / DIES_AT
        for at in itertools.count(1):
            dies_at.write_text(str(at))
            outcomes.append(parties.hold())
            if dies_at.exists():
                break
        dies_at.unlink()
        print(outcomes)
        assert at > fewest
        assert all(re.match("[34] clients|refused: .", one) for one in outcomes)
        assert outcomes[-1] == parties.hold() == whole
        parties.check()
