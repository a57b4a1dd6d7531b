"""Servers and links that die, and runs that meet at the same sites: real processes."""

import os
import signal
from collections import Counter
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
    misbehave,
    server_of,
    site_names,
    training_federation,
    wait_for_mischief,
)
from federations import REAL_PROCESSES, RunningFederation

from sottovoce.deployment.machines.submitted_runs import rounds_done
from sottovoce.ledger.ledger import Ledger
from sottovoce.privacy.events import PrivacyEvent

pytest.importorskip("flwr")
pytestmark = REAL_PROCESSES

SITES = site_names(3)
LAST = SITES[-1]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFederation]:
    with training_federation(tmp_path_factory.mktemp("interruptions"), SITES) as running:
        yield running


@pytest.fixture
def running(federation: RunningFederation) -> Iterator[RunningFederation]:
    yield federation
    calm_down(federation)


def start(running: RunningFederation, folder: Path, *, rounds: int, **waiting: Any) -> StartedRun:
    deployment = {"deadline_seconds": 60.0, "wait_seconds": 90.0} | waiting
    name = f"{folder.parent.name} {folder.name}"
    table = federated_table(name, clients=len(SITES), rounds=rounds, deployment=deployment)
    return start_run(running, table, folder)


def history(ledger: Path, client: str) -> Counter[PrivacyEvent]:
    with Ledger(ledger) as opened:
        return Counter(dict(opened.history(client)))


def test_a_run_outlives_its_server_and_its_link(running: RunningFederation, tmp_path: Path) -> None:
    misbehave(running, LAST, {2: "slow", 4: "slow"})  # so that there is a round to interrupt
    run = start(running, tmp_path / "run", rounds=5)
    wait_for_mischief(running, LAST, 2, "slow")
    os.kill(server_of(running), signal.SIGKILL)
    assert rounds_done(run.out) == 1
    assert_ledgers_agree(run)
    assert site_attempts(run)[LAST, 2] == 1

    run = run.again()
    wait_for_mischief(running, LAST, 4, "slow")
    cut_power(running.federation.link_folder)
    assert rounds_done(run.out) == 3
    assert_ledgers_agree(run)
    assert site_attempts(run)[LAST, 4] == 1

    running.start_link()
    rows = run.again().finish()
    assert [row["clients_received"] for row in rows] == [3] * 5
    everything = {(site, number): 1 for site in SITES for number in range(1, 6)}
    assert attempts(run.out / "ledger.sqlite", run.name) == everything
    assert site_attempts(run) == everything
    assert_model_is_simulators(run, tmp_path / "simulated")


def test_two_runs_at_once_share_the_sites_and_one_too_many_is_refused(
    running: RunningFederation, tmp_path: Path
) -> None:
    ledgers = {site: running.site(site).folder / "ledger.sqlite" for site in SITES}
    before = {site: history(ledger, site) for site, ledger in ledgers.items()}
    both = [start(running, tmp_path / name, rounds=2) for name in ("one", "two")]
    for run in both:
        assert [row["clients_received"] for row in run.finish()] == [3, 3]
        assert_ledgers_agree(run)
        assert site_attempts(run) == attempts(run.out / "ledger.sqlite", run.name)
        assert_model_is_simulators(run, tmp_path / f"simulated {run.out.name}")
    for site, ledger in ledgers.items():
        charged = [history(run.out / "ledger.sqlite", site) for run in both]
        assert history(ledger, site) == before[site] + charged[0] + charged[1]
        with Ledger(ledger) as opened:
            assert opened.verify() == []
            spent = opened.spent(site, 1e-5)
        assert spent is not None
        allow(running, site, epsilon_total=spent.epsilon * 1.001)
    third = start(running, tmp_path / "three", rounds=2, idle_rounds=1)
    status = third.wait_to_end()
    assert status.state == "finished:failed"
    for site in SITES:
        assert f"'{site}': the site would have spent epsilon" in status.details
    assert "'epsilon_total' is" in status.details
    assert rounds_done(third.out) == 0
    assert site_attempts(third) == {}
