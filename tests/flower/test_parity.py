"""The same spec on nodes with TLS and keys, in Flower's simulation and here: the same bits.

The two nodes are the one federation of real processes that `make test` starts, so they are also
checked and robbed of a ledger here; `make test-full` stops and starts them again in between, and
has all other federations.
"""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federated_runs import (
    StartedRun,
    as_toml,
    digests,
    federated_table,
    simulated,
    start_run,
)
from federation_faults import allow, eventually, site_names
from federations import SRC, rehearsal

from sottovoce.deployment.audit_file import verify_lines
from sottovoce.deployment.audit_log import LOG_NAME
from sottovoce.deployment.machines import certificates
from sottovoce.deployment.machines.processes import state_of
from sottovoce.flower import control
from sottovoce.ledger import seal
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.runs.folder import RunFolder

pytest.importorskip("flwr")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="watches processes in /proc"),
    pytest.mark.xdist_group("federation"),  # one at a time: each keeps a dozen processes busy
]

ROUNDS = 3
# What a round says of the model and of privacy; the rest tells of bytes on the way.
LEARNED = (
    "round",
    "accuracy",
    "loss",
    "epsilon",
    "clients_asked",
    "clients_received",
    "clients_out_of_budget",
    "payload_bytes_up",
    "payload_bytes_down",
)
_SIMULATION_SECONDS = 300.0
AHEAD_SECONDS = 8
# Flower signs with this time, and the time is what the program reads.
_CLOCK = f"""\
import datetime, time
import flwr.supercore.date as date
real, now = time.time, date.now
time.time = lambda: real() + {AHEAD_SECONDS}
date.now = lambda: now() + datetime.timedelta(seconds={AHEAD_SECONDS})
"""


@pytest.fixture(
    scope="module",
    params=[2, pytest.param(4, marks=pytest.mark.slow)],
    ids=["two nodes", "four nodes"],
)
def sites(request: pytest.FixtureRequest) -> list[str]:
    return site_names(request.param)


@pytest.fixture(scope="module")
def table(sites: list[str]) -> dict[str, Any]:
    return federated_table("parity", clients=len(sites), rounds=ROUNDS)


