"""The user's own data: an npz of arrays, or a csv table."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import DataError
from sottovoce.learning.datasets.arrays import (
    Array,
    classes,
    damaged,
    held_out,
    names_in_npz,
    pixels,
    read_npz,
    same_rows,
    scaled,
)
from sottovoce.learning.datasets.dataset import Dataset, Features, Labels, Owners
from sottovoce.learning.datasets.register import Request, register
from sottovoce.learning.datasets.tables import CsvOptions, Table, features_of, read_table

_INFERRED = "The number of classes was read from the data."


def existing_file(text: str) -> Path:
    """A path that the user gave, or an error that says what it is relative to."""
    path = Path(text).expanduser()
    if not path.is_file():
        raise DataError(f"there is no file {path} (seen from {Path.cwd()}); check the path")
    return path


@register(
    "npz:",
    placeholder="PATH",
    summary="your own arrays: x_train y_train x_test y_test (or x y), owner_train (or owner)",
)
def own_npz(request: Request) -> Dataset:
    """Arrays of a file; without a test part a random fifth is held out.

    Features of bytes are images, or flat if they have two dimensions, and are scaled by 255; floats
    are taken as they are. Integer labels are classes 0, 1, ...; floats are numbers to predict.
    """
    path = existing_file(request.argument)
    names = names_in_npz(path)
    split = "x_train" in names
    x, y, owner = ("x_train", "y_train", "owner_train") if split else ("x", "y", "owner")
    wanted = [x, y, *(["x_test", "y_test"] if split else [])]
    wanted += [owner] if owner in names else []
    data = read_npz(path, dict.fromkeys(wanted))
    owners = data.get(owner)
    same_rows(path, **{name: data[name] for name in (x, y, owner) if name in data})
    features = _features(path, x, data[x])
    if split:
        same_rows(path, x_test=data["x_test"], y_test=data["y_test"])
        test_features = _features(path, "x_test", data["x_test"])
        count = len(features)
        labels, num_classes = _labels(path, np.concatenate([data[y], data["y_test"]]))
        train: Array | slice = slice(None)
        test_labels, labels = labels[count:], labels[:count]
    else:
        labels, num_classes = _labels(path, data[y])
        train, test = held_out(len(labels), request.generator)
        test_features, test_labels = features[test], labels[test]
    return Dataset(
        name=request.name,
        train_features=features[train],
        train_labels=labels[train],
        test_features=test_features,
        test_labels=test_labels,
        num_classes=num_classes,
        train_owners=None if owners is None else _numbered(path, owners)[train],
        note=_INFERRED if num_classes else "",
    )


def _features(path: Path, name: str, values: Array) -> Features:
    if values.dtype == np.uint8 and values.ndim == 2:
        return scaled(values)
    if values.dtype == np.uint8:
        return pixels(path, name, values)
    if values.dtype.kind not in "fiu" or values.ndim < 2:
        raise damaged(path, f"'{name}' is {values.dtype} of shape {values.shape}, not features")
    result = values.astype(np.float32)
    if not np.isfinite(result).all():
        raise damaged(path, f"'{name}' has values that are not finite float32 numbers")
    return result


def _labels(path: Path, values: Array) -> tuple[Labels, int | None]:
    if values.dtype.kind == "f":
        return values.reshape(len(values), -1).astype(np.float32), None
    if values.dtype.kind not in "iu" or not values.size:
        raise damaged(path, f"the labels are {values.dtype}, neither classes nor numbers")
    num_classes = max(2, int(values.max()) + 1)
    return classes(path, "y", values, num_classes), num_classes


def _numbered(path: Path, owners: Array) -> Owners:
    """Owners as numbers, whatever they are called."""
    if owners.ndim != 1:
        raise damaged(path, f"owners have shape {owners.shape}; give one a row")
    return np.unique(owners, return_inverse=True)[1].astype(np.int64)


@register("csv:", placeholder="PATH", summary="your own table of numbers with a label column")
def own_csv(request: Request) -> Dataset:
    """A csv table, read as its options say; a random part of the rows is held out."""
    options = request.csv
    table = read_table(existing_file(request.argument), header=options.header)
    label_columns = options.label_columns or table.columns[-1:]
    apart = {*label_columns, *([options.owner_column] if options.owner_column else [])}
    for column in apart:
        table.check_column(column)
    features = features_of(
        table, [name for name in table.columns if name not in apart], options.bounds
    )
    labels, num_classes = _table_labels(table, label_columns, options)
    train, test = held_out(len(labels), request.generator, options.test_fraction)
    if not len(test):
        raise DataError(
            f"{table.path} has {len(labels)} rows, and a part of {options.test_fraction:g} of them "
            "is none; add rows or raise test_fraction"
        )
    return Dataset(
        name=request.name,
        train_features=features[train],
        train_labels=labels[train],
        test_features=features[test],
        test_labels=labels[test],
        num_classes=num_classes,
        train_owners=_table_owners(table, options.owner_column, train),
        note=_INFERRED if num_classes and not options.classes else "",
    )


def _table_owners(table: Table, column: str | None, rows: Array) -> Owners | None:
    if column is None:
        return None
    return _numbered(table.path, np.array(table.cells(column)))[rows]


def _table_labels(
    table: Table, columns: tuple[str, ...], options: CsvOptions
) -> tuple[Labels, int | None]:
    if options.label == "number":
        numbers = [table.numbers(column) for column in columns]
        return np.stack(numbers, axis=1).astype(np.float32), None
    return _class_numbers(table, table.cells(columns[0]), options.classes)


def _class_numbers(
    table: Table, cells: list[str], public: tuple[str, ...]
) -> tuple[NDArray[np.int64], int]:
    """Classes numbered in the order of the public list, else in that of their names."""
    number = {name: position for position, name in enumerate(public or _in_order(set(cells)))}
    for position, cell in enumerate(cells):
        if cell not in number:
            raise DataError(
                f"{table.path}, data row {position + 1}: class {cell!r} is not among the classes "
                f"{', '.join(number)}; add it to them or correct the row"
            )
    if len(number) < 2:
        raise DataError(f"{table.path} has one class only; check label_columns")
    return np.array([number[cell] for cell in cells], dtype=np.int64), len(number)


def _in_order(names: set[str]) -> list[str]:
    """Sorted as numbers if they all are, so that 10 comes after 9."""
    try:
        return sorted(names, key=float)
    except ValueError:
        return sorted(names)
