"""Real nodes whose ledgers are lost between orders: nothing leaves, and they stop by themselves."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from federation_faults import eventually
from federations import RunningFederation, rehearsal

from sottovoce.deployment.machines.processes import state_of
from sottovoce.flower.client import NO_LEDGER
from sottovoce.ledger import seal
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger

pytest.importorskip("flwr")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="a federation of real processes"),
    pytest.mark.slow,  # test_parity has the quick case
    pytest.mark.xdist_group("federation"),
]


def remove(ledger: Path) -> None:
    for path in ledger.parent.glob("ledger.sqlite*"):
        path.unlink()


def truncate(ledger: Path) -> None:
    os.truncate(ledger, 0)


def link_to_nothing(ledger: Path) -> None:
    remove(ledger)
    ledger.symlink_to(ledger.with_name("nowhere"))


# What happens to the ledger of each site, and what its node says.
LOSSES: dict[str, tuple[Callable[[Path], None], str]] = {
    "removed": (remove, "ledger.sqlite, with 1 charge, is missing; restore the ledger"),
    "emptied": (truncate, "ledger.sqlite is empty; restore it from a backup"),
    "linked": (link_to_nothing, "ledger.sqlite is a link to a missing file"),
}


def is_stopped(node_folder: Path) -> bool:
    return state_of(node_folder) is None


def allow_questions(running: RunningFederation, name: str) -> None:
    site = running.site(name)
    (site.folder / "people.csv").write_text("age\n" + "40\n" * 50)
    text = site.file.read_text()
    for old, new in (
        ('"zero-out"', '"replace-one"'),
        ("mechanisms = [", 'mechanisms = ["laplace", '),
        ("smallest_cohort", "float_noise = true\nsmallest_cohort"),
    ):
        assert old in text
        text = text.replace(old, new)
    site.file.write_text(text + '\n[columns.age]\ncsv = "people.csv"\ncolumn = "age"\n')


def ask(running: RunningFederation, *, code: int = 0) -> str:
    options = ["--lower", "0", "--upper", "120", "--epsilon", "1", "--mechanism", "laplace"]
    return running.deploy(
        "ask", running.folder, "mean", "--about", "age", *options, "--json", code=code
    )


def test_a_running_node_stops_when_its_ledger_is_lost(tmp_path: Path) -> None:
    sites = tuple(LOSSES)
    with rehearsal(tmp_path, sites=sites, start=False) as running:
        running.start_link()
        for name in sites:
            allow_questions(running, name)
            shutil.copytree(running.site(name).folder, tmp_path / f"{name}-before")
            running.start_node(name)
        assert json.loads(ask(running))["people"] == 50 * len(sites)
        for name in sites:
            ledger = running.site(name).folder / LEDGER_NAME
            copy = tmp_path / f"{name}.sqlite"
            copy.write_bytes(ledger.read_bytes())
            with Ledger(copy) as copied:  # the file alone has what has left
                assert copied.num_charges == 1
                assert copied.verify() == []
            LOSSES[name][0](ledger)
        said = ask(running, code=2)
        assert f"0 of {len(sites)} sites have answered" in said
        for name in sites:
            site, reason = running.site(name), LOSSES[name][1]
            eventually(partial(is_stopped, site.node_folder))
            assert reason in (site.node_folder / "keeper.log").read_text()
            assert f"'{name}': {NO_LEDGER}" in said
            assert not (site.folder / LEDGER_NAME).is_file() or name == "emptied"
            assert json.loads((site.folder / seal.SEAL_NAME).read_text())["charges"] == 1
            assert reason in running.deploy("node", site.folder, code=2)  # nor does it start again

            # All of its folder from before the answer, with a ledger and a seal that match.
            shutil.rmtree(site.folder)
            shutil.copytree(tmp_path / f"{name}-before", site.folder)
            witnessed = "it has fewer charges than the 1 that were witnessed"
            assert witnessed in running.deploy("node", site.folder, code=2)
