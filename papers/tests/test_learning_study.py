"""Learning experiments: the format of grid files, tuning, rows, verdicts, pages and commands."""

import copy
import csv
import dataclasses
import json
import os
import tomllib
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import pytest
from fake_training import fake_train

import sottovoce_papers
from sottovoce.core.charts.lines import LineChart
from sottovoce.core.charts.scatter import ScatterChart
from sottovoce.core.errors import ConfigError, OutputError, ParameterError, UnknownNameError
from sottovoce_papers import publish, study
from sottovoce_papers.experiment import Experiment, Findings, find
from sottovoce_papers.grid_files import (
    GridFile,
    fast_grid,
    full_grid,
    parse_grid_file,
    read_grid_files,
)
from sottovoce_papers.learning import study as learning_study
from sottovoce_papers.learning.rows import OF_HIDDEN, Comparison, summaries, verdict
from sottovoce_papers.learning.tuning import (
    FIRST_TUNING_SEED,
    choose_rates,
    group_of,
    promising_rates,
)
from sottovoce_papers.sweep import TrialResult, expand


def _table(name: str = "digits-sweep") -> dict[str, Any]:
    path = package_files(sottovoce_papers) / "grids" / f"{name}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _tuned_table() -> dict[str, Any]:
    table = _table()
    table["axes"]["learning_rate"] = {
        "path": "algorithm.server_learning_rate",
        "values": [0.5, 1.0, 2.0],
    }
    table["tuning"] = {"seeds": 2, "set": {"rounds": 7}}  # stands for holding out data
    return table


def _findings(
    folder: Path, table: dict[str, Any] | None = None, train: Any = fake_train, **options: Any
) -> Findings:
    grid_file = parse_grid_file("digits-sweep", table or _table())
    settings = find("digits-sweep").settings(**{"fast": True, "seeds": 3} | options)
    return learning_study.study(grid_file, dataclasses.replace(settings, folder=folder), train)


def test_the_grid_files_are_registered_and_say_what_they_need() -> None:
    names = [grid_file.name for grid_file in read_grid_files()]
    assert {"digits-sweep", "imvu-mnist"} <= set(names)
    assert "digits" not in names  # a bare spec
    assert find("imvu-mnist").data == "mnist"
    assert find("digits-sweep").data == ""
    assert find("digits-sweep").settings(fast=True).seeds == 2
    assert find("digits-sweep").settings().seeds == 8


def test_both_versions_of_the_digits_grid_are_valid_specs() -> None:
    grid_file = parse_grid_file("digits-sweep", _table())
    full, fast = full_grid(grid_file), fast_grid(grid_file)
    assert len(expand(full.base, full.axes)) == 12
    trials = expand(fast.base, fast.axes)
    assert len(trials) == 8
    assert {trial.spec.rounds for trial in trials} == {5}
    assert fast.reduced == "rounds is 5, not 30; epsilon 3.0, 10.0 only, of 1.0, 3.0, 10.0"
    assert grid_file.base["rounds"] == 30


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("experiment.favorite", "two bits", "unknown mechanism of x.toml 'two bits'"),
        ("experiment.seeds", 1, "'experiment.seeds' must be greater than"),
        ("experiment.claims", "", r"x.toml: unknown key 'claims'; did you mean 'claim'\?"),
        ("axes.epsilon.valeus", [1.0], "'valeus'; did you mean 'values'.*axes.epsilon"),
        ("name", "x", "unknown key 'name'"),
        ("base.data.validation_fraction", 0.1, r"write it into \[tuning\]"),
        ("axes.mechanism", None, r"\[axes.mechanism\] is missing"),
        ("axes.seed", {"path": "seed", "values": [1]}, r"give \[experiment\] seeds"),
        ("axes.learning_rate", {"path": "a", "values": [1.0]}, r"needs \[tuning\]"),
        (
            "axes.epsilon.values",
            ["one"],
            r"the values of \[axes.epsilon\] must be numbers, got 'one'",
        ),
        ("fast.axes.epsilon", [2.0], r"axes.epsilon must be some of \[1.0, 3.0, 10.0\], got"),
        ("fast.axes.epsilons", [1.0], "did you mean 'epsilon'"),
    ],
)
def test_a_wrong_grid_file_is_named(path: str, value: Any, message: str) -> None:
    table = _table()
    *parents, last = path.split(".")
    place = table
    for parent in parents:
        place = place[parent]
    if value is None:
        del place[last]
    else:
        place[last] = value
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        parse_grid_file("x", table)


