"""The example of a Flower app that asks clinics about their patients."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_example_asks_all_clinics(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Flower's simulation needs ray: install sottovoce[flower]")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "flower" / "ask_people.py")],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
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
    assert "asked of 20 sites, of which 20 have answered" in done.stdout
    assert "2000" in done.stdout
