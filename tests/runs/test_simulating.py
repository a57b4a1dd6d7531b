"""`simulate` and `open_run`: runs as objects, with models and data in memory."""

import gc
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from specs import small_spec, small_table
from torch import nn

import sottovoce
from sottovoce.auditing.finished_run import open_run as open_with_data
from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import ConfigError, DataError, OutputError, ParameterError
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Release
from sottovoce.runs import tracking

RNG = np.random.default_rng(5)
CENTRES = RNG.normal(size=(3, 6))
LABELS = np.arange(240) % 3
FEATURES = CENTRES[LABELS] + 0.3 * RNG.normal(size=(240, 6))


def network() -> nn.Module:
    return nn.Linear(6, 3)


def sized(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(input_shape[0], 4), nn.Tanh(), nn.Linear(4, num_outputs))


def table(**changes: Any) -> dict[str, Any]:
    given = small_table(**changes)
    del given["model"], given["name"], given["seed"]
    return given | {"data": {"clients": 4}}


@pytest.mark.parametrize("by_name", [False, True])
def test_frozen_parameters_are_part_of_the_model_but_neither_trained_nor_sent(
    by_name: bool, tmp_path: Path
) -> None:
    def module(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        made = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Tanh(), nn.Linear(8, 3))
        made[0].requires_grad_(by_name)
        return made

    trainable = ["3.*"] if by_name else []
    given: Any = {"data": (FEATURES, LABELS), "trainable": trainable, "out": tmp_path / "run"}
    run = sottovoce.simulate(table(), model=module(0), **given)
    assert set(run.tensors()) == {"3.weight", "3.bias"}
    other = sottovoce.simulate(table(), model=module(0), data=given["data"], trainable=trainable)
    np.testing.assert_array_equal(run.model, other.model)
    with pytest.raises(ConfigError, match="the model of"):
        sottovoce.simulate(table(), model=module(1), resume=True, **given)


@pytest.fixture(scope="module")
def run() -> sottovoce.Run:
    return sottovoce.simulate(table(), model=network, data=(FEATURES, LABELS))


def test_a_run_has_its_figures(run: sottovoce.Run) -> None:
    assert run.finished
    assert run.halted is None
    assert run.accuracy is not None
    assert run.accuracy > 0.8
    assert 3.9 < run.epsilon <= 4.0
    assert run.delta == 1e-5
    assert run.adjacency == "zero-out"
    assert "whether one training sample contributed" in run.guarantee
    assert [row.round for row in run.rounds] == [1, 2, 3, 4, 5, 6]
    assert run.rounds[-1].accuracy == run.accuracy
    assert len(run.clients) == 4
    assert all(row.epsilon == run.epsilon for row in run.clients)
    assert list(run.rounds.to_pandas()["round"]) == [1, 2, 3, 4, 5, 6]
    assert run.to_dict()["accuracy"] == run.accuracy
    assert any("delta" in warning for warning in run.warnings) is False


def test_the_model_can_be_loaded_again(run: sottovoce.Run) -> None:
    module = nn.Linear(6, 3)
    module.load_state_dict(run.state_dict())
    assert run.model.shape == (21,)
    np.testing.assert_array_equal(
        module.weight.detach().numpy().reshape(-1), run.model[:18].astype(np.float32)
    )


def test_numbers_to_predict_are_not_scored_as_classes_and_every_round_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (FEATURES, FEATURES[:, :1].astype(np.float32))
    model, tracker = nn.Linear(6, 1), Mock()
    rounds: list[dict[str, Any]] = []
    monkeypatch.setitem(tracking.TRACKERS, "mine", lambda _: tracker)
    where: dict[str, Any] = {"out": tmp_path / "run", "on_round": rounds.append, "log": ["mine"]}
    run = sottovoce.simulate(table(), model=model, data=data, progress=True, **where)
    assert [call.args[0] for call in tracker.log.call_args_list] == rounds
    assert len(rounds) == len(run.rounds)
    tracker.close.assert_called_once_with(finished=True)
    for shown in (str(run), run._repr_html_(), capsys.readouterr().err):
        assert "R-squared" in shown
        assert "accuracy" not in shown
    assert run.to_dict()["score"] == run.score == "R-squared"


def test_a_run_shows_itself(run: sottovoce.Run) -> None:
    assert "accuracy" in str(run)
    assert "temporary" in str(run)
    page = run._repr_html_()
    assert 'alt="Test accuracy of notebook by round' in page
    assert "data:image/svg+xml;base64," in page
    assert "<script" not in page
    assert "<style" not in page  # a style would change the rest of the notebook


def test_the_spec_says_what_was_in_memory_and_nothing_of_the_data(run: sottovoce.Run) -> None:
    assert run.spec["model"] == {"kind": "in_memory", "label": "network"}
    assert run.spec["data"]["dataset"] == "memory:arrays"
    assert (run.folder / "data.digest").stat().st_mode & 0o777 == 0o600