def test_a_study_sums_up_seeds_and_draws(tmp_path: Path) -> None:
    findings = _findings(tmp_path)
    rows = {(row["mechanism"], row["epsilon"]): row for row in findings.rows}
    assert len(rows) == 7  # three mechanisms at two budgets, and no privacy once
    row = rows["one bit", 3.0]
    assert row["accuracy"] == pytest.approx(0.9 - 0.02 - 0.1 + 0.002)
    assert row["seeds"] == 3
    # Accuracies .001 apart: Student's quantile 4.3027 times .001/sqrt(3).
    assert row["accuracy_high"] == pytest.approx(0.782 + 4.30265 * 0.001 / 3**0.5)
    assert (row["bits_per_coordinate"], row["payload_bytes_up_per_message"]) == (1.0, 82)
    assert rows["no privacy", None]["epsilon_spent"] is None
    assert not set(row) & set(OF_HIDDEN)  # here every message is seen
    scatter, curves = (figure.chart for figure in findings.figures)
    assert isinstance(scatter, ScatterChart)
    assert isinstance(curves, LineChart)
    names = ["Gaussian (float32)", "one bit", "sign"]
    assert [series.name for series in scatter.series] == names
    assert [line.name for line in curves.lines] == [*names, "no privacy"]  # the same colours
    assert findings.reduced.endswith("of 1.0, 3.0, 10.0; 3 seeds, not 8.")
    first, *others = findings.verdict.split("\n")
    assert first.startswith(
        "Of 2 budgets, one bit is below Gaussian (float32) in 2, above it in 0 and not clearly"
    )
    assert "At epsilon = 3, Gaussian (float32) is best (80.20%" in others[0]
    assert "differs from it by -2.00 points (-2.00 to -2.00)" in others[0]
    assert "Without a budget, no privacy reaches 90.20%" in findings.verdict
    assert len(findings.trials) == 24
    assert all(len(str(trial["spec_hash"])) == 16 for trial in findings.trials)


def test_rates_are_tuned_on_other_seeds_and_the_chosen_one_is_trained(tmp_path: Path) -> None:
    seen: list[tuple[int, int, float]] = []

    def train(spec: Any, *, on_round: Any = None) -> dict[str, Any]:
        seen.append((spec.rounds, spec.seed, spec.algorithm.server_learning_rate))
        return fake_train(spec, on_round=on_round)

    findings = _findings(tmp_path / "reduced", _tuned_table(), train)
    assert {seed for rounds, seed, _ in seen if rounds == 7} == {FIRST_TUNING_SEED}
    assert "rates are tuned with 1 seed, not 2" in findings.reduced
    seen.clear()
    findings = _findings(tmp_path, _tuned_table(), train, fast=False)
    tuning = [entry for entry in seen if entry[0] == 7]
    final = [entry for entry in seen if entry[0] == 30]
    assert seen == tuning + final
    assert {seed for _, seed, _ in tuning} == {FIRST_TUNING_SEED, FIRST_TUNING_SEED + 1}
    assert {seed for _, seed, _ in final} == {1, 2, 3}
    assert {rate for _, _, rate in tuning} == {0.5, 1.0, 2.0}
    assert {rate for _, _, rate in final} == {1.0}
    assert {row["learning_rate"] for row in findings.rows} == {1.0}
    assert {row["rate_at_edge"] for row in findings.rows} == {False}
    assert "edge" not in findings.verdict
    assert "Learning rates (0.5, 1, 2) are chosen" in findings.tuning
    assert {trial["stage"] for trial in findings.trials} == {"tuning", "final"}


