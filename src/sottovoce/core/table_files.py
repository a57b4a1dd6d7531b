"""How csv files are written: what stands between cells, what says a number, and what is no csv.

Columns of a csv file, in batches: of any length, in bounded memory.

Each row is a person. What is wrong with a file is said once, with the row and the remedy.
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
SAYS_NOTHING = frozenset({"", "na", "n/a", "nan", "null", "none", "-"})  # cells, in small letters

# (the first bytes, what such a file is, how to make csv of it)
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
_PRINTABLE = (b"PAR1", b"FEA1")  # a column may be called so: these need another sign
_HEAD_BYTES = 64


def refuse_binary_formats(path: Path) -> None:
    """Refuse a file that is not text but a known binary format, by its first bytes.

    Raises:
        DataError: It is one; the message names the format and how to convert it.
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
    return DataError(f"{path} is {what}, and csv is read here; convert it to CSV first: {remedy}")


def delimiter_of(line: str, decimal: str = ".") -> str:
    """The one of the usual delimiters that is most frequent outside quotes; a comma if none is.

    A decimal comma is no delimiter.
    """
    outside = "".join(line.split('"')[::2])
    usual = [one for one in DELIMITERS if one != decimal]
    return max(usual, key=lambda one: (outside.count(one), one == ","))


def number_in(cell: str, decimal: str = ".") -> float:
    """What a cell says as a number, NaN if it says none; with a decimal comma, a point says none.

    float() also reads 1_000, which no csv file means.
    """
    if "_" in cell or (decimal != "." and "." in cell):
        return math.nan
    try:
        return float(cell.replace(decimal, "."))
    except ValueError:
        return math.nan


OnBytes = Callable[[int, int], None]  # bytes read, bytes in all

BATCH_ROWS = 200_000
_COUNTED_BYTES = 1 << 20
_SHOWN_CHARACTERS = 40
_SHOWN_COLUMNS = 12

_WAYS = ("refuse", "skip", "keep")

Row = list[str]


