"""Loaders on small files made here: what they give, and what they say of damaged ones."""

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_data import RNG, images, labels, load, save, save_split

from sottovoce.core.errors import DataError, ParameterError, UnknownNameError
from sottovoce.learning import datasets
from sottovoce.learning.datasets import CsvOptions, Dataset
from sottovoce.learning.datasets.mnist import _IDX_FILES
from sottovoce_papers.datasets.cifar10 import _TEST_MEMBERS, _TRAIN_MEMBERS


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
    with pytest.raises(ParameterError, match="needs an argument after the colon; write 'npz:PATH'"):
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
        ({"y_train": np.full(20, -1)}, "labels -1 to -1, and labels must start at 0"),
        ({"y_train": np.zeros(20)}, "not class labels"),
        ({"x_train": images(20, 28)}, "'x_train' has shape"),
        ({"x_train": images(20, 27, 28)}, "images of"),
        ({"x_train": np.zeros((20, 28, 28))}, "not images of bytes"),
        (
            {"x_train": np.array([{}] * 20, dtype=object)},
            "contains Python objects or is damaged",
        ),
        (
            {"x_test": images(0, 28, 28), "y_test": labels(0, 10)},
            "there are no rows in 'x_test', 'y_test'",
        ),
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


def test_utkface_has_a_random_fifth_held_out(tmp_path: Path) -> None:
    save(tmp_path / "utkface_8k.npz", x=images(50, 48, 48), gender=labels(50, 2))
    data = load("utkface", tmp_path)
    assert data.train_features.shape == (40, 1, 48, 48)
    assert len(data.test_labels) == 10
    assert "non-commercial" in data.note


def test_utkface_by_race_brings_gender_and_age_group_along(tmp_path: Path) -> None:
    ages = np.array([1, 17, 18, 39, 40, 59, 60, 116, 30, 30] * 5, dtype=np.uint8)
    x = images(50, 48, 48)
    save(tmp_path / "utkface.npz", x=x, race=labels(50, 5), gender=labels(50, 2), age=ages)
    data = load("utkface-race", tmp_path)
    assert data.num_classes == 5
    assert set(data.train_attributes) == set(data.test_attributes) == {"gender", "age_group"}
    groups = {1: 0, 17: 0, 18: 1, 39: 1, 40: 2, 59: 2, 60: 3, 116: 3, 30: 1}
    scaled = {
        (image / np.float32(255.0) - np.float32(0.5)).tobytes(): n for n, image in enumerate(x)
    }
    for features, attributes in (
        (data.train_features, data.train_attributes),
        (data.test_features, data.test_attributes),
    ):
        rows = [scaled[row[0].tobytes()] for row in features]
        assert [groups[int(ages[row])] for row in rows] == attributes["age_group"].tolist()


def test_attributes_stay_with_their_rows_whatever_is_taken() -> None:
    count = 40
    marks = np.arange(count, dtype=np.int64)

    def part(first: int) -> dict[str, Any]:
        rows = marks + first
        return {"features": rows[:, None].astype(np.float32), "attributes": {"mark": rows}}

    train, test = part(0), part(1000)
    data = Dataset(
        name="marked",
        train_features=train["features"],
        train_labels=marks % 2,
        test_features=test["features"],
        test_labels=marks % 2,
        num_classes=2,
        train_owners=marks // 4,
        train_attributes=train["attributes"],
        test_attributes=test["attributes"],
    )
    taken = [
        datasets.subset(data, 7, 5, RNG(1)),
        datasets.sample_owners(data, 3, RNG(2)),
        datasets.with_validation(data, 0.2, RNG(3)),
        datasets.with_training_rows(data, np.array([5, 3])),
    ]
    for found in taken:
        np.testing.assert_array_equal(found.train_features[:, 0], found.train_attributes["mark"])
        np.testing.assert_array_equal(found.test_features[:, 0], found.test_attributes["mark"])
    assert len(taken[0].test_attributes["mark"]) == 5
    assert taken[2].test_attributes["mark"].max() < count  # validation rows were training rows


def test_attributes_that_do_not_fit_the_rows_are_refused() -> None:
    rows: dict[str, Any] = {
        "train_features": np.zeros((4, 1), np.float32),
        "train_labels": np.zeros(4, np.int64),
        "test_features": np.zeros((4, 1), np.float32),
        "test_labels": np.zeros(4, np.int64),
    }
    with pytest.raises(DataError, match="different attributes"):
        Dataset(name="x", num_classes=2, train_attributes={"a": np.zeros(4, np.int64)}, **rows)
    wrong = {"a": np.zeros(3, np.int64)}
    with pytest.raises(DataError, match="training attribute 'a' must be int64 of shape"):
        Dataset(name="x", num_classes=2, train_attributes=wrong, test_attributes=wrong, **rows)


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


def test_owners_are_kept_with_all_that_is_theirs(tmp_path: Path) -> None:
    save_split(tmp_path / "mnist.npz", 10, 28, 28)
    save(tmp_path / "mnist_writers.npz", writer_train=np.arange(20) % 6)
    data = load("mnist", tmp_path)
    part = datasets.sample_owners(data, 2, RNG(1))
    assert part.train_owners is not None
    kept = np.isin(np.arange(20) % 6, np.unique(part.train_owners))
    assert len(np.unique(part.train_owners)) == 2
    np.testing.assert_array_equal(part.train_features, data.train_features[kept])
    np.testing.assert_array_equal(part.test_features, data.test_features)
    with pytest.raises(ParameterError, match="num_owners must be an integer from 1 to 6, got 7"):
        datasets.sample_owners(data, 7, RNG(1))
    with pytest.raises(ParameterError, match="'digits' does not name the owners of its rows"):
        datasets.sample_owners(load("digits"), 2, RNG(1))


def test_validation_data_comes_from_training_alone() -> None:
    data = load("digits")
    tuned = datasets.with_validation(data, 0.25, RNG(0))
    assert len(tuned.test_labels) == round(0.25 * len(data.train_labels))
    both = np.concatenate([tuned.train_features, tuned.test_features])
    np.testing.assert_array_equal(np.sort(both, axis=0), np.sort(data.train_features, axis=0))


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
        ({"train_features": np.zeros((2, 3))}, "features must be float32.*got float64"),
        ({"train_labels": np.full(2, 2)}, "there are 2 classes"),
        ({"num_classes": None}, "targets must be float32.*got int64"),
        ({"num_classes": "2"}, "must be an integer or None"),
        ({"train_owners": np.zeros(3, np.int64)}, "3 owners"),
        ({"test_labels": np.zeros(0, np.int64)}, "0 labels"),
    ):
        with pytest.raises(DataError, match=message):
            Dataset(**{**good, **wrong})


def test_csv_options_check_themselves() -> None:
    with pytest.raises(ParameterError, match="low < high"):
        CsvOptions(bounds={"a": (1.0, 0.0)})
    with pytest.raises(ParameterError, match="a class label must be one column"):
        CsvOptions(label_columns=("a", "b"))
    with pytest.raises(ParameterError, match="test_fraction"):
        CsvOptions(test_fraction=1.0)