def test_a_rate_at_the_edge_is_reported(tmp_path: Path) -> None:
    table = _tuned_table()
    table["axes"]["learning_rate"]["values"] = [1.0, 2.0, 4.0]
    findings = _findings(tmp_path, table)
    assert {row["rate_at_edge"] for row in findings.rows} == {True}
    assert "edge of the grid for no privacy; Gaussian (float32) at epsilon 3" in findings.verdict


def test_a_part_of_a_grid_is_trained_and_the_page_says_what_was_left_out(tmp_path: Path) -> None:
    findings = _findings(tmp_path, fast=False, only=["epsilon=3.0"])
    assert {row["epsilon"] for row in findings.rows if row["epsilon"]} == {3.0}
    assert findings.reduced == "epsilon 3.0 only, of 1.0, 3.0, 10.0; 3 seeds, not 8."
    for only, message in (
        (["epsilons=3.0"], "unknown axis 'epsilons'; did you mean 'epsilon'"),
        (["epsilon=4"], "unknown value of the axis 'epsilon' '4'"),
        (["mechanism=sign"], "are compared with each other"),
        (["epsilon"], "--only takes AXIS=VALUE"),
    ):
        with pytest.raises((ConfigError, ParameterError, UnknownNameError), match=message):
            _findings(tmp_path, only=only)
    with pytest.raises(ParameterError, match="leave out --only"):
        find("mvu-scalar").settings(only=["epsilon=1"])


def _result(seed: int, rate: float, accuracy: float | None) -> TrialResult:
    return TrialResult(
        key={"mechanism": "m", "learning_rate": rate, "seed": seed},
        spec_hash="",
        result=None if accuracy is None else {"accuracy": accuracy},
        error="diverged" if accuracy is None else None,
        seconds=0.0,
    )


def test_a_rate_that_failed_with_any_seed_is_out_and_ties_go_to_the_lower() -> None:
    group = group_of({"mechanism": "m", "learning_rate": 0, "seed": 0})
    results = [_result(1, 1.0, 0.9), _result(2, 1.0, None), _result(1, 0.5, 0.6)]
    results += [_result(2, 0.5, 0.8), _result(1, 0.7, 0.7), _result(2, 0.7, 0.7)]
    found = choose_rates(results)[group]
    assert found.rate == 0.5
    assert found.accuracy == pytest.approx(0.7)
    assert found.at_edge
    assert choose_rates([_result(1, 1.0, None)])[group].rate is None


def test_rates_next_to_the_best_of_the_first_seed_are_tried_with_all_seeds() -> None:
    group = group_of({"mechanism": "m", "learning_rate": 0, "seed": 0})
    first = [
        _result(1, rate, score) for rate, score in zip((1, 2, 4, 8), (5, 7, 9, 1), strict=True)
    ]
    assert promising_rates(first)[group] == {2.0, 4.0, 8.0}
    assert promising_rates(first[:2])[group] == {1.0, 2.0}
    assert promising_rates([_result(1, 1.0, None)])[group] == frozenset()
    # A rate with fewer seeds does not compete, however good its only one is.
    assert choose_rates([*first, _result(2, 2.0, 7.0), _result(2, 8.0, 9.0)])[group].rate == 2.0


def test_a_cell_that_cannot_be_tuned_stays_in_the_table(tmp_path: Path) -> None:
    def train(spec: Any, *, on_round: Any = None) -> dict[str, Any]:
        if spec.mechanism.kind == "stochastic_sign":
            raise ConfigError("the model diverged; lower the rate")
        return fake_train(spec)

    findings = _findings(tmp_path, _tuned_table(), train)
    failed = [row for row in findings.rows if row["mechanism"] == "sign"]
    assert [(row["accuracy"], row["failed"], row["learning_rate"]) for row in failed] == [
        (None, 3, None)
    ] * 2
    assert len(findings.failures) == 2 * 3
    assert findings.failures[0].startswith(
        "tuning, sign, epsilon 3.0, learning rate 0.5, seed 1000"
    )
    assert "6 trials failed, 6 of them because the model diverged; they" in findings.verdict


