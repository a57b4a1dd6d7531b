"""Sites that die, hang, refuse or lie, and servers that die: real processes, TLS and keys.

One federation serves all tests: each test has a run of its own, and leaves all sites well.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
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
    site_names,
    start_run,
)
from federations import RunningFederation, mischievous_worker, rehearsal
from mischievous_worker import HOSTILE, MISCHIEF

pytest.importorskip("flwr")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="watches processes in /proc")

SITES = site_names(3)
LAST = SITES[-1]
DEADLINE_SECONDS = 15.0
MARGIN_SECONDS = 10.0  # what else a round does, on a busy machine


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFederation]:
    folder = tmp_path_factory.mktemp("faults")
    with rehearsal(folder, sites=SITES, stubs=mischievous_worker(), start=False) as running:
        for site in SITES:
            set_policy(running, site)
        running.start_link()
        for site in SITES:
            running.start_node(site)
        yield running


@pytest.fixture
def running(federation: RunningFederation) -> Iterator[RunningFederation]:
    yield federation
    for site in SITES:
        (federation.site(site).folder / MISCHIEF).unlink(missing_ok=True)
        set_policy(federation, site)


def set_policy(running: RunningFederation, site: str, **changes: Any) -> None:
    """The site's policy, with room for every test; a running node reads it anew for each task."""
    policy = {
        "mechanisms": ["gauss_hermite"],
        "level": "sample",
        "adjacency": "zero-out",
        "epsilon_per_round": 10.0,
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
    (running.site(site).folder / MISCHIEF).write_text(json.dumps(kinds))


def start(running: RunningFederation, folder: Path, *, rounds: int, **changes: Any) -> StartedRun:
    """A run named after the test's folder."""
    deployment = {"deadline_seconds": DEADLINE_SECONDS, "wait_seconds": 90.0}
    deployment |= changes.pop("deployment", {})
    table = federated_table(
        folder.name, clients=len(SITES), rounds=rounds, deployment=deployment, **changes
    )
    return start_run(running, table, folder / "run")


def durations(run: StartedRun, through: int | None = None) -> dict[int, float]:
    """How many seconds each round took, watched from outside."""
    seconds: dict[int, float] = {}
    run.wait_for_round(1)
    started = time.monotonic()
    for number in range(2, (through or run.table["rounds"]) + 1):
        run.wait_for_round(number)
        seconds[number] = time.monotonic() - started
        started = time.monotonic()
    return seconds


def missing(rows: list[dict[str, Any]], site: str) -> dict[int, frozenset[str]]:
    """The rounds that went on without one site, the only one that could be missing."""
    assert {row["clients_received"] for row in rows} <= {len(SITES) - 1, len(SITES)}
    return {row["round"]: frozenset([site]) for row in rows if row["clients_received"] < len(SITES)}


def test_hostile_replies_are_dropped_and_counted(
    running: RunningFederation, tmp_path: Path
) -> None:
    honest, *hostile = SITES
    kinds = list(HOSTILE)
    plans = [dict(enumerate(kinds[i::2], start=2)) for i in range(2)]
    for site, plan in zip(hostile, plans, strict=True):
        misbehave(running, site, plan)
    run = start(running, tmp_path, rounds=2 + len(plans[0]))
    rows = run.finish()
    liars = {
        row["round"]: frozenset(
            site for site, plan in zip(hostile, plans, strict=True) if row["round"] in plan
        )
        for row in rows
    }
    for row in rows:
        assert row["replies_dropped"] == len(liars[row["round"]])
        assert row["clients_received"] == len(SITES) - row["replies_dropped"]
    assert sum(row["replies_dropped"] for row in rows) == len(HOSTILE)
    assert_ledgers_agree(run)
    assert site_attempts(run) == attempts(run.out / "ledger.sqlite", run.name)
    assert_model_is_simulators(run, tmp_path / "simulated", liars)


def test_a_reply_that_never_comes_whole_holds_up_nobody(
    running: RunningFederation, tmp_path: Path
) -> None:
    misbehave(running, LAST, {2: "withheld"})
    run = start(running, tmp_path, rounds=3)
    seconds = durations(run)
    rows = run.finish()
    assert [row["clients_received"] for row in rows[:2]] == [3, 2]
    assert seconds[2] < DEADLINE_SECONDS + MARGIN_SECONDS
    assert_ledgers_agree(run)
    assert_model_is_simulators(run, tmp_path / "simulated", missing(rows, LAST))


def test_a_second_reply_to_an_order_counts_for_nothing(
    running: RunningFederation, tmp_path: Path
) -> None:
    misbehave(running, LAST, {2: "twice"})
    run = start(running, tmp_path, rounds=3)
    rows = run.finish()
    # The first one counts, and it was not what was announced.
    assert [row["clients_received"] for row in rows] == [3, 2, 3]
    assert [row["replies_dropped"] for row in rows] == [0, 1, 0]
    assert_model_is_simulators(run, tmp_path / "simulated", missing(rows, LAST))


def test_a_worker_that_exits_is_started_again_with_its_node(
    running: RunningFederation, tmp_path: Path
) -> None:
    before = worker_of(running, LAST)
    misbehave(running, LAST, {2: "exit"})
    run = start(running, tmp_path, rounds=5)
    rows = run.finish()
    assert rows[1]["clients_received"] == 2
    assert rows[-1]["clients_received"] == 3
    assert worker_of(running, LAST) != before
    said = (running.site(LAST).node_folder / "keeper.log").read_text()
    assert f"the worker of '{LAST}' ended with code 3" in said
    assert "starting again in 1 s" in said
    assert_ledgers_agree(run)
    assert (LAST, 2) in site_attempts(run)  # its message was about to leave
    assert_model_is_simulators(run, tmp_path / "simulated", missing(rows, LAST))


def test_a_killed_node_is_done_without_and_takes_part_again(
    running: RunningFederation, tmp_path: Path
) -> None:
    run = start(running, tmp_path, rounds=6)
    run.wait_for_round(1)
    kill_node(running, LAST)
    running.start_node(LAST)
    rows = run.finish()
    assert rows[0]["clients_received"] == rows[-1]["clients_received"] == 3
    assert missing(rows, LAST)
    assert_ledgers_agree(run)
    assert_model_is_simulators(run, tmp_path / "simulated", missing(rows, LAST))


def test_a_round_closes_at_its_deadline_and_late_replies_are_discarded(
    running: RunningFederation, tmp_path: Path
) -> None:
    run = start(running, tmp_path, rounds=4)
    run.wait_for_round(1)
    worker = worker_of(running, LAST)
    os.kill(worker, signal.SIGSTOP)
    try:
        seconds = durations(run, through=3)
    finally:
        os.kill(worker, signal.SIGCONT)
    rows = run.finish()
    absent = missing(rows, LAST)
    assert absent
    for number in absent:
        if number <= 3:
            assert seconds[number] < DEADLINE_SECONDS + MARGIN_SECONDS
    assert all(row["replies_dropped"] == 0 for row in rows)
    server = attempts(run.out / "ledger.sqlite", run.name)
    assert all((LAST, number) in server for number in absent)
    assert_ledgers_agree(run)
    assert_model_is_simulators(run, tmp_path / "simulated", absent)
    assert worker_of(running, LAST) == worker
