"""A data set as plain arrays, scaled by public constants and never by private statistics.

Also functions that select rows (of an array on disk without copying them), and functions that read
arrays from files that may be damaged.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import files, parameter_rules
from sottovoce.core.errors import DataError, ParameterError
from sottovoce.learning.objectives import IGNORED_TOKEN


class SelectedRows:
    """An array-like object of some rows of an array on disk, which are read when indexed.

    Args:
        array: The array on disk.
        rows: The numbers of the rows.
    """

    def __init__(self, array: NDArray[Any], rows: NDArray[np.int64]) -> None:
        self._array, self._rows = array, rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the selected rows."""
        return (len(self._rows), *self._array.shape[1:])

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._array.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        return self._array.dtype

    def __getitem__(self, key: Any) -> NDArray[Any]:
        return np.asarray(self._array[self._rows[key]])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("the rows are on disk, so reading them makes a copy; leave out copy")
        return np.asarray(self[:], dtype=dtype)

    def take(self, rows: Any) -> "SelectedRows":
        """Return some of these rows, still unread; `rows` are positions, a mask or a slice."""
        return SelectedRows(self._array, self._rows[rows])


def select_rows(array: "NDArray[Any] | SelectedRows", rows: Any) -> NDArray[Any]:
    """Return some rows: an array if they are in memory, a `SelectedRows` if they are on disk.

    `rows` are positions, a mask or a slice. Rows on disk are not read.
    """
    if isinstance(array, SelectedRows):
        return cast(NDArray[Any], array.take(rows))
    if isinstance(array, np.memmap):
        return cast(NDArray[Any], SelectedRows(array, np.arange(len(array))[rows]))
    return np.asarray(array[rows])


Features = NDArray[Any]
Labels = NDArray[np.int64] | NDArray[np.float32]
Owners = NDArray[np.int64]
Attributes = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Training data to be distributed over clients, and held-out test data.

    Attributes:
        name: The name of the data set.
        train_features: float32, float16 or (as for tokens) int64, of shape (rows, *input_shape).
            An image is (channels, height, width), with values in [-1/2, 1/2].
        train_labels: int64 classes, of shape (rows,), or of shape (rows, positions) with -100 for
            positions without a class; or float32 numbers of shape (rows, outputs) if `num_classes`
            is None.
        test_features: As `train_features`.
        test_labels: As `train_labels`.
        num_classes: The number of classes, or None if labels are numbers.
        train_owners: The owner of each training row, if the data have natural clients.
        train_attributes: What else is known of each row, as small integers by name. No model is
            trained on attributes; an attack may try to infer them.
        test_attributes: As `train_attributes`.
        note: License, citation and known bias, for reports.

    Raises:
        DataError: Types or shapes are not as described, a part has no rows, a class is not in 0 to
            num_classes - 1, or a target is not finite.
    """

    name: str
    train_features: Features
    train_labels: Labels
    test_features: Features
    test_labels: Labels
    num_classes: int | None
    train_owners: Owners | None = None
    train_attributes: Attributes = field(default_factory=dict)
    test_attributes: Attributes = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        _check_part(self, "training", self.train_features, self.train_labels)
        _check_part(self, "test", self.test_features, self.test_labels)
        if self.train_features.shape[1:] != self.test_features.shape[1:]:
            _refuse(
                self,
                f"training rows have shape {self.train_features.shape[1:]}, test rows "
                f"{self.test_features.shape[1:]}",
            )
        if self.train_labels.shape[1:] != self.test_labels.shape[1:]:
            _refuse(self, "training and test rows have different numbers of targets")
        if self.train_owners is not None and self.train_owners.shape != (len(self.train_labels),):
            _refuse(
                self, f"{len(self.train_labels)} training rows, {len(self.train_owners)} owners"
            )
        if set(self.train_attributes) != set(self.test_attributes):
            _refuse(self, "training and test rows have different attributes")
        _check_attributes(self, "training", self.train_attributes, len(self.train_labels))
        _check_attributes(self, "test", self.test_attributes, len(self.test_labels))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one row's features."""
        return self.train_features.shape[1:]

    @property
    def num_outputs(self) -> int:
        """The number of outputs of a model: one for each class, or one for each target."""
        return self.num_classes or self.train_labels.shape[1]


