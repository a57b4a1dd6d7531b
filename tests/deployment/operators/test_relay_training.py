"""A spec trained through a relay of real processes: the simulator's model, from sums only."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call
from federated_runs import as_toml, simulated
from relay_training import answering, nodes_of, table_of
from two_operators import Operators, create_operators, running_operators

from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.runs.folder import RunFolder

pytest.importorskip("uvicorn")


def train(operators: Operators, table: dict[str, Any], out: Path) -> Any:
    spec = operators.folder / "spec.toml"
    spec.write_text(as_toml(table))
    return call("deploy", "run", str(operators.collector.folder), str(spec), "--out", str(out))


def test_clients_of_a_relay_train_the_simulators_model(tmp_path: Path) -> None:
    operators = create_operators(tmp_path)
    nodes, table = nodes_of(operators), table_of("relayed")
    with running_operators(operators), answering(nodes) as told:
        ended = train(operators, table, tmp_path / "run")
    assert ended.code == 0, (ended.text, told)
    assert "refused: the cable is out" in told
    rows = RunFolder(tmp_path / "run").metrics()
    assert [row["clients_received"] for row in rows] == [3, 3]
    found = RunFolder(tmp_path / "run").load_checkpoint()
    expected = simulated(table, tmp_path / "here").load_checkpoint()
    assert found is not None
    assert expected is not None
    np.testing.assert_array_equal(found.model, expected.model)
    for node in nodes:
        with Ledger(node.folder / LEDGER_NAME) as ledger:
            assert ledger.num_charges == 2
            assert ledger.verify() == []


@pytest.mark.slow
def test_clients_of_a_relay_train_with_shuffled_seeds_of_sixteen_bytes(tmp_path: Path) -> None:
    """Up to the order in which floats are added: the collector's order is that of the bytes."""
    operators = create_operators(tmp_path)
    nodes = nodes_of(operators, mechanisms=["seeded_step"], adjacency="replace-one")
    table = table_of(
        "shuffled",
        channel={"kind": "shuffler", "protocol": "two_server", "minimum_clients": 2},
        mechanism={"kind": "seeded_step", "length": "auto", "generator": "auto", "timing": "auto"},
        privacy={
            "level": "client",
            "adjacency": "replace-one",
            "clip_norm": 1.0,
            "epsilon": 20.0,
            "delta": 1e-5,
        },
        rounds=1,
        deployment={"deadline_seconds": 10.0, "idle_rounds": 1},
    )
    with running_operators(operators), answering(nodes) as told:
        ended = train(operators, table, tmp_path / "run")
    assert ended.code == 0, (ended.text, told)
    folder = RunFolder(tmp_path / "run")
    assert [row["clients_received"] for row in folder.metrics()] == [3]
    found, expected = (
        folder.load_checkpoint(),
        simulated(table, tmp_path / "here").load_checkpoint(),
    )
    assert found is not None
    assert expected is not None
    np.testing.assert_allclose(found.model, expected.model, rtol=0.0, atol=1e-12)
    result = folder.result()
    assert result is not None
    assert "shuffler by two servers: trusted not to work together" in result["guarantee"]


@pytest.mark.slow
def test_a_client_whose_policy_is_stricter_answers_nothing(tmp_path: Path) -> None:
    operators = create_operators(tmp_path)
    nodes = nodes_of(operators, honest=3)
    with running_operators(operators), answering(nodes) as told:
        ended = train(operators, table_of("refused"), tmp_path / "run")
    assert ended.code != 0
    assert "released nothing" in ended.text
    assert len(told) == 3
    assert all("'honest' is 3" in text for text in told)
    for node in nodes:
        with Ledger(node.folder / LEDGER_NAME) as ledger:
            assert ledger.num_charges == 0


def test_a_spec_without_a_relay_or_with_strangers_is_refused(tmp_path: Path) -> None:
    operators = create_operators(tmp_path)
    nodes_of(operators)
    plain = train(operators, table_of("plain", channel={"kind": "direct"}), tmp_path / "a")
    assert "needs no relay" in plain.text
    strange = table_of("strange", data={"dataset": "digits", "clients": 4})
    assert "was not admitted" in train(operators, strange, tmp_path / "b").text
