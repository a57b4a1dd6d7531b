"""A spec trained through a relay of real processes: the simulator's model, from sums only."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from command_line import call
from federated_runs import as_toml, federated_table, simulated
from specs import LOCAL_STEPS
from two_operators import Operators, create_operators, running_operators

from sottovoce.core.errors import DeploymentError, SottovoceError
from sottovoce.deployment.operators.admission_file import admit
from sottovoce.deployment.operators.calls import RelayCalls
from sottovoce.deployment.operators.device import DeviceFolder, RelayLink, create_device
from sottovoce.deployment.operators.participant import Participant
from sottovoce.deployment.operators.routes import Route
from sottovoce.deployment.site import read_site
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.runs.folder import RunFolder

pytest.importorskip("uvicorn")
NAMES = ["client-0000", "client-0001", "client-0002"]
POLICY = {
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
}


def table_of(name: str, **changes: Any) -> dict[str, Any]:
    table = federated_table(
        name,
        clients=len(NAMES),
        rounds=2,
        channel={"kind": "secure_sum", "protocol": "two_server", "minimum_clients": 2},
        mechanism={"kind": "clamped_sign", "logit_bound": 0.5},
        algorithm=LOCAL_STEPS,
        privacy={"level": "client", "clip_norm": 1.0, "epsilon": 40.0, "delta": 1e-5},
        deployment={"deadline_seconds": 4.0, "idle_rounds": 1},
    )
    return table | {"runtime": {"deterministic": True, "backend": "relay"}} | changes


def nodes_of(operators: Operators, **changes: Any) -> list[DeviceFolder]:
    """Make admitted clients with a policy."""
    made = [
        create_device(
            operators.folder / name,
            name=name,
            operators=operators.relay.folder / "operators.toml",
            digest=operators.pinned.digest,
            with_site=True,
        )
        for name in NAMES
    ]
    for operator in (operators.relay, operators.collector):
        admit(operator, [one.admission_path for one in made])
    lines = [f"{key} = {json.dumps(value)}" for key, value in (POLICY | changes).items()]
    for one in made:
        one.site_file.write_text("\n".join([f'name = "{one.name}"', "[policy]", *lines]))
    return made


class BrokenOnce:
    """The calls of a client whose connection breaks after its first report was made."""

    def __init__(self, calls: RelayCalls) -> None:
        self._calls, self.breaks = calls, 1

    def ask(self, route: Route, body: bytes = b"", **more: str) -> bytes:
        if route is Route.REPORT and self.breaks:
            self.breaks -= 1
            raise DeploymentError("the cable is out")
        return self._calls.ask(route, body, **more)

    def close(self) -> None:
        self._calls.close()


@contextmanager
def answering(nodes: list[DeviceFolder]) -> Iterator[list[str]]:
    """Let nodes answer from threads of this process; yield what they tell."""
    stop, told = threading.Event(), list[str]()

    def work(node: DeviceFolder) -> None:
        with RelayLink(node) as link:
            if node is nodes[0]:
                link._calls = cast(RelayCalls, BrokenOnce(link._calls))
            participant = Participant(link, read_site(node.site_file))
            while not stop.is_set():
                try:
                    done = participant.look()
                except SottovoceError as error:
                    done = f"refused: {error}"
                if done:
                    told.append(done)
                time.sleep(0.2)

    threads = [threading.Thread(target=work, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    try:
        yield told
    finally:
        stop.set()
        for thread in threads:
            thread.join()


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