def test_what_is_in_memory_can_be_attacked_as_long_as_it_is_there(tmp_path: Path) -> None:
    run = sottovoce.simulate(
        table(rounds=2), model=network, data=(FEATURES, LABELS), out=tmp_path / "run"
    )
    assert len(open_with_data(run.folder).data.train_labels) == 192
    del run
    gc.collect()
    with pytest.raises(DataError, match=r"pass them to sottovoce.simulate\(..., data=...\) again"):
        open_with_data(tmp_path / "run")
    kept = sottovoce.simulate(table(rounds=1), data=(FEATURES + 1.0, LABELS), model=network)
    with pytest.raises(DataError, match="has changed since the model"):
        open_with_data(tmp_path / "run")
    assert kept.finished


def test_without_its_model_a_run_cannot_be_attacked(tmp_path: Path) -> None:
    spec = {**table(rounds=1), "data": {"dataset": "digits", "clients": 4}}

    def made(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        return nn.Linear(input_shape[0], num_outputs)

    sottovoce.simulate(spec, model=made, out=tmp_path / "run")
    gc.collect()
    with pytest.raises(ParameterError, match=r"sottovoce.simulate\(..., model=...\) again"):
        open_with_data(tmp_path / "run")


@pytest.mark.slow
def test_the_command_line_says_what_it_cannot_find(tmp_path: Path) -> None:
    sottovoce.simulate(
        table(rounds=1), model=network, data=(FEATURES, LABELS), out=tmp_path / "run"
    )
    shown = subprocess.run(
        [sys.executable, "-m", "sottovoce", "attack", "membership", tmp_path / "run"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 2
    assert "this process does not have them" in shown.stderr
    lines = shown.stderr.strip().splitlines()
    # A slow machine sees its progress first.
    assert len([line for line in lines if not line.startswith("preparing ")]) == 1


@pytest.mark.parametrize("model", [network, sized, nn.Linear(6, 3), lambda: nn.Linear(6, 3)])
@pytest.mark.parametrize("split", [False, True])
def test_models_and_arrays_of_every_kind(model: Any, split: bool) -> None:
    data: Any = (torch.from_numpy(FEATURES), torch.from_numpy(LABELS))
    if split:
        data = (FEATURES[:200], LABELS[:200], FEATURES[200:], LABELS[200:])
    run = sottovoce.simulate(table(rounds=1), model=model, data=data)
    assert run.finished


def test_a_module_that_is_given_stays_as_it_was() -> None:
    module = nn.Linear(6, 3)
    before = module.weight.detach().clone()
    run = sottovoce.simulate(table(rounds=1), model=module, data=(FEATURES, LABELS))
    assert torch.equal(module.weight, before)
    assert not torch.equal(run.state_dict()["weight"], before)


def test_owners_come_in_a_dictionary() -> None:
    spec = {**table(rounds=1), "data": {"partition": {"kind": "by_owner"}}}
    owners = [f"person {number % 5}" for number in range(240)]
    run = sottovoce.simulate(
        spec, model=network, data={"x": FEATURES, "y": LABELS, "owner": owners}
    )
    assert len(run.clients) == 5
    with pytest.raises(ConfigError, match="no owner would be protected"):
        sottovoce.simulate(
            table(rounds=1), model=network, data={"x": FEATURES, "y": LABELS, "owner": owners}
        )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (FEATURES, "got ndarray"),
        ((FEATURES, LABELS, LABELS), "got tuple of 3"),
        ((FEATURES, LABELS[:-1]), "the data in memory cannot be read as data: the numbers of rows"),
        ((FEATURES * np.nan, LABELS), "not finite"),
        ((FEATURES, LABELS.astype(str)), "neither classes nor numbers"),
        ((FEATURES[:, 0], LABELS), "not features"),
        ({"x": FEATURES}, "array 'y' is missing"),
        (([[1.0], [1.0, 2.0]], [0, 1]), "'x' cannot be read as an array"),
    ],
)
def test_arrays_that_are_no_data_are_refused(data: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        sottovoce.simulate(table(), model=network, data=data)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (3, "model must be a torch.nn.Module or a function that creates one, got int"),
        (lambda: 3, "returned int, not a torch.nn.Module"),
        (lambda width: nn.Linear(6, width), "cannot be called with input_shape, num_outputs"),
        (lambda: nn.Linear(7, 3), "fails on two samples"),
        (nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), "GroupNorm"),
    ],
)
def test_what_makes_no_module_is_refused(model: Any, reason: str) -> None:
    with pytest.raises(ParameterError, match=reason):
        sottovoce.simulate(table(), model=model, data=(FEATURES, LABELS))