def test_an_experiment_without_any_result_is_an_error(tmp_path: Path) -> None:
    def train(spec: Any, *, on_round: Any = None) -> dict[str, Any]:
        raise ConfigError("data set 'x' is not there; fetch it")

    with pytest.raises(ConfigError, match=r"every trial failed; the first: no privacy.*fetch it"):
        _findings(tmp_path, train=train)


def test_further_axes_are_compared_apart(tmp_path: Path) -> None:
    table = _table()
    table["axes"]["clients"] = {"path": "data.clients", "values": [4, 10]}
    findings = _findings(tmp_path, table)
    assert len(findings.rows) == 14
    assert findings.verdict.startswith("Of 4 settings, ")
    assert "At epsilon = 3, clients 10, Gaussian (float32) is best" in findings.verdict
    scatter = findings.figures[0].chart
    assert isinstance(scatter, ScatterChart)
    assert [series.name for series in scatter.series][:2] == [
        "Gaussian (float32), clients 4",
        "Gaussian (float32), clients 10",
    ]


def test_data_and_device_reach_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(learning_study.DATA_VARIABLE, "before")
    seen = set()

    def train(spec: Any, *, on_round: Any = None) -> dict[str, Any]:
        seen.add(os.environ[learning_study.DATA_VARIABLE])
        return fake_train(spec)

    _findings(tmp_path, train=train, data_dir=tmp_path / "data")
    assert seen == {str(tmp_path / "data")}
    assert os.environ[learning_study.DATA_VARIABLE] == "before"
    grid = learning_study._on_device(full_grid(parse_grid_file("d", _table())), "cpu")
    assert grid.base["runtime"] == {"messages": "packed", "device": "cpu"}
    with pytest.raises(ParameterError, match="'mvu-scalar' trains no model; leave out --jobs"):
        find("mvu-scalar").settings(jobs=2)


def _compared(grid_file: GridFile, ours: list[float], theirs: list[float]) -> str:
    results = [
        TrialResult(
            key={"mechanism": mechanism, "epsilon": 3.0, "seed": seed},
            spec_hash="",
            result={"accuracy": accuracy, "epsilon": 2.99},
            error=None,
            seconds=0.0,
        )
        for mechanism, values in (("one bit", ours), ("Gaussian (float32)", theirs))
        for seed, accuracy in enumerate(values)
    ]
    return verdict(grid_file, summaries(results, {}, seeds=len(ours)), [])


@pytest.mark.parametrize(
    ("ours", "summary", "place"),
    [
        ([0.80, 0.81, 0.82], "below Gaussian (float32) in 1, above it in 0", "lies below"),
        ([0.90, 0.93, 0.91], "in 0, above it in 0 and not clearly different in 1", "lies inside"),
        ([0.98, 0.97, 0.99], "in 0, above it in 1 and not", "lies above"),
    ],
)
def test_the_verdict_goes_either_way(ours: list[float], summary: str, place: str) -> None:
    grid_file = parse_grid_file("digits-sweep", _table())
    text = _compared(grid_file, ours, [0.90, 0.91, 0.92])
    assert summary in text
    assert place in text


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        ([0.901, 0.912, 0.921], "Within 0.5 points: shown, with 3 pairs."),
        ([0.90, 0.93, 0.91], "Within 0.5 points: cannot be told, with 3 pairs."),
        ([0.88, 0.891, 0.90], "Within 0.5 points: not so, with 3 pairs."),
    ],
)
def test_a_margin_is_shown_or_not_or_cannot_be_told(ours: list[float], told: str) -> None:
    table = _table()
    table["experiment"]["margin"] = 0.005
    assert told in _compared(parse_grid_file("d", table), ours, [0.90, 0.91, 0.92])


