"""What a page says about training without noise, trivial scores, targets and ridge regression."""

import copy
import dataclasses
import tomllib
from collections.abc import Mapping
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_training import fake_train

import sottovoce_papers
from sottovoce.core.charts.lines import LineChart
from sottovoce.core.errors import ConfigError, UnknownNameError
from sottovoce_papers.experiment import Findings, find
from sottovoce_papers.grid_files import Baseline, full_grid, parse_grid_file, read_grid_files
from sottovoce_papers.learning import study as learning_study
from sottovoce_papers.learning.targets import Score, baseline_scores, reached
from sottovoce_papers.sweep import expand
from sottovoce_papers.trial import trial


def _table(**changes: Any) -> dict[str, Any]:
    path = package_files(sottovoce_papers) / "grids" / "digits-sweep.toml"
    table = copy.deepcopy(tomllib.loads(path.read_text(encoding="utf-8")))
    table["axes"]["clients"] = {"path": "data.clients", "values": [4, 10]}
    return {**table, **changes}


def _train(spec: Any, *, on_round: Any = None) -> dict[str, Any]:
    found = fake_train(spec, on_round=on_round)
    found["accuracy"] -= 0.5 / spec.data.clients  # Without noise .778 with 4 clients, .853 with 10.
    return {**found, "trivial_score": 0.11, "test_samples": 180}


def _findings(folder: Path, table: Mapping[str, Any], train: Any = _train) -> Findings:
    settings = find("digits-sweep").settings(fast=True, seeds=3)
    grid_file = parse_grid_file("digits-sweep", table)
    return learning_study.study(grid_file, dataclasses.replace(settings, folder=folder), train)


@pytest.mark.parametrize("floor", [0.8, {"4": 0.8}])
def test_a_setting_that_is_not_learned_without_noise_gets_no_verdict(
    floor: object, tmp_path: Path
) -> None:
    table = _table(figure={"panels": "clients", "learned_from": floor})
    findings = _findings(tmp_path, table)
    lines = findings.verdict.split("\n")
    assert lines[0].startswith("Of 2 settings, one bit is below")
    assert not [line for line in lines if line.startswith("At epsilon = 3, clients 4")]
    assert [line for line in lines if line.startswith("At epsilon = 3, clients 10")]
    (told,) = [line for line in lines if line.startswith("Not learned")]
    assert told == (
        "Not learned: clients 4. Without noise it reaches 77.70% (80% are asked for, the best "
        "constant answer has 11.00%), so there is no verdict about its rows."
    )
    assert len(findings.rows) == 14
    assert {row["trivial_score"] for row in findings.rows} == {0.11}
    others = 0.8 if floor == 0.8 else None
    floors = {(row["clients"], row["learned_from"]) for row in findings.rows}
    assert floors == {(4, 0.8), (10, others)}
    assert "(the most frequent class) scores 11.00% (4), 11.00% (10)." in findings.verdict
    captions = [figure.caption for figure in findings.figures]
    assert all("The best constant answer scores 0.110." in caption for caption in captions)


def test_no_better_than_a_constant_answer_is_not_learned_either(tmp_path: Path) -> None:
    def train(spec: Any, *, on_round: Any = None) -> dict[str, Any]:
        return {**_train(spec, on_round=on_round), "trivial_score": 0.8}

    findings = _findings(tmp_path, _table(), train)
    told = findings.verdict
    assert "Not learned: clients 4. Without noise it reaches 77.70% (the best constant" in told
    assert "Not learned: clients 10" not in told
    assert "learned_from" not in findings.rows[0]  # This study asks nothing of it.


def test_missing_training_without_noise_is_said(tmp_path: Path) -> None:
    table = _table()
    del table["axes"]["mechanism"][0]
    assert "This page has no training without noise" in _findings(tmp_path, table).verdict


def test_how_rates_were_tuned_is_on_the_page(tmp_path: Path) -> None:
    rates = {"path": "algorithm.server_learning_rate", "values": [1.0, 2.0]}
    table = _table(tuning={"seeds": 2, "set": {"rounds": 7}})
    table["axes"]["learning_rate"] = rates
    findings = _findings(tmp_path, table)
    assert "(rounds = 7: 180 rows) by the mean accuracy of one other seed; " in findings.tuning
    assert "choosing one by the held-out data, is not charged" in findings.tuning
    assert "edge of the grid for no privacy, clients 4; " in findings.verdict


def _wind(spec: Any, *, on_round: Any = None) -> dict[str, Any]:
    found = _train(spec, on_round=on_round)
    metrics = {"R-squared": found["accuracy"] - 0.2, "mean absolute error": 1 - found["accuracy"]}
    return {**found, "metrics": metrics}