def test_files_dictionaries_and_specs_run_alike(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    lines = []
    for key, value in small_table().items():
        if isinstance(value, dict):
            lines += [f"[{key}]", *(f"{k} = {json.dumps(v)}" for k, v in value.items())]
        else:
            lines.append(f"{key} = {json.dumps(value)}")
    path.write_text("\n".join(lines))
    given = {"rounds": 2, "privacy.epsilon": 3.0}
    runs = [sottovoce.simulate(s, overrides=given) for s in (str(path), path, small_table())]
    runs.append(sottovoce.simulate(small_spec(), overrides=given))
    assert len({run.to_dict()["spec_hash"] for run in runs}) == 1
    for run in runs[1:]:
        np.testing.assert_array_equal(run.model, runs[0].model)
    with pytest.raises(ConfigError, match="did you mean 'epsilon'"):
        sottovoce.simulate(path, overrides={"privacy.epsilom": 1.0})


def test_an_interrupted_run_goes_on_with_the_same_parts_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = sottovoce.simulate(table(), model=network, data=(FEATURES, LABELS))

    def interrupt(row: dict[str, Any]) -> None:
        if row["round"] == 3:
            raise KeyboardInterrupt

    parts: dict[str, Any] = {"model": network, "data": (FEATURES, LABELS)}
    with pytest.raises(KeyboardInterrupt):
        sottovoce.simulate(table(), **parts, out=tmp_path / "run", on_round=interrupt)
    half = sottovoce.open_run(tmp_path / "run")
    assert not half.finished
    assert half.model.size == whole.model.size  # saved before the interrupt went on
    assert half.accuracy is not None
    assert half.epsilon <= whole.epsilon
    copied = shutil.copytree(tmp_path / "run", tmp_path / "copied")
    with Ledger(copied / "ledger.sqlite") as ledger:  # A charge of a round that is not finished.
        client = ledger.clients()[0]
        release = Release(unit=Unit.SAMPLE, run="run", client=client, round=4, uplink=0)
        ledger.charge(release, 0, ledger.history(client)[0][0])
    assert sottovoce.open_run(copied).epsilon > half.epsilon
    assert "not finished: 3 of 6 rounds" in str(half)
    assert "not finished" in half._repr_html_()
    for change, error in (
        ({"data": (FEATURES + 1.0, LABELS)}, "was started on other data"),
        ({"model": nn.Linear(6, 3, bias=False)}, "another spec"),
    ):
        with pytest.raises((DataError, ConfigError), match=error):
            sottovoce.simulate(table(), **{**parts, **change}, out=tmp_path / "run", resume=True)

    def nested() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 3))

    nested.__qualname__ = "network"  # as a function that was edited meanwhile has the same name
    with pytest.raises(ConfigError, match="has other parameters than the model"):
        sottovoce.simulate(table(), **{**parts, "model": nested}, out=tmp_path / "run", resume=True)
    resumed = sottovoce.simulate(table(), **parts, out=tmp_path / "run", resume=True, progress=True)
    assert "resuming at round 4 of 6 (checkpoint of round 3, saved 2" in capsys.readouterr().err
    np.testing.assert_array_equal(resumed.model, whole.model)
    opened = sottovoce.open_run(str(tmp_path / "run"))
    assert opened.to_dict() == resumed.to_dict()


def test_a_temporary_folder_goes_with_its_run_and_a_failed_one_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = sottovoce.simulate(table(rounds=1), model=network, data=(FEATURES, LABELS))
    assert [run.folder] == list(tmp_path.iterdir())
    del run
    gc.collect()
    assert not list(tmp_path.iterdir())
    with pytest.raises(ParameterError):
        sottovoce.simulate(table(), model=lambda: nn.Linear(7, 3), data=(FEATURES, LABELS))
    assert not list(tmp_path.iterdir())


def test_other_processes_do_not_have_what_is_in_memory() -> None:
    spec = {**table(), "runtime": {"backend": "flower-sim"}}
    with pytest.raises(ConfigError, match="trains in other processes"):
        sottovoce.simulate(spec, model=network, data=(FEATURES, LABELS))


def test_progress_is_a_line_on_stderr_where_it_is_wanted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))  # imported, not running
    for progress in (None, False, True):
        sottovoce.simulate(
            table(rounds=2), model=network, data=(FEATURES, LABELS), progress=progress
        )
        captured = capsys.readouterr()
        assert captured.out == ""
        assert ("round 2 of 2  accuracy" in captured.err) is bool(progress)


def test_folders_that_hold_no_run_are_said_to(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="not a run folder"):
        sottovoce.open_run(tmp_path)
    with pytest.raises(ParameterError, match="resume needs the folder"):
        sottovoce.simulate(table(), resume=True)
