"""How csv files are written: what stands between cells, what says a number, and what is no csv."""

import math
import os
from pathlib import Path

from sottovoce.core.errors import DataError

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
