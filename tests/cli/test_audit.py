"""`sottovoce audit`: what it prints, what it keeps, and how it exits."""

import json
from pathlib import Path
from typing import Any

import pytest
from specs import small_spec

from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.runs.runner import run

QUICK = ("--draws", 20000, "--seed", 3)
FIELDS = {"lower_bound", "certified", "confidence", "violated", "gap", "delta", "adjacency"}


def test_a_mechanism_is_audited_at_its_registered_example(cli: Any) -> None:
    result = cli("audit", "mechanism", "gaussian", *QUICK, "--json").json
    assert set(result) >= FIELDS
    assert (result["mechanism"], result["parameters"]) == ("gaussian", {"noise_multiplier": 2.0})
    assert result["certified"] == pytest.approx(1.9931, abs=1e-3)
    assert result["lower_bound"] <= result["certified"]
    assert (result["violated"], result["confidence"]) == (False, 0.999)
    exact, sampled = result["audits"]
    assert (exact["confidence"], sampled["confidence"]) == (1.0, 0.999)
    assert cli("audit", "mechanism", "gaussian", *QUICK, "--json").json == result


def test_parameters_adjacency_and_a_picture(cli: Any, tmp_path: Path) -> None:
    plot = tmp_path / "curve.svg"
    words = ("--param", "epsilon=2", "--param", "bits=2", "--adjacency", "replace-one")
    result = cli("audit", "mechanism", "generalized_rr", *words, *QUICK, "--plot", plot)
    assert result.code == 0
    assert "exact enumeration of the integer table" in result.out
    assert "holds: epsilon is at least 1.99" in result.out
    svg = plot.read_text()
    assert "certified" in svg
    assert "sampling of encode" in svg


def test_a_violation_exits_1_and_names_its_point(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gaussian, "noise_stddev", property(lambda self: 1.0))
    found = cli("audit", "mechanism", "gaussian", *QUICK, "--json")
    assert found.code == 1
    assert json.loads(found.out)["violated"] is True
    found = cli("audit", "mechanism", "gaussian", *QUICK)
    assert found.code == 1
    assert "violated:" in found.out


def test_without_privacy_nothing_is_certified(cli: Any, tmp_path: Path) -> None:
    result = cli("audit", "mechanism", "no_privacy", *QUICK, "--json").json
    assert (result["certified"], result["gap"], result["violated"]) == (None, None, False)
    assert result["lower_bound"] > 5.0
    refused = cli("audit", "mechanism", "no_privacy", *QUICK, "--plot", tmp_path / "a.svg")
    assert (refused.code, "leave out --plot" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("mechanism gausian", "did you mean 'gaussian'"),
        ("mechanism gaussian --draws 5", "draws"),
        ("mechanism gaussian --draws 150", "draws must be"),
        ("mechanism gaussian --delta 2", "delta"),
        ("mechanism gaussian --confidence 1", "confidence"),
        ("mechanism gaussian --adjacency add-one", "adjacency"),
        ("mechanism gaussian --param levels=2", "levels"),
        ("mechanism gaussian --dimension 0", "dimension"),
        ("mechanism gaussian --plot curve.png", ".svg"),
        ("run nowhere", "not a run folder"),
        ("run nowhere --method onerun", "one-run"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(cli: Any, words: str, reason: str) -> None:
    refused = cli("audit", *words.split())
    assert refused.code == 2
    assert reason in refused.err
    assert refused.err.count("\n") == 1


def test_the_confidence_is_printed_as_it_is(cli: Any) -> None:
    """Rounded, .99999 would be certainty."""
    told = cli("audit", "mechanism", "no_privacy", "--draws", 20000, "--confidence", 0.99999).out
    assert "with confidence 0.99999" in told


@pytest.mark.parametrize("kind", ["membership", "reconstruction", "attributes --attribute age"])
@pytest.mark.parametrize("plot", ["curve.png", "nowhere/curve.svg"])
def test_a_picture_that_cannot_be_drawn_is_refused_before_the_attack(
    cli: Any, kind: str, plot: str
) -> None:
    refused = cli("attack", *kind.split(), "no-run", "--plot", plot)
    assert refused.code == 2
    assert "--plot" in refused.err


def test_a_run_is_audited_and_the_result_is_kept(cli: Any, tmp_path: Path) -> None:
    folder, plot = tmp_path / "run", tmp_path / "curve.svg"
    spec = small_spec(rounds=2, data={"dataset": "blobs:500x31x2", "clients": 4})
    run(spec, folder)
    words = ("audit", "run", folder, "--canaries", 200, "--seed", 1)
    result = cli(*words, "--json", "--plot", plot).json
    assert set(result) >= FIELDS
    assert result["violated"] is False
    assert 0.0 <= result["lower_bound"] <= result["certified"] <= 4.0
    kept = json.loads((folder / "audit.json").read_text())
    assert kept == {name: result[name] for name in kept}
    assert plot.exists()
    printed = cli(*words, "--rounds", 1)
    assert "note: 1 of 2 rounds" in printed.out
    assert "holds: epsilon is at least" in printed.out
