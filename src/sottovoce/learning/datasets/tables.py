"""Reading of csv tables, and their feature columns as arrays."""

import csv
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.errors import DataError, UnknownNameError
from sottovoce.core.table_files import (
    MISSING_CELLS,
    detect_delimiter,
    parse_number,
    refuse_binary_formats,
)
from sottovoce.learning.datasets.register import Bounds, CsvOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvTable:
    """A csv file in memory.

    Attributes:
        path: The file, for messages.
        columns: The names of the columns; their numbers from 0 if the file has no header.
        rows: The cells of each row of data.
        numbers_of_rows: The number of each row among the data rows of the file, from 1.
        decimal: The decimal sign of numbers, a point or a comma.
    """

    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers_of_rows: tuple[int, ...]
    decimal: str = "."

    def place(self, position: int, column: str) -> str:
        """Return the location of a cell in words, for messages; `position` is the row's, from 0."""
        return f"{self.path}, data row {self.numbers_of_rows[position]}, column '{column}'"

    def drop_incomplete_rows(self, numbers: Sequence[str], words: Sequence[str]) -> "CsvTable":
        """Return the table without rows that lack a cell in these columns.

        In a column of `numbers`, words such as 'none' count as missing; in one of `words` only an
        empty cell does. DataError is raised if no row is left.
        """
        of_numbers = [self.columns.index(column) for column in numbers]
        of_words = [self.columns.index(column) for column in words]
        kept = [
            position
            for position, row in enumerate(self.rows)
            if not any(row[one].strip().casefold() in MISSING_CELLS for one in of_numbers)
            and all(row[one].strip() for one in of_words)
        ]
        if not kept:
            raise DataError(f"{self.path} has no row without a missing cell; check the file")
        return replace(
            self,
            rows=tuple(self.rows[position] for position in kept),
            numbers_of_rows=tuple(self.numbers_of_rows[position] for position in kept),
        )

    def check_column(self, column: str) -> None:
        """Raise UnknownNameError, with the names of the columns, if a column does not exist."""
        if column not in self.columns:
            raise UnknownNameError.among(f"column of {self.path}", column, self.columns)

    def cells(self, column: str) -> list[str]:
        """Return the cells of a column without surrounding spaces.

        UnknownNameError is raised if there is no such column.
        """
        self.check_column(column)
        position = self.columns.index(column)
        return [row[position].strip() for row in self.rows]

    def numbers(self, column: str) -> NDArray[np.float64]:
        """Return a column as finite numbers.

        DataError is raised for the first cell that is none, and UnknownNameError if there is no
        such column.
        """
        values = []
        for position, cell in enumerate(self.cells(column)):
            value = parse_number(cell, self.decimal)
            if not math.isfinite(value):
                raise DataError(f"{self.place(position, column)}: {self._no_number(cell)}")
            values.append(value)
        return np.array(values)

    def float32_numbers(self, column: str) -> NDArray[np.float64]:
        """Return a column as float64 numbers, none of which is too large for a float32.

        DataError is raised for the first cell that is no finite number or too large.
        """
        values = self.numbers(column)
        too_large = np.flatnonzero(np.abs(values) > np.finfo(np.float32).max)
        if len(too_large):
            raise DataError(
                f"{self.place(too_large[0], column)}: "
                f"{values[too_large[0]]:g} is too large for a float32; use a larger unit"
            )
        return values

    def _no_number(self, cell: str) -> str:
        """Return what is wrong with a cell, and what to do about it."""
        if cell.casefold() in MISSING_CELLS:
            return (
                f"{cell!r} is not a finite number; fill it in, or leave such rows out with "
                "data.csv.missing = 'skip'"
            )
        other = "," if self.decimal == "." else "."
        if math.isfinite(parse_number(cell, other)):
            return (
                f"{cell!r} is not a finite number; if '{other}' is its decimal separator, set "
                f"data.csv.decimal = '{other}'"
            )
        return (
            f"{cell!r} is not a finite number; correct the cell, leave the column out with "
            "data.csv.ignore_columns, list its words in data.csv.categories, or name the column "
            "in data.csv.owner_column if it says which client a row belongs to"
        )