def with_float_features(dataset: Dataset) -> Dataset:
    """Return the data set with whole numbers as float32, for models that compute with them."""
    if dataset.train_features.dtype != np.int64:
        return dataset
    return dataclasses.replace(
        dataset,
        train_features=np.asarray(dataset.train_features).astype(np.float32),
        test_features=np.asarray(dataset.test_features).astype(np.float32),
    )


def with_label_rows(dataset: Dataset) -> Dataset:
    """Return the data set with rows of zeros and ones as labels, for several labels at once.

    Raises:
        DataError: The labels have another shape, or other values.
    """
    for part, labels in (("training", dataset.train_labels), ("test", dataset.test_labels)):
        if labels.ndim != 2 or not np.isin(labels, (0, 1)).all():
            _refuse(
                dataset,
                f"the {part} labels must be 0 or 1, of shape (rows, labels), for the loss "
                f"'binary_cross_entropy', and they have shape {labels.shape}"
                f"{' and other values' if labels.ndim == 2 else ''}",
            )
    return dataclasses.replace(
        dataset,
        train_labels=dataset.train_labels.astype(np.float32),
        test_labels=dataset.test_labels.astype(np.float32),
        num_classes=None,
    )


def _refuse(dataset: Dataset, reason: str) -> None:
    raise DataError(
        f"dataset '{dataset.name}' cannot be used: {reason}; correct the data or their loader"
    )


def _check_part(dataset: Dataset, part: str, features: Features, labels: Labels) -> None:
    """Check types and shapes, so that no loader can return other ones."""
    arrays: dict[str, object] = {"features": features, "labels": labels}
    for what, values in arrays.items():
        if not isinstance(values, np.ndarray | SelectedRows):
            _refuse(dataset, f"the {part} {what} are a {type(values).__name__}, not a numpy array")
    if not len(labels) or len(labels) != len(features):
        _refuse(dataset, f"the {part} part has {len(features)} rows and {len(labels)} labels")
    if features.dtype not in (np.float32, np.float16, np.int64) or features.ndim < 2:
        _refuse(
            dataset,
            f"the {part} features must be float32, float16 or int64 of shape (rows, ...), got "
            f"{features.dtype} of shape {features.shape}",
        )
    if dataset.num_classes is None:
        if labels.dtype != np.float32 or labels.ndim != 2 or not labels.shape[1]:
            _refuse(
                dataset,
                f"the {part} targets must be float32 of shape (rows, outputs) if num_classes is "
                f"None, got {labels.dtype} of shape {labels.shape}",
            )
        if not np.isfinite(labels).all():
            _refuse(dataset, f"a {part} target is not finite")
        return
    if labels.dtype != np.int64 or labels.ndim not in (1, 2) or not labels.size:
        _refuse(
            dataset,
            f"the {part} labels must be int64 of shape (rows,) or (rows, positions), got "
            f"{labels.dtype} of shape {labels.shape}",
        )
    classes: object = dataset.num_classes
    if not isinstance(classes, int | np.integer):
        _refuse(dataset, f"num_classes must be an integer or None, got {classes!r}")
    used = labels if labels.ndim == 1 else labels[labels != IGNORED_TOKEN]
    if used.size and (used.min() < 0 or used.max() >= dataset.num_classes):
        _refuse(
            dataset,
            f"the {part} labels run from {used.min()} to {used.max()}, but there are "
            f"{dataset.num_classes} classes (0 to {dataset.num_classes - 1})",
        )


