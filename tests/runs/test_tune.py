"""Settings chosen by private selection: the choice is charged, and the total keeps the budget."""

import json
from pathlib import Path
from typing import Any

import pytest
from specs import CLIENT_LEVEL, small_spec, small_table

import sottovoce
from sottovoce.core.errors import ConfigError, ParameterError, SottovoceError
from sottovoce.federated.cohorts import draw_positions
from sottovoce.privacy.renyi import RenyiAccountant
from sottovoce.privacy.selection import selected_curve
from sottovoce.runs import tune as tuning
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.runner import run

RATES = {"algorithm.server_learning_rate": [0.1, 3.0]}
QUICK: dict[str, Any] = {"rounds": 2, "runtime": {"messages": "none"}}


def _tune(grid: dict[str, list[Any]] = RATES, changes: Any = (), **more: Any) -> sottovoce.Run:
    return sottovoce.tune(
        small_table(**QUICK | dict(changes)), grid=grid, **{"expected_trials": 3.0, **more}
    )


def test_the_best_run_states_the_cost_of_its_choice(tmp_path: Path) -> None:
    plans: list[tuning.TuningPlan] = []
    best = _tune(out=tmp_path / "best", on_plan=plans.append)
    (plan,) = plans
    assert 0.98 * 4.0 <= best.epsilon <= 4.0
    assert best.epsilon == plan.epsilon_total > plan.epsilon_trial
    assert best.tuning is not None
    assert best.tuning["charged"]
    assert best.tuning["chosen"]["algorithm.server_learning_rate"] in (0.1, 3.0)
    result = json.loads((tmp_path / "best/result.json").read_text())
    assert result["tuning"] == best.tuning
    assert {row["epsilon"] for row in result["clients"]} == {best.epsilon}
    assert {row["budget"] for row in result["clients"]} == {4.0}
    assert {row["epsilon"] for row in result["groups"]} == {best.epsilon}
    assert all(row.epsilon == best.epsilon for row in best.rounds)
    assert "the other trials" in best.guarantee
    assert not any(word in json.dumps(result) for word in ("num_trials", "trials_drawn"))
    with pytest.raises(ConfigError, match="best of several trials"):
        run(small_spec(**QUICK), tmp_path / "best", resume=True)


