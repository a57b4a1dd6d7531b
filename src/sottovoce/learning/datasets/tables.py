"""Tables of the user's own, as csv files: which columns are what, and reading them."""

import csv
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce import parameters
from sottovoce.csv_dialect import delimiter_of, number_in
from sottovoce.errors import DataError, ParameterError, UnknownNameError

Bounds = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvOptions:
    """How to read a csv file: columns go by name, or by number from 0 where there is no header.

    `label_columns` are the label [the last column]; several are several numbers to predict.
    `label` says whether that is a class or numbers. `classes` is the public list of classes; left
    out, they are what the file has. A feature with public `bounds` (low, high) is mapped to
    [-1/2, 1/2]; the name "*" bounds every feature that has none of its own; a feature without any
    is left as it is.
    """

    header: bool = True
    label_columns: tuple[str, ...] = ()
    label: Literal["class", "number"] = "class"
    classes: tuple[str, ...] = ()
    owner_column: str | None = None
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    test_fraction: float = 0.2

    def __post_init__(self) -> None:
        parameters.inner_fraction("test_fraction", self.test_fraction)
        for name, (low, high) in self.bounds.items():
            if not (low < high and math.isfinite(high - low)):
                raise ParameterError(
                    f"bounds of '{name}' must be finite, the low one first, got ({low}, {high})"
                )
        if self.label == "class" and len(self.label_columns) > 1:
            raise ParameterError(
                f"a class is one column, got {len(self.label_columns)}; name one, or set "
                "label = 'number'"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A csv file in memory: names and cells."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def check_column(self, column: str) -> None:
        if column not in self.columns:
            raise UnknownNameError.among(f"column of {self.path}", column, self.columns)

    def cells(self, column: str) -> list[str]:
        self.check_column(column)
        position = self.columns.index(column)
        return [row[position].strip() for row in self.rows]

    def numbers(self, column: str) -> NDArray[np.float64]:
        """A column of finite numbers."""
        values = []
        for position, cell in enumerate(self.cells(column)):
            value = number_in(cell)
            if not math.isfinite(value):
                raise DataError(
                    f"{self.path}, data row {position + 1}, column '{column}': {cell!r} is not a "
                    "finite number; correct the cell or remove the column"
                )
            values.append(value)
        return np.array(values)

    def float32_numbers(self, column: str) -> NDArray[np.float64]:
        """A column of numbers none of which is too large for a float32."""
        values = self.numbers(column)
        too_large = np.flatnonzero(np.abs(values) > np.finfo(np.float32).max)
        if len(too_large):
            raise DataError(
                f"{self.path}, data row {too_large[0] + 1}, column '{column}': "
                f"{values[too_large[0]]:g} is too large for a float32; use a larger unit"
            )
        return values


def read_table(path: Path, *, header: bool) -> Table:
    """The table in a csv file; its delimiter is found in the first line; rows are equally long."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first_line = file.readline()
            lines = itertools.chain([first_line], file)
            reader = csv.reader(lines, delimiter=delimiter_of(first_line))
            rows = [tuple(row) for row in reader if row]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}; check the path") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not csv in UTF-8: {error}; save it as such") from None
    width = len(rows[0]) if rows else 0
    columns = tuple(name.strip() for name in rows[0]) if header and rows else _numbered(width)
    body = rows[1:] if header else rows
    if not body:
        raise DataError(f"{path} has no rows of data; check the file and the option 'header'")
    if header and all(math.isfinite(number_in(name)) for name in columns):
        raise DataError(
            f"the first row of {path} has numbers only, where names of columns should be; set "
            "data.csv.header = false if it is data, or give the columns names"
        )
    for position, row in enumerate(body):
        if len(row) != width:
            raise DataError(
                f"{path}, data row {position + 1} has {len(row)} cells, not {width}; correct it"
            )
    if len(set(columns)) < width:
        raise DataError(f"{path} has two columns of one name; rename one")
    return Table(path=path, columns=columns, rows=tuple(body))


def _numbered(width: int) -> tuple[str, ...]:
    return tuple(str(position) for position in range(width))


def features_of(
    table: Table, columns: Sequence[str], bounds: Mapping[str, Bounds]
) -> NDArray[np.float32]:
    """(rows, columns) of numbers, scaled by the public bounds that are given."""
    if not columns:
        raise DataError(f"{table.path} has no column beside label and owner; it needs features")
    for name in bounds:
        if name != "*" and name not in columns:
            raise UnknownNameError.among(f"bounded feature of {table.path}", name, columns)
    scaled = [_scaled(table, column, bounds.get(column, bounds.get("*"))) for column in columns]
    return np.stack(scaled, axis=1).astype(np.float32)


def _scaled(table: Table, column: str, bounds: Bounds | None) -> NDArray[np.float64]:
    if bounds is None:
        return table.float32_numbers(column)
    values = table.numbers(column)
    low, high = bounds
    outside = np.flatnonzero((values < low) | (values > high))
    if len(outside):
        raise DataError(
            f"{table.path}, data row {outside[0] + 1}, column '{column}': {values[outside[0]]:g} "
            f"is outside its bounds ({low:g}, {high:g}); widen them or clip the column"
        )
    return (values - low) / (high - low) - 0.5
