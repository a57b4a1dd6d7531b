"""The user's own data: an npz file of arrays, a csv table, or arrays of a Python program."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.errors import DataError
from sottovoce.core.table_files import parse_number
from sottovoce.learning import in_memory
from sottovoce.learning.datasets.dataset import (
    WRITE_AGAIN,
    Array,
    Dataset,
    Features,
    Labels,
    Owners,
    check_classes,
    check_same_rows,
    damaged_file_error,
    names_in_npz,
    read_npz,
    scale_bytes,
    scale_images,
    with_random_test_part,
)
from sottovoce.learning.datasets.register import CsvOptions, LoadRequest, register
from sottovoce.learning.datasets.tables import CsvTable, features_of, read_table
from sottovoce.learning.objectives import IGNORED_TOKEN

_WHOLE = ("x", "y")
_SPLIT = ("x_train", "y_train", "x_test", "y_test")
_KNOWN = ("owner", "owner_train", "num_classes")
_NUM_CLASSES = "num_classes"
_ATTRIBUTE = "attribute_"
MAX_ATTRIBUTE_VALUES = 2**16
_INFERRED = "The number of classes was read from the data."


def existing_file(text: str) -> Path:
    """Return a path that the user gave, with ~ expanded; raise DataError if it is no file."""
    path = Path(text).expanduser()
    if not path.is_file():
        raise DataError(
            f"there is no file {path} (the current folder is {Path.cwd()}); check the path"
        )
    return path


@register(
    "npz:",
    placeholder="PATH",
    summary="your own arrays: x_train y_train x_test y_test (or x y), owner_train (or owner)",
)
def own_npz(request: LoadRequest) -> Dataset:
    """Load the arrays of an npz file; without a test part hold out a random fifth.

    The arrays are x_train, y_train, x_test, y_test, or x and y, and optionally owner_train (or
    owner). Features of bytes are images, or flat if they have two dimensions, and are scaled to
    x/255 - 1/2; other numbers are not scaled. Integer labels are classes 0, 1, ..., of each row or
    (rows, positions) of each position; floats are numbers to predict. A number `num_classes` says
    how many classes there are, if the labels may lack some. Arrays `attribute_NAME`
    (`attribute_NAME_train` and `attribute_NAME_test`) hold what else is known of each row, as
    integers from 0. DataError is raised for a file that does not fit.
    """
    path = existing_file(request.argument)
    names = names_in_npz(path, remedy=WRITE_AGAIN)
    wanted = _SPLIT if "x_train" in names else _WHOLE
    optional = [name for name in names if name in _KNOWN or name.startswith(_ATTRIBUTE)]
    arrays = read_npz(path, dict.fromkeys((*wanted, *optional)), remedy=WRITE_AGAIN)
    return build_dataset(request, arrays, where=path, remedy=WRITE_AGAIN)


def build_dataset(
    request: LoadRequest, arrays: Mapping[str, Array], *, where: Path | str, remedy: str
) -> Dataset:
    """Build a data set from arrays that are named and read as those of an `npz:` file.

    Args:
        request: The name of the data set, and the randomness for a test part.
        arrays: The arrays by name.
        where: What the arrays are called in messages.
        remedy: What messages say to do.

    Raises:
        DataError: An array is missing, or has another type or shape.
    """
    return _Arrays(where, remedy, arrays).dataset(request)


class _Arrays:
    """Arrays by name, with the words for errors about them."""

    def __init__(self, where: Path | str, remedy: str, arrays: Mapping[str, Array]) -> None:
        self._where, self._remedy, self._arrays = where, remedy, arrays

    def dataset(self, request: LoadRequest) -> Dataset:
        """Return the data set, with a random test part unless the arrays are split."""
        if "x_train" in self._arrays:
            return self._already_split(request)
        data = self._read(_WHOLE, "owner")
        features = self._features("x", data["x"])
        labels, num_classes = self._labels(data["y"])
        return with_random_test_part(
            request.name,
            features,
            labels,
            request.generator,
            num_classes=num_classes,
            owners=self._owners(data.get("owner")),
            attributes=self._attributes("", len(labels)),
            note=_INFERRED if num_classes else "",
        )

    def _already_split(self, request: LoadRequest) -> Dataset:
        data = self._read(_SPLIT[:2], "owner_train") | self._read(_SPLIT[2:])
        ours, tests = data["y_train"], data["y_test"]
        if ours.shape[1:] != tests.shape[1:] or (ours.dtype.kind == "f") != (
            tests.dtype.kind == "f"
        ):
            raise self._damaged("'y_train' and 'y_test' have different types or shapes")
        # Both together, so that a class that only the test part has is counted.
        labels, num_classes = self._labels(np.concatenate([ours, tests]))
        num_train = len(ours)
        return Dataset(
            name=request.name,
            train_features=self._features("x_train", data["x_train"]),
            train_labels=labels[:num_train],
            test_features=self._features("x_test", data["x_test"]),
            test_labels=labels[num_train:],
            num_classes=num_classes,
            train_owners=self._owners(data.get("owner_train")),
            train_attributes=self._attributes("_train", num_train),
            test_attributes=self._attributes("_test", len(tests)),
            note=_INFERRED if num_classes else "",
        )

    def _damaged(self, reason: str) -> DataError:
        return damaged_file_error(self._where, reason, remedy=self._remedy)

    def _read(self, names: tuple[str, ...], optional: str = "") -> dict[str, Array]:
        """Return arrays with one row for each sample, and the optional one if it exists."""
        for name in names:
            if name not in self._arrays:
                raise self._damaged(f"array '{name}' is missing (it needs {', '.join(names)})")
        present = (optional,) if optional in self._arrays else ()
        data = {name: self._arrays[name] for name in (*names, *present)}
        for name, values in data.items():
            if not values.ndim:
                raise self._damaged(f"'{name}' is a single value, not one for each row")
        check_same_rows(self._where, self._remedy, **data)
        return data

    def _features(self, name: str, values: Array) -> Features:
        if values.dtype == np.uint8 and values.ndim == 2:
            return scale_bytes(values)
        if values.dtype == np.uint8:
            return scale_images(self._where, name, values, remedy=self._remedy)
        if values.dtype.kind not in "bfiu" or values.ndim < 2:
            raise self._damaged(f"'{name}' is {values.dtype} of shape {values.shape}, not features")
        if values.dtype.kind in "biu":  # Tokens, if the model takes whole numbers.
            return values.astype(np.int64)
        result = values.astype(np.float32)
        if not np.isfinite(result).all():
            raise self._damaged(f"'{name}' has values that are not finite float32 numbers")
        return result

    def _labels(self, values: Array) -> tuple[Labels, int | None]:
        if values.dtype.kind == "f":
            numbers = values.reshape(len(values), -1).astype(np.float32)
            if _is_one_hot(numbers):
                raise self._damaged(
                    f"the labels are one-hot vectors of {numbers.shape[1]} numbers; give the "
                    "numbers of the classes, y.argmax(axis=1), or for several labels of a row "
                    "integers with model.loss = 'binary_cross_entropy'"
                )
            return numbers, None
        if values.dtype.kind == "b":
            values = values.astype(np.int64)
        if values.dtype.kind in "OSU":
            raise self._damaged(
                "the labels are words, neither classes nor numbers; number the classes from 0, "
                "with numpy: y = np.unique(y, return_inverse=True)[1]"
            )
        if values.dtype.kind not in "iu":
            raise self._damaged(f"the labels are {values.dtype}, neither classes nor numbers")
        if not values.size:
            raise self._damaged(f"the labels have shape {values.shape}, not one for each row")
        num_classes = self._num_classes(values)
        if values.ndim == 2 and values.shape[1] > 1:
            return self._positions(values.astype(np.int64), num_classes), num_classes
        found = check_classes(self._where, "y", values, num_classes, remedy=self._remedy)
        return found, num_classes

    def _num_classes(self, labels: Array) -> int:
        """Return the number of classes that is given, else one more than the largest label."""
        given = self._arrays.get(_NUM_CLASSES)
        if given is None:
            return max(2, int(labels.max()) + 1)
        if given.size != 1 or given.dtype.kind not in "iu" or int(given.reshape(-1)[0]) < 2:
            raise self._damaged(f"'{_NUM_CLASSES}' is not a whole number of 2 or more")
        return int(given.reshape(-1)[0])

    def _positions(self, labels: Array, num_classes: int) -> Labels:
        """Return the classes of positions, after checking that they lie in 0..num_classes-1."""
        used = labels[labels != IGNORED_TOKEN]
        if used.size and (used.min() < 0 or used.max() >= num_classes):
            raise self._damaged(
                f"the labels must be 0 to {num_classes - 1}, or {IGNORED_TOKEN} for positions "
                "without a label"
            )
        return labels

    def _owners(self, owners: Array | None) -> Owners | None:
        if owners is None:
            return None
        if owners.ndim != 1:
            raise self._damaged(f"owners have shape {owners.shape}, not one for each row")
        return _numbered(owners)

    def _attributes(self, ending: str, rows: int) -> dict[str, NDArray[np.int64]]:
        """Return the arrays attribute_NAME, or those of one part if `ending` names the part."""
        found = {}
        for name, values in self._arrays.items():
            called = name.removeprefix(_ATTRIBUTE).removesuffix(ending)
            if not (name.startswith(_ATTRIBUTE) and name.endswith(ending) and called):
                continue
            if values.shape != (rows,):
                raise self._damaged(
                    f"'{name}' has shape {values.shape}, not one value for each of the {rows} rows"
                )
            found[called] = check_classes(
                self._where, name, values, MAX_ATTRIBUTE_VALUES, remedy=self._remedy
            )
        return found


def _is_one_hot(numbers: Labels) -> bool:
    """Return whether every row has a single one among zeros.

    Treated as numbers to predict, such labels would give a small error for a model that is hardly
    ever right.
    """
    if numbers.shape[1] < 2 or not len(numbers):
        return False
    return bool(((numbers == 0.0) | (numbers == 1.0)).all() and (numbers.sum(axis=1) == 1.0).all())


def _numbered(owners: Array) -> Owners:
    """Replace the names of owners by numbers."""
    return np.unique(owners, return_inverse=True)[1].astype(np.int64)


def _table_owners(table: CsvTable, column: str) -> Owners | None:
    cells = table.cells(column)
    if "" in cells:
        raise DataError(
            f"{table.place(cells.index(''), column)}: the owner of the row is missing; fill it in "
            "or remove the row"
        )
    return _numbered(np.array(cells))


@register("csv:", placeholder="PATH", summary="your own table of numbers with a label column")
def own_csv(request: LoadRequest) -> Dataset:
    """Load a csv table as `request.csv` says; hold out a random part of the rows as test data.

    DataError or UnknownNameError is raised if the file does not fit the options.
    """
    options = request.csv
    path = existing_file(request.argument)
    table = read_table(path, header=options.header, decimal=options.decimal)
    for column in options.ignore_columns:
        table.check_column(column)
    excluded = {options.owner_column, *options.ignore_columns}
    others = [name for name in table.columns if name not in excluded]
    label_columns = options.label_columns or tuple(others[-1:])
    owner_columns = [options.owner_column] if options.owner_column else []
    for column in (*label_columns, *owner_columns):
        table.check_column(column)
    columns = [name for name in others if name not in label_columns]
    if options.missing == "skip":
        of_numbers = [name for name in columns if name not in options.categories]
        of_numbers += label_columns if options.label == "number" else ()
        used = [*columns, *label_columns, *owner_columns]
        table = table.drop_incomplete_rows(
            of_numbers, [one for one in used if one not in of_numbers]
        )
    features = features_of(table, columns, options)
    labels, num_classes = _table_labels(table, label_columns, options)
    owners = _table_owners(table, options.owner_column) if options.owner_column else None
    if int(options.test_fraction * len(labels)) == 0:
        raise DataError(
            f"{table.path} has {len(labels)} rows, too few to hold out a fraction of "
            f"{options.test_fraction:g} for testing; add rows or raise test_fraction"
        )
    return with_random_test_part(
        request.name,
        features,
        labels,
        request.generator,
        num_classes=num_classes,
        owners=owners,
        test_fraction=options.test_fraction,
        note=_INFERRED if num_classes and not options.classes else "",
    )


def _table_labels(
    table: CsvTable, columns: tuple[str, ...], options: CsvOptions
) -> tuple[Labels, int | None]:
    if options.label == "number":
        numbers = [table.float32_numbers(column) for column in columns]
        return np.stack(numbers, axis=1).astype(np.float32), None
    _check_class_column(table, columns[0], options.classes)
    return _class_numbers(table, table.cells(columns[0]), options.classes)


def _check_class_column(table: CsvTable, column: str, public: tuple[str, ...]) -> None:
    """Refuse labels that are unlikely to be classes, unless they are in the public list."""
    cells = table.cells(column)
    if "" in cells and "" not in public:
        raise DataError(
            f"{table.place(cells.index(''), column)}: the label is empty; fill it in, or leave "
            "such rows out with data.csv.missing = 'skip'"
        )
    values = {cell: parse_number(cell, table.decimal) for cell in cells}
    fractions = [cell for cell, value in values.items() if value % 1]
    if not public and fractions and all(map(math.isfinite, values.values())):
        raise DataError(
            f"{table.path}, column '{column}' has {len(values)} distinct values, such as "
            f"{fractions[0]}, which are numbers rather than classes; set data.csv.label = 'number' "
            "to predict them, name another column in data.csv.label_columns, or list them in "
            "data.csv.classes"
        )


def _class_numbers(
    table: CsvTable, cells: list[str], public: tuple[str, ...]
) -> tuple[NDArray[np.int64], int]:
    """Assign numbers to classes in the order of the public list, or of their names."""
    number = {name: position for position, name in enumerate(public or _in_order(set(cells)))}
    for position, cell in enumerate(cells):
        if cell not in number:
            raise DataError(
                f"{table.path}, data row {table.numbers_of_rows[position]}: class {cell!r} is not "
                f"among the classes {', '.join(number)}; add it to them or correct the row"
            )
    if len(number) < 2:
        raise DataError(
            f"{'data.csv.classes' if public else table.path} has only one class; name at least two "
            "in data.csv.classes, or check data.csv.label_columns"
        )
    return np.array([number[cell] for cell in cells], dtype=np.int64), len(number)


def _in_order(names: set[str]) -> list[str]:
    """Sort names, as numbers if all of them are, so that 10 comes after 9."""
    try:
        return sorted(names, key=float)
    except ValueError:
        return sorted(names)


PREFIX = "memory:"
_REMEDY = "correct what is given as data"


@register(
    "memory:",
    placeholder="LABEL",
    summary="arrays of a Python program, given to sottovoce.simulate(..., data=...)",
)
def arrays_in_memory(request: LoadRequest) -> Dataset:
    """Load the arrays that are provided under the label, as `npz:` would read them.

    DataError is raised if this process does not have them, or they do not fit.
    """
    part = in_memory.find("data", request.argument)
    if part is None:
        raise DataError(
            f"the data '{request.name}' are arrays of the Python program that created the run, and "
            "this process does not have them; pass them to sottovoce.simulate(..., data=...) "
            "again, or save them with numpy.savez and name 'npz:PATH' in the spec"
        )
    return build_dataset(request, part.value, where="the data in memory", remedy=_REMEDY)


def name_arrays(given: object) -> dict[str, Array]:
    """Return numpy arrays by name, from tuples or mappings of arrays or torch tensors.

    Accepted are (x, y), (x_train, y_train, x_test, y_test), and a mapping with the names of `npz:`.
    DataError is raised for anything else; types and shapes are checked later.
    """
    if isinstance(given, Mapping):
        return {str(name): _array(str(name), values) for name, values in given.items()}
    names = {2: ("x", "y"), 4: ("x_train", "y_train", "x_test", "y_test")}
    if not isinstance(given, tuple | list) or len(given) not in names:
        if hasattr(given, "batch_sampler"):  # A torch DataLoader.
            raise DataError(
                "data must be a Dataset, not a DataLoader, because the spec says which records "
                "are in a batch; give loader.dataset"
            )
        size = f" of {len(given)}" if isinstance(given, tuple | list) else ""
        raise DataError(
            "data must be (x, y), (x_train, y_train, x_test, y_test), a dictionary of arrays with "
            "such names and, optionally, 'owner', or torch Datasets (one, (train, test), or a list "
            f"or dictionary with one for each client), got {type(given).__name__}{size}; {_REMEDY}"
        )
    return {
        name: _array(name, values) for name, values in zip(names[len(given)], given, strict=True)
    }


def _array(name: str, values: Any) -> Array:
    if hasattr(values, "detach"):  # A torch tensor, on any device.
        values = values.detach().cpu()
    try:
        array: Array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise DataError(f"'{name}' cannot be read as an array: {error}; {_REMEDY}") from None
    return array
