"""`sottovoce run --profile`: the seconds of each stage, or a refusal where they are not known."""

from pathlib import Path
from typing import Any

import pytest

ONE_BIT = Path(__file__).parents[2] / "examples" / "one_bit.toml"
QUICK = ["--set", "rounds=2", "--set", "data.clients=3"]


@pytest.mark.parametrize("messages", ["stored", "packed", "none"])
def test_the_stages_of_a_run_are_printed_with_their_shares(
    cli: Any, tmp_path: Path, messages: str
) -> None:
    given = [*QUICK, "--set", "randomness=seeded", "--set", f"runtime.messages={messages}"]
    found = cli("run", ONE_BIT, *given, "--out", tmp_path / "a", "--profile", "--json").json
    profile = found["profile"]
    assert {"load", "broadcast", "step", "evaluate", "account", "checkpoint"} <= profile.keys()
    assert list(profile)[-1] == "other"
    assert all(row["seconds"] >= 0.0 for row in profile.values())
    assert sum(row["share"] for row in profile.values()) == pytest.approx(1.0)


def test_the_table_is_printed_only_on_request_and_is_no_result(cli: Any, tmp_path: Path) -> None:
    profiled = cli("run", ONE_BIT, *QUICK, "--out", tmp_path / "a", "--profile")
    assert "broadcast" in profiled.out
    assert "broadcast" not in cli("run", ONE_BIT, *QUICK, "--out", tmp_path / "b").out
    assert "profile" not in (tmp_path / "a" / "result.json").read_text()


@pytest.mark.parametrize("option", [["--check"], ["--set", "runtime.backend=flower-sim"]])
def test_a_run_that_cannot_be_measured_is_refused(
    cli: Any, tmp_path: Path, option: list[str]
) -> None:
    shown = cli("run", ONE_BIT, *QUICK, *option, "--out", tmp_path / "a", "--profile")
    assert shown.code == 2
    assert "leave out" in shown.err
    assert not (tmp_path / "a").exists()
