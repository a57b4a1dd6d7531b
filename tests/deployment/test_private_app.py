"""The mod and the strategy together in Flower's own simulation engine."""

import json
from pathlib import Path

import pytest
from federations import in_flowers_simulation

from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.protocol.message import HEADER_BYTES

NUM_CLIENTS, NUM_ROUNDS, DIMENSION = 4, 2, 32


@pytest.mark.slow
def test_an_app_runs_privately_in_flowers_simulation(tmp_path: Path) -> None:
    printed = in_flowers_simulation(tmp_path, "-m", "simulated_private_app", str(tmp_path))
    found = json.loads(printed.splitlines()[-1])
    assert [one["clients-answered"] for one in found["rounds"]] == [NUM_CLIENTS] * NUM_ROUNDS
    assert [one["bytes-up"] for one in found["rounds"]] == [
        NUM_CLIENTS * (HEADER_BYTES + DIMENSION // 8)
    ] * NUM_ROUNDS
    assert 7.99 < found["rounds"][-1]["epsilon"] <= 8.0
    assert any(found["model"])
    with Ledger(tmp_path / "server.sqlite") as ledger:
        expected = {f"site-{number}": NUM_ROUNDS for number in range(NUM_CLIENTS)}
        assert ledger.rounds_charged(found["run"]) == expected
    for number in range(NUM_CLIENTS):
        with Ledger(tmp_path / str(number) / LEDGER_NAME) as ledger:
            assert ledger.rounds_charged(found["run"]) == {f"site-{number}": NUM_ROUNDS}