@pytest.fixture(scope="module")
def here(table: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return simulated(table, tmp_path_factory.mktemp("here") / "run")


@pytest.fixture(scope="module")
def run(
    sites: list[str], table: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartedRun]:
    folder = tmp_path_factory.mktemp("parity")
    with rehearsal(folder, sites=sites, start=False) as running:
        running.start_link()
        for site in sites:
            allow(running, site)
            shutil.copytree(running.site(site).folder, folder / "before" / site)
            running.start_node(site)
        started = start_run(running, table, folder / "run")
        started.finish()
        yield started


@pytest.fixture(scope="module")
def noisy_steps(run: StartedRun, sites: list[str]) -> StartedRun:
    """A run of one round in the same federation, after the other one."""
    table = federated_table(
        "noisy steps",
        clients=len(sites),
        rounds=1,
        algorithm={
            "kind": "fedavg",
            "server_learning_rate": 1.0,
            "local_work": "dp_sgd",
            "local_steps": 3,
            "batch_size": 20,
            "local_learning_rate": 0.5,
            "message_bits": 1,
        },
        mechanism={"kind": "discrete_gaussian", "bits": 16, "steps_per_radius": "auto"},
    )
    for site in sites:
        allow(run.running, site, mechanisms=["gauss_hermite", "discrete_gaussian"])
    started = start_run(run.running, table, run.out.parent / "noisy")
    started.finish()
    return started


def assert_same_run(found: RunFolder, expected: RunFolder) -> None:
    """The same checkpoint, rounds and result, bit for bit."""
    with (
        np.load(found.path / "checkpoint.npz") as one,
        np.load(expected.path / "checkpoint.npz") as other,
    ):
        assert one.files == other.files
        for name in other.files:
            np.testing.assert_array_equal(one[name], other[name])
    assert [_learned(row) for row in found.metrics()] == [
        _learned(row) for row in expected.metrics()
    ]
    result, there = found.result(), expected.result()
    assert result is not None
    assert there is not None
    for key in ("accuracy", "loss", "epsilon", "rounds", "spec_hash", "guarantee"):
        assert result[key] == there[key]
    # Elsewhere sites answer, and say what their own ledgers were charged.
    told = [
        {**row, "answered": row["rounds"], "refused": 0, "site_charged": row["rounds"]}
        for row in there["clients"]
    ]
    assert result["clients"] == told


def _learned(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in LEARNED}


def test_nodes_train_the_simulators_model(run: StartedRun, here: RunFolder) -> None:
    assert_same_run(run.folder, here)


def test_sites_seal_the_simulators_bytes(
    run: StartedRun, here: RunFolder, sites: list[str]
) -> None:
    sealed: dict[tuple[str, int], bytes] = {}
    for site in sites:
        own = digests(run.running.site(site).folder / "ledger.sqlite", run.name)
        assert {client for client, _ in own} == {site}
        sealed |= own
    assert sealed == digests(here.path / "ledger.sqlite", run.name)
    assert len(sealed) == len(sites) * ROUNDS


def test_sites_have_spent_what_the_server_says(run: StartedRun, sites: list[str]) -> None:
    with run.folder.ledger() as server:
        for site in sites:
            ledger = run.running.site(site).folder / "ledger.sqlite"
            with RunFolder(ledger.parent).ledger() as own:
                assert own.history(site) == server.history(site)
                assert own.verify() == []


def test_sites_log_every_round_that_they_answered(run: StartedRun, sites: list[str]) -> None:
    for site in sites:
        entries, problems = verify_lines(run.running.site(site).folder / LOG_NAME)
        assert problems == []
        assert [entry["what"] for entry in entries[:2]] == ["policy changed", "started"]
        charged = [entry for entry in entries if entry["what"] == "charged"]
        assert [(entry["run"], entry["round"]) for entry in charged] == [
            (run.name, number) for number in range(1, ROUNDS + 1)
        ]
        assert all(entry["left"] < 1000.0 for entry in charged)


def test_nodes_take_noisy_local_steps_as_the_simulator_does(
    noisy_steps: StartedRun, tmp_path: Path
) -> None:
    expected = simulated(dict(noisy_steps.table), tmp_path / "here")
    assert_same_run(noisy_steps.folder, expected)
    result = noisy_steps.folder.result()
    assert result is not None
    assert result["payload_bytes_up_per_message"] < 100  # 650 parameters


def test_a_site_passes_all_checks_and_the_link_knows_its_key_alone(
    run: StartedRun, sites: list[str], tmp_path: Path
) -> None:
    running, site = run.running, run.running.site(sites[0])
    found = json.loads(running.deploy("check", site.folder, "--json"))
    assert {check["state"] for check in found["checks"]} == {"ok"}
    named = {check["name"] for check in found["checks"]}
    assert {"clock", "key at the link", "ledger", "data"} <= named
    assert site.root_certificate is not None
    certificates.create_node_key(tmp_path / "new.key", tmp_path / "new.pub", comment="new")
    verdict = control.link_verdict(site.address, site.root_certificate, tmp_path / "new.key")
    assert verdict is control.LinkVerdict.UNKNOWN
    assert running.status()["sites"] == dict.fromkeys(sites, "online")  # nothing was changed


@pytest.mark.slow  # test_node.py and tests/deployment/test_guard.py have the quick cases
def test_link_and_site_start_again_at_once_but_not_with_a_wrong_clock(
    run: StartedRun, sites: list[str], tmp_path: Path
) -> None:
    running, site = run.running, run.running.site(sites[0])
    state = state_of(running.federation.link_folder)
    assert state
    os.kill(state["pid"], signal.SIGKILL)
    eventually(running.federation.address.is_free)
    running.stop_node(site.name)  # its goodbye reaches nobody, as after a link that was stopped
    running.start_link()

    (tmp_path / "sitecustomize.py").write_text(_CLOCK)
    paths = [str(tmp_path), *running.environment["PYTHONPATH"].split(os.pathsep)]
    skewed = {**running.environment, "PYTHONPATH": os.pathsep.join(paths)}
    error = replace(running, environment=skewed).deploy("node", site.folder, code=2)
    found = re.search(r"clock is (\d+) s ahead", error)
    assert found, error
    # The link tells whole seconds, and a busy machine answers late.
    assert abs(int(found[1]) - AHEAD_SECONDS) <= AHEAD_SECONDS // 2, error
    assert "NTP" in error

    running.start_node(site.name)  # which waits until it is online
    assert "trying again" not in (site.node_folder / "keeper.log").read_text()


def test_a_node_whose_ledger_is_lost_sends_nothing_and_stops(
    run: StartedRun,
    noisy_steps: StartedRun,
    sites: list[str],
    table: dict[str, Any],
    tmp_path: Path,
) -> None:
    running, site = run.running, run.running.site(sites[-1])
    charges = ROUNDS + noisy_steps.table["rounds"]
    ledger = site.folder / LEDGER_NAME
    (tmp_path / "copy.sqlite").write_bytes(ledger.read_bytes())
    with Ledger(tmp_path / "copy.sqlite") as copied:  # the file alone has what has left
        assert copied.num_charges == charges
        assert copied.verify() == []
    for path in site.folder.glob(f"{LEDGER_NAME}*"):
        path.unlink()
    (row,) = start_run(running, {**table, "name": "lost", "rounds": 1}, tmp_path / "run").finish()
    assert row["clients_received"] == len(sites) - 1
    eventually(lambda: state_of(site.node_folder) is None)
    reason = f"{LEDGER_NAME}, with {charges} charges, is missing; restore the ledger"
    assert reason in (site.node_folder / "keeper.log").read_text()
    assert not ledger.exists()
    assert json.loads((site.folder / seal.SEAL_NAME).read_text())["charges"] == charges
    assert reason in running.deploy("node", site.folder, code=2)  # nor does it start again

    # All of its folder from before the first round, with a ledger and a seal that match.
    shutil.rmtree(site.folder)
    shutil.copytree(run.out.parent / "before" / site.name, site.folder)
    witnessed = f"it has fewer charges than the {charges} that were witnessed"
    assert witnessed in running.deploy("node", site.folder, code=2)


@pytest.mark.slow
def test_sixteen_byte_messages_cross_a_federation(tmp_path: Path) -> None:
    sites = site_names(2)
    table = federated_table(
        "seeds",
        clients=len(sites),
        rounds=2,
        algorithm={"kind": "fedavg", "server_learning_rate": 1.0, "local_learning_rate": 0.5},
        privacy={"level": "client", "clip_norm": 1.0, "epsilon": 8.0, "delta": 1e-5},
        mechanism={
            "kind": "seeded_sign", "blocks": "auto", "generator": "auto", "timing": "auto",
        },
    )  # fmt: skip
    with rehearsal(tmp_path, sites=sites, start=False) as running:
        running.start_link()
        for site in sites:
            allow(running, site, mechanisms=["seeded_sign"], level="client")
            running.start_node(site)
        started = start_run(running, table, tmp_path / "run")
        started.finish()
    assert_same_run(started.folder, simulated(table, tmp_path / "here"))
    result = started.folder.result()
    assert result is not None
    assert result["payload_bytes_up_per_message"] == 16.0
    assert "ChaCha20" in result["assumes"]


@pytest.mark.slow
def test_flowers_simulation_trains_the_same_model(
    here: RunFolder, table: dict[str, Any], tmp_path: Path
) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Flower's simulation needs ray: pip install 'flwr[simulation]'")
    simulation = {**table, "runtime": {**table["runtime"], "backend": "flower-sim"}}
    (tmp_path / "spec.toml").write_text(as_toml(simulation))
    command = [sys.executable, "-m", "sottovoce", "run", str(tmp_path / "spec.toml")]
    found = subprocess.run(
        [*command, "--out", str(tmp_path / "run"), "--json"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SRC), "FLWR_HOME": str(tmp_path / "flower")},
        timeout=_SIMULATION_SECONDS,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert json.loads(found.stdout)["spec_hash"] == here.header()["spec_hash"]
    assert_same_run(RunFolder(tmp_path / "run"), here)
    name = here.header()["run"]
    assert digests(tmp_path / "run" / "sites.sqlite", name) == digests(
        here.path / "ledger.sqlite", name
    )
