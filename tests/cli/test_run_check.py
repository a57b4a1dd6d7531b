"""`sottovoce run --check`: exit 0 with the costs, or 2 with every refusal; nothing is made."""

import json
from pathlib import Path
from typing import Any

import pytest

ONE_BIT = Path(__file__).parents[2] / "examples" / "one_bit.toml"
QUICK = ["--set", "rounds=2", "--set", "data.clients=3", "--set", "mechanism.noise_multiplier=9.0"]


def test_the_costs_are_printed_and_nothing_is_made(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = cli("run", "--check", ONE_BIT, *QUICK, "--json").json
    assert found["would_run"]
    assert found["costs"][0]["num_clients"] == 3
    assert 0.0 < found["epsilon"] < 5.0
    assert not list(tmp_path.iterdir())
    text = cli("run", "--check", ONE_BIT, *QUICK)
    assert text.code == 0
    assert "gauss_hermite" in text.out


def test_refusals_are_printed_with_status_2(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    absent = cli("run", "--check", "one_bit.toml", "--json")
    assert absent.code == 2
    assert "there is no spec" in json.loads(absent.out)["problems"][0]
    wrong = cli("run", "--check", ONE_BIT, "--set", "rouds=2", "--set", "privacy.delta=0")
    assert wrong.code == 2
    assert wrong.out.count("refused: ") == 2
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    taken = cli("run", "--check", ONE_BIT, *QUICK, "--out", "taken")
    assert taken.code == 2
    assert "choose another folder (--out" in taken.out
    resumed = cli("run", "--check", ONE_BIT, "--resume")
    assert resumed.code == 2
    assert "leave out --resume" in resumed.err
