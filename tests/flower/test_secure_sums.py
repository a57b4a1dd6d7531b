"""Secure sums over Flower with real programs: the simulator's model, from masked messages only."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from federated_runs import assert_model_is_simulators, federated_table, start_run
from federation_faults import eventually, site_names
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


# Each lie of a server: what it is called, at which step it is told, and what its victim answers.
LIES = {
    "an honest round": ("none", ""),  # so that there is an earlier one
    "list without the victim": ("share", "own keys unchanged|at least"),
    "list with another key of a peer": ("share", "signature"),
    "list with a key copied from a peer": ("share", "signature|distinct|same"),
    "list with a stranger": ("share", "roster|most"),
    "list of an earlier round": ("share", "signature"),
    "list that is garbage": ("share", "expected|malformed"),
    "list that is cut off": ("share", "expected|malformed"),
    "box without the victim": ("contribute", "at least|count it"),
    "box with a stranger": ("contribute", "must all be sites|encrypted shares"),
    "box of too few": ("contribute", "at least 3"),
    "box with changed shares": ("contribute", "shares"),
    "box with shares of another peer": ("contribute", "shares"),
    "survivors without the victim": ("sign", "at least|among the survivors"),
    "survivors with a stranger": ("sign", "must all be sites"),
    "survivors below the threshold": ("sign", "at least 3"),
    "survivors with a duplicate": ("sign", "sorted"),
    "quorum with a site twice": ("answer", "sorted"),
    "quorum of too few": ("answer", "at least 3"),
    "quorum of other signatures": ("answer", "signature"),
    "quorum of an earlier round": ("answer", "signature"),
    "second list": ("share", "another message"),
    "second box": ("contribute", "another message"),
    "box after the survivors": ("sign", "another message"),
    "second survivors": ("sign", "another message"),
    "answer before the signature": ("contribute", "expected the message 'survivors'"),
    "second quorum": ("answer", "not open|another message"),
    "the same attempt again": ("open", "begun before"),
    "an earlier round": ("open", "begun before"),
    "a lower threshold": ("open", "'honest' is 2|at least 2"),
    "another protocol": ("open", "trust_server|differs"),
    "less noise": ("open", "differs from the one that its first attempt fixed"),
}


@pytest.mark.slow
def test_sites_refuse_every_lie_of_a_server(tmp_path: Path) -> None:
    told = [(lie, step) for lie, (step, _) in LIES.items()]
    text = (Path(__file__).parent.parent / "helpers" / "lying_server.py").read_text()
    text = text.replace("LIES: list[tuple[str, str]] = []", f"LIES = {told!r}")
    text = text.replace('VICTIM = ""', f"VICTIM = {SITES[0]!r}")
    stubs = {"deployment/masked_rounds.py": text}
    with rehearsal(tmp_path, sites=SITES, start=False, stubs=stubs) as running:
        running.start_link()
        for site in SITES:
            permit(running, site)
            running.start_node(site)
        patience = {"deadline_seconds": 60.0, "wait_seconds": 90.0, "idle_rounds": 100}
        table = masked_table("lies", rounds=len(LIES) + 1, deployment=patience)
        run = start_run(running, table, tmp_path / "run")
        eventually(lambda: run.status().has_ended, seconds=550.0, pause_seconds=2.0)
        rows = run.finish()
        answers = json.loads((run.out / "lies.json").read_text())
        wrong = {
            lie: answers.get(lie, "nothing")
            for lie, (step, expected) in LIES.items()
            if step != "none"
            and not re.search(f"^refused: .*({expected})", answers.get(lie, "nothing"))
        }
        assert wrong == {}
        assert rows[0]["clients_received"] == rows[-1]["clients_received"] == 3
        for site in SITES:
            with Ledger(running.site(site).folder / LEDGER_NAME) as ledger:
                assert ledger.verify() == []