def test_other_mechanisms_may_have_fewer_seeds(tmp_path: Path) -> None:
    table = _table()
    table["experiment"] |= {"other_seeds": 2, "population": "4 clients"}
    findings = _findings(tmp_path, table)
    assert {(row["mechanism"], row["seeds"], row["failed"]) for row in findings.rows} == {
        ("one bit", 3, 0),
        ("Gaussian (float32)", 3, 0),
        ("sign", 2, 0),
        ("no privacy", 2, 0),
    }
    assert "or 1 to 2 (all others)" in findings.method
    assert "Epsilon holds for the 4 clients of this study" in findings.method


def test_bytes_of_masked_messages_are_listed(tmp_path: Path) -> None:
    def train(spec: Any, *, on_round: Any = None) -> dict[str, Any]:
        masked = {"masked_bytes_up_per_message": 574} if spec.mechanism.kind == "gaussian" else {}
        return {**fake_train(spec), **masked}

    findings = _findings(tmp_path, train=train)
    assert (
        "Gaussian (float32) 574 masked (2,600 of codes); one bit 82; sign 2,600."
        in findings.verdict
    )
    assert "masked_bytes_up_per_message" in findings.rows[0]


def test_seeds_are_paired() -> None:
    grid_file = parse_grid_file("digits-sweep", _table())
    text = _compared(grid_file, [0.51, 0.71, 0.91], [0.50, 0.70, 0.90])
    assert "differs from it by +1.00 points (+1.00 to +1.00)" in text
    assert "lies inside the interval" in text


def test_nothing_to_compare_is_said() -> None:
    grid_file = parse_grid_file("digits-sweep", _table())
    nobody = Comparison.of(grid_file, summaries([_failed()], {}, seeds=2))
    assert nobody.sentence() == "At epsilon = 3, every trial failed."


def _failed() -> TrialResult:
    return TrialResult(
        key={"mechanism": "one bit", "epsilon": 3.0, "seed": 1},
        spec_hash="",
        result=None,
        error="no",
        seconds=0.0,
    )


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.setattr(learning_study, "default_train", lambda: fake_train)
    return find("digits-sweep")


def test_a_run_saves_a_page_and_goes_on_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, calls = find("digits-sweep"), 0

    def interrupted(spec: Any, *, on_round: Any = None) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise KeyboardInterrupt
        return fake_train(spec)

    monkeypatch.setattr(learning_study, "default_train", lambda: interrupted)
    with pytest.raises(KeyboardInterrupt):
        study.run(found, found.settings(fast=True), tmp_path)
    assert not (tmp_path / "index.html").exists()
    with pytest.raises(OutputError, match="unfinished experiment"):
        publish.publish(find("digits-sweep"), tmp_path, tmp_path / "results")
    study.run(found, found.settings(fast=True), tmp_path)
    assert calls == 5 + 14 - 4
    page = (tmp_path / "index.html").read_text()
    assert "<strong>Reduced:</strong> rounds is 5, not 30" in page
    assert "sottovoce experiment run digits-sweep --seeds 2 --fast" in page
    assert "http" not in page.replace("http-equiv", "")
    with (tmp_path / "trials.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert {row["spec_hash"] for row in table} == {
        path.stem for path in (tmp_path / "trials").glob("*.json")
    }
    assert "accuracy-by-epsilon.svg" in {path.name for path in tmp_path.iterdir()}


