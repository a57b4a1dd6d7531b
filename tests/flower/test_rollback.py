"""A site whose whole folder is restored from an older copy: real processes, with TLS and keys."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from federated_runs import federated_table, start_run
from federation_faults import allow, eventually, site_names
from federations import REAL_PROCESSES, RunningFederation, rehearsal

from sottovoce.deployment.machines.processes import state_of
from sottovoce.ledger.ledger import Ledger

pytest.importorskip("flwr")
pytestmark = REAL_PROCESSES  # test_parity has the quick case

REASON = "it has fewer charges than the 2 that were witnessed"


SITE, *_ = site_names(1)
WAITING = {"deadline_seconds": 60.0, "wait_seconds": 90.0, "idle_rounds": 1}


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFederation]:
    """A federation whose site has answered two rounds since its folder was copied to `backup`."""
    folder = tmp_path_factory.mktemp("rollback")
    with rehearsal(folder, sites=[SITE], start=False) as running:
        allow(running, SITE)
        shutil.copytree(running.site(SITE).folder, backup_of(running))
        running.start_link()
        running.start_node(SITE)
        table = federated_table("first", clients=1, rounds=2, deployment=WAITING)
        start_run(running, table, folder / "first").finish()
        running.stop_node(SITE)
        yield running


def backup_of(running: RunningFederation) -> Path:
    return running.folder.parent / "backup"


def restore(running: RunningFederation) -> Path:
    """Put the copy in the place of the site's folder, all of it."""
    folder = running.folder / "sites" / SITE
    shutil.rmtree(folder)
    shutil.copytree(backup_of(running), folder)
    return folder


def test_a_node_does_not_start_from_a_restored_folder(answered: RunningFederation) -> None:
    folder = restore(answered)
    assert REASON in answered.deploy("node", folder, "--background", code=2)


def test_the_first_order_stops_a_node_whose_link_was_silent_when_it_started(
    answered: RunningFederation, tmp_path: Path
) -> None:
    folder = restore(answered)
    witness = answered.federation.link_folder / "witness"
    witness.rename(tmp_path / "away")
    answered.start_node(SITE)
    (tmp_path / "away").rename(witness)
    table = federated_table("second", clients=1, rounds=2, deployment=WAITING)
    second = start_run(answered, table, tmp_path / "second")
    assert REASON in second.wait_to_end().details
    with Ledger(folder / "ledger.sqlite") as ledger:
        assert ledger.num_charges == 0
    eventually(lambda: state_of(answered.site(SITE).node_folder) is None)
    assert REASON in (folder / "node" / "keeper.log").read_text()
    assert "it states 0 charges" in answered.status()["ledger_warnings"][SITE]
