"""The collector's jobs: stopped, failed, interrupted and continued, with jobs that do nothing."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from federated_runs import as_toml
from relay_training import nodes_of, table_of
from relayed_people import MEAN
from two_operators import Operators, create_operators

from sottovoce.analytics.question import to_json
from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines import processes
from sottovoce.deployment.machines.job_queue import JobQueue, JobState, open_jobs
from sottovoce.deployment.machines.processes import hold_supervisor_lock
from sottovoce.deployment.machines.submitted_runs import ESTIMATE_NAME, RunSubmission
from sottovoce.deployment.operators.collector_program import keep_collector
from sottovoce.deployment.operators.collector_runs import (
    QUESTION,
    RUN,
    open_collector_runs,
    queue_file,
    runs_of,
    stop_collector_run,
)
from sottovoce.deployment.operators.collector_worker import (
    MOST_INTERRUPTIONS,
    CurrentJob,
    Work,
    work_once,
)
from sottovoce.deployment.operators.folders import CollectorFolder

SPEC: dict[str, Any] = {"spec": "{}", "resume": False, "allow_code": False}
ASKED: dict[str, Any] = {"question": to_json(MEAN), "about": "age", "channel": "secure_sum"}


class Killed(BaseException):
    """The worker has been killed."""


@pytest.fixture
def operators(tmp_path: Path) -> Operators:
    return create_operators(tmp_path)


@contextlib.contextmanager
def program_of(collector: CollectorFolder) -> Iterator[JobQueue]:
    """Look like a collector that runs; what works on its jobs is this process."""
    with (
        hold_supervisor_lock(collector.state_folder, what="the collector") as announce,
        open_jobs(queue_file(collector)) as queue,
    ):
        queue.end_stopped()
        announce({})
        yield queue


def submit(collector: CollectorFolder, name: str, task: Mapping[str, Any] = SPEC) -> int:
    out = collector.runs_folder / name
    with open_collector_runs(collector) as runs:
        return runs.submit(RunSubmission(name=name, task=task, rounds=2, out=out))


def states(collector: CollectorFolder) -> list[str]:
    return [row["state"] for row in runs_of(collector)]


def killed(_: CollectorFolder, __: CurrentJob) -> None:
    raise Killed


def finished(_: CollectorFolder, __: CurrentJob) -> None:
    """Nothing is left to do."""


def test_a_run_that_was_interrupted_is_resumed_and_a_question_fails(operators: Operators) -> None:
    collector = operators.collector
    assert states(collector) == []
    with program_of(collector) as queue:
        numbers = submit(collector, "first"), submit(collector, "question", ASKED)
        assert states(collector) == ["pending", "pending"]
        with pytest.raises(Killed):
            work_once(collector.folder, queue, {RUN: killed})
        assert states(collector) == ["running", "pending"]
    assert states(collector) == ["interrupted", "pending"]
    again: list[int] = []

    def work(_: CollectorFolder, current: CurrentJob) -> None:
        again.append(current.job.interruptions)
        current.note_round({"round": 1})

    with program_of(collector) as queue:
        assert work_once(collector.folder, queue, {RUN: work})
        with pytest.raises(Killed):
            work_once(collector.folder, queue, {QUESTION: killed})
    with program_of(collector) as queue:
        assert work_once(collector.folder, queue)
        assert not work_once(collector.folder, queue)
    assert again == [1]
    assert states(collector) == ["finished:completed", "finished:failed"]
    row = runs_of(collector)[numbers[1] - 1]
    assert "clients that had answered are charged" in row["details"]
    assert (row["name"], row["rounds"], row["rounds_done"]) == ("question", 2, 0)


def test_a_question_that_was_answered_before_the_worker_ended_is_finished(
    operators: Operators,
) -> None:
    collector = operators.collector

    def work(_: CollectorFolder, current: CurrentJob) -> None:
        current.job.folder.mkdir()
        (current.job.folder / ESTIMATE_NAME).write_text("{}")
        raise Killed

    with program_of(collector) as queue:
        submit(collector, "question", ASKED)
        with pytest.raises(Killed):
            work_once(collector.folder, queue, {QUESTION: work})
        work_once(collector.folder, queue)
    assert states(collector) == ["finished:completed"]


def test_a_run_whose_worker_ends_again_and_again_fails(operators: Operators) -> None:
    collector = operators.collector
    with program_of(collector) as queue:
        submit(collector, "first")
        for _ in range(MOST_INTERRUPTIONS + 1):
            with pytest.raises(Killed):
                work_once(collector.folder, queue, {RUN: killed})
        work_once(collector.folder, queue)
        assert states(collector) == ["finished:failed"]
        assert "times in the same round" in queue.job(1).reason


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (DeploymentError("ask for less"), "ask for less"),
        (ZeroDivisionError("none left"), "ZeroDivisionError: none left"),
    ],
)
def test_a_run_that_fails_is_not_repeated(
    operators: Operators, error: Exception, said: str
) -> None:
    collector = operators.collector

    def work(_: CollectorFolder, __: CurrentJob) -> None:
        raise error

    with program_of(collector) as queue:
        submit(collector, "first")
        work_once(collector.folder, queue, {RUN: work})
        assert not work_once(collector.folder, queue)
    assert [(row["state"], row["details"]) for row in runs_of(collector)] == [
        ("finished:failed", said)
    ]


def test_a_run_is_stopped_while_it_waits_and_after_a_round(operators: Operators) -> None:
    collector = operators.collector
    slept: list[float] = []

    def waits(_: CollectorFolder, current: CurrentJob) -> None:
        CurrentJob(queue=current.queue, job=current.job, pause=asked).wait(600.0)

    def rounds(_: CollectorFolder, current: CurrentJob) -> None:
        current.queue.ask_to_stop(current.job.number)
        current.note_round({"round": 1})

    def asked(seconds: float) -> None:
        slept.append(seconds)
        queue.ask_to_stop(1)

    with program_of(collector) as queue:
        for work in (waits, rounds):
            submit(collector, work.__name__)
            assert work_once(collector.folder, queue, {RUN: work})
    assert states(collector) == ["finished:stopped"] * 2
    assert len(slept) == 1


def test_a_run_can_be_stopped_while_the_collector_does_not_run(operators: Operators) -> None:
    collector = operators.collector
    with pytest.raises(DeploymentError, match="has no runs yet"):
        stop_collector_run(collector, 1)
    with program_of(collector) as queue:
        submit(collector, "first")
        with pytest.raises(Killed):
            work_once(collector.folder, queue, {RUN: killed})
    assert stop_collector_run(collector, 1)
    assert states(collector) == ["finished:stopped"]
    with program_of(collector) as queue:
        assert queue.job(1).state is JobState.STOPPED
        assert not work_once(collector.folder, queue)
        assert submit(collector, "first") == 2  # as with --resume, into the same folder


def test_who_follows_a_run_is_told_when_the_collector_ends(operators: Operators) -> None:
    collector = operators.collector
    with contextlib.ExitStack() as stack:
        with program_of(collector) as queue:
            submit(collector, "first")
            submit(collector, "question", ASKED)
            runs = stack.enter_context(open_collector_runs(collector))
            assert runs.status(1).state == "pending"
            work_once(collector.folder, queue, {RUN: finished})
        assert runs.status(1).state == "finished:completed"
        # It was not begun, so whoever asked again would ask twice.
        with pytest.raises(DeploymentError, match="has not begun, is then asked"):
            runs.status(2)
        with program_of(collector) as queue, pytest.raises(Killed):
            work_once(collector.folder, queue, {QUESTION: killed})
        with pytest.raises(DeploymentError, match="is then listed as failed; ask it again"):
            runs.status(2)


def test_a_second_collector_of_a_folder_is_refused(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_LOCK_SECONDS", 0.0)
    with (
        program_of(operators.collector),
        pytest.raises(DeploymentError, match="the collector is already running"),
    ):
        keep_collector(operators.collector, on_ready=lambda: None)


def test_commands_say_how_to_start_a_collector_that_does_not_run(
    cli: Any, operators: Operators
) -> None:
    nodes_of(operators)
    folder = operators.collector.folder
    spec = operators.folder / "spec.toml"
    spec.write_text(as_toml(table_of("first")))
    question = ["mean", "--about", "age", "--lower", "0", "--upper", "1", "--epsilon", "1"]
    for words in (["run", folder, spec], ["ask", folder, *question]):
        refused = cli("deploy", *words)
        assert refused.code == 2
        assert f"sottovoce deploy collector {folder} --background" in refused.err
    assert list((folder / "runs").iterdir()) == []
    shown = cli("deploy", "check", folder)
    assert "the collector is not running" in shown.out
    assert cli("deploy", "stop", folder, "--run", 3).code == 2
    assert "was not running" in cli("deploy", "stop", folder).out


def test_a_spec_below_the_collectors_own_numbers_is_refused_before_any_charge(
    cli: Any, operators: Operators
) -> None:
    nodes_of(operators)
    folder = operators.collector.folder
    file = folder / "collector.toml"
    spec = operators.folder / "spec.toml"
    spec.write_text(as_toml(table_of("few")))
    for name, least in (("minimum_clients", 3), ("colluders", 2)):
        text = file.read_text()
        file.write_text(text.replace(f"{name} = {least - 1}", f"{name} = {least}"))
        refused = cli("deploy", "run", folder, spec)
        assert refused.code == 2
        assert f"channel.{name} = {least - 1} is less than the {least}" in refused.err
        file.write_text(text)
    assert list((folder / "runs").iterdir()) == []


def test_status_shows_the_runs_and_why_they_failed(cli: Any, operators: Operators) -> None:
    collector = operators.collector

    def work(_: CollectorFolder, __: CurrentJob) -> None:
        raise DeploymentError("no client answers")

    kinds: dict[str, Work] = {RUN: work}
    with program_of(collector) as queue:
        submit(collector, "first")
        work_once(collector.folder, queue, kinds)
        submit(collector, "second")
        queue.take()
    text = cli("deploy", "status", collector.folder).out
    assert "run 1: no client answers" in text
    assert "run 2: it continues when the collector is started" in text
    shown = json.loads(cli("deploy", "status", collector.folder, "--json").out)
    assert (shown["collector"], shown["relay"]) == ("not running", "does not answer")
    assert [row["state"] for row in shown["runs"]] == ["finished:failed", "interrupted"]
    stopped = cli("deploy", "stop", collector.folder)
    assert f"sottovoce deploy stop {collector.folder} --run 2" in stopped.out


def test_watch_shows_a_collectors_last_run(cli: Any, operators: Operators) -> None:
    collector = operators.collector
    assert cli("watch", collector.folder, "--once").code == 2
    assert "no run of" in cli("report", collector.folder).err
    with program_of(collector) as queue:
        submit(collector, "first")
        submit(collector, "question", ASKED)
        queue.take()
        queue.end(1, JobState.FAILED, "no client answers")
    shown = json.loads(cli("watch", collector.folder, "--once", "--json").out)
    assert (shown["state"], shown["detail"]) == ("failed", "no client answers")
    assert shown["folder"] == str(collector.runs_folder / "first")
