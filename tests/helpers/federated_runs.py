"""Runs over a rehearsal federation: start, watch, resume, and hold against the simulator."""

import contextlib
import json
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from federation_faults import PATIENCE_SECONDS, eventually
from federations import RunningFederation
from specs import small_table

from sottovoce.core.domains import Vector
from sottovoce.deployment.machines import processes
from sottovoce.deployment.machines.submitted_runs import RunStatus, RunSubmission, rounds_done
from sottovoce.federated.training import CollectedRound, Mask, RoundBackend
from sottovoce.flower.link import CONNECTION, flower_home, running_link
from sottovoce.flower.runs import submit
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import SpendingRecord
from sottovoce.protocol.broadcast import Start
from sottovoce.runs.build import make_stored_backend
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.loading import parse, parse_text
from sottovoce.runs.resolve import Resolved
from sottovoce.runs.runner import run
from sottovoce.runs.spec import RunSpec

ASK_SECONDS = 5.0
Absent = Mapping[int, frozenset[str]]


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
            return control.run(self.run_id)

    def wait_for_round(self, number: int) -> None:
        """Until `number` rounds are done; the link is asked now and then whether the run lives."""
        asks = time.monotonic() + ASK_SECONDS
        while rounds_done(self.out) < number:
            if time.monotonic() > asks:
                status = self.status()
                assert not status.has_ended, f"{status}\n{self.log()}"
                asks = time.monotonic() + ASK_SECONDS
            time.sleep(0.1)

    def wait_to_end(self) -> RunStatus:
        eventually(lambda: self.status().has_ended, pause_seconds=0.5)
        return self.status()

    def finish(self) -> list[dict[str, Any]]:
        """Wait for success; gives the rounds."""
        status = self.wait_to_end()
        assert status.state == "finished:completed", f"{status}\n{self.log()}"
        rows = self.folder.metrics()
        assert [row["round"] for row in rows] == list(range(1, self.table["rounds"] + 1))
        return rows

    def again(self) -> "StartedRun":
        """Resume."""
        return start_run(self.running, self.table, self.out, resume=True)

    def log(self) -> str:
        """What the run's server has said, as its operator reads it."""
        found = subprocess.run(
            [processes.program("flwr"), "log", str(self.run_id), CONNECTION, "--show"],
            capture_output=True,
            text=True,
            env=processes.environment(flower_home(self.running.federation)),
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        return found.stdout + found.stderr

    def model(self) -> Vector:
        progress = self.folder.load_checkpoint()
        assert progress is not None
        return progress.model


def start_run(
    running: RunningFederation, table: Mapping[str, Any], out: Path, *, resume: bool = False
) -> StartedRun:
    """Hand a run to the federation's link."""
    order = RunSubmission(
        name=table["name"],
        task={"spec": as_toml(table), "resume": resume},
        rounds=table["rounds"],
        out=out,
    )
    return StartedRun(
        running=running, table=table, run_id=submit(order, running.federation), out=out
    )


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
    """Nothing was charged twice, nor sent uncharged, and the server knows of all of it."""
    server = attempts(started.out / "ledger.sqlite", started.name)
    sites = site_attempts(started)
    assert set(server.values()) <= {1}
    assert set(sites.values()) <= {1}
    assert sites.keys() <= server.keys()
    charged = Counter(number for _, number in sites)
    for row in started.folder.metrics():  # whatever was counted in had been charged
        assert row["clients_received"] <= charged[row["round"]]
    with started.folder.ledger() as ledger:
        assert ledger.verify() == []


# -- the simulator -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _WithAbsentees:
    """A backend some of whose clients never get to see some rounds."""

    backend: RoundBackend
    names: list[str]
    absent: Absent

    @property
    def record(self) -> SpendingRecord:
        return self.backend.record

    def clients_with_budget(self, number: int) -> Mask:
        return self.backend.clients_with_budget(number)

    def replay(self, number: int, drawn: Any) -> None:
        self.backend.replay(number, drawn)

    def collect(self, number: int, cohort: Any, start: Start) -> CollectedRound:
        missing = self.absent.get(number, frozenset())
        return self.backend.collect(
            number, [i for i in cohort if self.names[i] not in missing], start
        )


def simulated(table: Mapping[str, Any], out: Path, absent: Absent | None = None) -> RunFolder:
    """The same spec in one process, where some clients are missing in some rounds."""

    def backend(resolved: Resolved, ledger: Ledger) -> RoundBackend:
        names = [part.client for part in resolved.parts]
        return _WithAbsentees(
            backend=make_stored_backend(resolved, ledger), names=names, absent=absent or {}
        )

    run(spec_of(table), out, make_backend=backend)
    return RunFolder(out)


def assert_model_is_simulators(
    started: StartedRun, out: Path, absent: Absent | None = None
) -> None:
    """Bit for bit the mean of those who answered, in every round."""
    expected = simulated(started.table, out, absent).load_checkpoint()
    assert expected is not None
    np.testing.assert_array_equal(started.model(), expected.model)
