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


@register(
    "femnist",
    summary="28x28 handwritten characters by writer, 62 classes, test writers held out",
    sources=(
        DataSource(files=(DataFile(path="femnist.npz"),)),
        DataSource(files=(DataFile(path="femnist/*.json"),)),
    ),
    remedy=(
        "make the json files with LEAF's preprocessing for femnist (github.com/TalwalkarLab/leaf, "
        "'-s niid') and put them into the folder femnist there"
    ),
)
def femnist(request: LoadRequest) -> Dataset:
    """Return FEMNIST by writer; a tenth of the complete writers is held out with all their images.

    The npz file has images x, labels y, the writer of each image, and for each writer whether all
    images are there (writer_complete); incomplete writers are left out. JSON files hold complete
    writers.

    Reference: Caldas et al. 2018, LEAF.
    """
    path = request.paths[0]
    images, labels, writers = (
        _from_npz(path) if path.suffix == ".npz" else _from_json(request.paths)
    )
    check_same_rows(path, x=images, y=labels, writer=writers)
    labels = check_classes(path, "y", labels, NUM_CLASSES)
    test = np.isin(writers, _test_writers(path, np.unique(writers), request.generator))
    features = scale_images(path, "x", images, SHAPE)
    return Dataset(
        name="femnist",
        train_features=features[~test],
        train_labels=labels[~test],
        test_features=features[test],
        test_labels=labels[test],
        num_classes=NUM_CLASSES,
        train_owners=writers[~test],
        note=_note(labels, writers),
    )


def _test_writers(path: Path, writers: Array, generator: np.random.Generator) -> Array:
    if len(writers) < 2:
        raise damaged_file_error(
            path, f"it has {len(writers)} complete writers, but at least two are needed"
        )
    count = max(1, round(TEST_WRITER_FRACTION * len(writers)))
    return generator.choice(writers, count, replace=False)


def _note(labels: NDArray[np.int64], writers: Array) -> str:
    """Return the license, and how this sample differs from the full data set."""
    digits = round(100 * float(np.mean(labels < 10)))
    per_writer = round(len(labels) / len(np.unique(writers)))
    note = "FEMNIST: NIST Special Database 19, public domain, by way of LEAF (Caldas et al. 2018)."
    if abs(digits - _FULL_DIGITS_PERCENT) <= 3 and abs(per_writer - _FULL_IMAGES_PER_WRITER) <= 10:
        return note
    kind = "rich" if digits > _FULL_DIGITS_PERCENT else "poor"
    return (
        f"{note} Known bias: this sample is {kind} in digits ({digits}% of the complete writers' "
        f"images; the full set has about {_FULL_DIGITS_PERCENT}%) and has {per_writer} images per "
        f"writer instead of {_FULL_IMAGES_PER_WRITER}."
    )


def _from_npz(path: Path) -> tuple[Array, Array, NDArray[np.int64]]:
    data = read_npz(path, {"x": 3, "y": None, "writer": 1, "writer_complete": 1})
    writers, complete = data["writer"].astype(np.int64), data["writer_complete"]
    check_same_rows(path, x=data["x"], y=data["y"], writer=writers)
    if complete.dtype != np.bool_ or writers.min() < 0 or writers.max() >= len(complete):
        raise damaged_file_error(
            path, "'writer' does not point into 'writer_complete', an array of booleans"
        )
    kept = complete[writers]
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
