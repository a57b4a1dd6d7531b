"""Reading arrays from files that may be damaged, and the scaling that all images share."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import files
from sottovoce.core.errors import DataError
from sottovoce.learning.datasets.dataset import (
    Attributes,
    Dataset,
    Features,
    Labels,
    Owners,
    chosen_attributes,
)

TEST_FRACTION = 0.2
DAMAGE = files.ARRAY_DAMAGE

# What to do about a bad file: one that was fetched, and one that the user made.
FETCH_AGAIN = "replace it, or delete it and fetch it again"
WRITE_AGAIN = "write it again"

Array = NDArray[Any]


def damaged(path: Path | str, reason: object, *, remedy: str = FETCH_AGAIN) -> DataError:
    """The error for a file that is there but not what it should be."""
    return DataError(f"{path} cannot be read as data: {reason}; {remedy}")


@contextlib.contextmanager
def _archive(path: Path, remedy: str) -> Iterator[np.lib.npyio.NpzFile]:
    """A file's arrays, none of which is unpickled; whatever goes wrong is explained."""
    try:
        with path.open("rb") as file:  # np.load would leave it open if it is damaged
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise damaged(path, "it is not an npz archive", remedy=remedy)
            with archive:
                yield archive
    except DAMAGE as error:
        # numpy takes bytes that it does not know for pickles, and advises to load them unsafely.
        pickled = "pickle" in str(error)
        reason = (
            "it holds objects or is damaged, and only plain arrays are read" if pickled else error
        )
        raise damaged(path, reason, remedy=remedy) from None


def names_in_npz(path: Path, *, remedy: str = FETCH_AGAIN) -> tuple[str, ...]:
    """The arrays that a file holds."""
    with _archive(path, remedy) as archive:
        return tuple(archive.files)


def read_npz(
    path: Path, shapes: Mapping[str, int | None], *, remedy: str = FETCH_AGAIN
) -> dict[str, Array]:
    """The named arrays of a file, each with so many dimensions (None: any).

    Further arrays of the file are not read.
    """
    with _archive(path, remedy) as archive:
        missing = [name for name in shapes if name not in archive.files]
        if missing:
            needs = ", ".join(shapes)
            raise damaged(
                path, f"array '{missing[0]}' is missing (it needs {needs})", remedy=remedy
            )
        arrays = {name: archive[name] for name in shapes}
    for name, dimensions in shapes.items():
        if not isinstance(arrays[name], np.ndarray):  # a member of another format comes as bytes
            raise damaged(path, f"'{name}' is not an array", remedy=remedy)
        if dimensions is not None and arrays[name].ndim != dimensions:
            raise damaged(
                path,
                f"array '{name}' has shape {arrays[name].shape}, not {dimensions} dimensions",
                remedy=remedy,
            )
    return arrays


def pixels(
    path: Path | str,
    name: str,
    images: Array,
    shape: Sequence[int] | None = None,
    *,
    remedy: str = FETCH_AGAIN,
) -> Features:
    """Images of bytes (rows, *shape) as (rows, channels, ...) in [-1/2, 1/2]: x/255 - 1/2.

    Without channels one is put in front; three or four at the end are colours, and go in front.
    """
    if images.dtype != np.uint8 or images.ndim < 3:
        raise damaged(
            path,
            f"'{name}' is {images.dtype} of shape {images.shape}, not images of bytes",
            remedy=remedy,
        )
    if shape is not None and images.shape[1:] != tuple(shape):
        raise damaged(
            path, f"'{name}' has images of {images.shape[1:]}, not {tuple(shape)}", remedy=remedy
        )
    coloured = images.ndim > 3 and images.shape[-1] in (3, 4)
    framed = np.moveaxis(images, -1, 1) if coloured else images[:, None]
    return scaled(framed)


def scaled(bytes_: Array) -> Features:
    """Bytes 0..255 to [-1/2, 1/2], in place after one copy: some of these arrays are large."""
    result = np.ascontiguousarray(bytes_, dtype=np.float32)
    result /= 255.0
    result -= 0.5
    return result


def classes(
    path: Path | str, name: str, labels: Array, num_classes: int, *, remedy: str = FETCH_AGAIN
) -> NDArray[np.int64]:
    """Labels as int64, checked to lie in 0..num_classes-1; a column of labels is flattened."""
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1 or flat.dtype.kind not in "iu":
        raise damaged(
            path,
            f"'{name}' is {labels.dtype} of shape {labels.shape}, not class labels",
            remedy=remedy,
        )
    if len(flat) and int(flat.min()) < 0:
        raise damaged(
            path,
            f"'{name}' has labels {flat.min()} to {flat.max()}, and labels must start at 0",
            remedy=remedy,
        )
    if len(flat) and int(flat.max()) >= num_classes:
        raise damaged(
            path,
            f"'{name}' has labels {flat.min()} to {flat.max()}, beyond 0 to {num_classes - 1}",
            remedy=remedy,
        )
    return flat.astype(np.int64)


def same_rows(path: Path | str, remedy: str = FETCH_AGAIN, /, **arrays: Array) -> None:
    """Refuse arrays whose rows cannot belong together, or that have none."""
    rows = {name: len(array) for name, array in arrays.items()}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"'{name}' {count}" for name, count in rows.items())
        raise damaged(path, f"the numbers of rows do not match: {counts}", remedy=remedy)
    if not all(rows.values()):
        names = ", ".join(f"'{name}'" for name in rows)
        raise damaged(path, f"there are no rows in {names}", remedy=remedy)


def with_random_test_part(
    name: str,
    features: Features,
    labels: Labels,
    generator: np.random.Generator,
    *,
    num_classes: int | None,
    owners: Owners | None = None,
    attributes: Attributes | None = None,
    test_fraction: float = TEST_FRACTION,
    note: str = "",
) -> Dataset:
    """The dataset, for data without an official split: a random part of the rows is held out."""
    order = generator.permutation(len(labels))
    count = int(test_fraction * len(labels))
    test, train = order[:count], order[count:]
    return Dataset(
        name=name,
        train_features=features[train],
        train_labels=labels[train],
        test_features=features[test],
        test_labels=labels[test],
        num_classes=num_classes,
        train_owners=None if owners is None else owners[train],
        train_attributes=chosen_attributes(attributes or {}, train),
        test_attributes=chosen_attributes(attributes or {}, test),
        note=note,
    )
