"""A reader for columns of csv files, in batches and with bounded memory.

It also detects delimiters, parses numbers and recognizes files that are not csv. Each row is one
person. An error names the first row that is wrong and the remedy.
"""

import csv
import difflib
import io
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.core.errors import DataError, ParameterError, UnknownNameError

DELIMITERS = (",", ";", "\t", "|")
# The cells, in lower case, that mean a missing number.
MISSING_CELLS = frozenset({"", "na", "n/a", "nan", "null", "none", "-"})

# (the first bytes, what such a file is, how to convert it into csv)
_BINARY_FORMATS = (
    (b"PAR1", "a Parquet file", "pandas.read_parquet(FILE).to_csv(OTHER, index=False), or DuckDB"),
    (b"ARROW1\0\0", "an Arrow file", "pandas.read_feather(FILE).to_csv(OTHER, index=False)"),
    (b"FEA1", "a Feather file", "pandas.read_feather(FILE).to_csv(OTHER, index=False)"),
    (b"PK\x03\x04", "a zip archive, as .xlsx, .ods and .npz are", "save or extract the table"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Excel file (.xls)", "save the table as CSV UTF-8"),
    (b"\x1f\x8b", "compressed by gzip", "gunzip it"),
    (b"SQLite format 3\0", "an SQLite database", "sqlite3 -csv -header FILE 'select ...'"),
    (b"\x93NUMPY", "a NumPy array (.npy)", "numpy.savetxt(OTHER, array, delimiter=',')"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "pandas.read_hdf(FILE).to_csv(OTHER, index=False)"),
)
# The name of a csv column may begin with these, so a second sign of the format is needed.
_PRINTABLE = (b"PAR1", b"FEA1")
_HEAD_BYTES = 64


def refuse_binary_formats(path: Path) -> None:
    """Refuse a file that has a known binary format, such as Excel, or that is named .parquet.

    The first bytes of the file show the format. A file of any other content is accepted: it need
    not be csv.

    Args:
        path: The file.

    Raises:
        DataError: The file is not text; the message names its format and how to convert it.
        OSError: The file cannot be read.
    """
    named = path.suffix.lower() == ".parquet"
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        for magic, what, remedy in _BINARY_FORMATS:
            if not head.startswith(magic):
                continue
            if magic in _PRINTABLE and b"\0" not in head and not named:
                file.seek(max(len(magic), os.fstat(file.fileno()).st_size - len(magic)))
                if file.read() != magic:
                    continue
            raise _not_csv(path, what, remedy)
    if named:
        raise _not_csv(path, *_BINARY_FORMATS[0][1:])


def _not_csv(path: Path, what: str, remedy: str) -> DataError:
    return DataError(f"{path} is {what}, but a csv file is needed; convert it to CSV: {remedy}")


def detect_delimiter(line: str, decimal: str = ".") -> str:
    """Return the usual delimiter that is most frequent in a line outside double quotes.

    Args:
        line: The first line of a csv file.
        decimal: The decimal sign, which is not a delimiter.

    Returns:
        Comma, semicolon, tab or |; if the line has none of them, a comma, or a semicolon if the
        comma is the decimal sign.

    Examples:
        >>> detect_delimiter('age;"a, b, c, d";height')
        ';'
    """
    outside = "".join(line.split('"')[::2])
    usual = [one for one in DELIMITERS if one != decimal]
    return max(usual, key=lambda one: (outside.count(one), one == ","))


def parse_number(cell: str, decimal: str = ".") -> float:
    """Return the number in a cell, or NaN if it holds none; "inf" gives infinity.

    Surrounding spaces are ignored. With a decimal comma, a cell with a point holds no number.
    Digits with underscores (1_000), which Python's float() accepts, are no number in a csv file.
    """
    if "_" in cell or (decimal != "." and "." in cell):
        return math.nan
    try:
        return float(cell.replace(decimal, "."))
    except ValueError:
        return math.nan


OnBytes = Callable[[int, int], None]  # Called with the bytes read and the bytes in all.

BATCH_ROWS = 200_000
_COUNTED_BYTES = 1 << 20
_SHOWN_CHARACTERS = 40
_SHOWN_COLUMNS = 12

_WAYS = ("refuse", "skip", "keep")

Row = list[str]


def _ignore(_read: int, _total: int) -> None:
    """Ignore the progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvColumns:
    """Some columns of a csv file.

    Attributes:
        path: The file.
        columns: The columns by name, or by number from 0 if there is no header; None for the only
            one.
        header: Whether the first row has the names of the columns.
        delimiter: The character between cells; detected in the first line if None.
        encoding: The encoding of the text.
        missing: What to do about a missing cell. "refuse" raises an error, "skip" leaves the person
            out. With "keep" no cell is an error: one without a number gives NaN, and an empty word
            stays, so that whether valid csv is read does not depend on, and so does not reveal,
            any cell.
        missing_words: Words that mean a missing cell, in addition to an empty cell and, where
            numbers are read, to NA, N/A, NaN, null, none and -.
        decimal: The decimal sign, a point or a comma.
    """

    path: Path
    columns: tuple[str | None, ...]
    header: bool = True
    delimiter: str | None = None
    encoding: str = "utf-8"
    missing: Literal["refuse", "skip", "keep"] = "refuse"
    missing_words: tuple[str, ...] = ()
    decimal: str = "."

    def __post_init__(self) -> None:
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise ParameterError(f"the delimiter must be one character, got {self.delimiter!r}")
        if self.decimal not in (".", ","):
            raise ParameterError(
                f"the decimal sign must be a point or a comma, got {self.decimal!r}"
            )
        if self.delimiter == self.decimal:
            raise ParameterError(
                f"the decimal sign and the delimiter are both {self.decimal!r}; "
                "choose a different delimiter or decimal sign"
            )
        if self.missing not in _WAYS:
            raise UnknownNameError.among("choice for missing cells", self.missing, _WAYS)
        try:
            "".encode(self.encoding)
        except (LookupError, UnicodeError):
            raise ParameterError(
                f"there is no encoding '{self.encoding}'; choose one such as utf-8, latin-1 or "
                "cp1252"
            ) from None

    def numbers(self, on_bytes: OnBytes = _ignore) -> Iterator[Vector]:
        """Yield batches of finite numbers: a number, or a row for several columns, for each person.

        Args:
            on_bytes: Called with the bytes read and the bytes in all, to report progress.

        Yields:
            Vectors, or matrices with a column for each column asked for, in that order. With
            missing = "keep" they may contain NaN; with "skip" a row that lacks one of the numbers
            is left out.

        Raises:
            DataError: The file cannot be read, has no rows or lacks a column; or a cell is no
                finite number (unless missing = "keep"), or is missing (if missing = "refuse").
            ParameterError: The column is None and the file has several.
        """
        for start, cells in self._cells(on_bytes):
            columns = [self._as_numbers(column, cells[i], start) for i, column in self._named()]
            kept = np.isfinite(columns).all(axis=0) | (self.missing == "keep")
            values = np.stack(columns, axis=1)[kept]
            if len(values):
                yield values[:, 0] if len(self.columns) == 1 else values

    def words(self, on_bytes: OnBytes = _ignore) -> Iterator[list[str]]:
        """Yield batches of words of the first column, one word for each person.

        Args:
            on_bytes: Called with the bytes read and the bytes in all, to report progress.

        Yields:
            Lists of words without surrounding spaces. NA and the like are words here; only an empty
            cell and `missing_words` mean a missing cell.

        Raises:
            DataError: The file cannot be read, has no rows or lacks the column; or a cell is
                missing and missing = "refuse".
            ParameterError: The column is None and the file has several.
        """
        for start, cells in self._cells(on_bytes):
            words = [cell.strip() for cell in cells[0]]
            empty = [number for number, word in enumerate(words) if self._says_nothing(word)]
            if empty and self.missing == "refuse":
                self._refuse_missing(start + empty[0], self.columns[0], words[empty[0]])
            if self.missing == "skip":
                words = [word for word in words if not self._says_nothing(word)]
            if words:
                yield words

    def count_lines(self) -> int:
        """Return the number of lines without the header, an estimate of the number of people.

        Returns:
            At least 1. Line ends inside quotes count too; a last line without one does not.

        Raises:
            DataError: The file cannot be read, or has a binary format.
        """
        with self._opened() as file:
            blocks = iter(lambda: file.read(_COUNTED_BYTES), b"")
            lines = sum(block.count(b"\n") for block in blocks)
        return max(lines - self.header, 1)

    def _named(self) -> list[tuple[int, str]]:
        return [(i, column or "0") for i, column in enumerate(self.columns)]

    def _cells(self, on_bytes: OnBytes) -> Iterator[tuple[int, list[Sequence[str]]]]:
        """Yield the number of each batch's first row, and the cells of each column asked for."""
        try:
            with (
                self._opened() as file,
                io.TextIOWrapper(file, encoding=self._encoding, newline="") as text,
            ):
                yield from self._batches(file, text, on_bytes)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.path} is not text in {self.encoding}: byte {error.object[error.start]:#04x}"
                " cannot be read; give --encoding, such as latin-1 or cp1252, or save it as UTF-8"
            ) from None
        except UnicodeError as error:
            raise DataError(
                f"{self.path} is not text in {self.encoding}: {error}; give the right --encoding"
            ) from None
        except csv.Error as error:
            raise DataError(
                f"{self.path} is not csv: {error}; check its quotes and delimiter (--delimiter)"
            ) from None

    @property
    def _encoding(self) -> str:
        """The encoding; UTF-8 text may begin with a byte order mark."""
        return "utf-8-sig" if self.encoding.lower() in ("utf-8", "utf8") else self.encoding

    def _opened(self) -> BinaryIO:
        if self.path.is_dir():
            raise DataError(f"{self.path} is a folder; name the csv file in it")
        try:
            refuse_binary_formats(self.path)
            return self.path.open("rb")
        except OSError as error:
            raise DataError(
                f"cannot read {self.path}: {error.strerror or error}; check the path and that you "
                "may read it"
            ) from None

    def _batches(
        self, file: BinaryIO, text: io.TextIOWrapper, on_bytes: OnBytes
    ) -> Iterator[tuple[int, list[Sequence[str]]]]:
        total = self.path.stat().st_size
        first_line = text.readline()
        if not first_line.strip():
            raise DataError(
                f"{self.path} is empty, or its first line is; start it with the header or the "
                "first person's row"
            )
        delimiter = self.delimiter or detect_delimiter(first_line, self.decimal)
        lines = itertools.chain([first_line], text)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        first = next(reader)
        places, width = self._places(first), len(first)
        rows: Iterator[Row] = reader if self.header else itertools.chain([first], reader)
        start, blanks = 1, 0
        while batch := list(itertools.islice(rows, BATCH_ROWS)):
            if width == 1:
                # In a file with one column an empty line is a missing cell, except at its end.
                batch, blanks = [[""]] * blanks + [row or [""] for row in batch], 0
                while batch and batch[-1] == [""]:
                    blanks += 1
                    batch.pop()
            else:
                batch = [row for row in batch if row]
            self._check_width(batch, width, start)
            if batch:
                yield start, [[row[place] for row in batch] for place in places]
            start += len(batch)
            on_bytes(file.tell(), total)
        if start == 1:
            raise DataError(
                f"{self.path} has no rows of data; add a row for each person"
                + (" below the header" if self.header else "")
            )
        on_bytes(total, total)

    def _places(self, first: Row) -> list[int]:
        """Return the positions of the columns asked for."""
        names = [name.strip() for name in first]
        if not self.header:
            names = [str(number) for number in range(len(first))]
        elif all(math.isfinite(parse_number(name, self.decimal)) for name in names):
            raise DataError(
                f"the first row of {self.path} has only numbers, but must have the names of the "
                "columns; add a row of names above it, or give --no-header"
            )
        return [self._place(column, names) for column in self.columns]

    def _place(self, column: str | None, names: Sequence[str]) -> int:
        if column is None:
            if len(names) == 1:
                return 0
            raise ParameterError(
                f"{self.path} has {len(names)} columns; choose one with --column: {_listed(names)}"
            )
        if column not in names:
            near = difflib.get_close_matches(column, names, n=1, cutoff=0.5)
            hint = f" (did you mean '{near[0]}'?)" if near else ""
            raise DataError(
                f"{self.path} has no column '{column}'{hint}; choose one of: {_listed(names)}"
            )
        if names.count(column) > 1:
            raise DataError(
                f"{self.path} has {names.count(column)} columns '{column}'; rename all but one"
            )
        return names.index(column)

    def _check_width(self, rows: Sequence[Row], width: int, start: int) -> None:
        if all(len(row) == width for row in rows):
            return
        number, row = next((i, row) for i, row in enumerate(rows) if len(row) != width)
        raise DataError(
            f"{self.path}, data row {start + number}: expected {width} cells, got {len(row)}; "
            "correct the row"
        )

    def _as_numbers(self, column: str, cells: Sequence[str], start: int) -> Vector:
        """Return a column as numbers, with NaN for missing cells if they are allowed."""
        plain = self.decimal == "." and not self.missing_words
        try:
            values = np.array(list(map(float, cells)) if plain else [math.nan], dtype=np.float64)
            if np.isfinite(values).all() and "_" not in "".join(cells):
                return values
        except ValueError:
            pass
        return np.array(
            [self._checked(column, cell.strip(), start + i) for i, cell in enumerate(cells)]
        )

    def _checked(self, column: str, cell: str, row: int) -> float:
        if cell.casefold() in MISSING_CELLS or cell in self.missing_words:
            if self.missing == "refuse":
                self._refuse_missing(row, column, cell)
            return math.nan
        value = parse_number(cell, self.decimal)
        if math.isfinite(value):
            return value
        if self.missing == "keep":
            return math.nan
        what = "is not finite" if math.isinf(value) else "is not a number"
        shown = cell if len(cell) <= _SHOWN_CHARACTERS else cell[:_SHOWN_CHARACTERS] + "..."
        remedy = "correct the cell"
        if self.decimal not in cell and ("," in cell or "." in cell):
            sign = "," if "," in cell else "."
            remedy = f"if '{sign}' is the decimal sign, give --decimal '{sign}'"
        elif row == 1:
            remedy += ", or, if the column has words, ask for a histogram with --categories"
        raise DataError(
            f"{self.path}, data row {row}, column '{column}': {shown!r} {what}; {remedy}"
        )

    def _says_nothing(self, word: str) -> bool:
        """Return whether a word means a missing cell; in a column of words, NA is a word."""
        return not word or word in self.missing_words

    def _refuse_missing(self, row: int, column: str | None, cell: str) -> None:
        named = f"column '{column}': " if column is not None else ""
        shown = f"{cell!r} means a missing value" if cell else "the cell is empty"
        raise DataError(
            f"{self.path}, data row {row}, {named}{shown}; correct the cell, or leave out people "
            "with missing values with --missing skip"
        )


def _listed(names: Sequence[Any]) -> str:
    shown = ", ".join(str(name) for name in names[:_SHOWN_COLUMNS])
    more = len(names) - _SHOWN_COLUMNS
    return f"{shown} and {more} more" if more > 0 else shown
