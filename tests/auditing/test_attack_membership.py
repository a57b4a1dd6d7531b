import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specs import small_table
from typer.testing import CliRunner

from sottovoce.auditing import run_membership
from sottovoce.auditing.finished_run import FinishedRun, open_run
from sottovoce.auditing.run_membership import RESULT, MembershipPlan, attack
from sottovoce.cli.main import app
from sottovoce.core.errors import DataError, ParameterError
from sottovoce.runs.loading import parse
from sottovoce.runs.runner import run


def ignore(*_: object) -> None:
    pass


def make(folder: Path, **changes: Any) -> FinishedRun:
    table = small_table(
        data={"dataset": "digits", "clients": 2, "num_train": 260, "num_test": 300},
        model={"kind": "mlp", "hidden_units": 16},
        rounds=30,
        algorithm={"kind": "fedavg", "server_learning_rate": 4.0},
        privacy={"level": "sample", "clip_norm": 1.0, "delta": 1e-5, "record_sampling_rate": 0.5},
        mechanism={"kind": "no_privacy"},
        runtime={"messages": "none"},
    )
    run(parse(table | changes), folder)
    return open_run(folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return make(tmp_path_factory.mktemp("attacked") / "run")


def test_every_figure_has_its_interval_and_chance(finished: FinishedRun) -> None:
    result, chart = attack(finished, MembershipPlan(shadows=8, candidates=400), ignore)
    assert list(result["attacks"]) == ["shokri", "lira-offline", "lira-online", "canary"]
    for found in result["attacks"].values():
        assert [one["fpr"] for one in found["tpr_at_fpr"]] == [0.01]
        for one in (*found["tpr_at_fpr"], found["balanced_accuracy"], found["auc"]):
            assert 0.0 <= one["low"] <= one["value"] <= one["high"] <= 1.0
            assert one["contains_chance"] == (one["low"] <= one["chance"] <= one["high"])
    assert "0.001 is left out: it needs 2000 candidates" in " ".join(result["notes"])
    assert "knows 60 further members" in " ".join(result["notes"])
    assert json.loads((finished.folder / RESULT).read_text())["verdict"] == result["verdict"]
    assert chart.x_log
    assert chart.y_log
    assert chart.lines[-1].name == "chance"
    assert "true positive rate" in chart.svg()


def test_shadows_are_kept_and_serve_again(
    finished: FinishedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = MembershipPlan(shadows=10, candidates=200, attacks=("lira-online",))
    first, _ = attack(finished, plan, ignore)

    def never(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(run_membership, "train_many", never)
    assert attack(finished, plan, ignore)[0] == first
    with pytest.raises(AssertionError, match="trained again"):
        attack(finished, MembershipPlan(shadows=10, candidates=202, attacks=("shokri",)), ignore)


def test_shadows_of_a_private_run_have_its_noise(tmp_path: Path) -> None:
    private = make(
        tmp_path / "run",
        rounds=3,
        privacy={"level": "sample", "clip_norm": 1.0, "epsilon": 4.0, "delta": 1e-5},
        mechanism={"kind": "gauss_hermite", "levels": 2},
        runtime={"messages": "stored"},
    )
    plan = MembershipPlan(shadows=8, candidates=260, attacks=("lira-offline",))
    result, _ = attack(private, plan, ignore)
    assert result["certificate"]["epsilon"] == pytest.approx(4.0, abs=0.05)
    assert result["attacks"]["lira-offline"]["auc"]["contains_chance"]


@pytest.mark.parametrize(
    ("plan", "error", "message"),
    [
        (
            MembershipPlan(shadows=8, candidates=100),
            DataError,
            "too few non-members .* at least 100",
        ),
        (
            MembershipPlan(shadows=10, candidates=200, fprs=[0.01, 0.001]),
            DataError,
            "at least 1000 non-members",
        ),
        (MembershipPlan(shadows=4, candidates=200), DataError, "too few shadow models"),
        (MembershipPlan(shadows=9, candidates=400), ParameterError, "even number"),
        (MembershipPlan(shadows=8, candidates=600), ParameterError, "from 2 to 520"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    finished: FinishedRun, plan: MembershipPlan, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        attack(finished, plan, ignore)


def test_the_command_line_prints_a_table_and_draws(finished: FinishedRun, tmp_path: Path) -> None:
    plot = tmp_path / "roc.svg"
    words = ["attack", "membership", str(finished.folder), "--shadows", "10", "--candidates", "200"]
    printed = CliRunner().invoke(app, [*words, "--attack", "lira-online", "--plot", str(plot)])
    assert printed.exit_code == 0, printed.output
    assert re.search(r"lira-online +0\.\d{3} \[0\.\d{3}, \d\.\d{3}\]", printed.output)
    assert plot.read_text().startswith("<svg")
    as_json = CliRunner().invoke(app, [*words, "--attack", "lira-online", "--json"])
    assert json.loads(as_json.output)["shadows"] == 10


def test_test_rows_of_another_law_are_told_of(tmp_path: Path) -> None:
    """Attacks then find members of a model from which nothing leaks: the reader must see why."""
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 2, 1500)
    features = generator.normal(0.0, 0.15, (1500, 8))
    features[:, 0] += np.where(labels == 1, 0.25, -0.25)
    features = features.clip(-0.5, 0.5).astype(np.float32)
    controls = []
    for name, wrong in (("same", 0.0), ("other", 0.4)):
        told = np.where(generator.random(500) < wrong, 1 - labels[1000:], labels[1000:])
        path = tmp_path / f"{name}.npz"
        np.savez(
            path,
            x_train=features[:1000],
            y_train=labels[:1000],
            x_test=features[1000:],
            y_test=told,
        )
        finished = make(tmp_path / name, data={"dataset": f"npz:{path}", "clients": 2}, rounds=10)
        result, _ = attack(finished, MembershipPlan(shadows=8, attacks=("lira-offline",)), ignore)
        controls.append(result["control"])
        assert f"AUC {controls[-1]['value']:.3f} [" in result["notes"][-1]
    assert abs(controls[0]["value"] - 0.5) < 0.1
    assert controls[1]["low"] > 0.55
