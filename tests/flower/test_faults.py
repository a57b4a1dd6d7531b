"""Sites that die, hang, refuse or lie: real processes, with TLS and keys.

One federation serves all tests: each has a run of its own, and leaves all sites well.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from federated_runs import (
    StartedRun,
    assert_ledgers_agree,
    assert_model_is_simulators,
    attempts,
    federated_table,
    site_attempts,
    start_run,
)
from federation_faults import (
    allow,
    calm_down,
    cut_power,
    eventually,
    misbehave,
    replace_worker,
    site_names,
    training_federation,
    wait_for_mischief,
    worker_of,
)
from federations import REAL_PROCESSES, RunningFederation
from mischievous_worker import HOSTILE

from sottovoce.deployment.machines import processes
from sottovoce.deployment.machines.address import free_port
from sottovoce.flower.client import NO_SITE

pytest.importorskip("flwr")
pytestmark = REAL_PROCESSES

SITES = site_names(3)
LAST = SITES[-1]
DEADLINE_SECONDS = 30.0  # nobody who answers at all is as late as that, on a busy machine either
MARGIN_SECONDS = 10.0  # for what else a round does, on a busy machine


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFederation]:
    with training_federation(tmp_path_factory.mktemp("faults"), SITES) as running:
        yield running


@pytest.fixture
def running(federation: RunningFederation) -> Iterator[RunningFederation]:
    yield federation
    calm_down(federation)


def start(running: RunningFederation, folder: Path, *, rounds: int, **waiting: Any) -> StartedRun:
    """A run named after its folder."""
    deployment = {"deadline_seconds": DEADLINE_SECONDS, "wait_seconds": 90.0} | waiting
    name = f"{folder.parent.name} {folder.name}"
    table = federated_table(name, clients=len(SITES), rounds=rounds, deployment=deployment)
    return start_run(running, table, folder)


def received(rows: list[dict[str, Any]]) -> list[int]:
    return [row["clients_received"] for row in rows]


def dropped(rows: list[dict[str, Any]]) -> list[int]:
    return [row["replies_dropped"] for row in rows]


def test_hostile_replies_are_dropped_and_counted(
    running: RunningFederation, tmp_path: Path
) -> None:
    hostile, kinds = SITES[1:], list(HOSTILE)
    plans = {site: dict(enumerate(kinds[i::2], start=2)) for i, site in enumerate(hostile)}
    for site, plan in plans.items():
        misbehave(running, site, plan)
    rounds = 2 + len(plans[hostile[0]])
    run = start(running, tmp_path / "run", rounds=rounds, deadline_seconds=90.0)
    rows = run.finish()
    liars = {
        row["round"]: frozenset(site for site, plan in plans.items() if row["round"] in plan)
        for row in rows
    }
    assert dropped(rows) == [len(liars[row["round"]]) for row in rows]
    assert received(rows) == [len(SITES) - count for count in dropped(rows)]
    assert sum(dropped(rows)) == len(HOSTILE)
    assert_ledgers_agree(run)
    assert site_attempts(run) == attempts(run.out / "ledger.sqlite", run.name)
    assert_model_is_simulators(run, tmp_path / "simulated", liars)


def test_a_reply_far_longer_than_what_is_due_never_reaches_the_link(
    running: RunningFederation, tmp_path: Path
) -> None:
    misbehave(running, LAST, {2: "flood"})
    run = start(running, tmp_path / "run", rounds=3)
    rows = run.finish()
    assert received(rows) == [3, 2, 3]  # refused, its node goes on
    folder = running.federation.link_folder
    assert sum(file.stat().st_size for file in folder.glob("flower.sqlite*")) < 20_000_000
    said = (folder / "gate.log").read_text()
    assert f"'{LAST}' is refused /v1/fleet/push-object with 30000" in said
    assert "Failed to send message" in (running.site(LAST).node_folder / "node.log").read_text()
    assert_model_is_simulators(run, tmp_path / "simulated", {2: frozenset([LAST])})


def test_of_two_replies_to_an_order_the_first_counts(
    running: RunningFederation, tmp_path: Path
) -> None:
    misbehave(running, LAST, {1: "twice"})  # and the first is not what was announced
    run = start(running, tmp_path / "run", rounds=2)
    rows = run.finish()
    assert received(rows) == [2, 3]
    assert dropped(rows) == [1, 0]
    assert_model_is_simulators(run, tmp_path / "simulated", {1: frozenset([LAST])})


def test_a_reply_that_never_comes_whole_holds_up_no_one(
    running: RunningFederation, tmp_path: Path
) -> None:
    misbehave(running, LAST, {2: "withheld"})
    run = start(running, tmp_path / "run", rounds=2)
    run.wait_for_round(1)
    started = time.monotonic()
    run.wait_for_round(2)
    seconds = time.monotonic() - started
    rows = run.finish()
    # Flower's node waits for the rest as well, until it is started again: its own site's loss.
    replace_worker(running, LAST)
    assert received(rows) == [3, 2]
    assert seconds < DEADLINE_SECONDS + MARGIN_SECONDS
    assert_ledgers_agree(run)
    assert_model_is_simulators(run, tmp_path / "simulated", {2: frozenset([LAST])})


def test_a_round_closes_at_its_deadline_and_late_replies_are_discarded(
    running: RunningFederation, tmp_path: Path
) -> None:
    misbehave(running, LAST, {2: "stopped"})
    run = start(running, tmp_path / "run", rounds=3)
    run.wait_for_round(1)
    started = time.monotonic()
    try:
        run.wait_for_round(2)
    finally:
        os.kill(worker_of(running, LAST), signal.SIGCONT)
    seconds = time.monotonic() - started
    rows = run.finish()
    assert DEADLINE_SECONDS - 1.0 < seconds < DEADLINE_SECONDS + MARGIN_SECONDS
    assert received(rows) == [3, 2, 3]
    assert dropped(rows) == [0, 0, 0]
    assert_ledgers_agree(run)
    assert site_attempts(run) == attempts(run.out / "ledger.sqlite", run.name)
    assert_model_is_simulators(run, tmp_path / "simulated", {2: frozenset([LAST])})


def test_a_worker_that_exits_is_started_again_with_its_node(
    running: RunningFederation, tmp_path: Path
) -> None:
    before = worker_of(running, LAST)
    misbehave(running, LAST, {2: "exit"})
    # The third round waits until all are there again; the second changes nothing.
    run = start(running, tmp_path / "run", rounds=3, deadline_seconds=60.0, minimum_replies=3)
    rows = run.finish()
    assert received(rows) == [3, 2, 3]
    assert worker_of(running, LAST) != before
    said = (running.site(LAST).node_folder / "keeper.log").read_text()
    assert f"the worker of '{LAST}' ended with code 3" in said
    assert "starting again in 1 s" in said
    assert_ledgers_agree(run)
    assert site_attempts(run)[LAST, 2] == 1  # its message was about to leave
    assert_model_is_simulators(run, tmp_path / "simulated", {2: frozenset(SITES)})


def test_a_killed_node_is_done_without_and_takes_part_again(
    running: RunningFederation, tmp_path: Path
) -> None:
    misbehave(running, LAST, {2: "stopped"})
    run = start(running, tmp_path / "without", rounds=3)
    wait_for_mischief(running, LAST, 2, "stopped")
    cut_power(running.site(LAST).node_folder)
    assert received(run.finish()) == [3, 2, 2]
    assert_ledgers_agree(run)
    assert site_attempts(run)[LAST, 2] == 1  # its message was about to leave
    absent = frozenset([LAST])
    assert_model_is_simulators(run, tmp_path / "simulated", {2: absent, 3: absent})
    running.start_node(LAST)  # at once, though the link may believe that it is still there
    run = start(running, tmp_path / "with", rounds=1)
    assert received(run.finish()) == [3]


def test_a_run_that_every_site_refuses_stops_and_says_why(
    running: RunningFederation, tmp_path: Path
) -> None:
    allow(running, SITES[0], epsilon_per_round=0.01)
    file = running.site(SITES[1]).file
    file.write_text(file.read_text().partition("[policy]")[0])
    allow(running, LAST, epsilon_total=0.01)
    try:
        run = start(running, tmp_path / "run", rounds=5, idle_rounds=2)
        status = run.wait_to_end()
    finally:
        file.write_text(file.read_text() + "[policy]\n")
    assert status.state == "finished:failed"
    assert "2 rounds in a row, up to round 2, brought fewer than 1 replies" in status.details
    assert f"'{SITES[0]}': the round costs epsilon" in status.details
    assert "'epsilon_per_round' is 0.01" in status.details
    assert f"'{SITES[1]}': {NO_SITE}" in status.details
    assert "'epsilon_total' is 0.01" in status.details
    assert site_attempts(run) == {}
    server = attempts(run.out / "ledger.sqlite", run.name)
    assert server == {(site, number): 1 for site in SITES for number in (1, 2)}


@contextlib.contextmanager
def stock_node(running: RunningFederation, name: str, **more: str) -> Iterator[None]:
    """Flower's own node, which runs the app that comes with a run."""
    site = running.site(name)
    log = site.node_folder / "stock.log"
    command = [
        processes.program("flower-supernode"),
        *("--superlink", str(site.address)),
        *("--root-certificates", str(site.root_certificate)),
        *("--auth-supernode-private-key", str(site.private_key)),
        *("--port", str(free_port())),
    ]
    environment = running.environment | processes.environment(site.node_folder / "flower") | more
    environment["PYTHONPATH"] = running.environment["PYTHONPATH"]
    with log.open("wb") as output:
        node = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        eventually(lambda: b"SuperNode ID" in log.read_bytes() or node.poll() is not None)
        assert node.poll() is None, log.read_text()
        yield
    finally:
        node.terminate()
        node.wait(30.0)


def test_a_stock_node_answers_under_a_policy_or_not_at_all(
    running: RunningFederation, tmp_path: Path
) -> None:
    running.stop_node(LAST)
    try:
        with stock_node(running, LAST):
            refused = start(running, tmp_path / "refused", rounds=1, deadline_seconds=60.0)
            assert received(refused.finish()) == [2]
        with stock_node(running, LAST, SOTTOVOCE_SITE=str(running.site(LAST).file)):
            answered = start(running, tmp_path / "answered", rounds=1, deadline_seconds=60.0)
            assert received(answered.finish()) == [3]
    finally:
        running.start_node(LAST)
    assert f"no message of '{LAST}': {NO_SITE}" in refused.log()
    assert (LAST, 1) not in site_attempts(refused)
    assert_ledgers_agree(answered)
    assert_model_is_simulators(answered, tmp_path / "simulated")
