"""Runs over a rehearsal federation: start, watch, interrupt, and hold against the simulator.

Sites misbehave when a test says so: `misbehave`.
"""

import contextlib
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from federations import RunningFederation, mischievous_worker, rehearsal
from mischievous_worker import MISCHIEF
from specs import small_table

from sottovoce import files
from sottovoce.config.loading import parse, parse_text
from sottovoce.config.spec import RunSpec
from sottovoce.deployment.control import RunStatus
from sottovoce.deployment.keeper import state_of
from sottovoce.deployment.link import running_link
from sottovoce.deployment.runs import Order, rounds_done, submit
from sottovoce.domains import Vector
from sottovoce.experiments.assembly import Assembly
from sottovoce.experiments.books import Books, backend_here
from sottovoce.experiments.run_folder import RunFolder
from sottovoce.experiments.runner import run
from sottovoce.rounds.broadcast import Start
from sottovoce.simulation.backend import Backend, Collected, Mask

# Generous: the machine may be busy, and a test that waits in vain has failed anyway.
PATIENCE_SECONDS = 180.0
ASK_SECONDS = 5.0
Absent = Mapping[int, frozenset[str]]


def site_names(count: int) -> list[str]:
    """What the clients of a spec with `data.clients = count` are called."""
    return [f"client-{number:04d}" for number in range(count)]


@contextlib.contextmanager
def training_federation(folder: Path, sites: Sequence[str]) -> Iterator[RunningFederation]:
    """A link and nodes of real processes, whose policies have room for many runs."""
    with rehearsal(folder, sites=sites, stubs=mischievous_worker(), start=False) as running:
        running.start_link()
        for site in sites:
            allow(running, site)
            running.start_node(site)
        yield running


def allow(running: RunningFederation, site: str, **changes: Any) -> None:
    """Write a site's policy; a running node reads it anew for each task."""
    policy = {
        "mechanisms": ["gauss_hermite"],
        "level": "sample",
        "adjacency": "zero-out",
        "epsilon_per_round": 100.0,
        "epsilon_total": 1000.0,
        "delta": 1e-5,
        "smallest_cohort": 1,
        "seeded_randomness": True,
    } | changes
    file = running.site(site).file
    before = file.read_text().partition("[policy]")[0]
    lines = [f"{key} = {json.dumps(value)}" for key, value in policy.items()]
    file.write_text("\n".join([before + "[policy]", *lines]) + "\n")


def misbehave(running: RunningFederation, site: str, kinds: Mapping[int, str]) -> None:
    """From now on: what a site does in which round of any run."""
    files.write_json(running.site(site).folder / MISCHIEF, kinds)


def calm_down(running: RunningFederation) -> None:
    """All sites as they should be."""
    for site in running.federation.sites:
        (running.site(site).folder / MISCHIEF).unlink(missing_ok=True)
        allow(running, site)


def federated_table(name: str, *, clients: int, rounds: int, **changes: Any) -> dict[str, Any]:
    """A small spec whose bits are the same wherever it runs; each name is a run of its own."""
    table = small_table(
        name=name,
        rounds=rounds,
        data={"dataset": "digits", "clients": clients},
        privacy={"level": "sample", "clip_norm": 1.0, "epsilon": 4.0, "delta": 1e-5},
        runtime={"deterministic": True},
        deployment={"deadline_seconds": 60.0, "wait_seconds": 90.0},
    )
    return table | changes


def as_toml(table: Mapping[str, Any]) -> str:
    """A spec as TOML: values, tables, and tables in them."""

    def lines(part: Mapping[str, Any], prefix: str) -> Iterator[str]:
        yield from (
            f"{key} = {json.dumps(value)}"
            for key, value in part.items()
            if not isinstance(value, Mapping)
        )
        for key, value in part.items():
            if isinstance(value, Mapping):
                yield f"[{prefix}{key}]"
                yield from lines(value, f"{prefix}{key}.")

    return "\n".join(lines(table, "")) + "\n"


