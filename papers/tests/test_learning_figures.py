"""What a learning experiment draws and says beside accuracy by epsilon."""

import copy
import dataclasses
import tomllib
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import pytest
from fake_training import fake_train

import sottovoce_papers
from sottovoce.core.charts.lines import LineChart
from sottovoce.core.charts.scatter import ScatterChart
from sottovoce.core.errors import ConfigError, UnknownNameError
from sottovoce_papers.experiment import Findings, find
from sottovoce_papers.grid_files import parse_grid_file
from sottovoce_papers.learning import study as learning_study
from sottovoce_papers.learning.curves import LearningCurve


def _table(**figure: Any) -> dict[str, Any]:
    path = package_files(sottovoce_papers) / "grids" / "digits-sweep.toml"
    table = copy.deepcopy(tomllib.loads(path.read_text(encoding="utf-8")))
    table["axes"]["clients"] = {"path": "data.clients", "values": [4, 10]}
    table["figure"] = {"x_log": False, **figure}
    return table


def _train(spec: Any, *, on_round: Any = None) -> dict[str, Any]:
    """A curve of three points that rises with the clients; NbAFL has an epsilon of its own."""
    found = fake_train(spec, on_round=on_round)
    last = found["accuracy"] - 0.5 / spec.data.clients
    curve = [{"round": n, "accuracy": last * n / 5, "loss": 1.0, "epsilon": 1.0} for n in (1, 3, 5)]
    extra = {}
    if spec.algorithm.kind == "nbafl":
        extra = {"published_epsilon": spec.privacy.epsilon, "epsilon": 1e4}
    return {**found, "accuracy": last, "curve": curve, **extra}


def _findings(folder: Path, table: dict[str, Any]) -> Findings:
    settings = find("digits-sweep").settings(fast=True, seeds=3)
    grid_file = parse_grid_file("digits-sweep", table)
    return learning_study.study(grid_file, dataclasses.replace(settings, folder=folder), _train)


def test_another_axis_below_the_picture_and_the_favorite_by_round(tmp_path: Path) -> None:
    findings = _findings(tmp_path, _table(x="clients"))
    main, curves = (figure for figure in findings.figures)
    assert (main.name, curves.name) == ("accuracy-by-clients", "accuracy-by-round")
    assert isinstance(main.chart, LineChart)
    assert main.chart.x_label == "clients"
    names = [line.name for line in main.chart.lines]
    assert names[:2] == ["no privacy", "Gaussian (float32), epsilon 3.0"]
    assert len(names) == 1 + 3 * 2
    line = main.chart.lines[1]
    assert list(line.x) == [4.0, 10.0]
    assert line.y[1] - line.y[0] == pytest.approx(0.5 / 4 - 0.5 / 10)
    assert line.low[0] < line.y[0] < line.high[0]
    assert isinstance(curves.chart, LineChart)
    assert [line.name for line in curves.chart.lines] == [
        "one bit, clients 4",
        "one bit, clients 10",
        "no privacy, clients 4",
        "no privacy, clients 10",
    ]
    assert main.chart.svg().startswith("<svg")


def test_panels_have_pictures_of_their_own(tmp_path: Path) -> None:
    findings = _findings(tmp_path, _table(panels="clients"))
    assert [figure.name for figure in findings.figures] == [
        "accuracy-by-epsilon-4",
        "accuracy-by-round-4",
        "accuracy-by-epsilon-10",
        "accuracy-by-round-10",
    ]
    chart = findings.figures[0].chart
    assert isinstance(chart, ScatterChart)
    assert chart.title == "Test accuracy by epsilon spent (4)"
    assert [series.name for series in chart.series] == ["Gaussian (float32)", "one bit", "sign"]
    assert [level.name for level in chart.levels] == ["no privacy"]


def test_curves_may_be_left_out_and_the_label_be_another(tmp_path: Path) -> None:
    findings = _findings(tmp_path, _table(curves=False, y_label="1 - mean absolute error"))
    (figure,) = findings.figures
    assert isinstance(figure.chart, ScatterChart)
    assert figure.chart.y_label == "1 - mean absolute error"