def read_table(path: Path, *, header: bool, decimal: str = ".") -> CsvTable:
    """Read a csv file in UTF-8, whose delimiter is found in its first line.

    Args:
        path: The file.
        header: Whether the first row has the names of the columns.
        decimal: The decimal sign of numbers, a point or a comma.

    Raises:
        DataError: The file cannot be read or has no rows of data, rows differ in length, two
            columns have one name, or the header has only numbers.
    """
    try:
        refuse_binary_formats(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            first_line = file.readline()
            lines = itertools.chain([first_line], file)
            reader = csv.reader(lines, delimiter=detect_delimiter(first_line, decimal))
            rows = [tuple(row) for row in reader if row]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}; check the path") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not csv in UTF-8: {error}; save it in this format") from None
    width = len(rows[0]) if rows else 0
    columns = tuple(name.strip() for name in rows[0]) if header and rows else _numbered(width)
    body = rows[1:] if header else rows
    if not body:
        raise DataError(f"{path} has no rows of data; check the file and the option 'header'")
    if header and all(math.isfinite(parse_number(name)) for name in columns):
        raise DataError(
            f"the first row of {path} has only numbers, where names of columns are expected; set "
            "data.csv.header = false if it is data, or give the columns names"
        )
    for position, row in enumerate(body):
        if len(row) != width:
            raise DataError(
                f"{path}, data row {position + 1} has {len(row)} cells, expected {width}; correct "
                "the row"
            )
    if len(set(columns)) < width:
        raise DataError(f"{path} has two columns with the same name; rename one")
    numbers = tuple(range(1, len(body) + 1))
    return CsvTable(
        path=path, columns=columns, rows=tuple(body), numbers_of_rows=numbers, decimal=decimal
    )


def _numbered(width: int) -> tuple[str, ...]:
    return tuple(str(position) for position in range(width))


def features_of(
    table: CsvTable, columns: Sequence[str], options: CsvOptions
) -> NDArray[np.float32]:
    """Return features (rows, features) of the given columns, in their order.

    A column with bounds in the options is mapped from them to [-1/2, 1/2], other numbers are not
    scaled. A column with categories becomes one zero-or-one feature for each word.

    Raises:
        DataError: There are no columns, or a cell is empty, no number or outside its bounds.
        UnknownNameError: The options name a column that is not among the features.
    """
    if not columns:
        raise DataError(
            f"{table.path} has no columns of features: each is a label, the owner or in "
            "ignore_columns; add a feature"
        )
    bounds, categories = options.bounds, options.categories
    for what, names in (("bounded feature", bounds), ("feature of words", categories)):
        for name in names:
            if name not in (*columns, "*"):
                raise UnknownNameError.among(f"{what} of {table.path}", name, columns)
    parts = [
        _as_bits(table, column, categories[column])
        if column in categories
        else _scaled(table, column, bounds.get(column, bounds.get("*")))[:, np.newaxis]
        for column in columns
    ]
    return np.concatenate(parts, axis=1).astype(np.float32)


def _as_bits(table: CsvTable, column: str, words: Sequence[str]) -> NDArray[np.float64]:
    """Return (rows, words): one where the cell is the word, all zero for an unlisted word."""
    cells = table.cells(column)
    if "" in cells and "" not in words:
        raise DataError(
            f"{table.place(cells.index(''), column)}: the cell is empty; fill it in, or leave such "
            "rows out with data.csv.missing = 'skip'"
        )
    return np.array([[float(cell == word) for word in words] for cell in cells])


def _scaled(table: CsvTable, column: str, bounds: Bounds | None) -> NDArray[np.float64]:
    if bounds is None:
        return table.float32_numbers(column)
    values = table.numbers(column)
    low, high = bounds
    outside = np.flatnonzero((values < low) | (values > high))
    if len(outside):
        raise DataError(
            f"{table.place(outside[0], column)}: {values[outside[0]]:g} is outside its bounds "
            f"({low:g}, {high:g}); set wider bounds, or clip the column"
        )
    return (values - low) / (high - low) - 0.5