def _ignore(_read: int, _total: int) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvColumns:
    """Some columns of a csv file: by name, or by number from 0 where there is no header.

    `delimiter` is found in the first line if not given. A person whose cell is missing is an
    error, or left out with missing = "skip". With "keep" no cell is an error: one that says no
    number is NaN, and an empty word stays, so that nothing of a cell shows in whether it is read.
    `missing_words` stand for nothing too, beside an empty cell, NA and the like; `decimal` is the
    decimal sign.
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
            raise ParameterError(f"the delimiter is one character, got {self.delimiter!r}")
        if self.decimal not in (".", ","):
            raise ParameterError(f"the decimal sign is a point or a comma, got {self.decimal!r}")
        if self.delimiter == self.decimal:
            raise ParameterError("the decimal sign cannot stand between cells too")
        if self.missing not in _WAYS:
            raise UnknownNameError.among("way with missing cells", self.missing, _WAYS)
        try:
            "".encode(self.encoding)
        except (LookupError, UnicodeError):
            raise ParameterError(
                f"there is no encoding '{self.encoding}'; such as utf-8, latin-1 or cp1252"
            ) from None

    def numbers(self, on_bytes: OnBytes = _ignore) -> Iterator[Vector]:
        """Batches of finite numbers: one a person, or a row of several for several columns."""
        for start, cells in self._cells(on_bytes):
            columns = [self._as_numbers(column, cells[i], start) for i, column in self._named()]
            kept = np.isfinite(columns).all(axis=0) | (self.missing == "keep")
            values = np.stack(columns, axis=1)[kept]
            if len(values):
                yield values[:, 0] if len(self.columns) == 1 else values

    def words(self, on_bytes: OnBytes = _ignore) -> Iterator[list[str]]:
        """Batches of words, one a person."""
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
        """About how many people the file holds: its lines, the header apart."""
        with self._opened() as file:
            blocks = iter(lambda: file.read(_COUNTED_BYTES), b"")
            lines = sum(block.count(b"\n") for block in blocks)
        return max(lines - self.header, 1)

    # -- inside ----------------------------------------------------------------------------

    def _named(self) -> list[tuple[int, str]]:
        return [(i, column or "0") for i, column in enumerate(self.columns)]

    def _cells(self, on_bytes: OnBytes) -> Iterator[tuple[int, list[Sequence[str]]]]:
        """The first row's number of each batch, and the cells of each column asked for."""
        try:
            with (
                self._opened() as file,
                io.TextIOWrapper(file, encoding=self._encoding, newline="") as text,
            ):
                yield from self._batches(file, text, on_bytes)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.path} is not text in {self.encoding}: byte {error.object[error.start]:#04x}"
                f" cannot be read; give --encoding, such as latin-1 or cp1252, or save it as UTF-8"
            ) from None
        except UnicodeError as error:
            raise DataError(
                f"{self.path} is not text in {self.encoding}: {error}; give --encoding"
            ) from None
        except csv.Error as error:
            raise DataError(
                f"{self.path} is not csv: {error}; check quotes and --delimiter"
            ) from None

    @property
    def _encoding(self) -> str:
        """UTF-8 may begin with a mark of its byte order."""
        return "utf-8-sig" if self.encoding.lower() in ("utf-8", "utf8") else self.encoding

    def _opened(self) -> BinaryIO:
        if self.path.is_dir():
            raise DataError(f"{self.path} is a folder; name the csv file in it")
        try:
            refuse_binary_formats(self.path)
            return self.path.open("rb")
        except OSError as error:
            raise DataError(
                f"cannot read {self.path}: {error.strerror or error}; check the path"
            ) from None

    def _batches(
        self, file: BinaryIO, text: io.TextIOWrapper, on_bytes: OnBytes
    ) -> Iterator[tuple[int, list[Sequence[str]]]]:
        total = self.path.stat().st_size
        first_line = text.readline()
        if not first_line.strip():
            raise DataError(f"{self.path} is empty; it needs a row for each person")
        delimiter = self.delimiter or delimiter_of(first_line, self.decimal)
        lines = itertools.chain([first_line], text)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        first = next(reader)
        places, width = self._places(first), len(first)
        rows: Iterator[Row] = reader if self.header else itertools.chain([first], reader)
        start, blanks = 1, 0
        while batch := list(itertools.islice(rows, BATCH_ROWS)):
            if width == 1:
                # An empty line is a missing cell here, unless nothing but such lines follow.
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
                f"{self.path} has no rows of data; it needs one for each person"
                + (" below the header" if self.header else "")
            )
        on_bytes(total, total)

    def _places(self, first: Row) -> list[int]:
        """Where the columns asked for stand."""
        names = [name.strip() for name in first]
        if not self.header:
            names = [str(number) for number in range(len(first))]
        elif all(math.isfinite(number_in(name, self.decimal)) for name in names):
            raise DataError(
                f"the first row of {self.path} has numbers only, where names of columns should be; "
                "give --no-header if it is data"
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
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise DataError(
                f"{self.path} has no column '{column}'; {hint}its columns: {_listed(names)}"
            )
        if names.count(column) > 1:
            raise DataError(f"{self.path} has two columns '{column}'; rename one")
        return names.index(column)

    def _check_width(self, rows: Sequence[Row], width: int, start: int) -> None:
        if all(len(row) == width for row in rows):
            return
        number, row = next((i, row) for i, row in enumerate(rows) if len(row) != width)
        raise DataError(
            f"{self.path}, data row {start + number} has {len(row)} cells, not {width}; correct it"
        )

    def _as_numbers(self, column: str, cells: Sequence[str], start: int) -> Vector:
        """The column as numbers; NaN where a cell is missing and that is allowed."""
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
        if cell.casefold() in SAYS_NOTHING or cell in self.missing_words:
            if self.missing == "refuse":
                self._refuse_missing(row, column, cell)
            return math.nan
        value = number_in(cell, self.decimal)
        if math.isfinite(value):
            return value
        if self.missing == "keep":
            return math.nan
        what = "is not finite" if math.isinf(value) else "is not a number"
        shown = cell if len(cell) <= _SHOWN_CHARACTERS else cell[:_SHOWN_CHARACTERS] + "..."
        remedy = "correct the cell"
        if self.decimal not in cell and ("," in cell or "." in cell):
            remedy = f"is that its decimal sign? give --decimal '{',' if ',' in cell else '.'}'"
        elif row == 1:
            remedy += ", or is it a column of words? ask for a histogram with --categories"
        raise DataError(
            f"{self.path}, data row {row}, column '{column}': {shown!r} {what}; {remedy}"
        )

    def _says_nothing(self, word: str) -> bool:
        """Of words, NA may be one; only an empty cell, and what was named, stand for nothing."""
        return not word or word in self.missing_words

    def _refuse_missing(self, row: int, column: str | None, cell: str) -> None:
        named = f"column '{column}': " if column is not None else ""
        shown = f"{cell!r} stands for nothing" if cell else "the cell is empty"
        raise DataError(
            f"{self.path}, data row {row}, {named}{shown}; correct it, or leave such people out "
            "with --missing skip"
        )


def _listed(names: Sequence[Any]) -> str:
    shown = ", ".join(str(name) for name in names[:_SHOWN_COLUMNS])
    more = len(names) - _SHOWN_COLUMNS
    return f"{shown} and {more} more" if more > 0 else shown
