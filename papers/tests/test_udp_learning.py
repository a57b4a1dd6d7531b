"""UDP-FL's learning experiments: every entry expands; the two studies run on bundled digits."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sottovoce_papers.experiment import Findings, find, number
from sottovoce_papers.grid_files import fast_grid, full_grid, read_grid_files
from sottovoce_papers.studies import udp_cost, udp_shuffler
from sottovoce_papers.sweep import expand

ENTRIES = {
    grid_file.name: grid_file
    for grid_file in read_grid_files()
    if grid_file.name.startswith("udp-")
}
MOST_FAST_SPECS = 16


def test_every_learning_figure_has_an_entry() -> None:
    assert set(ENTRIES) == {
        "udp-accuracy",
        "udp-cifar10",
        "udp-cifar10-resnet18",
        "udp-clients",
        "udp-connectivity",
        "udp-heterogeneous",
        "udp-privacy",
        "udp-sampling",
        "udp-scaffold-wind",
    }
    assert all(find(name).trains for name in (*ENTRIES, "udp-cost", "udp-shuffler"))


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_both_versions_are_specs_and_tuned_on_held_out_data(name: str) -> None:
    grid_file = ENTRIES[name]
    full, fast = full_grid(grid_file), fast_grid(grid_file)
    assert full.held_out["data.validation_fraction"] == 0.1
    for grid in (full, fast):
        specs = [trial.spec for trial in expand(grid.base, grid.axes)]
        assert all(spec.runtime.messages == "none" for spec in specs)
        assert all(spec.data.validation_fraction is None for spec in specs)
        assert "data.validation_fraction" in grid.held_out
    assert len({trial.spec.hash for trial in expand(fast.base, fast.axes)}) <= MOST_FAST_SPECS
    assert fast.reduced


def _budgets(name: str) -> set[tuple[Any, ...]]:
    grid = full_grid(ENTRIES[name])
    return {
        (trial.key["epsilon"], trial.spec.privacy.epsilon, trial.spec.privacy.delta)
        for trial in expand(grid.base, grid.axes)
        if trial.key["mechanism"] != "no privacy"
    }


@pytest.mark.parametrize("name", ["udp-accuracy", "udp-clients", "udp-sampling", "udp-privacy"])
def test_every_mechanism_has_the_same_budget(name: str) -> None:
    assert all(asked == given for asked, given, _ in _budgets(name))
    assert {delta for _, _, delta in _budgets(name)} == {1e-5}


def test_clients_take_turns_a_tenth_at_a_time() -> None:
    grid = full_grid(ENTRIES["udp-clients"])
    for trial in expand(grid.base, grid.axes):
        assert trial.spec.data.clients == trial.key["clients"]
        assert trial.spec.sampling.kind == "epochs"
        assert 10 * trial.spec.sampling.parameters["size"] == trial.spec.data.clients


def test_groups_share_the_clients_and_the_largest_budget_names_them() -> None:
    grid = full_grid(ENTRIES["udp-heterogeneous"])
    for trial in expand(grid.base, grid.axes):
        groups = trial.spec.privacy.groups
        if groups:
            counts = [group.clients for group in groups if isinstance(group.clients, int)]
            assert sum(counts) == trial.spec.data.clients
            assert max(group.epsilon or 0.0 for group in groups) == trial.key["epsilon"]
            assert min(group.epsilon or 0.0 for group in groups) == trial.spec.privacy.epsilon


DIGITS = {"data": {"dataset": "digits", "clients": 40}, "model": {"kind": "linear"}}


def _run(module: Any, folder: Path, **changes: Any) -> Findings:
    settings = find(module.NAME).settings(fast=True, seeds=2)
    found = module.study(dataclasses.replace(settings, folder=folder, **changes))
    assert isinstance(found, Findings)
    return found


def test_cost_counts_seconds_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udp_cost, "BASE", {**udp_cost.BASE, **DIGITS})
    monkeypatch.setattr(udp_cost, "FAST_ROUNDS", (1, 3))
    mechanisms = {
        "no privacy": {"kind": "no_privacy"},
        "Laplace": {"kind": "laplace"},
        "one bit": {"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 20.0},
    }
    monkeypatch.setattr(udp_cost, "MECHANISMS", mechanisms)
    findings = _run(udp_cost, tmp_path)
    rows = {(row["mechanism"], row["rounds"]): row for row in findings.rows}
    assert len(rows) == 6
    laplace, bits = rows["Laplace", 3], rows["one bit", 3]
    assert laplace["bytes_down"] == bits["bytes_down"]
    assert number(laplace, "bytes_up") > 40 * 3 * 650 * 4
    assert number(bits, "bytes_up") < number(laplace, "bytes_up") / 15
    assert laplace["bytes_up"] == 3 * number(rows["Laplace", 1], "bytes_up")
    assert all(number(row, "training_seconds") > 0.0 for row in findings.rows)
    assert number(laplace, "noise_seconds") > number(bits, "noise_seconds")
    assert findings.verdict.count("\n") == 2
    assert "one bit: " in findings.verdict
    assert "Printed" not in findings.verdict
    assert findings.figures[0].chart.svg().startswith("<svg")
    assert len(findings.trials) == 12


def test_a_shuffler_buys_noise_only_where_there_are_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = [{"kind": "flatten"}]
    base = {**udp_shuffler.BASE, **DIGITS, "features": features, "rounds": 2}
    monkeypatch.setattr(udp_shuffler, "BASE", base)
    monkeypatch.setattr(udp_shuffler, "MECHANISMS", {"Laplace": {"kind": "laplace"}})
    monkeypatch.setattr(udp_shuffler, "FAST_CLIENTS", (10, 1400))
    monkeypatch.setattr(udp_shuffler, "FAST_RATES", (1.0,))
    monkeypatch.setattr(udp_shuffler, "FAST_EPSILONS", (0.05,))
    findings = _run(udp_shuffler, tmp_path)
    few, few_hidden, many, many_hidden = findings.rows
    assert few["noise_multiplier"] == few_hidden["noise_multiplier"]
    assert few["accuracy"] == few_hidden["accuracy"]
    assert number(many_hidden, "noise_multiplier") < 0.9 * number(many, "noise_multiplier")
    assert number(many_hidden, "epsilon_if_all_is_seen") > 0.05
    assert all(number(row, "epsilon_spent") <= 0.05 for row in findings.rows)
    assert findings.verdict.startswith("In 1 of 2 settings the shuffler gains nothing")
    assert "Laplace, 1400 clients, epsilon 0.05: " in findings.verdict
    assert findings.figures[0].chart.svg().startswith("<svg")
    assert {trial["stage"] for trial in findings.trials} == {"tuning", "final"}
    assert {trial["spec_hash"] for trial in findings.trials} == {
        path.stem for path in (tmp_path / "trials").glob("*.json")
    }
