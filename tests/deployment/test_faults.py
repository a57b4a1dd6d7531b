"""Sites that die, hang, refuse or lie, and servers that die: real processes, TLS and keys.

One federation serves all tests: each test has a run of its own, and leaves all sites well.
"""

import json
import sys
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
    """A run named after the test's folder; a round waits at most 20 s."""
    deployment = {"deadline_seconds": 20.0, "wait_seconds": 90.0} | changes.pop("deployment", {})
    table = federated_table(
        folder.name, clients=len(SITES), rounds=rounds, deployment=deployment, **changes
    )
    return start_run(running, table, folder / "run")


def missing(rows: list[dict[str, Any]], site: str) -> dict[int, frozenset[str]]:
    """The rounds that went on without one site, the only one that could be missing."""
    assert {row["clients_received"] for row in rows} <= {len(SITES) - 1, len(SITES)}
    return {row["round"]: frozenset([site]) for row in rows if row["clients_received"] < len(SITES)}


def test_hostile_replies_are_dropped_and_counted(
    running: RunningFederation, tmp_path: Path
) -> None:
    kinds = dict(enumerate(HOSTILE, start=2))
    misbehave(running, LAST, kinds)
    run = start(running, tmp_path, rounds=len(kinds) + 2)
    rows = run.finish()
    assert {row["round"]: row["replies_dropped"] for row in rows} == {
        row["round"]: int(row["round"] in kinds) for row in rows
    }
    assert missing(rows, LAST).keys() == kinds.keys()
    assert_ledgers_agree(run)
    assert site_attempts(run) == attempts(run.out / "ledger.sqlite", run.name)
    assert_model_is_simulators(run, tmp_path / "simulated", missing(rows, LAST))