def _check_attributes(dataset: Dataset, part: str, attributes: Attributes, rows: int) -> None:
    for name, values in attributes.items():
        if values.dtype != np.int64 or values.shape != (rows,):
            _refuse(
                dataset,
                f"the {part} attribute '{name}' must be int64 of shape ({rows},), got "
                f"{values.dtype} of shape {values.shape}",
            )


def subset(
    dataset: Dataset,
    num_train: int | None,
    num_test: int | None,
    generator: np.random.Generator,
) -> Dataset:
    """Return the data set with a random subset of its rows, in their order and with their owners.

    Args:
        dataset: The data, which stay unchanged.
        num_train: The number of training rows to keep; None for all.
        num_test: The number of test rows to keep; None for all.
        generator: The source of randomness.

    Raises:
        ParameterError: A number is below 1, or above the number of rows.
    """
    train = _some_of("num_train", num_train, len(dataset.train_labels), generator)
    test = _some_of("num_test", num_test, len(dataset.test_labels), generator)
    return dataclasses.replace(
        dataset,
        **_training(dataset, train),
        test_features=select_rows(dataset.test_features, test),
        test_labels=dataset.test_labels[test],
        test_attributes=select_attributes(dataset.test_attributes, test),
    )


def sample_owners(dataset: Dataset, count: int, generator: np.random.Generator) -> Dataset:
    """Return the data set with all training rows of `count` owners that are drawn at random.

    The test part is kept whole.

    Raises:
        ParameterError: The data do not name owners, or have fewer than `count`.
    """
    if dataset.train_owners is None:
        raise ParameterError(
            f"num_owners is {count}, but dataset '{dataset.name}' does not name the owners of its "
            "rows; use num_train"
        )
    owners = np.unique(dataset.train_owners)
    kept = owners[_some_of("num_owners", count, len(owners), generator)]
    rows = np.flatnonzero(np.isin(dataset.train_owners, kept))
    return dataclasses.replace(dataset, **_training(dataset, rows))


def _some_of(
    name: str, wanted: int | None, available: int, generator: np.random.Generator
) -> Owners | slice:
    if wanted is None:
        return slice(None)
    parameter_rules.integer(name, wanted, low=1, high=available, remedy="leave it out to keep all")
    return np.sort(generator.choice(available, wanted, replace=False))


def with_validation(dataset: Dataset, fraction: float, generator: np.random.Generator) -> Dataset:
    """Return the training data only, with a random part of it held out as the test set.

    It serves to choose a learning rate without looking at the real test set, which is left out.
    About `fraction` of the training rows are held out, at least one. If rows have owners, whole
    owners are held out instead: about `fraction` of the owners, at least one.

    Raises:
        ParameterError: `fraction` is not strictly between 0 and 1, or there are fewer than two rows
            (owners, if rows have them).
    """
    parameter_rules.inner_fraction("validation_fraction", fraction)
    owners = dataset.train_owners
    units = np.arange(len(dataset.train_labels)) if owners is None else np.unique(owners)
    if len(units) < 2:
        raise ParameterError(
            f"dataset '{dataset.name}' has {len(units)} row or owner to train on, and holding out "
            "a validation part needs at least two; use more data"
        )
    count = min(max(1, round(fraction * len(units))), len(units) - 1)
    held_out = generator.choice(units, count, replace=False)
    chosen = np.isin(units if owners is None else owners, held_out)
    return dataclasses.replace(
        dataset,
        **_training(dataset, np.flatnonzero(~chosen)),
        test_features=select_rows(dataset.train_features, chosen),
        test_labels=dataset.train_labels[chosen],
        test_attributes=select_attributes(dataset.train_attributes, chosen),
    )


def with_training_rows(dataset: Dataset, rows: Owners) -> Dataset:
    """Return the data set with these training rows, by number, and the whole test part."""
    return dataclasses.replace(dataset, **_training(dataset, rows))


def _training(dataset: Dataset, rows: Owners | slice) -> dict[str, Any]:
    owners = dataset.train_owners
    return {
        "train_features": select_rows(dataset.train_features, rows),
        "train_labels": dataset.train_labels[rows],
        "train_owners": None if owners is None else owners[rows],
        "train_attributes": select_attributes(dataset.train_attributes, rows),
    }


