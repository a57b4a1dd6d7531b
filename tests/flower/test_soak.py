"""Two hundred kills and other faults in a federation, at random moments.

Run it with `pytest -m slow -s tests/flower/test_soak.py`: it takes about an hour on two cores,
and prints what happened and what memory was used. SOTTOVOCE_FAULTS sets another number of faults,
SOTTOVOCE_SEED other moments.
"""

import contextlib
import fcntl
import json
import os
import random
import signal
import sqlite3
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from federated_runs import StartedRun, assert_ledgers_agree, federated_table, start_run
from federation_faults import (
    cut_power,
    eventually,
    family_of,
    misbehave,
    pids_of,
    site_names,
    training_federation,
    workers_of,
)
from federations import RunningFederation, processes_of
from mischievous_worker import HOSTILE, SENT

from sottovoce.deployment.machines.processes import state_of
from sottovoce.deployment.machines.submitted_runs import rounds_done
from sottovoce.flower.executor import SERVER_APP
from sottovoce.ledger.ledger import Ledger

pytest.importorskip("flwr")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="watches processes in /proc"),
]

FAULTS = int(os.environ.get("SOTTOVOCE_FAULTS", "200"))
SEED = int(os.environ.get("SOTTOVOCE_SEED", "20"))
ROUNDS = 60  # of one run; as many runs as the faults need
SITES = site_names(3)
STEADY = SITES[0]  # nothing happens to it, so its memory can be watched all along
DEADLINE_SECONDS = 8.0  # how long a round waits for a site that is down
MOST_SECONDS_BEFORE_A_FAULT = 3.0  # so that faults meet every part of a round
# What a process may gain between the second and the last quarter of the faults.
GROWTH_BYTES = 32 * 2**20
# How often each kind comes, relative to the others.
WEIGHTS = {
    "kill_worker": 5,
    "kill_flower_node": 3,
    "kill_node_keeper": 3,
    "cut_node_power": 3,
    "suspend_worker": 2,
    "lie": 2,
    "kill_guard": 2,
    "stop_node": 1,
    "kill_server": 4,
    "kill_gate": 1,
    "kill_link_keeper": 2,
    "cut_link_power": 2,
    "stop_link": 1,
}


