"""A dataset as plain arrays, scaled by public constants, never by private statistics.

Some rows of an array on disk, without a copy of them.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.errors import DataError, ParameterError


class SelectedRows:
    """Looks like the array of the chosen rows; reads those that are asked for."""

    def __init__(self, array: NDArray[Any], rows: NDArray[np.int64]) -> None:
        self._array, self._rows = array, rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self._rows), *self._array.shape[1:])

    @property
    def ndim(self) -> int:
        return self._array.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._array.dtype

    def __getitem__(self, key: Any) -> NDArray[Any]:
        return np.asarray(self._array[self._rows[key]])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("the rows lie on disk: reading them makes a copy")
        return np.asarray(self[:], dtype=dtype)

    def take(self, rows: Any) -> "SelectedRows":
        return SelectedRows(self._array, self._rows[rows])


def chosen_rows(array: "NDArray[Any] | SelectedRows", rows: Any) -> NDArray[Any]:
    """Some rows: a copy where the array is in memory, a look-alike where it lies on disk."""
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
    """Training data to be spread over clients, and held-out test data.

    Features are float32, or float16 on disk, (rows, *input_shape): an image is (channels, height,
    width), in [-1/2, 1/2]. Labels are int64 classes, or float32 numbers (rows, outputs) where
    `num_classes` is None. `train_owners` says whose each training row is, if the data has natural
    clients. Attributes are what else is known of each row, as small numbers: no model is trained on
    them, an attack may try to infer them. The `note` holds licence, citation and known bias, for
    reports.
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
        """How many numbers a model puts out: one a class, or one a target."""
        return self.num_classes or self.train_labels.shape[1]


def _refuse(dataset: Dataset, reason: str) -> None:
    raise DataError(f"dataset '{dataset.name}' cannot be used: {reason}; correct the file")


def _check_part(dataset: Dataset, part: str, features: Features, labels: Labels) -> None:
    """The promises on types and shapes, whoever wrote the loader."""
    arrays: dict[str, object] = {"features": features, "labels": labels}
    for what, values in arrays.items():
        if not isinstance(values, np.ndarray | SelectedRows):
            _refuse(dataset, f"the {part} {what} are a {type(values).__name__}, not a numpy array")
    if not len(labels) or len(labels) != len(features):
        _refuse(dataset, f"the {part} part has {len(features)} rows and {len(labels)} labels")
    if features.dtype not in (np.float32, np.float16) or features.ndim < 2:
        _refuse(dataset, f"the {part} features are {features.dtype} of shape {features.shape}")
    if dataset.num_classes is None:
        if labels.dtype != np.float32 or labels.ndim != 2 or not labels.shape[1]:
            _refuse(dataset, f"the {part} targets are {labels.dtype} of shape {labels.shape}")
        if not np.isfinite(labels).all():
            _refuse(dataset, f"a {part} target is not finite")
        return
    if labels.dtype != np.int64 or labels.ndim != 1:
        _refuse(dataset, f"the {part} labels are {labels.dtype} of shape {labels.shape}")
    if labels.min() < 0 or labels.max() >= dataset.num_classes:
        _refuse(
            dataset,
            f"the {part} labels run from {labels.min()} to {labels.max()}, but there are "
            f"{dataset.num_classes} classes (0 to {dataset.num_classes - 1})",
        )


def _check_attributes(dataset: Dataset, part: str, attributes: Attributes, rows: int) -> None:
    for name, values in attributes.items():
        if values.dtype != np.int64 or values.shape != (rows,):
            _refuse(
                dataset,
                f"the {part} attribute '{name}' is {values.dtype} of shape {values.shape}, for "
                f"{rows} rows",
            )


def subset(
    dataset: Dataset,
    num_train: int | None,
    num_test: int | None,
    generator: np.random.Generator,
) -> Dataset:
    """A random part of the rows, in their order and with their owners; None keeps all."""
    train = _some_of("num_train", num_train, len(dataset.train_labels), generator)
    test = _some_of("num_test", num_test, len(dataset.test_labels), generator)
    return dataclasses.replace(
        dataset,
        **_training(dataset, train),
        test_features=chosen_rows(dataset.test_features, test),
        test_labels=dataset.test_labels[test],
        test_attributes=chosen_attributes(dataset.test_attributes, test),
    )


def some_owners(dataset: Dataset, count: int, generator: np.random.Generator) -> Dataset:
    """The training rows of so many owners, drawn at random, with all that is theirs."""
    if dataset.train_owners is None:
        raise ParameterError(
            f"num_owners is {count}, but dataset '{dataset.name}' does not say whose its rows are; "
            "use num_train"
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
    """The training data alone, a random part of it held out as the test set.

    For choosing a learning rate without looking at the real test set, which is left out. Where
    rows have owners, whole owners are held out: about `fraction` of them, at least one.
    """
    parameter_rules.inner_fraction("validation_fraction", fraction)
    owners = dataset.train_owners
    units = np.arange(len(dataset.train_labels)) if owners is None else np.unique(owners)
    if len(units) < 2:
        raise ParameterError(
            f"dataset '{dataset.name}' has {len(units)} row or owner to train on, and a validation "
            "part needs one more; use more data"
        )
    count = min(max(1, round(fraction * len(units))), len(units) - 1)
    held_out = generator.choice(units, count, replace=False)
    chosen = np.isin(units if owners is None else owners, held_out)
    return dataclasses.replace(
        dataset,
        **_training(dataset, np.flatnonzero(~chosen)),
        test_features=chosen_rows(dataset.train_features, chosen),
        test_labels=dataset.train_labels[chosen],
        test_attributes=chosen_attributes(dataset.train_attributes, chosen),
    )


def with_training_rows(dataset: Dataset, rows: Owners) -> Dataset:
    """Some of the training rows, with their owners, and all of the test part."""
    return dataclasses.replace(dataset, **_training(dataset, rows))


def _training(dataset: Dataset, rows: Owners | slice) -> dict[str, Any]:
    owners = dataset.train_owners
    return {
        "train_features": chosen_rows(dataset.train_features, rows),
        "train_labels": dataset.train_labels[rows],
        "train_owners": None if owners is None else owners[rows],
        "train_attributes": chosen_attributes(dataset.train_attributes, rows),
    }


def chosen_attributes(attributes: Attributes, rows: Any) -> Attributes:
    """The attributes of some rows."""
    return {name: values[rows] for name, values in attributes.items()}
