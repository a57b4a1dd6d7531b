"""The data set FEMNIST: handwritten characters by writer, from an npz file or LEAF's JSON files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.errors import DataError
from sottovoce.learning.datasets.dataset import (
    Array,
    Dataset,
    check_classes,
    check_same_rows,
    damaged_file_error,
    read_npz,
    scale_images,
)
from sottovoce.learning.datasets.register import DataFile, DataSource, LoadRequest, register

SHAPE = (28, 28)
NUM_CLASSES = 62
TEST_WRITER_FRACTION = 0.1
# Of the full data set, for comparison (Caldas et al. 2018).
_FULL_DIGITS_PERCENT = 47
_FULL_IMAGES_PER_WRITER = 227


_NPZ = DataSource(files=(DataFile(path="femnist.npz"),))


@register(
    "femnist",
    summary="28x28 handwritten characters by writer, 62 classes, test writers held out",
    sources=(_NPZ, DataSource(files=(DataFile(path="femnist/*.json"),))),
    remedy=(
        "make the json files with LEAF's preprocessing for femnist (github.com/TalwalkarLab/leaf, "
        "'-s niid') and put them into the folder femnist there"
    ),
)
def femnist(request: LoadRequest) -> Dataset:
    """Return FEMNIST by writer; a tenth of the complete writers is held out with all their images.

    Which writers those are depends on the seed. The npz file has images x, labels y, the writer of
    each image, and for each writer whether all images are there (writer_complete); incomplete
    writers are left out. JSON files hold complete writers.

    Reference: Caldas et al. 2018, LEAF.
    """
    path = request.paths[0]
    images, labels, writers = (
        _from_npz(path) if path.suffix == ".npz" else _from_json(request.paths)
    )
    check_same_rows(path, x=images, y=labels, writer=writers)
    test = np.isin(writers, _test_writers(path, np.unique(writers), request.generator))
    note = _note(labels, writers, "the complete writers'")
    return _dataset(path, "femnist", (images, labels, writers), test, note)


@register(
    "femnist-all",
    summary="the same of every writer, also those with few images; every tenth writer for testing",
    sources=(_NPZ,),
    remedy="only the npz file names writers of whom images are missing; use 'femnist' otherwise",
)
def femnist_all(request: LoadRequest) -> Dataset:
    """Return all writers of the npz file; every tenth of them is held out with all their images.

    The split is the same for every seed.
    """
    path = request.paths[0]
    images, labels, writers = _from_npz(path, complete=False)
    names = np.unique(writers)
    _check_two(path, names)
    test = np.isin(writers, names[::10])
    note = _note(labels, writers, "all writers'")
    return _dataset(path, "femnist-all", (images, labels, writers), test, note)


def _dataset(
    path: Path,
    name: str,
    rows: tuple[Array, Array, NDArray[np.int64]],
    test: NDArray[np.bool_],
    note: str,
) -> Dataset:
    images, labels, writers = rows
    labels = check_classes(path, "y", labels, NUM_CLASSES)
    features = scale_images(path, "x", images, SHAPE)
    return Dataset(
        name=name,
        train_features=features[~test],
        train_labels=labels[~test],
        test_features=features[test],
        test_labels=labels[test],
        num_classes=NUM_CLASSES,
        train_owners=writers[~test],
        note=note,
    )


def _test_writers(path: Path, writers: Array, generator: np.random.Generator) -> Array:
    _check_two(path, writers)
    count = max(1, round(TEST_WRITER_FRACTION * len(writers)))
    return generator.choice(writers, count, replace=False)


def _check_two(path: Path, writers: Array) -> None:
    if len(writers) < 2:
        raise damaged_file_error(
            path, f"it has {len(writers)} complete writers, but at least two are needed"
        )


def _note(labels: Array, writers: Array, whose: str) -> str:
    """Return the license, and how this sample differs from the full data set."""
    digits = round(100 * float(np.mean(labels < 10)))
    per_writer = round(len(labels) / len(np.unique(writers)))
    note = "FEMNIST: NIST Special Database 19, public domain, by way of LEAF (Caldas et al. 2018)."
    if abs(digits - _FULL_DIGITS_PERCENT) <= 3 and abs(per_writer - _FULL_IMAGES_PER_WRITER) <= 10:
        return note
    kind = "rich" if digits > _FULL_DIGITS_PERCENT else "poor"
    return (
        f"{note} Known bias: this sample is {kind} in digits ({digits}% of {whose} "
        f"images; the full set has about {_FULL_DIGITS_PERCENT}%) and has {per_writer} images per "
        f"writer instead of {_FULL_IMAGES_PER_WRITER}."
    )


def _from_npz(path: Path, *, complete: bool = True) -> tuple[Array, Array, NDArray[np.int64]]:
    """Return images, labels and writers, by default of the complete writers only."""
    data = read_npz(path, {"x": 3, "y": None, "writer": 1, "writer_complete": 1})
    writers, whole = data["writer"].astype(np.int64), data["writer_complete"]
    check_same_rows(path, x=data["x"], y=data["y"], writer=writers)
    if whole.dtype != np.bool_ or writers.min() < 0 or writers.max() >= len(whole):
        raise damaged_file_error(
            path, "'writer' does not point into 'writer_complete', an array of booleans"
        )
    kept = whole[writers] if complete else np.ones(len(writers), dtype=bool)
    if not kept.any():
        raise damaged_file_error(path, "no writer is complete")
    return data["x"][kept], data["y"][kept], writers[kept]


def _from_json(paths: tuple[Path, ...]) -> tuple[Array, Array, NDArray[np.int64]]:
    """Read LEAF's files: user_data maps a writer to x, rows of 784 numbers in [0, 1], and y."""
    images, labels, names = [], [], []
    for path in paths:
        for writer, x, y in _writers_of(path):
            images.append(x)
            labels.append(y)
            names.append(writer)
    number = {name: position for position, name in enumerate(sorted(set(names)))}
    sizes = [len(y) for y in labels]
    owners = np.repeat([number[name] for name in names], sizes).astype(np.int64)
    if not len(owners):
        raise damaged_file_error(paths[0], "no writer has an image")
    return np.concatenate(images), np.concatenate(labels), owners


def _writers_of(path: Path) -> list[tuple[str, Array, Array]]:
    try:
        users: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["user_data"]
        return [(name, *_images_of(path, name, part)) for name, part in users.items()]
    except DataError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged_file_error(path, f"it is not LEAF's json: {error}") from None


def _images_of(path: Path, name: str, part: dict[str, Any]) -> tuple[Array, Array]:
    x = np.asarray(part["x"], dtype=np.float64).reshape(-1, *SHAPE)
    y = np.asarray(part["y"], dtype=np.int64)
    if len(x) != len(y):
        raise damaged_file_error(path, f"writer '{name}' has {len(x)} images and {len(y)} labels")
    if not np.all((x >= 0.0) & (x <= 1.0)):
        raise damaged_file_error(path, f"writer '{name}' has pixels outside [0, 1]")
    return np.round(255.0 * x).astype(np.uint8), y
