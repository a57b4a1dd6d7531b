"""The example of a Flower app that asks clinics about their patients."""

from pathlib import Path

import pytest
from federations import in_flowers_simulation

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_example_asks_all_clinics(tmp_path: Path) -> None:
    program = ROOT / "examples" / "flower" / "ask_people.py"
    printed = in_flowers_simulation(tmp_path, str(program))
    assert "asked of 20 sites, of which 20 have answered" in printed
    assert "2000" in printed