def select_attributes(attributes: Attributes, rows: Any) -> Attributes:
    """Return the attributes of some rows, by name; `rows` are positions, a mask or a slice."""
    return {name: values[rows] for name, values in attributes.items()}


TEST_FRACTION = 0.2
DAMAGE = files.ARRAY_DAMAGE

# What to do about a damaged file: one that was fetched, and one that the user wrote.
FETCH_AGAIN = "replace it, or delete it and fetch it again"
WRITE_AGAIN = "write it again"

Array = NDArray[Any]


def damaged_file_error(path: Path | str, reason: object, *, remedy: str = FETCH_AGAIN) -> DataError:
    """Return the error for data that exist but are not what they should be; the caller raises it.

    Args:
        path: The file, or another name of the data.
        reason: What is wrong, as a clause.
        remedy: What to do, as a clause in the imperative.
    """
    return DataError(f"{path} cannot be read as data: {reason}; {remedy}")


@contextlib.contextmanager
def _archive(path: Path, remedy: str) -> Iterator[np.lib.npyio.NpzFile]:
    """Open the arrays of a file without unpickling, and turn failures into DataError."""
    try:
        with path.open("rb") as file:  # np.load does not close a damaged file.
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise damaged_file_error(path, "it is not an npz archive", remedy=remedy)
            with archive:
                yield archive
    except DAMAGE as error:
        # numpy takes unknown bytes for pickles and advises to load them, which would be unsafe.
        pickled = "pickle" in str(error)
        reason = (
            "it contains Python objects or is damaged, and only plain arrays are read"
            if pickled
            else error
        )
        raise damaged_file_error(path, reason, remedy=remedy) from None


def names_in_npz(path: Path, *, remedy: str = FETCH_AGAIN) -> tuple[str, ...]:
    """Return the names of the arrays in an npz file; raise DataError if it cannot be read.

    `remedy` is what the message says to do then.
    """
    with _archive(path, remedy) as archive:
        return tuple(archive.files)


def read_npz(
    path: Path, shapes: Mapping[str, int | None], *, remedy: str = FETCH_AGAIN
) -> dict[str, Array]:
    """Read arrays of an npz file by name.

    Args:
        path: The file. Python objects in it are never unpickled.
        shapes: The number of dimensions of each array to read, by name; None for any number.
            Further arrays of the file are not read.
        remedy: What a message says to do.

    Raises:
        DataError: The file cannot be read, or an array is missing or has other dimensions.
    """
    with _archive(path, remedy) as archive:
        missing = [name for name in shapes if name not in archive.files]
        if missing:
            needs = ", ".join(shapes)
            raise damaged_file_error(
                path, f"array '{missing[0]}' is missing (it needs {needs})", remedy=remedy
            )
        arrays = {name: archive[name] for name in shapes}
    for name, dimensions in shapes.items():
        if not isinstance(arrays[name], np.ndarray):  # Members of other formats are read as bytes.
            raise damaged_file_error(path, f"'{name}' is not an array", remedy=remedy)
        if dimensions is not None and arrays[name].ndim != dimensions:
            raise damaged_file_error(
                path,
                f"array '{name}' has shape {arrays[name].shape}, not {dimensions} dimensions",
                remedy=remedy,
            )
    return arrays


