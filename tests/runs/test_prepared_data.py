"""Data are read once for all seeds, and again when they could be others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_data import images, labels, save, save_split
from specs import small_spec

from sottovoce.core.randomness import SeededRandomness
from sottovoce.learning import datasets
from sottovoce.learning.datasets import Dataset
from sottovoce.runs.inputs import load_data
from sottovoce.runs.spec import RunSpec


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path))
    return tmp_path


def spec_of(dataset: str, **changes: Any) -> RunSpec:
    return small_spec(data={"dataset": dataset, "clients": 2, **changes})


def loaded(spec: RunSpec, seed: int = 1) -> Dataset:
    return load_data(spec, SeededRandomness(seed))


def test_seeds_share_what_is_read_without_chance(folder: Path) -> None:
    save_split(folder / "mnist.npz", 10, 28, 28)
    spec = spec_of("mnist")
    assert loaded(spec, 2) is loaded(spec, 1)
    tuned = spec_of("mnist", validation_fraction=0.25)
    first, second = loaded(tuned, 1), loaded(tuned, 2)
    assert len(first.test_labels) == 5
    assert not np.array_equal(first.test_features, second.test_features)


def test_another_part_another_file_and_another_neighbor_are_read_again(folder: Path) -> None:
    save_split(folder / "mnist.npz", 10, 28, 28)
    before = loaded(spec_of("mnist"))
    assert len(loaded(spec_of("mnist", num_train=7)).train_labels) == 7
    save(folder / "mnist_writers.npz", writer_train=np.arange(20) // 5)
    beside = loaded(spec_of("mnist"))
    assert before.train_owners is None
    assert beside.train_owners is not None
    assert len(loaded(spec_of("mnist", num_owners=2)).train_labels) == 10
    save_split(folder / "mnist.npz", 10, 28, 28, y_train=labels(20, 2))
    assert loaded(spec_of("mnist")).train_labels.max() == 1


def test_a_split_that_is_drawn_belongs_to_its_seed(folder: Path) -> None:
    save(folder / "utkface_8k.npz", x=images(50, 48, 48), gender=labels(50, 2))
    spec = spec_of("utkface")
    first, second = loaded(spec, 1), loaded(spec, 2)
    assert not np.array_equal(first.test_features, second.test_features)
    direct = datasets.load("utkface", SeededRandomness(2).generator("test split"))
    np.testing.assert_array_equal(second.train_features, direct.train_features)


def test_files_outside_of_the_data_folder_are_read_every_time(tmp_path: Path) -> None:
    path = save_split(tmp_path / "own.npz", 3, 4)
    spec = spec_of(f"npz:{path}")
    assert loaded(spec) is not loaded(spec)