def test_the_total_is_that_of_the_most_expensive_point() -> None:
    plans: list[tuning.TuningPlan] = []
    noise = {"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 2.0}
    privacy = small_table()["privacy"] | {"epsilon": None}
    _tune(
        {"rounds": [1, 2, 3]},
        {"mechanism": noise, "privacy": privacy},
        law="poisson",
        expected_trials=5.0,
        on_plan=plans.append,
    )
    (plan,) = plans
    (spec,) = [spec for point, spec in plan.points if point["rounds"] == 3]
    curve = selected_curve(tuning._charged_in(spec), plan.law)
    assert plan.epsilon_total == RenyiAccountant().epsilon(curve, 1e-5)
    assert plan.budget is None


def test_trials_of_equal_settings_have_noise_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    models = []
    made = tuning._run_trial

    def note(spec: Any, folder: Path) -> dict[str, Any]:
        result = made(spec, folder)
        checkpoint = RunFolder(folder).load_checkpoint()
        assert checkpoint is not None
        models.append(checkpoint.model.tobytes())
        return result

    monkeypatch.setattr(tuning, "_run_trial", note)
    monkeypatch.setattr(tuning, "draw_trials", lambda *_: 5)
    _tune(out=tmp_path / "best")
    assert len(set(models)) == 5
    kept = RunFolder(tmp_path / "best").load_checkpoint()
    assert kept is not None
    assert kept.model.tobytes() in models


SECRET_ORDER = {
    "channel": {"kind": "secret_order", "minimum_clients": 6},
    "sampling": {"kind": "epochs", "size": 2},
    "privacy": {**CLIENT_LEVEL["privacy"], "adjacency": "replace-one"},
}
CENTRAL = {
    "channel": {"kind": "central"},
    "sampling": {"kind": "poisson", "rate": 0.5},
    "mechanism": {"kind": "gaussian"},
}
FIXED_SIZE = {"sampling": {"kind": "fixed_size", "size": 3}}


@pytest.mark.parametrize(
    ("changes", "own"), [(CENTRAL, True), (SECRET_ORDER, True), (FIXED_SIZE, False)]
)
def test_trials_share_no_secret_sample_of_clients(
    changes: dict[str, Any], own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is one for independent trials; with a shared sample much more may be spent.

    Let a client move one number from N(0, 1) to N(1, 1), with rate .05, and let numbers below -0.4
    score better. Under the Poisson law of mean 100, epsilon 5.96 would be stated at delta 1e-5,
    and the probability that no trial has such a number alone shows over 22.
    """
    cohorts = []

    def note(*given: Any) -> Any:
        drawn = draw_positions(*given)
        cohorts.append((given[-1], tuple(drawn.tolist())))
        return drawn

    made = tuning._run_trial

    def run_noted(spec: Any, folder: Path) -> dict[str, Any]:
        with monkeypatch.context() as patch:
            patch.setattr("sottovoce.federated.training.draw_positions", note)
            return made(spec, folder)

    monkeypatch.setattr(tuning, "_run_trial", run_noted)
    monkeypatch.setattr(tuning, "draw_trials", lambda *_: 3)
    data = {"data": {"dataset": "digits", "clients": 6}, "rounds": 3}
    _tune(changes=CLIENT_LEVEL | data | changes)
    drawn = list(dict.fromkeys(cohorts))
    # Where cohorts decide what a client pays, all trials have those that the plan was made for.
    assert (len(drawn) > 3) is own


def test_a_private_score_is_compared_instead_of_the_test_data() -> None:
    changes = CLIENT_LEVEL | {"evaluation": {"private": {"metric": "loss"}}}
    best = _tune(changes=changes, score="private_loss")
    assert best.tuning is not None
    assert best.tuning["score"] == "private_loss"


BAD: dict[str, tuple[dict[str, list[Any]], dict[str, Any], dict[str, Any], str]] = {
    "unknown key": ({"algorithm.rate": [1.0, 2.0]}, {}, {}, "rate"),
    "no value": ({"rounds": []}, {}, {}, "one or more values"),
    "one point": ({"rounds": [2]}, {}, {}, "single point"),
    "no grid": ({}, {}, {}, "single point"),
    "budget in the grid": ({"privacy.epsilon": [1.0, 2.0]}, {}, {}, "cannot be tuned"),
    "data in the grid": ({"data.clients": [4, 8]}, {}, {}, "cannot be tuned"),
    "few trials": (RATES, {}, {"expected_trials": 0.5}, "expected number of trials"),
    "wrong law": (RATES, {}, {"law": "binomial"}, "law must be"),
    "eta of another law": (RATES, {}, {"eta": 2.0}, "negative_binomial"),
    "wrong score": (RATES, {}, {"score": "epsilon"}, "score must be one of"),
    "score without estimate": (RATES, {}, {"score": "private_loss"}, "evaluation.private"),
    "ledger": (RATES, {"runtime": {"messages": "stored"}}, {}, "runtime.messages = 'packed'"),
    "federation": (RATES, {"runtime": {"backend": "flower"}}, {}, "sites of a federation"),
    "held-out": (
        RATES,
        {"data": {"dataset": "digits", "clients": 4, "validation_fraction": 0.1}},
        {},
        "validation_fraction",
    ),
    "no noise": (
        RATES,
        {"privacy": {"level": "sample", "clip_norm": 1.0, "delta": 1e-5}},
        {},
        "epsilon",
    ),
    "not private": (
        RATES,
        {
            "mechanism": {"kind": "no_privacy"},
            "privacy": {"level": "sample", "clip_norm": 1.0, "delta": 1e-5},
        },
        {},
        "not private",
    ),
    "noise and budget": (
        RATES,
        {"mechanism": {"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 0.5}},
        {},
        "noise",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_charged_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "run_trials", lambda *_: pytest.fail("a trial was made"))
    grid, changes, more, told = BAD[name]
    with pytest.raises(SottovoceError, match=told):
        _tune(grid, changes, **more)


def test_without_a_trial_nothing_is_released(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tuning, "draw_trials", lambda *_: 0)
    with pytest.raises(ConfigError, match="number of trials that was drawn is 0"):
        _tune(law="poisson", out=tmp_path / "best")
    assert not (tmp_path / "best").exists()


def test_laws_by_name() -> None:
    assert tuning.law_named("geometric", 5.0, 1.0).describe() == "geometric, mean 5"
    assert tuning.law_named("poisson", 5.0, 1.0).describe() == "Poisson, mean 5"
    assert "eta 0.5" in tuning.law_named("negative_binomial", 5.0, 0.5).describe()
    with pytest.raises(ParameterError):
        tuning.law_named("negative_binomial", 5.0, -1.0)


def test_the_command_prints_both_epsilons(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(
        'name = "small"\nseed = 3\nrounds = 2\nrandomness = "seeded"\n'
        '[data]\ndataset = "digits"\nclients = 4\n[model]\nkind = "linear"\n'
        '[algorithm]\nkind = "fedavg"\nserver_learning_rate = 1.0\n'
        '[privacy]\nlevel = "sample"\nclip_norm = 1.0\nepsilon = 4.0\ndelta = 1e-5\n'
        '[mechanism]\nkind = "gauss_hermite"\nlevels = 2\n[runtime]\nmessages = "none"\n'
    )
    words = ["tune", path, "--expected-trials", "2", "--out", tmp_path / "best"]
    shown = cli(*words, "--grid", "algorithm.server_learning_rate=0.1,3")
    assert shown.code == 0, shown.err
    assert "one trial spends epsilon" in shown.err
    assert "chosen: algorithm.server_learning_rate = " in shown.out
    assert "nothing of the other trials" in " ".join(shown.out.split())
    for bad in (["--grid", "rounds=2"], ["--grid", "rounds"], []):
        assert cli(*words[:-1], tmp_path / "other", *bad).code == 2
    assert not (tmp_path / "other").exists()
