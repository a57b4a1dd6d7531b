"""The collector as a real program: killed in a run, asked a question, and stopped."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import call, printed_json
from federated_runs import as_toml
from relay_training import answering, nodes_of, table_of
from relayed_people import people_of
from two_operators import Operators, create_operators, running_operators, start_in_background

from sottovoce.deployment.machines.processes import state_of
from sottovoce.deployment.operators.folders import CollectorFolder
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.runs.folder import RunFolder

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.slow
SECONDS = 3


def eventually(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def submitted(operators: Operators, name: str) -> subprocess.Popen[str]:
    """Submit a run by the command, and follow it in another process."""
    changes: dict[str, Any] = {
        "deployment": {"deadline_seconds": float(SECONDS), "idle_rounds": 100},
        "mechanism": {"kind": "clamped_sign", "logit_bound": 0.5, "noise_multiplier": 1.0},
        "privacy": {"level": "client", "clip_norm": 1.0, "epsilon": 900.0, "delta": 1e-5},
    }
    spec = operators.folder / f"{name}.toml"
    spec.write_text(as_toml(table_of(name, rounds=20, **changes)))
    folder = operators.collector.folder
    command = [sys.executable, "-m", "sottovoce", "deploy", "run", str(folder), str(spec)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def worker_of(collector: CollectorFolder) -> int:
    return int((collector.state_folder / "ready").read_text())


def charges_of(out: RunFolder) -> int:
    """Return how many charges a run's ledger has, while another process uses it."""
    path = out.path / LEDGER_NAME
    if not out.exists:
        return 0
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        ((count,),) = database.execute("SELECT count(*) FROM charges")
        return int(count)


def states(operators: Operators) -> list[str]:
    shown = printed_json("deploy", "status", str(operators.collector.folder))
    return [row["state"] for row in shown["runs"]]


def test_a_run_outlives_its_worker_and_its_command(tmp_path: Path) -> None:
    operators = create_operators(tmp_path)
    collector, folder = operators.collector, str(operators.collector.folder)
    nodes = nodes_of(operators, retries=10)
    out = RunFolder(collector.runs_folder / "long")
    with running_operators(operators):
        with answering(nodes):
            following = submitted(operators, "long")
            eventually(lambda: charges_of(out) == 6)  # of the second round, which is open now
            os.kill(worker_of(collector), signal.SIGKILL)
            eventually(lambda: len(out.metrics()) == 2)
            following.send_signal(signal.SIGINT)
            errors = following.communicate(timeout=60)[1]
            assert (following.returncode, states(operators)) == (130, ["running"])
            assert f"sottovoce deploy stop {folder} --run 1" in errors
            assert printed_json("deploy", "stop", folder, "--run", "1") == {"stopped": "run 1"}
        people = people_of(operators, {name: [20, 30, 40] for name in "abc"})
        question = ["mean", "--about", "age", "--lower", "0", "--upper", "100", "--epsilon", "2"]
        with answering(people) as told:
            asked = call("deploy", "ask", folder, *question, "--deadline", str(SECONDS), "--json")
        assert asked.code == 0, told
        assert json.loads(asked.out)["people"] == 9
        shown = printed_json("deploy", "status", folder)
        assert (shown["collector"], shown["relay"], shown["clients"]) == ("running", "answers", 6)
        assert states(operators) == ["finished:stopped", "finished:completed"]
        assert printed_json("deploy", "check", folder)["ok"]
    assert [row["round"] for row in out.metrics()][:2] == [1, 2]
    with Ledger(out.path / LEDGER_NAME) as ledger:
        # The round that was open when the worker was killed is charged again.
        assert ledger.num_charges >= 3 * 3
        assert ledger.verify() == []


def test_what_a_killed_collector_has_left_is_ended_and_its_run_continues(tmp_path: Path) -> None:
    operators = create_operators(tmp_path)
    collector, folder = operators.collector, str(operators.collector.folder)
    nodes_of(operators)
    start_in_background("collector", collector.folder)
    following = submitted(operators, "first")
    eventually(lambda: states(operators) == ["running"])
    worker, state = worker_of(collector), state_of(collector.state_folder)
    assert state is not None
    record = collector.state_folder / "processes" / "worker.json"
    guard = json.loads(record.read_bytes())[0][0]
    for pid in (guard, state["pid"]):
        os.kill(pid, signal.SIGSTOP)
    for pid in (guard, state["pid"]):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: state_of(collector.state_folder) is None)
    errors = following.communicate(timeout=60)[1]
    assert following.returncode == 2
    assert "the run then continues by itself" in errors
    assert states(operators) == ["interrupted"]
    start_in_background("collector", collector.folder)
    eventually(lambda: not Path(f"/proc/{worker}").exists() or worker_of(collector) != worker)
    eventually(lambda: states(operators) == ["running"])
    stopped = printed_json("deploy", "stop", folder)
    assert (stopped["stopped"], stopped["interrupted"]) == ("the collector", [1])
    assert printed_json("deploy", "stop", folder, "--run", "1") == {"stopped": "run 1"}
    assert states(operators) == ["finished:stopped"]
