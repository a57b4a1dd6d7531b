"""FEMNIST on small files made here."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_data import RNG, images, labels, load, save

from sottovoce.core.errors import DataError, ParameterError
from sottovoce.learning import datasets


def femnist_arrays() -> dict[str, Any]:
    writers = np.repeat(np.arange(30), 4)
    return {
        "x": images(120, 28, 28),
        "y": labels(120, 62),
        "writer": writers,
        "writer_complete": np.arange(30) < 20,
    }


def test_femnist_holds_out_complete_writers_with_all_their_images(tmp_path: Path) -> None:
    arrays = femnist_arrays()
    save(tmp_path / "femnist.npz", **arrays)
    data = load("femnist", tmp_path)
    assert data.train_owners is not None
    assert len(np.unique(data.train_owners)) == 18
    assert data.train_owners.max() < 20
    assert len(data.train_labels) == 72
    assert len(data.test_labels) == 8
    assert data.num_classes == 62
    for writer in np.unique(data.train_owners):
        own = data.train_features[data.train_owners == writer]
        raw = arrays["x"][arrays["writer"] == writer]
        np.testing.assert_allclose(own[:, 0], raw / 255 - 0.5, atol=1e-6)


def test_all_writers_have_the_same_split_for_every_seed(tmp_path: Path) -> None:
    save(tmp_path / "femnist.npz", **femnist_arrays())
    data, again = load("femnist-all", tmp_path), load("femnist-all", tmp_path)
    assert data.train_owners is not None
    assert sorted(set(data.train_owners)) == [n for n in range(30) if n % 10]
    assert (len(data.train_labels), len(data.test_labels)) == (108, 12)
    np.testing.assert_array_equal(data.test_features, again.test_features)
    assert "of all writers' images" in data.note


def test_femnists_note_says_how_the_sample_differs(tmp_path: Path) -> None:
    save(tmp_path / "femnist.npz", **{**femnist_arrays(), "y": labels(120, 10)})
    note = load("femnist", tmp_path).note
    assert "rich in digits (100% of the complete writers' images; the full set has about" in note
    assert "4 images per writer instead of 227" in note


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"writer_complete": np.zeros(30, dtype=bool)}, "no writer is complete"),
        ({"writer_complete": np.ones(5, dtype=bool)}, "does not point into"),
        ({"writer_complete": np.arange(30) < 1}, "at least two are needed"),
        ({"y": labels(120, 63)}, "beyond 0 to 61"),
    ],
)
def test_a_damaged_femnist_is_named(wrong: dict[str, Any], message: str, tmp_path: Path) -> None:
    save(tmp_path / "femnist.npz", **{**femnist_arrays(), **wrong})
    with pytest.raises(DataError, match=message):
        load("femnist", tmp_path)


def test_leafs_json_gives_what_the_npz_gives(tmp_path: Path) -> None:
    arrays = femnist_arrays() | {"writer_complete": np.ones(30, bool)}
    users = {
        f"f{writer:04d}": {
            "x": (arrays["x"][arrays["writer"] == writer].reshape(-1, 784) / 255).tolist(),
            "y": arrays["y"][arrays["writer"] == writer].tolist(),
        }
        for writer in range(30)
    }
    (tmp_path / "femnist").mkdir()
    for part, names in enumerate((sorted(users)[:11], sorted(users)[11:])):
        content = {"users": names, "user_data": {name: users[name] for name in names}}
        (tmp_path / "femnist" / f"all_data_{part}.json").write_text(json.dumps(content))
    from_json = load("femnist", tmp_path)
    save(tmp_path / "femnist.npz", **arrays)
    from_npz = load("femnist", tmp_path)
    np.testing.assert_array_equal(from_json.train_features, from_npz.train_features)
    assert from_json.train_owners is not None
    assert from_npz.train_owners is not None
    np.testing.assert_array_equal(from_json.train_owners, from_npz.train_owners)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"user_data": {}}',
        '{"user_data": {"a": {"x": [[1, 2]], "y": [1]}}}',
        '{"user_data": {"a": {"x": [], "y": [1]}}}',
        json.dumps({"user_data": {"a": {"x": [[2.0] * 784], "y": [1]}}}),
    ],
)
def test_json_that_is_not_leafs_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "femnist").mkdir()
    (tmp_path / "femnist" / "part.json").write_text(text)
    with pytest.raises(DataError, match=r"part\.json cannot be read as data"):
        load("femnist", tmp_path)


def test_validation_data_is_of_whole_owners_where_there_are_any(tmp_path: Path) -> None:
    save(tmp_path / "femnist.npz", **femnist_arrays())
    data = load("femnist", tmp_path)
    tuned = datasets.with_validation(data, 0.2, RNG(0))
    assert tuned.train_owners is not None
    assert len(np.unique(tuned.train_owners)) == 14
    assert len(tuned.test_labels) == 16
    lonely = datasets.subset(data, 1, None, RNG(0))
    with pytest.raises(ParameterError, match="needs at least two"):
        datasets.with_validation(lonely, 0.5, RNG(0))
    with pytest.raises(ParameterError, match="validation_fraction"):
        datasets.with_validation(data, 1.0, RNG(0))