def test_failures_stand_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(spec: Any, *, on_round: Any = None) -> dict[str, Any]:
        if spec.mechanism.kind == "stochastic_sign" and spec.seed == 1:
            raise ConfigError("the model <diverged>; lower the rate")
        return {**fake_train(spec), "warnings": ["a warning"]}

    monkeypatch.setattr(learning_study, "default_train", lambda: train)
    found = find("digits-sweep")
    result = study.run(found, found.settings(fast=True), tmp_path)
    assert len(result["failures"]) == 2
    page = (tmp_path / "index.html").read_text()
    assert "sign, epsilon 3.0, seed 1: the model &lt;diverged&gt;; lower the rate" in page
    assert "a warning (14 of 16 trials)" in page
    sign = next(row for row in result["rows"] if row["mechanism"] == "sign")
    assert (sign["seeds"], sign["failed"], sign["accuracy_low"]) == (1, 1, None)


def test_publishing_copies_what_is_small(faked: Experiment, tmp_path: Path) -> None:
    out, results = tmp_path / "out", tmp_path / "results"
    result = study.run(faked, faked.settings(fast=True), out)
    stale = results / "digits-sweep" / "stale.svg"
    stale.parent.mkdir(parents=True)
    stale.write_text("<svg/>")
    page = publish.publish(find("digits-sweep"), out, results)
    assert {path.name for path in page.parent.iterdir()} == {
        "README.md",
        "data.csv",
        "trials.csv",
        "accuracy-by-epsilon.svg",
        "accuracy-by-round.svg",
    }
    text = page.read_text()
    for part in (result["claim"], result["verdict"].split("\n")[0], result["machine"]):
        assert part in text
    assert "- Seeds: 2" in text
    assert "| mechanism | epsilon | accuracy | accuracy low |" in text
    assert "`sottovoce experiment run digits-sweep --seeds 2 --fast`" in text
    assert "**Reduced:** rounds is 5" in text
    assert all(f"`{trial['spec_hash']}`" in text for trial in result["trials"])
    (out / "data.csv").write_bytes(b"x" * (publish.MAX_BYTES + 1))
    with pytest.raises(OutputError, match="publish a smaller grid"):
        publish.publish(find("digits-sweep"), out, results)
    with pytest.raises(OutputError, match="holds the experiment 'digits-sweep', not 'mvu-bits'"):
        publish.publish(find("mvu-bits"), out, results)


def test_an_experiment_that_trains_nothing_is_published_too(tmp_path: Path) -> None:
    found = find("mvu-consistency")
    study.run(found, found.settings(fast=True), tmp_path / "out")
    page = publish.publish(found, tmp_path / "out", tmp_path / "results")
    assert "**Reduced:** a fast version." in page.read_text()
    assert "Spec hashes" not in page.read_text()


def test_results_do_not_depend_on_the_number_of_jobs(tmp_path: Path) -> None:
    one = _findings(tmp_path / "one", jobs=1)
    two = _findings(tmp_path / "two", jobs=2)
    assert one.rows == two.rows
    assert one.verdict == two.verdict


def test_the_mnist_experiment_expands_over_keys_that_its_spec_may_have() -> None:
    table = copy.deepcopy(_table("imvu-mnist"))
    grid_file = parse_grid_file("imvu-mnist", table)
    full, fast = full_grid(grid_file), fast_grid(grid_file)
    assert [len(axis) for axis in full.axes.values()] == [4, 5, 6]
    assert full.held_out == {"data.validation_fraction": 0.1, "rounds": 450}
    assert fast.held_out["rounds"] == 18
    assert json.dumps(full.base)  # plain data


def test_every_grid_file_trains_without_a_ledger() -> None:
    """A trial stores no messages: a spec that wants them stored would fail in every cell."""
    for grid_file in read_grid_files():
        for grid in (full_grid(grid_file), fast_grid(grid_file)):
            numbers = {name: grid.axes.get(name, [])[:1] for name in ("epsilon", "learning_rate")}
            few = {name: numbers.get(name, axis) for name, axis in grid.axes.items()}
            for trial in expand(grid.base, few):
                assert trial.spec.runtime.messages != "stored", grid_file.name
                assert trial.spec.randomness == "seeded", grid_file.name
