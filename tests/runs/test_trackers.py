"""Rounds in TensorBoard and MLflow, read back with their own readers."""

import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from specs import small_spec

from sottovoce.core.errors import OutputError, UnknownNameError
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.mlflow_tracker import MlflowTracker, allowed_name
from sottovoce.runs.runner import launch
from sottovoce.runs.tracking import (
    Row,
    TrackedRun,
    Trackers,
    flatten_spec,
    open_trackers,
    round_figures,
    track_run,
)

SPEC = small_spec(rounds=5)
LOGGED = ("accuracy", "loss", "epsilon", "total_bytes_up", "total_bytes_down", "clients_asked")


class Interrupted(Exception):
    """Somebody pulled the plug."""


def _run(names: list[str], folder: Path, *, resume: bool = False, stop_at: int = 0) -> list[str]:
    """Run and log; the warnings that were given."""
    said: list[str] = []
    with track_run(names, SPEC, folder, warn=said.append) as log:

        def on_round(row: dict[str, Any]) -> None:
            log(row)
            if row["round"] == stop_at:
                raise Interrupted

        log.finish(launch(SPEC, folder, resume=resume, on_round=on_round))
    return said


def _events(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        found = accumulator.EventAccumulator(str(folder / "tensorboard"))
        found.Reload()
    return found


def _mlflow(folder: Path) -> tuple[Any, Any]:
    """A client, and the run that the folder notes."""
    tracking_module = pytest.importorskip("mlflow.tracking")
    client = tracking_module.MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow/mlflow.db")
    note = json.loads((folder / "mlflow.json").read_text())
    return client, client.get_run(note["run_id"])


def _quiet_mlflow() -> Any:
    import logging

    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.ERROR)


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_tensorboard_has_every_round_and_the_spec(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    folder = tmp_path / "run"
    assert _run(["tensorboard"], folder) == []
    rows, events = RunFolder(folder).metrics(), _events(folder)
    for name in LOGGED:
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert found == [(row["round"], pytest.approx(row[name], rel=1e-6)) for row in rows]
    texts = events.Tags()["tensors"]
    assert "spec/text_summary" in texts
    assert "guarantee/text_summary" in texts
    assert [event.step for event in events.Scalars("final/accuracy")] == [5]
    assert "_hparams_/experiment" in events.summary_metadata


def test_a_resumed_run_doubles_no_step_in_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        _run(["tensorboard"], folder, stop_at=3)  # the checkpoint is after round 2
    _run(["tensorboard"], folder, resume=True)
    assert [event.step for event in _events(folder).Scalars("loss")] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("stopped_at", [2, 5])
def test_rounds_made_before_logging_began_are_logged_too(tmp_path: Path, stopped_at: int) -> None:
    pytest.importorskip("tensorboard")
    folder = tmp_path / "run"
    if stopped_at < SPEC.rounds:
        with pytest.raises(Interrupted):
            _run([], folder, stop_at=stopped_at)
    else:
        _run([], folder)
    _run(["tensorboard"], folder, resume=True)
    assert [event.step for event in _events(folder).Scalars("loss")] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_mlflow_has_every_round_once_however_often_resumed(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        _run(["mlflow"], folder, stop_at=3)
    client, run = _mlflow(folder)
    assert run.info.status == "KILLED"
    assert _run(["mlflow"], folder, resume=True) == []
    assert _run(["mlflow"], folder, resume=True) == []
    client, run = _mlflow(folder)
    rows = RunFolder(folder).metrics()
    assert run.info.status == "FINISHED"
    for name in LOGGED:
        history = client.get_metric_history(run.info.run_id, name)
        found = sorted((metric.step, metric.value) for metric in history)
        assert found == [(row["round"], row[name]) for row in rows]
    assert run.data.params["privacy.epsilon"] == "4.0"
    assert run.data.params["mechanism.kind"] == "gauss_hermite"
    assert run.data.metrics["final/accuracy"] == rows[-1]["accuracy"]
    assert len(client.get_metric_history(run.info.run_id, "final/rounds")) == 1
    assert run.data.tags["guarantee"].startswith("sample-level local privacy")


def test_columns_and_folders_of_any_name_are_logged_to_mlflow(tmp_path: Path) -> None:
    pytest.importorskip("mlflow.tracking")
    folder = tmp_path / "a folder of 100%, größer"
    folder.mkdir()
    bounds = {"*": [0, 1], "Größe (m)": [0, 3], "a//b": [0, 1], "long" * 99: [0, 1]}
    spec = {"data": {"csv": {"bounds": bounds, "test_fraction": 0.2}}}
    run = TrackedRun(folder=folder, spec=spec, rounds_so_far=list)
    tracker = MlflowTracker(run)
    tracker.log({"round": 1, "accuracy": 0.5, "clients_asked": 3})
    tracker.close(finished=True)
    _, logged = _mlflow(folder)
    params = logged.data.params
    assert params["data.csv.test_fraction"] == "0.2"
    assert params["data.csv.bounds._x2a_"] == "[0, 1]"
    assert params["data.csv.bounds.Gr_xf6__xdf_e _x28_m_x29_"] == "[0, 3]"
    assert len(params) == 5


def test_different_keys_have_different_names_in_mlflow() -> None:
    keys = ["a", "a*", "a_x2a_", "a_", "_x", "x" * 300, "x" * 301, "a/b", "a:b", "a.b", "a b"]
    assert len({allowed_name(key) for key in keys}) == len(keys)
    assert allowed_name("privacy.clip_norm") == "privacy.clip_norm"


def test_mlflow_goes_to_the_server_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow_tracking = pytest.importorskip("mlflow.tracking")
    _quiet_mlflow()
    uri = f"sqlite:///{tmp_path}/everyones.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    run = TrackedRun(folder=tmp_path, spec={"name": "n"}, rounds_so_far=lambda: [])
    with open_trackers(["mlflow"], run, warn=pytest.fail) as log:
        log({"round": 1, "clients_asked": 2})
    client = mlflow_tracking.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("sottovoce")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == "n"
    assert found.data.metrics == {"clients_asked": 2.0}
    assert not (tmp_path / "mlflow").exists()


def test_an_mlflow_server_that_is_away_is_noticed_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with (
        pytest.raises(OutputError, match=r"MLflow at http://127\.0\.0\.1:9 cannot be used"),
        track_run(["mlflow"], SPEC, tmp_path / "run", warn=print),
    ):
        pytest.fail("nothing is to be trained")


def test_no_password_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:pass@word@127.0.0.1:9")
    with (
        pytest.raises(OutputError, match=r"MLflow at http://127\.0\.0\.1:9 cannot") as refused,
        track_run(["mlflow"], SPEC, tmp_path / "run", warn=print),
    ):
        pytest.fail("nothing is to be trained")
    assert "pass" not in str(refused.value)
    assert "word" not in str(refused.value)


def test_no_password_is_noted_in_the_run_folder_and_the_run_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    _quiet_mlflow()
    uri = f"sqlite:///{tmp_path}/everyones.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{uri}?password=secret")
    run = TrackedRun(folder=tmp_path, spec={"name": "n"}, rounds_so_far=lambda: [])
    noted = []
    for number in (1, 2):
        with open_trackers(["mlflow"], run, warn=pytest.fail) as log:
            log({"round": number, "clients_asked": 2})
        noted.append(json.loads((tmp_path / "mlflow.json").read_text()))
    assert noted[0] == noted[1]
    assert noted[0]["tracking_uri"] == uri


class _Broken:
    def log(self, row: Row) -> None:
        raise OSError("the disk at http://user:secret@host/x is full")

    def finish(self, result: Mapping[str, Any]) -> None: ...

    def close(self, *, finished: bool) -> None: ...


class _Working(_Broken):
    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.finished: bool | None = None

    def log(self, row: Row) -> None:
        self.rounds.append(row["round"])

    def close(self, *, finished: bool) -> None:
        self.finished = finished


def test_a_tracker_that_fails_is_named_once_and_the_run_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    working = _Working()
    log = Trackers({"broken": _Broken(), "working": working}, said.append)
    result = launch(SPEC, tmp_path / "run", on_round=log)
    log.finish(result)
    log.close()
    assert result["rounds"] == 5
    assert working.rounds == [1, 2, 3, 4, 5]
    assert working.finished
    assert said == [
        "the run continues without logging to broken, which failed: the disk at http://host/x is "
        "full"
    ]


def test_an_unknown_tracker_is_named(tmp_path: Path) -> None:
    run = TrackedRun(folder=tmp_path, spec={}, rounds_so_far=lambda: [])
    with (
        pytest.raises(UnknownNameError, match=r"did you mean 'tensorboard'"),
        open_trackers(["tensorbord"], run, warn=print),
    ):
        pytest.fail("there is no such tracker")


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_missing_package_is_named_with_its_extra_before_training(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sottovoce.cli.main import main

    spec = tmp_path / "spec.toml"
    spec.write_text(
        'name = "n"\nseed = 1\nrounds = 1\n[data]\ndataset = "digits"\nclients = 2\n'
        '[model]\nkind = "linear"\n[algorithm]\nkind = "fedavg"\nserver_learning_rate = 1.0\n'
        '[privacy]\nlevel = "sample"\nclip_norm = 1.0\nepsilon = 1.0\ndelta = 1e-5\n'
        '[mechanism]\nkind = "gaussian"\n'
    )
    for module in [one for one in sys.modules if one.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Without(name), *sys.meta_path])
    out = tmp_path / "run"
    words = ["sottovoce", "run", str(spec), "--out", str(out), "--log", name]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"pip install 'sottovoce[{name}]'" in capsys.readouterr().err
    assert not out.exists()


class _Without:
    """A finder that has lost a package."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == self._name:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


def test_a_spec_is_flat_and_what_is_no_number_is_left_out() -> None:
    spec = {"a": {"b": 1, "c": None, "d": [1, 2]}, "e": True, "f": []}
    assert flatten_spec(spec) == {"a.b": 1, "a.d": "[1, 2]", "e": True}
    assert round_figures({"round": 1, "epsilon": None, "loss": float("inf"), "accuracy": 1}) == {
        "accuracy": 1.0
    }
