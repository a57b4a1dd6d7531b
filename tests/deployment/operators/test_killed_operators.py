"""Relay, collector and nodes killed at random: what is sent is charged, and nothing is sent twice.

SOTTOVOCE_TEST_KILLS says how often somebody is killed, SOTTOVOCE_TEST_SEED who and when.
"""

import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from federated_runs import as_toml, federated_table
from killed_parties import KilledParties, eventually, killed_parties
from party_process import answered_rounds, sent_by
from specs import LOCAL_STEPS

from sottovoce.deployment.operators.routes import Route
from sottovoce.ledger.ledger import LEDGER_NAME
from sottovoce.runs.folder import RunFolder

pytest.importorskip("uvicorn")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="kills processes by /proc"),
    pytest.mark.slow,
]
NAMES = [f"client-{number:04d}" for number in range(4)]
KILLS = int(os.environ.get("SOTTOVOCE_TEST_KILLS", "5"))
SEED = int(os.environ.get("SOTTOVOCE_TEST_SEED", str(KILLS)))
SECONDS = 4
SUM: dict[str, Any] = {
    "channel": {"kind": "secure_sum", "protocol": "two_server", "minimum_clients": 2},
    "mechanism": {"kind": "clamped_sign", "logit_bound": 0.5, "noise_multiplier": 1.0},
}
SHUFFLE: dict[str, Any] = {
    "channel": {"kind": "shuffler", "protocol": "two_server", "minimum_clients": 2},
    "mechanism": {
        "kind": "seeded_step",
        "epsilon": 0.5,
        "length": "auto",
        "generator": "auto",
        "timing": "auto",
    },
}


def table_of(name: str, rounds: int, kind: dict[str, Any]) -> dict[str, Any]:
    adjacency = "replace-one" if kind is SHUFFLE else "zero-out"
    table = federated_table(
        name,
        clients=len(NAMES),
        rounds=rounds,
        algorithm=LOCAL_STEPS,
        privacy={
            "level": "client",
            "adjacency": adjacency,
            "clip_norm": 1.0,
            "epsilon": 900.0,
            "delta": 1e-5,
        },
        deployment={"deadline_seconds": float(SECONDS), "idle_rounds": 1000},
        checkpoint_every=1,
        **kind,
    )
    return table | {"runtime": {"deterministic": True, "backend": "relay"}}


def parties_of(
    folder: Path, rounds: int, kind: dict[str, Any], *, confirm_seconds: int = SECONDS
) -> Any:
    table = table_of(folder.name, rounds, kind)
    adjacency = table["privacy"]["adjacency"]
    return killed_parties(
        folder, as_toml(table), NAMES, confirm_seconds=confirm_seconds, adjacency=adjacency
    )


def start(parties: KilledParties) -> None:
    parties.start_relay()
    for node in parties.nodes:
        parties.start_node(node)
    parties.start_collector()
    eventually(lambda: parties.received()[-1:] == [len(NAMES)], what="the first full round")


def kill_somebody(parties: KilledParties, luck: random.Random) -> str:
    """Kill a random party, and start again what no supervisor starts; return who it was."""
    victim = luck.choice(["relay", "relay server", "collector", "collector", "node", "node"])
    match victim:
        case "relay":
            parties.kill_relay()
            time.sleep(luck.uniform(0.0, 1.0))
            parties.start_relay()
        case "relay server":
            parties.kill_relay_server()
        case "collector":
            parties.kill("collector")
            time.sleep(luck.uniform(0.0, 1.0))
            parties.start_collector()
        case "node":
            node = luck.choice(parties.nodes)
            parties.kill(node.name)
            time.sleep(luck.uniform(0.0, 1.0))
            parties.start_node(node)
    return victim


@pytest.mark.parametrize("kind", [SUM, SHUFFLE], ids=["sum", "shuffle"])
def test_killed_parties_send_nothing_uncharged_and_nothing_twice(
    tmp_path: Path, kind: dict[str, Any]
) -> None:
    luck, killed = random.Random(SEED), Counter[str]()
    per_round = SECONDS if kind is SUM else 2 * SECONDS
    rounds = 8 + KILLS
    with parties_of(tmp_path, rounds, kind) as parties:
        start(parties)
        for _ in range(KILLS):
            time.sleep(luck.uniform(0.0, per_round))
            parties.go_on()
            if parties.has_finished:
                break
            killed[kill_somebody(parties, luck)] += 1
        rows = parties.finish(60.0 + rounds * (per_round + 20.0))
        print(f"killed {dict(killed)}; received {[row['clients_received'] for row in rows]}")
        assert [row["round"] for row in rows] == list(range(1, rounds + 1))
        assert {row["clients_received"] for row in rows} <= {0, 3, 4}
        assert rows[-1]["clients_received"] == 4
        parties.check_lost_rounds_have_a_reason(rows)
        parties.check_nothing_is_sent_uncharged_or_twice()


def test_a_round_whose_collector_was_killed_is_answered_once_more(tmp_path: Path) -> None:
    rounds = 10
    with parties_of(tmp_path, rounds, SUM) as parties:
        start(parties)
        number = len(parties.received()) + 1
        eventually(lambda: reports_of_round(parties, number) == len(NAMES), what="all reports")
        parties.kill("collector")
        parties.start_collector()
        received = [row["clients_received"] for row in parties.finish(120.0)]
        assert received[number - 1 :] == [len(NAMES)] * (rounds - number + 1)
        charged = parties.charges(parties.nodes[0].folder / LEDGER_NAME)
        assert [charged[NAMES[0], each] for each in (number, rounds)] == [2, 1]
        parties.check_nothing_is_sent_uncharged_or_twice()
        assert RunFolder(parties.out).result() is not None


def reports_of_round(parties: KilledParties, number: int) -> int:
    """Return how many clients have sent a report of a round."""
    key = Route.REPORT.name, number
    return sum(
        key in {(kind, asked) for kind, _, asked in sent_by(node.folder)} for node in parties.nodes
    )


def test_a_node_that_is_killed_after_its_report_confirms_the_list(tmp_path: Path) -> None:
    """Also if it starts again when the relay takes no reports any more."""
    with parties_of(tmp_path, 2, SHUFFLE, confirm_seconds=30) as parties:
        parties.start_relay()
        for node in parties.nodes:
            parties.start_node(node)
        parties.wait_for_nodes()
        parties.start_collector()
        eventually(lambda: reports_of_round(parties, 2) == len(NAMES), what="all reports")
        parties.kill(NAMES[0])
        time.sleep(SECONDS)
        parties.start_node(parties.nodes[0])
        assert parties.finish(120.0)[-1]["clients_received"] == len(NAMES)
        assert answered_rounds(parties.nodes[0].folder)[2] == 1
        parties.check_nothing_is_sent_uncharged_or_twice()
