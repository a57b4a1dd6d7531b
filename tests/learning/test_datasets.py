"""Loaders on small files made here: what they give, and what they say of damaged ones."""

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.errors import DataError, ParameterError, UnknownNameError
from sottovoce.learning import datasets
from sottovoce.learning.datasets import CsvOptions, Dataset
from sottovoce.learning.datasets.cifar10 import _TEST_MEMBERS, _TRAIN_MEMBERS
from sottovoce.learning.datasets.gefcom_wind import _as_hours
from sottovoce.learning.datasets.mnist import _IDX_FILES

RNG = np.random.default_rng


def images(rows: int, *shape: int) -> Any:
    return RNG(rows).integers(0, 256, (rows, *shape), dtype=np.uint8)


def labels(rows: int, num_classes: int) -> Any:
    return (np.arange(rows) % num_classes).astype(np.uint8)


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def save_split(path: Path, num_classes: int, *shape: int, **more: Any) -> Path:
    parts = {
        "x_train": images(20, *shape),
        "y_train": labels(20, num_classes),
        "x_test": images(10, *shape),
        "y_test": labels(10, num_classes),
    }
    return save(path, **{**parts, **more})


def load(name: str, folder: Path | None = None, **more: Any) -> Dataset:
    return datasets.load(name, RNG(0), data_dir=folder, **more)


def test_digits_are_scaled_by_public_constants_and_split_without_overlap() -> None:
    data = load("digits")
    assert len(data.train_labels) + len(data.test_labels) == 1797
    assert data.train_features.min() == -0.5
    assert data.train_features.max() == 0.5
    assert data.input_shape == (64,)
    assert data.num_outputs == 10
    # Every pixel is a multiple of 1/16: nothing was centred or scaled by the data itself.
    assert np.all((data.train_features + 0.5) * 16 == np.round((data.train_features + 0.5) * 16))


def test_an_unknown_dataset_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'digits'"):
        load("digit")
    with pytest.raises(UnknownNameError, match="did you mean 'bloodmnist'"):
        load("medmnist:bloodmist")
    with pytest.raises(ParameterError, match="needs PATH after the colon"):
        load("npz:")
    with pytest.raises(DataError, match="fourteen yes-or-no labels"):
        load("medmnist:chestmnist")


@pytest.mark.parametrize(
    ("name", "file", "num_classes", "shape", "input_shape"),
    [
        ("mnist", "mnist", 10, (28, 28), (1, 28, 28)),
        ("fashion_mnist", "fashion_mnist", 10, (28, 28), (1, 28, 28)),
        ("cifar10", "cifar10", 10, (32, 32, 3), (3, 32, 32)),
        ("medical_mnist", "medical_mnist", 6, (32, 32), (1, 32, 32)),
        ("pneumonia_mnist", "pneumoniamnist", 2, (28, 28), (1, 28, 28)),
        ("medmnist:bloodmnist", "bloodmnist", 8, (28, 28, 3), (3, 28, 28)),
        ("medmnist:organmnist3d", "organmnist3d", 11, (28, 28, 28), (1, 28, 28, 28)),
    ],
)
def test_images_in_an_npz_become_channels_first_in_half_a_unit_about_zero(
    name: str,
    file: str,
    num_classes: int,
    shape: tuple[int, ...],
    input_shape: tuple[int, ...],
    tmp_path: Path,
) -> None:
    save_split(tmp_path / f"{file}.npz", num_classes, *shape)
    data = load(name, tmp_path)
    raw = images(20, *shape)
    channels_first = np.moveaxis(raw, -1, 1) if shape[-1] == 3 else raw[:, None]
    np.testing.assert_allclose(data.train_features, channels_first / 255 - 0.5, atol=1e-6)
    np.testing.assert_array_equal(data.train_labels, labels(20, num_classes))
    assert data.name == name
    assert data.input_shape == input_shape
    assert data.num_outputs == data.num_classes == num_classes
    assert data.train_owners is None
    assert data.note


def test_idx_files_give_what_the_npz_gives(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    parts = (images(20, 28, 28), labels(20, 10), images(10, 28, 28), labels(10, 10))
    for name, part in zip(_IDX_FILES, parts, strict=True):
        header = bytes([0, 0, 8, part.ndim]) + np.array(part.shape, dtype=">u4").tobytes()
        with gzip.open(tmp_path / "mnist" / name, "wb") as file:
            file.write(header + part.tobytes())
    from_idx = load("mnist", tmp_path)
    save_split(tmp_path / "mnist.npz", 10, 28, 28)
    from_npz = load("mnist", tmp_path)
    np.testing.assert_array_equal(from_idx.train_features, from_npz.train_features)
    np.testing.assert_array_equal(from_idx.test_labels, from_npz.test_labels)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0\x08\x01\0\0\0\x09only", b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", b"\0\0\x08\x03\0"],
)
def test_a_damaged_idx_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    for name in _IDX_FILES:
        (tmp_path / "mnist" / name).write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz cannot be read as data"):
        load("mnist", tmp_path)
    for name in _IDX_FILES:
        (tmp_path / "mnist" / name).write_bytes(gzip.compress(b"1234567890" * 99)[:-9])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz cannot be read as data"):
        load("mnist", tmp_path)


