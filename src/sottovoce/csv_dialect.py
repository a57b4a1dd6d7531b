"""How csv files are written: what stands between cells, and what says a number."""

import math

DELIMITERS = (",", ";", "\t", "|")
SAYS_NOTHING = frozenset({"", "na", "n/a", "nan", "null", "none", "-"})  # cells, in small letters


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
