"""Secure sums over Flower with real programs: the simulator's model, from masked messages only."""

import json
import re
import sys
from pathlib import Path

import pytest
from federated_runs import assert_model_is_simulators, start_run
from federation_faults import eventually, site_names
from federations import rehearsal
from masked_federations import masked_table, permit

from sottovoce.ledger.ledger import LEDGER_NAME, Ledger

pytest.importorskip("flwr")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="watches processes in /proc"),
    pytest.mark.xdist_group("federation"),
]
SITES = site_names(3)
MORE_SITES = site_names(4)  # of which one may drop out


@pytest.mark.slow
def test_nodes_that_mask_their_messages_train_the_simulators_model(tmp_path: Path) -> None:
    with rehearsal(tmp_path, sites=SITES, start=False) as running:
        running.start_link()
        for site in SITES:
            permit(running, site)
            running.start_node(site)
        run = start_run(running, masked_table("masked", rounds=2, sites=SITES), tmp_path / "run")
        rows = run.finish()
        assert [row["clients_received"] for row in rows] == [3, 3]
        assert_model_is_simulators(run, tmp_path / "here")
        for site in SITES:
            with Ledger(running.site(site).folder / LEDGER_NAME) as ledger:
                assert ledger.rounds_charged(run.name) == {site: 2}
                assert ledger.verify() == []


@pytest.mark.slow
def test_nodes_send_statistics_in_the_same_masked_message(tmp_path: Path) -> None:
    table = masked_table("statistics", rounds=3, sites=SITES)
    table["privacy"] = {**table["privacy"], "clip_norm": "auto"}
    table["evaluation"] = {"private": {"metric": "loss", "holdout_fraction": 0.2}}
    with rehearsal(tmp_path, sites=SITES, start=False) as running:
        running.start_link()
        for site in SITES:
            permit(running, site)
            running.start_node(site)
        run = start_run(running, table, tmp_path / "run")
        rows = run.finish()
        assert len({row["clip_norm"] for row in rows}) == 3
        assert all("private_loss" in row for row in rows)
        assert_model_is_simulators(run, tmp_path / "here")


# Each lie of a server: what it is called, at which step it is told, and what its victim answers.
LIES = {
    "an honest round": ("none", ""),  # so that there is an earlier one
    "list without the victim": ("share", "own keys unchanged"),
    "list with another key of a peer": ("share", "signature"),
    "list with a key copied from a peer": ("share", "signature|distinct|same"),
    "list with a stranger": ("share", "3 to 4 sites"),
    "list of an earlier round": ("share", "signature"),
    "list that is garbage": ("share", "expected|malformed"),
    "list that is cut off": ("share", "expected|malformed"),
    "box without the victim": ("contribute", "count it"),
    "box with a stranger": ("contribute", "must all be sites|encrypted shares"),
    "box of too few": ("contribute", "at least 3"),
    "box with changed shares": ("contribute", "shares"),
    "box with shares of another peer": ("contribute", "shares"),
    "survivors without the victim": ("sign", "among the survivors"),
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
    "a lower threshold": ("open", "'honest' is 2|from 2 to|at least 2"),
    "another protocol": ("open", "trust_server|differs"),
    "a message without masks": ("open", "no message outside of that protocol"),
    "an attempt on another channel": ("open", "the run's channel is 'direct'"),
    "less noise": ("open", "differs from the one that its first attempt fixed"),
}


@pytest.mark.slow
def test_sites_refuse_every_lie_of_a_server(tmp_path: Path) -> None:
    told = [(lie, step) for lie, (step, _) in LIES.items()]
    text = (Path(__file__).parent.parent / "helpers" / "lying_server.py").read_text()
    text = text.replace("LIES: list[tuple[str, str]] = []", f"LIES = {told!r}")
    text = text.replace('VICTIM = ""', f"VICTIM = {SITES[0]!r}")
    text = text.replace('TOLD = ""', f"TOLD = {str(tmp_path / 'lies.json')!r}")
    stubs = {"deployment/masked_conversation.py": text}
    with rehearsal(tmp_path, sites=MORE_SITES, start=False, stubs=stubs) as running:
        running.start_link()
        for site in MORE_SITES:
            permit(running, site)
            running.start_node(site)
        patience = {"deadline_seconds": 60.0, "wait_seconds": 90.0, "idle_rounds": 100}
        table = masked_table("lies", rounds=len(LIES) + 1, sites=MORE_SITES, deployment=patience)
        run = start_run(running, table, tmp_path / "run")
        eventually(lambda: run.status().has_ended, seconds=550.0, pause_seconds=2.0)
        rows = run.finish()
        answers = json.loads((tmp_path / "lies.json").read_text())
        wrong = {
            lie: answers.get(lie, "nothing")
            for lie, (step, expected) in LIES.items()
            if step != "none"
            and not re.search(f"^refused: .*({expected})", answers.get(lie, "nothing"))
        }
        assert wrong == {}
        assert rows[0]["clients_received"] == rows[-1]["clients_received"] == 4
        for site in MORE_SITES:
            with Ledger(running.site(site).folder / LEDGER_NAME) as ledger:
                assert ledger.verify() == []
