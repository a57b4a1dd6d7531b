"""Secure sums over Flower with real programs: the simulator's model, from masked messages only."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from federated_runs import assert_model_is_simulators, federated_table, start_run
from federation_faults import site_names
from federations import RunningFederation, rehearsal
from specs import LOCAL_STEPS

from sottovoce.ledger.ledger import LEDGER_NAME, Ledger

pytest.importorskip("flwr")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="watches processes in /proc"),
    pytest.mark.xdist_group("federation"),
]
SITES = site_names(3)
CHANNEL = {"kind": "secure_sum", "protocol": "pairwise", "minimum_clients": 2}


def masked_table(name: str, *, rounds: int, **changes: Any) -> dict[str, Any]:
    table = federated_table(
        name,
        clients=len(SITES),
        rounds=rounds,
        channel=CHANNEL,
        mechanism={"kind": "clamped_sign", "logit_bound": 0.5},
        algorithm=LOCAL_STEPS,
        privacy={"level": "client", "clip_norm": 1.0, "epsilon": 40.0, "delta": 1e-5},
    )
    runtime = {"deterministic": True, "backend": "flower"}  # also where it is simulated
    return table | {"runtime": runtime} | changes


def permit(running: RunningFederation, site: str, **changes: Any) -> None:
    """Write a site's policy, and leave the roster pinned."""
    policy = {
        "mechanisms": ["clamped_sign"],
        "level": "client",
        "adjacency": "zero-out",
        "epsilon_per_round": 100.0,
        "epsilon_total": 1000.0,
        "delta": 1e-5,
        "smallest_cohort": 1,
        "seeded_randomness": True,
        "honest": 2,
        "colluders": 1,
    } | changes
    file = running.site(site).file
    before, _, after = file.read_text().partition("[policy]")
    trust = after[after.index("[trust]") :]
    lines = [f"{key} = {json.dumps(value)}" for key, value in policy.items()]
    file.write_text("\n".join([before + "[policy]", *lines, "", trust]))


def test_nodes_that_mask_their_messages_train_the_simulators_model(tmp_path: Path) -> None:
    with rehearsal(tmp_path, sites=SITES, start=False) as running:
        running.start_link()
        for site in SITES:
            permit(running, site)
            running.start_node(site)
        run = start_run(running, masked_table("masked", rounds=2), tmp_path / "run")
        rows = run.finish()
        assert [row["clients_received"] for row in rows] == [3, 3]
        assert_model_is_simulators(run, tmp_path / "here")
        for site in SITES:
            with Ledger(running.site(site).folder / LEDGER_NAME) as ledger:
                assert ledger.rounds_charged(run.name) == {site: 2}
                assert ledger.verify() == []
