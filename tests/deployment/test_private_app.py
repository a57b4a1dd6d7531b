"""The mod and the strategy together in Flower's own simulation engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.protocol.message import HEADER_BYTES

ROOT = Path(__file__).parents[2]
NUM_CLIENTS, NUM_ROUNDS, DIMENSION = 4, 2, 32


@pytest.mark.slow
def test_an_app_runs_privately_in_flowers_simulation(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Flower's simulation needs ray: install sottovoce[flower]")
    done = subprocess.run(
        [sys.executable, "-m", "simulated_private_app", str(tmp_path)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "helpers")]),
            "FLWR_HOME": str(tmp_path / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
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
