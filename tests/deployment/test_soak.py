"""Two hundred rounds in a row while nodes, workers, servers and the link are killed at random.

Run it with `pytest -m slow -s tests/deployment/test_soak.py`: it takes half an hour, and prints
what happened and what memory was used.
"""

import contextlib
import json
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from federated_runs import (
    StartedRun,
    assert_ledgers_agree,
    attempts,
    federated_table,
    site_attempts,
    start_run,
)
from federation_faults import (
    cut_power,
    family_of,
    misbehave,
    server_of,
    site_names,
    training_federation,
    worker_of,
    workers_of,
)
from mischievous_worker import HOSTILE

from sottovoce.deployment.machines.executor import SERVER_APP
from sottovoce.deployment.machines.runs import rounds_done

pytest.importorskip("flwr")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="watches processes in /proc"),
]

ROUNDS = 200
SITES = site_names(3)
STEADY = SITES[0]  # nothing happens to it, so its memory can be watched all along
LAST_SERVER_FAULT = 30  # soon after, the server and the link live too
DEADLINE_SECONDS = 15.0
PAUSE_ROUNDS = (3, 9)  # between two faults
# What a process may have gained by the last quarter: 160 kB for each of a hundred rounds.
GROWTH_BYTES = 16 * 2**20

ROLES = (
    "flower-superlink",
    "sottovoce.deployment.machines.executor",
    SERVER_APP,
    "sottovoce.deployment.machines.gate",
    "sottovoce.deployment.machines.supernode",
    "sottovoce.flower_app.worker",
)


class Soak:
    """A run, what was done to it, and what it used."""

    def __init__(self, run: StartedRun) -> None:
        self.run = run
        self.running = run.running
        self.chance = random.Random(20)
        self.done: Counter[str] = Counter()
        self.memory: dict[str, dict[int, int]] = defaultdict(dict)  # bytes, by process and round
        self._harms: list[Callable[[str], None]] = []
        self._next = 3

    def tick(self) -> None:
        """Look at the memory; now and then do some harm."""
        number = rounds_done(self.run.out)
        self._measure(number)
        awake = [site for site in SITES[1:] if workers_of(self.running, site)]
        if not awake or number < self._next or number >= ROUNDS - 5:
            return
        harm = self._next_harm(number)
        harm(self.chance.choice(awake))
        self.done[harm.__name__] += 1
        self._next = rounds_done(self.run.out) + self.chance.randint(*PAUSE_ROUNDS)

    def _next_harm(self, number: int) -> Callable[[str], None]:
        """Each kind in turn, in an order that changes."""
        if not self._harms:
            self._harms = [self.kill_node, self.kill_worker, self.suspend_worker, self.lie]
            if number < LAST_SERVER_FAULT:
                self._harms += [self.kill_server, self.kill_link]
            self.chance.shuffle(self._harms)
        return self._harms.pop()

    def kill_node(self, site: str) -> None:
        cut_power(self.running.site(site).node_folder)
        self.running.start_node(site)

    def kill_worker(self, site: str) -> None:
        os.kill(worker_of(self.running, site), signal.SIGKILL)

    def suspend_worker(self, site: str) -> None:
        worker = worker_of(self.running, site)
        os.kill(worker, signal.SIGSTOP)
        time.sleep(self.chance.uniform(1.0, 1.5 * DEADLINE_SECONDS))
        os.kill(worker, signal.SIGCONT)

    def lie(self, site: str) -> None:
        now = rounds_done(self.run.out)
        # Not the oversized one: the link keeps the memory that it needed for the largest message.
        kinds = [kind for kind in [*HOSTILE, "twice", "exit"] if kind != "oversized"]
        misbehave(self.running, site, {now + i: self.chance.choice(kinds) for i in range(2, 5)})

    def kill_server(self, _: str) -> None:
        os.kill(server_of(self.running), signal.SIGKILL)
        self.run = self.run.again()

    def kill_link(self, _: str) -> None:
        cut_power(self.running.federation.link_folder)
        self.running.start_link()
        self.run = self.run.again()

    def _measure(self, number: int) -> None:
        for name, keeper_folder in (
            ("link", self.running.federation.link_folder),
            (STEADY, self.running.site(STEADY).node_folder),
        ):
            for pid in family_of(keeper_folder):
                with contextlib.suppress(OSError):  # it may have ended just now
                    self.memory[f"{name}: {role_of(pid)}"][number] = resident_bytes(pid)

    def growth(self, process: str) -> int:
        """What a process has more in the last quarter than in the second."""
        seen = self.memory[process]
        second = [size for number, size in seen.items() if ROUNDS // 4 < number <= ROUNDS // 2]
        last = [size for number, size in seen.items() if number > 3 * ROUNDS // 4]
        return round(statistics.median(last) - statistics.median(second))


def role_of(pid: int) -> str:
    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return next((role for role in ROLES if role in line), "keeper")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_two_hundred_rounds_with_faults(tmp_path: Path) -> None:
    table = federated_table(
        "soak",
        clients=len(SITES),
        rounds=ROUNDS,
        deployment={"deadline_seconds": DEADLINE_SECONDS, "wait_seconds": 90.0, "idle_rounds": 20},
    )
    started = time.monotonic()
    with training_federation(tmp_path / "federation", SITES) as running:
        soak = Soak(start_run(running, table, tmp_path / "run"))
        while not soak.run.status().has_ended:
            soak.tick()
            time.sleep(1.0)
        rows = soak.run.finish()
        summary = {
            "minutes": round((time.monotonic() - started) / 60.0, 1),
            "faults": dict(soak.done),
            "replies": dict(Counter(row["clients_received"] for row in rows)),
            "replies_dropped": sum(row["replies_dropped"] for row in rows),
            "accuracy": rows[-1]["accuracy"],
            "MiB gained by the last quarter": {
                process: round(soak.growth(process) / 2**20, 1) for process in soak.memory
            },
            "MiB at the end": {
                process: round(seen[max(seen)] / 2**20) for process, seen in soak.memory.items()
            },
        }
        print(json.dumps(summary, indent=2))
        assert_ledgers_agree(soak.run)
        server = attempts(soak.run.out / "ledger.sqlite", soak.run.name)
        assert {number for _, number in server} == set(range(1, ROUNDS + 1))
        # The steady site misses no more rounds than servers and links were killed.
        answered = {number for site, number in site_attempts(soak.run) if site == STEADY}
        assert len(answered) >= ROUNDS - soak.done["kill_link"] - soak.done["kill_server"]
        for process in soak.memory:
            assert soak.growth(process) < GROWTH_BYTES, process
