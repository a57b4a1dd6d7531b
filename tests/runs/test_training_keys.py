"""Runs with optimizers, schedules, clipping and averages: exact resume, divergence, refusals."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_checks import run_until
from specs import CLIENT_LEVEL, LOCAL_STEPS, small_spec

from sottovoce.core.display import show_epsilon
from sottovoce.core.errors import ConfigError, OutputError, SottovoceError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms.algorithm import ClientStepInput
from sottovoce.federated.algorithms.fedavg import FedAvg, LocalSgd
from sottovoce.federated.algorithms.sections import FedAvgSection
from sottovoce.learning.task import Evaluation, Task
from sottovoce.reporting.report_data import run_data
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.inputs import load_inputs, section_of
from sottovoce.runs.opened import export_model, open_run
from sottovoce.runs.runner import run
from sottovoce.runs.spec import RunSpec

EVERY_KEY: dict[str, Any] = {
    **LOCAL_STEPS,
    "local_learning_rate": 0.01,
    "batch_size": 100,
    "local_optimizer": {"kind": "Adam", "betas": [0.8, 0.9]},
    "local_schedule": {"kind": "cosine", "final_factor": 0.5, "warmup_rounds": 1},
    "gradient_clip": 0.5,
    "proximal_weight": 0.1,
    "server_learning_rate": 0.1,
    "server_schedule": {"kind": "step", "every": 2, "factor": 0.5},
}


def client_spec(algorithm: dict[str, Any], **changes: Any) -> RunSpec:
    counted = {"messages": "packed"}  # No ledger on disk, which takes longer.
    return small_spec(**{**CLIENT_LEVEL, "algorithm": algorithm, "runtime": counted, **changes})


def local_work(spec: RunSpec) -> LocalSgd:
    algorithm = load_inputs(spec).algorithm
    assert isinstance(algorithm, FedAvg)
    assert isinstance(algorithm.local_work, LocalSgd)
    return algorithm.local_work


@pytest.mark.parametrize(
    "server",
    [
        {"server_optimizer": {"kind": "adam"}, "averaging": {"kind": "ema", "decay": 0.9}},
        {"server_optimizer": {"kind": "fedyogi"}, "averaging": {"kind": "mean", "rounds": 2}},
        {"server_momentum": 0.5, "averaging": {"kind": "mean", "rounds": 3}},
    ],
    ids=str,
)
def test_a_run_that_is_stopped_and_resumed_has_the_same_bits(
    tmp_path: Path, server: dict[str, Any]
) -> None:
    spec = client_spec({**EVERY_KEY, **server})
    result = run(spec, tmp_path / "whole")
    run_until(3, spec, tmp_path / "cut")  # The last checkpoint has two rounds.
    run(spec, tmp_path / "cut", resume=True)
    for name in ("checkpoint.npz", "metrics.jsonl", "result.json", "run.json"):
        whole, cut = (tmp_path / folder / name for folder in ("whole", "cut"))
        assert whole.read_bytes() == cut.read_bytes(), name
    assert 0.0 < result["accuracy_averaged"] <= 1.0
    opened = open_run(tmp_path / "whole")
    assert opened.averaged_model is not None
    assert not np.array_equal(opened.averaged_model, opened.model)
    averaged = np.concatenate([part.ravel() for part in opened.tensors(averaged=True).values()])
    np.testing.assert_array_equal(averaged, opened.averaged_model.astype(np.float32))
    assert set(opened.state_dict(averaged=True)) == set(opened.state_dict())


@pytest.mark.parametrize("messages", ["packed", "none"])
def test_a_model_is_exported_without_a_ledger_too(tmp_path: Path, messages: str) -> None:
    spec = client_spec(LOCAL_STEPS, runtime={"messages": messages})
    result = run(spec, tmp_path / "run")
    written = export_model(tmp_path / "run", tmp_path / "m.safetensors")
    assert written["epsilon"] == show_epsilon(result["epsilon"])
    with pytest.raises(OutputError, match="keeps no average of models; take the last model"):
        open_run(tmp_path / "run").tensors(averaged=True)


def test_the_stored_spec_has_the_keys_and_leaves_out_their_defaults() -> None:
    assert client_spec(EVERY_KEY).algorithm.parameters["local_optimizer"] == {
        "kind": "adam",
        "betas": [0.8, 0.9],
    }
    spelled_out = {
        "local_optimizer": {"kind": "SGD"},
        "local_schedule": {"kind": "constant"},
        "server_schedule": {"kind": "constant"},
        "augmentation": "none",
    }
    assert client_spec({**LOCAL_STEPS, **spelled_out}).hash == client_spec(LOCAL_STEPS).hash


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, 0.5 / 0.5),  # privacy.clip_norm / local_learning_rate
        ({"gradient_clip": 2}, 2.0),
        ({"gradient_clip": 0}, None),
        ({"gradient_clip": "off"}, None),
        ({"local_steps": 1}, None),
    ],
    ids=str,
)
def test_gradients_of_several_local_steps_are_clipped_by_default(
    keys: dict[str, Any], expected: float | None
) -> None:
    assert local_work(client_spec({**LOCAL_STEPS, **keys})).gradient_clip == expected


def test_with_the_default_no_step_is_longer_than_the_clipping_norm_of_the_update() -> None:
    def length(keys: dict[str, Any]) -> float:
        spec = client_spec({**LOCAL_STEPS, "local_learning_rate": 50.0, **keys})
        inputs, work = load_inputs(spec), local_work(spec)
        step = ClientStepInput(
            run="r",
            round=1,
            model=inputs.task.initial_model(),
            state={},
            randomness=SeededRandomness(0),
        )
        _, rows = next(work.updates(inputs.task, inputs.clients[:1], step))
        return float(rows.norms())

    assert length({"gradient_clip": "off"}) > 10.0
    assert length({}) <= 3 * 0.5 * (1.0 + 1e-6)  # Three steps of the length 0.5.


def test_a_run_that_diverges_says_so_in_result_and_report_and_keeps_its_last_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = client_spec(LOCAL_STEPS, checkpoint_every=1)
    losses = iter([0.5, 0.4, math.nan, math.nan])
    monkeypatch.setattr(
        Task,
        "evaluate",
        lambda *_: Evaluation(metrics={"accuracy": 0.5}, loss=next(losses, math.nan)),
    )
    with pytest.raises(ConfigError, match="the model diverged in round 3"):
        run(spec, tmp_path / "run")
    result = RunFolder(tmp_path / "run").result()
    assert result is not None
    assert (result["accuracy"], result["loss"], result["rounds"]) == (None, None, 3)
    assert result["diverged"].startswith("the model diverged in round 3")
    assert result["warnings"][0] == result["diverged"]
    checkpoint = RunFolder(tmp_path / "run").load_checkpoint()
    assert checkpoint is not None
    assert checkpoint.rounds_done == 2
    data = run_data(tmp_path / "run")
    assert data["state"] == "diverged"
    assert any("the model diverged" in sentence for sentence in data["statement"])
    assert "diverged" in str(open_run(tmp_path / "run"))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"local_optimizer": "adam"}, "must be a table"),
        ({"local_optimizer": {"kind": "adamx"}}, "did you mean 'adamax'"),
        ({"local_optimizer": {"kind": "lbfgs"}}, "use one of"),
        ({"local_optimizer": {"kind": "adam", "beta": 1}}, "did you mean 'betas'"),
        ({"local_schedule": {"kind": "cosine", "warmup_rounds": 6}}, "leaves no round of 6"),
        ({"server_schedule": {"kind": "linear", "final": 0.1}}, "did you mean 'final_factor'"),
        ({"gradient_clip": -1.0}, "gradient_clip"),
        ({"augmentation": "rotate"}, "augmentation"),
        ({"augmentation": "flip"}, r"samples have the shape \(64,\); drop it"),
        ({"averaging": {"kind": "swa"}}, "unknown average 'swa'"),
        ({"averaging": {"kind": "mean", "rounds": 10**6}, "model": 1}, "keeps 1000000 models"),
        ({"server_optimizer": {"kind": "adam"}, "server_momentum": 0.9}, "give one of them"),
        ({"server_optimizer": {"kind": "fedadm"}}, "did you mean 'fedadam'"),
        ({"server_optimizer": {"kind": "yogi"}}, "did you mean 'fedyogi'"),
        ({"gradient_clip": -2.0}, "0 or 'off' is for no clipping"),
        ({"batch_size": 1000}, "more than the 360 records of the largest client; lower it"),
        ({"kind": "scaffold", "batch_size": 1000}, "more than the 360 records"),
        ({"budget_penalty": True}, "all clients have the same epsilon"),
        ({"proximal_weight": 0.1, "local_steps": 1}, "takes only one; raise"),
        ({"proximal_weight": 4.0}, "keep the product of the two below 2"),
    ],
    ids=str,
)
def test_keys_that_cannot_be_used_are_refused(keys: dict[str, Any], told: str) -> None:
    keys = {key: value for key, value in keys.items() if key != "model"}
    with pytest.raises(SottovoceError, match=told):
        load_inputs(client_spec({**LOCAL_STEPS, **keys}))


def test_images_that_become_features_are_not_changed_at_random() -> None:
    spec = client_spec({**LOCAL_STEPS, "augmentation": "crop"}, features=[{"kind": "flatten"}])
    with pytest.raises(ConfigError, match=r"what \[\[features\]\] computes"):
        load_inputs(spec)


def test_random_changes_of_images_come_from_the_seed_and_reach_the_sites(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    images, labels = generator.normal(size=(60, 1, 6, 6)), generator.integers(0, 2, size=60)
    images[labels == 1, :, :, :3] += 2.0  # A flip moves what tells the classes apart.
    np.savez(
        tmp_path / "own.npz",
        x_train=images[:40],
        y_train=labels[:40],
        x_test=images[40:],
        y_test=labels[40:],
    )
    found: dict[str, float] = {}
    for kind in ("none", "flip", "flip"):
        algorithm = {**LOCAL_STEPS, "local_epochs": 2, "batch_size": 5, "augmentation": kind}
        del algorithm["local_steps"]
        spec = client_spec(
            algorithm, data={"dataset": f"npz:{tmp_path / 'own.npz'}", "clients": 4}, rounds=2
        )
        folder = tmp_path / f"{kind}-{len(found)}"
        found[folder.name] = run(spec, folder)["loss"]
    assert found["flip-1"] == found["flip-2"]
    assert abs(found["none-0"] - found["flip-1"]) > 1e-4
    section = section_of(spec).at_site()
    assert isinstance(section, FedAvgSection)
    assert section.augmentation == "flip"


@pytest.mark.parametrize(
    "key",
    [{"local_optimizer": {"kind": "adam"}}, {"gradient_clip": 1.0}, {"augmentation": "crop"}],
    ids=str,
)
def test_keys_of_local_steps_are_refused_at_sample_level(key: dict[str, Any]) -> None:
    algorithm = {"kind": "fedavg", "server_learning_rate": 1.0, **key}
    with pytest.raises(SottovoceError, match="drop 'algorithm"):
        load_inputs(small_spec(algorithm=algorithm))