def cifar_archive(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def test_the_binary_archive_of_cifar10_has_a_label_and_three_planes(tmp_path: Path) -> None:
    planes = images(6, 3072)
    records = [bytes([label]) + planes[label].tobytes() for label in range(6)]
    members = dict(zip((*_TRAIN_MEMBERS, *_TEST_MEMBERS), records, strict=True))
    cifar_archive(tmp_path / "cifar-10-binary.tar.gz", members)
    data = load("cifar10", tmp_path)
    np.testing.assert_array_equal(data.train_labels, np.arange(5))
    expected = planes[:5].reshape(-1, 3, 32, 32) / 255 - 0.5
    np.testing.assert_allclose(data.train_features, expected, atol=1e-6)
    np.testing.assert_array_equal(data.test_labels, [5])


def test_a_damaged_cifar_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    with pytest.raises(DataError, match="holds pickled objects"):
        load("cifar10", tmp_path)
    cifar_archive(path, {"something": b"else"})
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz cannot be read.*data_batch_1"):
        load("cifar10", tmp_path)
    cifar_archive(path, dict.fromkeys((*_TRAIN_MEMBERS, *_TEST_MEMBERS), b"short"))
    with pytest.raises(DataError, match="does not hold whole records"):
        load("cifar10", tmp_path)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match="cannot be read as data"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"y_train": labels(19, 10)}, "numbers of rows do not match: 'x_train' 20, 'y_train' 19"),
        ({"y_test": np.full(10, 10)}, "'y_test' has labels 10 to 10, beyond 0 to 9"),
        ({"y_train": np.full(20, -1)}, "labels -1 to -1"),
        ({"y_train": np.zeros(20)}, "not class labels"),
        ({"x_train": images(20, 28)}, "'x_train' has shape"),
        ({"x_train": images(20, 27, 28)}, "images of"),
        ({"x_train": np.zeros((20, 28, 28))}, "not images of bytes"),
        ({"x_train": np.array([{}] * 20, dtype=object)}, "allow_pickle=False"),
        ({"x_test": images(0, 28, 28), "y_test": labels(0, 10)}, "numbers of rows"),
    ],
)
def test_wrong_arrays_are_named(wrong: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_split(tmp_path / "mnist.npz", 10, 28, 28, **wrong)
    with pytest.raises(DataError, match=message) as refused:
        load("mnist", tmp_path)
    assert str(tmp_path / "mnist.npz") in str(refused.value)


def test_damaged_archives_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mnist.npz"
    whole = save_split(path, 10, 28, 28).read_bytes()
    lone = io.BytesIO()
    np.save(lone, np.zeros(3))
    flipped = bytearray(whole)
    flipped[300] ^= 255
    for content in (b"", b"no zip", whole[: len(whole) // 2], lone.getvalue(), bytes(flipped)):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"mnist\.npz cannot be read as data"):
            load("mnist", tmp_path)
    save(path, x_train=images(2, 28, 28))
    with pytest.raises(DataError, match="array 'y_train' is missing"):
        load("mnist", tmp_path)


def test_the_writers_of_mnist_are_its_owners_if_they_are_known(tmp_path: Path) -> None:
    save_split(tmp_path / "mnist.npz", 10, 28, 28)
    save(tmp_path / "mnist_writers.npz", writer_train=np.arange(20, dtype=np.uint16) // 4)
    owners = load("mnist", tmp_path).train_owners
    assert owners is not None
    np.testing.assert_array_equal(owners, np.arange(20) // 4)
    save(tmp_path / "mnist_writers.npz", writer_train=np.arange(19))
    with pytest.raises(DataError, match=r"mnist_writers\.npz.*do not match"):
        load("mnist", tmp_path)


def test_medmnists_own_file_has_other_names_and_a_column_of_labels(tmp_path: Path) -> None:
    save(
        tmp_path / "pneumoniamnist.npz",
        train_images=images(20, 28, 28),
        train_labels=labels(20, 2)[:, None],
        val_images=images(5, 28, 28),
        val_labels=labels(5, 2)[:, None],
        test_images=images(10, 28, 28),
        test_labels=labels(10, 2)[:, None],
    )
    data = load("pneumonia_mnist", tmp_path)
    assert data.train_labels.shape == (20,)
    assert data.test_features.shape == (10, 1, 28, 28)


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


def test_femnists_note_says_how_the_sample_differs(tmp_path: Path) -> None:
    save(tmp_path / "femnist.npz", **{**femnist_arrays(), "y": labels(120, 10)})
    note = load("femnist", tmp_path).note
    assert "rich in digits (100% of the complete writers' images; the full set has about" in note
    assert "4 images a writer instead of 227" in note


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"writer_complete": np.zeros(30, dtype=bool)}, "no writer is complete"),
        ({"writer_complete": np.ones(5, dtype=bool)}, "does not point into"),
        ({"writer_complete": np.arange(30) < 1}, "one is held out"),
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


def test_utkface_has_a_random_fifth_held_out(tmp_path: Path) -> None:
    save(tmp_path / "utkface_8k.npz", x=images(50, 48, 48), gender=labels(50, 2))
    data = load("utkface", tmp_path)
    assert data.train_features.shape == (40, 1, 48, 48)
    assert len(data.test_labels) == 10
    assert "non-commercial" in data.note


def wind_arrays() -> dict[str, Any]:
    """Two farms, four days before the evaluation period and two in it; one forecast is missing."""
    hours = np.arange(np.datetime64("2010-12-28T00", "h"), np.datetime64("2011-01-03T00", "h"))
    issues = hours[::12]

    def stamps(times: Any) -> Any:
        texts = np.datetime_as_string(times, unit="h")
        return np.array([int(text.replace("-", "").replace("T", "")) for text in texts])

    ahead = np.arange(48)
    speed = np.arange(len(issues))[:, None] + ahead / 100.0
    nwp = np.stack([speed, -speed, speed, np.full(speed.shape, 90.0)], axis=-1)[None]
    nwp = np.concatenate([nwp, nwp + 0.5]).astype(np.float32)
    nwp[:, 3, 12:24] = np.nan
    power = np.linspace(0, 1, 2 * len(hours)).reshape(-1, 2).astype(np.float32)
    return {"date": stamps(hours), "power": power, "issue_date": stamps(issues), "nwp": nwp}


def test_wind_power_has_each_measurement_once_and_is_tested_on_what_comes_later(
    tmp_path: Path,
) -> None:
    arrays = wind_arrays()
    save(tmp_path / "gefcom2012_wind.npz", **arrays)
    data = load("gefcom_wind", tmp_path)
    assert data.num_classes is None
    assert data.num_outputs == 1
    assert data.input_shape == (6, 5)
    assert data.train_owners is not None
    # 96 hours up to and with midnight, the first without a forecast an hour before it.
    assert np.bincount(data.train_owners).tolist() == [96, 96]
    np.testing.assert_array_equal(
        data.train_labels[:, 0], arrays["power"][1:97].T.reshape(-1).astype(np.float32)
    )
    np.testing.assert_array_equal(data.test_labels[:, 0], arrays["power"][97:].T.reshape(-1))
    assert np.isfinite(data.train_features).all()


def test_each_row_of_wind_has_the_forecast_for_its_hour(tmp_path: Path) -> None:
    """The speed tells the issue (whole) and the hours ahead (hundredths) that it came from."""
    save(tmp_path / "gefcom2012_wind.npz", **wind_arrays())
    data = load("gefcom_wind", tmp_path)
    farm = data.train_owners == 0
    rows = data.train_features[farm]
    speed = (rows[:, 2] + 0.5) * 20
    issue = np.floor(speed[:, 2] + 1e-4)
    ahead = np.round(100 * (speed[:, 2] - issue))
    np.testing.assert_array_equal(12 * issue + ahead + 1, np.arange(1, 97))
    np.testing.assert_allclose(rows[:, 5, 0], (ahead + 1) / 48 - 0.5, atol=1e-6)
    np.testing.assert_allclose(rows[:, 3], 0.5, atol=1e-6)
    np.testing.assert_allclose(rows[:, 4], 0.0, atol=1e-6)
    np.testing.assert_allclose(rows[:, 0] * 40, speed, atol=1e-4)
    np.testing.assert_allclose(rows[:, 1] * 40, -speed, atol=1e-4)
    inner = (ahead >= 2) & (ahead <= 45) & (issue != 3)
    np.testing.assert_allclose(
        speed[inner] - speed[inner][:, [2]], np.arange(-2, 3) / 100 + 0 * speed[inner], atol=1e-4
    )
    first = ahead == 0  # nothing before it: its own values stand in
    np.testing.assert_allclose(speed[first][:, :2], speed[first][:, [2, 2]], atol=1e-5)
    assert set(ahead // 12) == {0, 1, 2, 3}
    assert not np.any((issue == 3) & (ahead >= 12) & (ahead < 24))


def test_wind_that_is_damaged_is_named(tmp_path: Path) -> None:
    path, arrays = tmp_path / "gefcom2012_wind.npz", wind_arrays()
    for wrong, message in (
        ({"power": arrays["power"] + 1}, r"outside \[0, 1\]"),
        ({"nwp": arrays["nwp"][:, :-1]}, "'nwp' has shape"),
        ({"nwp": np.full_like(arrays["nwp"], np.nan)}, "no hour"),
        ({"date": arrays["date"] / 2}, "not integers YYYYMMDDHH"),
    ):
        save(path, **{**arrays, **wrong})
        with pytest.raises(DataError, match=message):
            load("gefcom_wind", tmp_path)


def test_stamps_are_read_as_hours() -> None:
    found = _as_hours(Path("f"), np.array([2009070100, 2012022923, 2010123124]))
    expected = ["2009-07-01T00", "2012-02-29T23", "2011-01-01T00"]
    np.testing.assert_array_equal(found, np.array(expected, dtype="datetime64[h]"))


def test_subset_keeps_rows_with_their_owners(tmp_path: Path) -> None:
    save_split(tmp_path / "mnist.npz", 10, 28, 28)
    save(tmp_path / "mnist_writers.npz", writer_train=np.arange(20))
    data = load("mnist", tmp_path)
    part = datasets.subset(data, 7, 3, RNG(1))
    assert part.train_owners is not None
    np.testing.assert_array_equal(part.train_features, data.train_features[part.train_owners])
    np.testing.assert_array_equal(part.train_labels, data.train_labels[part.train_owners])
    assert len(part.train_labels) == 7
    assert len(part.test_labels) == 3
    assert len(datasets.subset(data, None, None, RNG(1)).train_labels) == 20
    with pytest.raises(ParameterError, match="num_train must be an integer from 1 to 20, got 21"):
        datasets.subset(data, 21, None, RNG(1))


def test_validation_data_comes_from_training_alone() -> None:
    data = load("digits")
    tuned = datasets.with_validation(data, 0.25, RNG(0))
    assert len(tuned.test_labels) == round(0.25 * len(data.train_labels))
    both = np.concatenate([tuned.train_features, tuned.test_features])
    np.testing.assert_array_equal(np.sort(both, axis=0), np.sort(data.train_features, axis=0))


def test_validation_data_is_of_whole_owners_where_there_are_any(tmp_path: Path) -> None:
    save(tmp_path / "femnist.npz", **femnist_arrays())
    data = load("femnist", tmp_path)
    tuned = datasets.with_validation(data, 0.2, RNG(0))
    assert tuned.train_owners is not None
    assert len(np.unique(tuned.train_owners)) == 14
    assert len(tuned.test_labels) == 16
    lonely = datasets.subset(data, 1, None, RNG(0))
    with pytest.raises(ParameterError, match="needs one more"):
        datasets.with_validation(lonely, 0.5, RNG(0))
    with pytest.raises(ParameterError, match="validation_fraction"):
        datasets.with_validation(data, 1.0, RNG(0))


def test_a_dataset_checks_itself() -> None:
    good: dict[str, Any] = {
        "name": "own",
        "train_features": np.zeros((2, 3), np.float32),
        "train_labels": np.zeros(2, np.int64),
        "test_features": np.zeros((1, 3), np.float32),
        "test_labels": np.zeros(1, np.int64),
        "num_classes": 2,
    }
    Dataset(**good)
    for wrong, message in (
        ({"test_features": np.zeros((1, 4), np.float32)}, "test rows"),
        ({"train_features": np.zeros((2, 3))}, "features are float64"),
        ({"train_labels": np.full(2, 2)}, "there are 2 classes"),
        ({"num_classes": None}, "targets are int64"),
        ({"train_owners": np.zeros(3, np.int64)}, "3 owners"),
        ({"test_labels": np.zeros(0, np.int64)}, "0 labels"),
    ):
        with pytest.raises(DataError, match=message):
            Dataset(**{**good, **wrong})


def test_csv_options_check_themselves() -> None:
    with pytest.raises(ParameterError, match="low one first"):
        CsvOptions(bounds={"a": (1.0, 0.0)})
    with pytest.raises(ParameterError, match="a class is one column"):
        CsvOptions(label_columns=("a", "b"))
    with pytest.raises(ParameterError, match="test_fraction"):
        CsvOptions(test_fraction=1.0)