def spec_of(table: Mapping[str, Any]) -> RunSpec:
    return parse(parse_text(as_toml(table), "the test's spec"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRun:
    """A run that was handed to a link."""

    running: RunningFederation
    table: Mapping[str, Any]
    run_id: int
    out: Path

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.out)

    @property
    def name(self) -> str:
        """What ledgers call it."""
        return str(self.folder.header()["run"])

    def status(self) -> RunStatus:
        with running_link(self.running.federation) as control:
            return next(run for run in control.runs() if run.run_id == self.run_id)

    def wait_for_round(self, number: int) -> None:
        """Until `number` rounds are done; the link is asked now and then whether the run lives."""
        asks = time.monotonic() + ASK_SECONDS
        while rounds_done(self.out) < number:
            if time.monotonic() > asks:
                status = self.status()
                assert not _is_over(status), f"{status}\n{server_log(self.running)}"
                asks = time.monotonic() + ASK_SECONDS
            time.sleep(0.1)

    def wait_to_end(self) -> RunStatus:
        eventually(lambda: _is_over(self.status()), pause_seconds=0.5)
        return self.status()

    def finish(self) -> list[dict[str, Any]]:
        """Wait for success; gives the rounds."""
        status = self.wait_to_end()
        assert status.state == "finished:completed", f"{status}\n{server_log(self.running)}"
        rows = self.folder.metrics()
        assert [row["round"] for row in rows] == list(range(1, self.table["rounds"] + 1))
        return rows

    def again(self) -> "StartedRun":
        """Resume."""
        return start_run(self.running, self.table, self.out, resume=True)

    def model(self) -> Vector:
        progress = self.folder.load_checkpoint()
        assert progress is not None
        return progress.model


def start_run(
    running: RunningFederation, table: Mapping[str, Any], out: Path, *, resume: bool = False
) -> StartedRun:
    """Hand a run to the federation's link."""
    order = Order(
        name=table["name"], spec=as_toml(table), rounds=table["rounds"], out=out, resume=resume
    )
    return StartedRun(
        running=running, table=table, run_id=submit(order, running.federation), out=out
    )


def eventually(
    true: Callable[[], bool], *, seconds: float = PATIENCE_SECONDS, pause_seconds: float = 0.2
) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited in vain for {seconds:.0f} seconds"
        time.sleep(pause_seconds)


def _is_over(status: RunStatus) -> bool:
    return status.state.startswith("finished")


def server_log(running: RunningFederation) -> str:
    """What the link and the runs' servers have said."""
    return (running.federation.link_folder / "link.log").read_text(errors="replace")


# -- processes ---------------------------------------------------------------------------------


def pids_of(*words: str) -> list[int]:
    """Processes whose command lines hold all of these words (Linux)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if all(word in line for word in words) and int(process.name) != os.getpid():
                found.append(int(process.name))
    return sorted(found)


def worker_of(running: RunningFederation, site: str) -> int:
    (pid,) = _workers_of(running, site)
    return pid


def _workers_of(running: RunningFederation, site: str) -> list[int]:
    return pids_of("sottovoce.app.worker", str(running.site(site).file))


def server_of(running: RunningFederation) -> int:
    """The process of the only run's server."""
    state = state_of(running.federation.link_folder)
    assert state
    (pid,) = set(pids_of("flwr-serverapp")) & set(children_of(state["pid"]))
    return pid


def wait_for_mischief(running: RunningFederation, site: str, number: int, kind: str) -> None:
    """Until the site's worker is about to do it."""
    log = running.site(site).node_folder / "worker.log"
    eventually(lambda: f"round {number}: {kind}\n" in log.read_text())


def replace_worker(running: RunningFederation, site: str) -> None:
    """Kill a site's worker; its keeper starts it again, with Flower's node."""
    before = worker_of(running, site)
    os.kill(before, signal.SIGKILL)
    eventually(lambda: before not in (found := _workers_of(running, site)) and bool(found))


def cut_power(keeper_folder: Path) -> None:
    """As if the machine of a link or a node had lost its power: no process says goodbye."""
    state = state_of(keeper_folder)
    assert state
    for pid in (state["pid"], *children_of(state["pid"])):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: state_of(keeper_folder) is None)


def children_of(pid: int) -> list[int]:
    """All descendants of a process (Linux)."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").glob("*"):
            for child in (task / "children").read_text().split():
                found += [int(child), *children_of(int(child))]
    return found


# -- ledgers -----------------------------------------------------------------------------------


def attempts(ledger: Path, run_name: str) -> dict[tuple[str, int], int]:
    """How often each (client, round) of a run was charged."""
    if not ledger.exists():
        return {}
    with contextlib.closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as database:
        rows = database.execute(
            "SELECT client, round, COUNT(*) FROM charges WHERE run = ? GROUP BY client, round",
            (run_name,),
        ).fetchall()
    return {(client, number): count for client, number, count in rows}


def digests(ledger: Path, run_name: str) -> dict[tuple[str, int], bytes]:
    """The digest of the message that each (client, round) of a run may have sent."""
    with contextlib.closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as database:
        rows = database.execute(
            "SELECT client, round, digest FROM messages JOIN charges ON charges.id = charge "
            "WHERE run = ?",
            (run_name,),
        ).fetchall()
    return {(client, number): digest for client, number, digest in rows}


def site_attempts(started: StartedRun) -> dict[tuple[str, int], int]:
    """What all sites together have charged for a run."""
    running = started.running
    found: dict[tuple[str, int], int] = {}
    for site in running.federation.sites:
        found |= attempts(running.site(site).folder / "ledger.sqlite", started.name)
    return found


def assert_ledgers_agree(started: StartedRun) -> None:
    """Nothing was charged twice, and the server knows of everything that sites have charged."""
    server = attempts(started.out / "ledger.sqlite", started.name)
    sites = site_attempts(started)
    assert set(server.values()) <= {1}
    assert set(sites.values()) <= {1}
    assert sites.keys() <= server.keys()
    with started.folder.ledger(must_exist=True) as ledger:
        assert ledger.verify() == []


# -- the simulator -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _WithAbsentees:
    """A backend some of whose clients never get to see some rounds."""

    backend: Backend
    names: list[str]
    absent: Absent

    def able(self, number: int) -> Mask:
        return self.backend.able(number)

    def replay(self, number: int, cohort: Any) -> None:
        self.backend.replay(number, cohort)

    def collect(self, number: int, cohort: Any, start: Start) -> Collected:
        missing = self.absent.get(number, frozenset())
        return self.backend.collect(
            number, [i for i in cohort if self.names[i] not in missing], start
        )


def simulated(table: Mapping[str, Any], out: Path, absent: Absent | None = None) -> RunFolder:
    """The same spec in one process, where some clients are missing in some rounds."""

    def backend(assembly: Assembly, books: Books) -> Backend:
        names = [part.client for part in assembly.parts]
        return _WithAbsentees(
            backend=backend_here(assembly, books), names=names, absent=absent or {}
        )

    run(spec_of(table), out, backend_of=backend)
    return RunFolder(out)


def assert_model_is_simulators(
    started: StartedRun, out: Path, absent: Absent | None = None
) -> None:
    """Bit for bit the mean of those who answered, in every round."""
    expected = simulated(started.table, out, absent).load_checkpoint()
    assert expected is not None
    np.testing.assert_array_equal(started.model(), expected.model)