class Soak:
    """A federation, its runs, what was done to them, and what memory they used."""

    def __init__(self, running: RunningFederation, folder: Path) -> None:
        self.running = running
        self.folder = folder
        self.chance = random.Random(SEED)
        self.done: Counter[str] = Counter()
        self.memory: dict[str, dict[int, int]] = defaultdict(dict)  # bytes, by process and fault
        self.runs: list[StartedRun] = []
        self._next_run()

    @property
    def run(self) -> StartedRun:
        return self.runs[-1]

    @property
    def faults(self) -> int:
        return self.done.total()

    def harm(self) -> None:
        """One fault at a random moment; then wait until the run has got on."""
        self._go_on()
        kind = self.chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        site = self.chance.choice(SITES[1:])
        before = rounds_done(self.run.out)
        time.sleep(self.chance.uniform(0.0, MOST_SECONDS_BEFORE_A_FAULT))
        print(
            f"{self.faults + 1}: {kind} {site}, round {before + 1} of {self.run.name}", flush=True
        )
        fault: Callable[[str], None] = getattr(self, kind)
        fault(site)
        self.done[kind] += 1
        self._go_on(before)
        self._measure()

    def _go_on(self, before: int | None = None) -> None:
        """Resume or begin a run where none is on; until a round more than `before` is done."""

        def has_got_on() -> bool:
            if not state_of(self.running.federation.link_folder):
                self.running.start_link()
            if rounds_done(self.run.out) > (before or 0):
                return True
            status = self.run.status()
            if status.has_ended and rounds_done(self.run.out) < ROUNDS:
                self.runs[-1] = self.run.again()
            elif status.has_ended:
                return True
            return before is None

        eventually(has_got_on, seconds=300.0, pause_seconds=0.5)
        if rounds_done(self.run.out) >= ROUNDS:
            if self.run.wait_to_end().state != "finished:completed":
                self.runs[-1] = self.run.again()  # killed between its last round and its end
            self.run.finish()
            self._next_run()

    def _next_run(self) -> None:
        name = f"soak {len(self.runs) + 1}"
        waiting = {"deadline_seconds": DEADLINE_SECONDS, "wait_seconds": 120.0, "idle_rounds": 50}
        table = federated_table(name, clients=len(SITES), rounds=ROUNDS, deployment=waiting)
        self.runs.append(start_run(self.running, table, self.folder / name.replace(" ", "-")))
        eventually(lambda: self.run.folder.exists or self.run.status().has_ended)
        assert self.run.folder.exists, self.run.log()

    # -- faults at a site --------------------------------------------------------------------

    def kill_worker(self, site: str) -> None:
        self._kill(workers_of(self.running, site))

    def kill_flower_node(self, site: str) -> None:
        self._kill(self._in_family(self._node(site), "flower.supernode"))

    def kill_guard(self, site: str) -> None:
        """What watches over a program dies; the program must not run on unwatched."""
        self._kill(self._in_family(self._node(site), "guard.py")[:1])

    def kill_node_keeper(self, site: str) -> None:
        """Its children must not outlive it."""
        self._kill_keeper(self._node(site))
        self.running.start_node(site)

    def cut_node_power(self, site: str) -> None:
        cut_power(self._node(site))
        self.running.start_node(site)

    def stop_node(self, site: str) -> None:
        self.running.stop_node(site)
        self.running.start_node(site)

    def suspend_worker(self, site: str) -> None:
        for pid in workers_of(self.running, site):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self.chance.uniform(1.0, 8.0))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def lie(self, site: str) -> None:
        now = rounds_done(self.run.out)
        kinds = [*HOSTILE, "twice", "exit"]
        misbehave(self.running, site, {now + i: self.chance.choice(kinds) for i in range(1, 4)})

    # -- faults at the link ------------------------------------------------------------------

    def kill_server(self, _: str) -> None:
        self._kill(self._in_family(self._link, SERVER_APP))
        eventually(lambda: self.run.status().has_ended)

    def kill_gate(self, _: str) -> None:
        self._kill(self._in_family(self._link, "flower.gate"))
        eventually(lambda: state_of(self._link) is None)

    def kill_link_keeper(self, _: str) -> None:
        """Its children must not outlive it, nor what they have started."""
        self._kill_keeper(self._link)

    def cut_link_power(self, _: str) -> None:
        cut_power(self._link)

    def stop_link(self, _: str) -> None:
        self.running.stop_link()

    # -- parts -------------------------------------------------------------------------------

    @property
    def _link(self) -> Path:
        return self.running.federation.link_folder

    def _node(self, site: str) -> Path:
        return self.running.site(site).node_folder

    def _in_family(self, keeper_folder: Path, word: str) -> list[int]:
        return sorted(set(pids_of(word)) & set(family_of(keeper_folder)))

    def _kill(self, pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _kill_keeper(self, keeper_folder: Path) -> None:
        family = family_of(keeper_folder)
        if family:
            os.kill(family[0], signal.SIGKILL)
        eventually(lambda: not any(is_alive(pid) for pid in family), seconds=60.0)
        assert state_of(keeper_folder) is None

    def _measure(self) -> None:
        for pid in family_of(self._node(STEADY)):
            with contextlib.suppress(OSError):  # it may have ended just now
                self.memory[role_of(pid)][self.faults] = resident_bytes(pid)

    def growth(self, process: str) -> int:
        """What a process of the steady site has more in the last quarter than in the second."""
        seen = self.memory[process]
        second = [size for number, size in seen.items() if FAULTS // 4 < number <= FAULTS // 2]
        last = [size for number, size in seen.items() if number > 3 * FAULTS // 4]
        return round(statistics.median(last) - statistics.median(second)) if second and last else 0


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def role_of(pid: int) -> str:
    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    roles = ("guard.py", "flower.supernode", "flower.worker")
    return next((role for role in roles if role in line), "keeper")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def uncharged(site_folder: Path) -> tuple[int, list[str]]:
    """How many messages a site was about to send, and which of them its ledger does not know."""
    log = site_folder / SENT
    sent = set(log.read_text().split()) if log.exists() else set()
    file = f"file:{site_folder / 'ledger.sqlite'}?mode=ro"
    with contextlib.closing(sqlite3.connect(file, uri=True)) as database:
        rows = database.execute(
            "SELECT hex(digest) FROM messages JOIN charges ON charge = charges.id"
        )
        charged = {digest.lower() for (digest,) in rows}
    return len(sent), sorted(sent - charged)


def test_no_message_leaves_uncharged_whatever_is_killed(tmp_path: Path) -> None:
    started = time.monotonic()
    with training_federation(tmp_path / "federation", SITES) as running:
        soak = Soak(running, tmp_path)
        while soak.faults < FAULTS:
            soak.harm()
        soak.run.running.deploy("stop", running.folder, "--run", soak.run.run_id)
        messages = {site: uncharged(running.site(site).folder) for site in SITES}
        rows = [row for run in soak.runs for row in run.folder.metrics()]
        summary = {
            "minutes": round((time.monotonic() - started) / 60.0, 1),
            "faults": dict(soak.done),
            "runs": len(soak.runs),
            "rounds": len(rows),
            "replies": dict(Counter(row["clients_received"] for row in rows)),
            "replies_dropped": sum(row["replies_dropped"] for row in rows),
            "messages sent": sum(count for count, _ in messages.values()),
            "messages not charged": sum(len(wrong) for _, wrong in messages.values()),
            "MiB gained by the steady site": {
                process: round(soak.growth(process) / 2**20, 1) for process in soak.memory
            },
        }
        print(json.dumps(summary, indent=2))
        assert not any(wrong for _, wrong in messages.values())
        assert all(count for count, _ in messages.values())
        for run in soak.runs:
            assert_ledgers_agree(run)
        for site in SITES:
            with Ledger(running.site(site).folder / "ledger.sqlite") as ledger:
                assert ledger.verify() == []
        for process in soak.memory:
            assert soak.growth(process) < GROWTH_BYTES, process
    assert_nothing_is_left(tmp_path, running, soak.runs)


def assert_nothing_is_left(
    folder: Path, running: RunningFederation, runs: list[StartedRun]
) -> None:
    """No process, no port and no lock."""
    eventually(lambda: not processes_of(folder), seconds=30.0)
    assert running.federation.address.is_free()
    for run in runs:
        with (run.out / "run.json").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for keeper in (running.federation.link_folder, *(running.site(s).node_folder for s in SITES)):
        assert state_of(keeper) is None