def test_targets_and_baselines_are_columns_lines_and_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = {"mechanism": "no privacy", "clients": 10}
    ridge = Score(
        baseline=Baseline(where={"clients": 10}, kind="ridge"), accuracy=0.7, r_squared=0.5
    )
    monkeypatch.setattr(learning_study, "baseline_scores", lambda *_: [ridge])
    table = _table(targets=[{"where": where, "accuracy": 0.8515, "r_squared": 0.6}])
    findings = _findings(tmp_path, table, _wind)
    rows = {(row["mechanism"], row["clients"]): row for row in findings.rows}
    row, other = rows["no privacy", 10], rows["no privacy", 4]
    assert (row["target"], row["target_reached"]) == (0.8515, "by the mean only")
    assert (row["target_r_squared"], row["r_squared_reached"]) == (0.6, "yes")
    assert row["r_squared"] == pytest.approx(0.652)
    assert (row["ridge"], row["ridge_r_squared"]) == (0.7, 0.5)
    assert [other[name] for name in ("target", "target_reached", "ridge")] == [None] * 3
    told = "asked 85.15%, reached 85.20% (by the mean only); R-squared asked 0.6, reached 0.6520"
    assert f"no privacy, clients 10: {told} (yes)." in findings.verdict
    assert "Ridge regression on all training rows together (10): 70.00%, R-squared 0.5" in (
        findings.verdict
    )
    assert "the median of the targets; its R-squared is 0 or less" in findings.verdict
    curves = findings.figures[-1].chart
    assert isinstance(curves, LineChart)
    assert curves.lines[-1].name == "ridge regression"
    assert list(curves.lines[-1].y) == [0.7, 0.7]


def test_a_target_is_reached_if_the_whole_interval_is_above_it() -> None:
    scores = {1: 0.90, 2: 0.91, 3: 0.92}
    assert reached(scores, 0.88) == "yes"
    assert reached(scores, 0.90) == "by the mean only"
    assert reached(scores, 0.92) == "no"
    assert reached({1: 0.9}, 0.8) == "by the mean only"
    assert reached({}, 0.8) == "no result"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"targets": [{"where": {"client": 4}, "accuracy": 0.5}]}, "did you mean 'clients'"),
        ({"targets": [{"where": {"clients": 5}, "accuracy": 0.5}]}, r"'where' must name some of"),
        ({"targets": [{"accuracy": 85}]}, r"'targets\[0\].accuracy'"),
        ({"baselines": [{"kind": "lasso"}]}, r"'baselines\[0\].kind'"),
    ],
)
def test_wrong_targets_are_named(changes: dict[str, Any], error: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=error):
        parse_grid_file("x", _table(**changes))


def test_ridge_regression_and_trials_agree_with_a_plain_computation(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 4)).astype(np.float32)
    y = (0.5 + 0.1 * x[:, :1] + 0.02 * generator.normal(size=(300, 1))).astype(np.float32)
    np.savez(tmp_path / "own.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    base = copy.deepcopy(_table()["base"])
    base["data"] = {"dataset": f"npz:{tmp_path / 'own.npz'}", "clients": 2}
    del base["privacy"]["epsilon"]
    base["mechanism"] = {"kind": "no_privacy"}
    table = _table(base=base, baselines=[{"kind": "ridge"}])
    grid_file = parse_grid_file("x", table)
    trials = expand(base, {name: full_grid(grid_file).axes[name][:1] for name in ("mechanism",)})
    (score,) = baseline_scores(grid_file, trials)
    design = np.c_[x[:200], np.ones(200)].astype(float)
    told = np.c_[x[200:], np.ones(100)] @ np.linalg.lstsq(design, y[:200], rcond=None)[0]
    assert score.accuracy == pytest.approx(1 - np.abs(told - y[200:]).mean(), abs=1e-3)
    assert score.r_squared == pytest.approx(1 - np.var(told - y[200:]) / np.var(y[200:]), abs=0.02)
    found = trial(trials[0].spec)
    trivial = 1 - np.abs(y[200:] - np.median(y[200:])).mean()
    assert found["trivial_score"] == pytest.approx(trivial, abs=1e-5)
    assert found["test_samples"] == 100


def test_grids_of_claims_have_floors_and_grids_without_privacy_have_targets() -> None:
    named = {grid_file.name: grid_file for grid_file in read_grid_files()}
    claims = ("dp-sgd-mnist", "dp-sgd-medical-mnist", "dp-sgd-cifar10", "adaptive-clipping")
    paper = [f"udp-{name}" for name in ("accuracy", "privacy", "clients", "sampling", "cifar10")]
    for name in (*claims, *paper, "udp-cifar10-resnet18", "udp-scaffold-wind"):
        assert named[name].figure.learned_from
        values = {choice.value for choice in full_grid(named[name]).axes["mechanism"]}
        assert values & {"no noise", "no privacy"}
    plain = [grid_file for name, grid_file in named.items() if name.startswith("plain-")]
    assert len(plain) == 4
    for grid_file in plain:
        grid = full_grid(grid_file)
        assert grid_file.targets
        assert len(grid.axes["learning_rate"]) >= 4
        rate = grid.base["algorithm"]["local_learning_rate"]
        rates = [float(choice.value or 0.0) for choice in grid.axes["learning_rate"]]
        assert min(rates) < rate < max(rates)
        for one in expand(grid.base, {"mechanism": grid.axes["mechanism"]}):
            assert one.spec.mechanism.kind == "no_privacy"
