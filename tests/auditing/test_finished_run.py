import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specs import small_spec

from sottovoce.auditing.finished_run import open_run
from sottovoce.core.errors import DataError, OutputError
from sottovoce.runs.runner import run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run(small_spec(), tmp_path / "run")
    return tmp_path / "run"


def own_data(path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows = generator.uniform(-0.5, 0.5, size=(40, 3)).astype(np.float32)
    np.savez(path, x=rows, y=generator.integers(0, 2, size=40))


def test_the_model_comes_back_with_what_it_was_trained_on(folder: Path) -> None:
    found = open_run(folder)
    accuracy = found.inputs.task.evaluate(found.model).score
    assert found.result is not None
    assert accuracy == found.result["accuracy"]
    features, labels = found.inputs.clients.samples()
    assert found.rounds_done == 6
    assert sorted(map(bytes, found.data.train_features)) == sorted(map(bytes, features.numpy()))
    assert sorted(found.data.train_labels) == sorted(labels.tolist())
    assert len(found.data.test_labels) > 0


def test_a_folder_without_a_model_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "checkpoint.npz").unlink()
    with pytest.raises(OutputError, match="no checkpoint"):
        open_run(folder)
    with pytest.raises(OutputError, match=r"no run\.json"):
        open_run(tmp_path)


def test_data_that_the_model_never_saw_are_refused(tmp_path: Path) -> None:
    own_data(tmp_path / "own.npz", seed=1)
    data = {"dataset": f"npz:{tmp_path / 'own.npz'}", "clients": 2}
    run(small_spec(data=data), tmp_path / "run")
    open_run(tmp_path / "run")
    own_data(tmp_path / "own.npz", seed=2)
    with pytest.raises(DataError, match="has changed since the model"):
        open_run(tmp_path / "run")


def test_a_result_that_could_not_be_kept_is_refused_before_the_work(folder: Path) -> None:
    found = open_run(folder)
    assert found.result_path("audit.json") == folder / "audit.json"
    (folder / "audit.json").mkdir()
    with pytest.raises(OutputError, match=r"it is a folder; nothing was started"):
        found.result_path("audit.json")


def test_the_digest_is_the_owners_alone(folder: Path) -> None:
    assert stat.S_IMODE((folder / "data.digest").stat().st_mode) == 0o600


def test_features_alone_tell_data_apart(tmp_path: Path) -> None:
    rows = np.linspace(-0.5, 0.5, 120, dtype=np.float32).reshape(40, 3)
    labels = np.arange(40) % 2
    data = {"dataset": f"npz:{tmp_path / 'own.npz'}", "clients": 2}
    np.savez(tmp_path / "own.npz", x=rows, y=labels)
    run(small_spec(data=data), tmp_path / "run")
    np.savez(tmp_path / "own.npz", x=rows[::-1], y=labels)
    with pytest.raises(DataError, match="restore it"):
        open_run(tmp_path / "run")


def test_other_test_rows_are_refused_too(tmp_path: Path) -> None:
    rows = np.linspace(-0.5, 0.5, 120, dtype=np.float32).reshape(40, 3)
    parts: dict[str, Any] = {
        "x_train": rows[:30],
        "y_train": np.arange(30) % 2,
        "y_test": np.arange(10) % 2,
    }
    data = {"dataset": f"npz:{tmp_path / 'own.npz'}", "clients": 2}
    np.savez(tmp_path / "own.npz", x_test=rows[30:], **parts)
    run(small_spec(data=data), tmp_path / "run")
    np.savez(tmp_path / "own.npz", x_test=rows[30:] / 2, **parts)
    with pytest.raises(DataError, match="has changed since the model"):
        open_run(tmp_path / "run")
