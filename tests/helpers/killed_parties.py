"""A relay, a collector and nodes in processes of their own, which are killed and started again."""

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from party_process import answered_rounds, sent_by
from two_operators import Operators, create_operators

from sottovoce.deployment.machines.processes import state_of
from sottovoce.deployment.operators.admission_file import admit
from sottovoce.deployment.operators.device import DeviceFolder, create_device
from sottovoce.deployment.operators.relay_program import is_healthy
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.runs.folder import RunFolder

HELPERS = Path(__file__).parent
PATIENCE_SECONDS = 120.0
POLICY: dict[str, Any] = {
    "mechanisms": ["clamped_sign", "seeded_step"],
    "level": "client",
    "adjacency": "zero-out",
    "epsilon_per_round": 500.0,
    "epsilon_total": 100_000.0,
    "delta": 1e-5,
    "smallest_cohort": 1,
    "seeded_randomness": True,
    "honest": 2,
    "colluders": 1,
    "retries": 10_000,
}


def eventually(true: Callable[[], bool], *, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)


@dataclass
class KilledParties:
    """Programs of two operators and their clients."""

    operators: Operators
    nodes: list[DeviceFolder]
    spec: Path
    out: Path
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def collector_log(self) -> Path:
        return self.operators.folder / "collector.log"

    def start_relay(self) -> None:
        folder = self.operators.relay.folder
        command = [sys.executable, "-m", "sottovoce", "deploy", "relay", str(folder)]
        log = self.operators.folder / "relay.log"
        with log.open("ab") as output:
            subprocess.run([*command, "--background"], check=True, stdout=output, stderr=output)

    def start_collector(self) -> None:
        how = "resume" if self.out.exists() else "begin"
        folder = self.operators.collector.folder
        self._start("collector", "training_collector", folder, self.spec, self.out, how)

    def start_node(self, node: DeviceFolder) -> None:
        self._start(node.name, "answering_device", node.folder)

    def _start(self, name: str, program: str, *arguments: object) -> None:
        path = HELPERS / f"{program}.py"
        with (self.operators.folder / f"{name}.log").open("ab") as output:
            self._running[name] = subprocess.Popen(
                [sys.executable, str(path), *map(str, arguments)], stdout=output, stderr=output
            )

    def wait_for_nodes(self) -> None:
        """Wait until all nodes look for announcements."""
        logs = [self.operators.folder / f"{node.name}.log" for node in self.nodes]
        eventually(lambda: all("ready" in log.read_text() for log in logs), what="the nodes")

    @property
    def has_ended(self) -> bool:
        """Whether the collector's program has ended by itself, at the end of its run or earlier."""
        return self._running["collector"].poll() is not None

    @property
    def has_finished(self) -> bool:
        return self._running["collector"].poll() == 0

    def kill(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait()

    def kill_relay_server(self) -> None:
        """Kill the process that serves; its supervisor starts another one."""
        record = self.operators.relay.state_folder / "processes" / "relay.json"
        with contextlib.suppress(OSError, ValueError, IndexError):  # It is being started.
            os.kill(json.loads(record.read_bytes())[-1][0], signal.SIGKILL)

    def kill_relay(self) -> None:
        """Kill the relay with its supervisor, as if its machine had lost its power."""
        state = state_of(self.operators.relay.state_folder)
        if state is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(state["pid"], signal.SIGKILL)
        self.kill_relay_server()
        eventually(
            lambda: state_of(self.operators.relay.state_folder) is None, what="the relay's end"
        )

    def relay_runs(self) -> bool:
        return state_of(self.operators.relay.state_folder) is not None

    def relay_answers(self) -> bool:
        return is_healthy(self.operators.relay)

    def go_on(self) -> None:
        """Start again what has ended: the relay after too many kills, the collector without it."""
        if not self.relay_runs():
            self.start_relay()
        if self.has_ended and not self.has_finished:
            self.start_collector()

    def finish(self, seconds: float) -> list[dict[str, Any]]:
        """Wait until the run is complete, and return its rounds."""
        deadline = time.monotonic() + seconds
        while not self.has_finished:
            assert time.monotonic() < deadline, self.collector_log.read_text()[-2000:]
            self.go_on()
            time.sleep(0.5)
        return RunFolder(self.out).metrics()

    def received(self) -> list[int]:
        """Return the number of clients in each round that is done."""
        return [row["clients_received"] for row in RunFolder(self.out).metrics()]

    def charges(self, ledger: Path) -> dict[tuple[str, int], int]:
        """Return how often each client was charged for each round."""
        if not ledger.exists():
            return {}
        with contextlib.closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as database:
            rows = database.execute(
                "SELECT client, round, COUNT(*) FROM charges GROUP BY client, round"
            ).fetchall()
        return {(client, number): count for client, number, count in rows}

    def check_nothing_is_sent_uncharged_or_twice(self) -> None:
        at_collector = self.charges(self.out / LEDGER_NAME)
        for node in self.nodes:
            path = node.folder / LEDGER_NAME
            charged = self.charges(path)
            for number, count in answered_rounds(node.folder).items():
                assert count <= charged.get((node.name, number), 0), (node.name, number)
            for key, count in charged.items():
                assert count <= at_collector.get(key, 0), key
            with Ledger(path) as ledger:
                assert ledger.verify() == []
        for folder in (self.operators.collector.folder, *(node.folder for node in self.nodes)):
            twice = {key: said for key, said in sent_by(folder).items() if len(said) > 1}
            assert twice == {}
        with Ledger(self.out / LEDGER_NAME) as ledger:
            assert ledger.verify() == []

    def check_lost_rounds_have_a_reason(self, rows: list[dict[str, Any]]) -> None:
        log = self.collector_log.read_text()
        told = {int(number) for number in re.findall(r"round (\d+) is abandoned: \S", log)}
        lost = {row["round"] for row in rows if row["clients_received"] == 0}
        assert lost <= told, log[-2000:]

    def stop(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
        if self.relay_runs():
            self.kill_relay()


@contextlib.contextmanager
def killed_parties(
    folder: Path, spec: str, names: list[str], *, confirm_seconds: int, **policy: Any
) -> Iterator[KilledParties]:
    """Create two operators and clients with a policy; nothing runs yet."""
    operators = create_operators(folder)
    settings = operators.collector.folder / "collector.toml"
    text = settings.read_text().replace(
        "confirm_seconds = 60", f"confirm_seconds = {confirm_seconds}"
    )
    settings.write_text(text)
    nodes = [
        create_device(
            folder / name,
            name=name,
            operators=operators.relay.folder / "operators.toml",
            digest=operators.pinned.digest,
            with_site=True,
        )
        for name in names
    ]
    for operator in (operators.relay, operators.collector):
        admit(operator, [one.admission_path for one in nodes])
    lines = [f"{key} = {json.dumps(value)}" for key, value in (POLICY | policy).items()]
    for one in nodes:
        one.site_file.write_text("\n".join([f'name = "{one.name}"', "[policy]", *lines]))
    path = folder / "spec.toml"
    path.write_text(spec)
    parties = KilledParties(operators, nodes, path, folder / "run")
    try:
        yield parties
    finally:
        parties.stop()