def test_rounds_to_a_target_are_in_the_table_and_the_verdict(tmp_path: Path) -> None:
    findings = _findings(tmp_path, _table(target_accuracy=0.75))
    found = {
        (r["mechanism"], r["epsilon"], r["clients"]): r["rounds_to_0.75"] for r in findings.rows
    }
    assert found["no privacy", None, 10] == 5
    assert found["no privacy", None, 4] == 5
    assert found["one bit", 3.0, 4] == "not reached"
    assert (
        "Rounds until the mean is 75%, epsilon 10.0, clients 10: Gaussian (float32) 5, one bit 5, "
        "sign 5." in findings.verdict
    )
    assert "epsilon 3.0, clients 4: Gaussian (float32) not reached" in findings.verdict


def test_a_curve_is_what_all_seeds_have() -> None:
    rows = [{"round": n, "accuracy": n / 10, "loss": 1.0} for n in (2, 4, 6)]
    curve = LearningCurve.of([{"curve": rows}, {"curve": rows[:2]}])
    assert curve.rounds == [2, 4]
    assert curve.means == pytest.approx([0.2, 0.4])
    assert curve.rounds_to(0.3) == 4
    assert curve.rounds_to(0.2) == 2
    assert curve.rounds_to(0.41) is None
    assert LearningCurve.of([{}, {"curve": rows}]).rounds == []
    low, high = LearningCurve.of([{"curve": rows}]).intervals[0]
    assert low == high == pytest.approx(0.2)
    wide = [{"curve": [{"round": 1, "accuracy": value}]} for value in (0.1, 0.9)]
    assert LearningCurve.of(wide).intervals == [(0.0, 1.0)]


def test_a_published_epsilon_is_drawn_as_such_and_compared_with_no_one(tmp_path: Path) -> None:
    table = _table()
    nbafl = {"kind": "nbafl", "local_learning_rate": 1.0}
    choice = {"value": "NbAFL", "set": {"algorithm": nbafl, "privacy.level": "client"}}
    table["axes"]["mechanism"].append(choice)
    table["axes"]["clients"]["values"] = [10]
    findings = _findings(tmp_path, table)
    row = next(row for row in findings.rows if row["mechanism"] == "NbAFL" and row["epsilon"] == 3)
    assert (row["epsilon_spent"], row["published_epsilon"]) == (1e4, 3.0)
    assert all("published_epsilon" in row for row in findings.rows)
    assert "NbAFL is best" not in findings.verdict
    assert "reaches 75.20% at a published epsilon of 3, which is not a bound" in findings.verdict
    assert "a bound for a whole client: epsilon 10000.000" in findings.verdict
    scatter = findings.figures[0].chart
    assert isinstance(scatter, ScatterChart)
    last = scatter.series[-1]
    assert last.name == "NbAFL (published epsilon, no bound)"
    assert list(last.x) == [3.0, 10.0]


@pytest.mark.parametrize(
    ("figure", "message"),
    [
        ({"x": "client"}, "did you mean 'clients'"),
        ({"x": "mechanism"}, r"axis in \[figure\]"),
        ({"panels": "data"}, r"axis in \[figure\]"),
        ({"x": "clients", "panels": "clients"}, "panels must not be x or epsilon"),
        ({"panels": "epsilon"}, "panels must not be x or epsilon"),
        ({"x": "spread"}, r"the values of \[axes.spread\] must be numbers, got 'even'"),
        ({"target_accuracy": 90}, "'figure.target_accuracy'"),
        ({"panels": "clients", "learned_from": {"5": 0.5}}, "panel of digits-sweep.toml '5'"),
    ],
)
def test_a_wrong_figure_is_named(figure: dict[str, Any], message: str) -> None:
    table = _table(**figure)
    table["axes"]["spread"] = [{"value": "even"}]
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        parse_grid_file("digits-sweep", table)