def scale_images(
    path: Path | str,
    name: str,
    images: Array,
    shape: Sequence[int] | None = None,
    *,
    remedy: str = FETCH_AGAIN,
) -> Features:
    """Return images of bytes (rows, *shape) as (rows, channels, ...) in [-1/2, 1/2]: x/255 - 1/2.

    With four or more axes, a last axis of length three or four holds colors, and is moved before
    the others. Otherwise an axis of one channel is added.

    Args:
        path: The file, for messages.
        name: The name of the array, for messages.
        images: The images, uint8 with three axes or more.
        shape: The shape that one image must have; None for any.
        remedy: What a message says to do.

    Raises:
        DataError: The array is not of bytes, or has another shape.
    """
    if images.dtype != np.uint8 or images.ndim < 3:
        raise damaged_file_error(
            path,
            f"'{name}' is {images.dtype} of shape {images.shape}, not images of bytes",
            remedy=remedy,
        )
    if shape is not None and images.shape[1:] != tuple(shape):
        raise damaged_file_error(
            path, f"'{name}' has images of {images.shape[1:]}, not {tuple(shape)}", remedy=remedy
        )
    has_colors = images.ndim > 3 and images.shape[-1] in (3, 4)
    channels_first = np.moveaxis(images, -1, 1) if has_colors else images[:, None]
    return scale_bytes(channels_first)


def scale_bytes(bytes_: Array) -> Features:
    """Return bytes 0..255 as float32 in [-1/2, 1/2]: x/255 - 1/2; the bytes stay unchanged."""
    result = np.ascontiguousarray(bytes_, dtype=np.float32)
    result /= 255.0
    result -= 0.5
    return result


def check_classes(
    path: Path | str, name: str, labels: Array, num_classes: int, *, remedy: str = FETCH_AGAIN
) -> NDArray[np.int64]:
    """Return class labels as an int64 vector, after checking that they lie in 0..num_classes-1.

    A matrix with one column is flattened. `path` and `name` are the file and the array, for
    messages, and `remedy` is what they say to do.

    Raises:
        DataError: The labels are no integers, have another shape, or lie outside the range.
    """
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1 or flat.dtype.kind not in "iu":
        raise damaged_file_error(
            path,
            f"'{name}' is {labels.dtype} of shape {labels.shape}, not class labels",
            remedy=remedy,
        )
    if len(flat) and int(flat.min()) < 0:
        raise damaged_file_error(
            path,
            f"'{name}' has labels {flat.min()} to {flat.max()}, and labels must start at 0 (give "
            "numbers to predict as floats)",
            remedy=remedy,
        )
    if len(flat) and int(flat.max()) >= num_classes:
        raise damaged_file_error(
            path,
            f"'{name}' has labels {flat.min()} to {flat.max()}, beyond 0 to {num_classes - 1}",
            remedy=remedy,
        )
    return flat.astype(np.int64)


def check_same_rows(path: Path | str, remedy: str = FETCH_AGAIN, /, **arrays: Array) -> None:
    """Raise DataError if arrays are empty or have different numbers of rows.

    Args:
        path: The file, for the message.
        remedy: What the message says to do.
        **arrays: The arrays by name.
    """
    rows = {name: len(array) for name, array in arrays.items()}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"'{name}' {count}" for name, count in rows.items())
        raise damaged_file_error(path, f"the numbers of rows do not match: {counts}", remedy=remedy)
    if not all(rows.values()):
        names = ", ".join(f"'{name}'" for name in rows)
        raise damaged_file_error(path, f"there are no rows in {names}", remedy=remedy)


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
    """Return a data set of which a random part of the rows, rounded down, is held out as test data.

    This is for data without an official split. `test_fraction` is the fraction that is held out;
    the other arguments are as in `Dataset`, for all rows. DataError is raised if a part is empty.
    """
    order = generator.permutation(len(labels))
    count = int(test_fraction * len(labels))
    if not count:
        raise DataError(
            f"{len(labels)} rows are too few to hold out a part of {test_fraction:g} to test on; "
            "give more rows, or separate test data (x_train, y_train, x_test, y_test)"
        )
    test, train = order[:count], order[count:]
    return Dataset(
        name=name,
        train_features=features[train],
        train_labels=labels[train],
        test_features=features[test],
        test_labels=labels[test],
        num_classes=num_classes,
        train_owners=None if owners is None else owners[train],
        train_attributes=select_attributes(attributes or {}, train),
        test_attributes=select_attributes(attributes or {}, test),
        note=note,
    )
