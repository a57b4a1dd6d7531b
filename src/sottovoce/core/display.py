"""Values, tables and pictures as people read them, in a terminal or a notebook.

HTML for notebooks uses the notebook's own colors, so that it is readable in light and dark themes.
A `Table` shows itself as text or HTML and converts to dictionaries or a data frame.
"""

import base64
import dataclasses
import decimal
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from sottovoce.core.errors import ParameterError

if TYPE_CHECKING:
    import pandas


def show(value: object, name: str = "") -> str:
    """Return a value as text; epsilons are rounded up; deltas, noise and parameters are exact.

    Args:
        value: The value. Only floats are rounded.
        name: What it is. A name that ends in "epsilon", and "bounds", mean an epsilon, which is
            rounded up to 4 decimals. With "delta", "parameters", "example" and names that begin
            with "noise" all digits are kept, with "budget" 15 significant ones, else 6.

    Returns:
        The text; "none" for None, and "key=value, ..." for a mapping, whose keys are the names of
        its values unless `name` is "bounds", "parameters" or "example".
    """
    if value is None:
        return "none"
    if isinstance(value, float):
        if name.endswith("epsilon") or name == "bounds":
            return show_epsilon(value)
        if name == "budget":
            return f"{value:.15g}"  # The digits that the user entered.
        # These are copied into other commands; an epsilon among them is a target, not a cost.
        exact = name in ("delta", "parameters", "example") or name.startswith("noise")
        return repr(value) if exact else f"{value:.6g}"
    if isinstance(value, Mapping):
        inner = name if name in ("bounds", "parameters", "example") else ""
        return ", ".join(f"{key}={show(item, inner or key)}" for key, item in value.items())
    return str(value)


def show_rounded(parameters: Mapping[str, Any]) -> str:
    """Return "name=value, ..." with floats in 5 significant digits, to be read but not copied."""
    return ", ".join(
        f"{name}={value:.5g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in parameters.items()
    )


def text_table(columns: list[str], rows: list[list[str]]) -> str:
    """Return a table in plain characters: headings, a line of dashes, and a line for each row.

    Columns of numbers, as `is_numeric` tells them, are aligned right, others left.
    """
    cells = [columns, *rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    right = [is_numeric([row[at] for row in rows]) for at in range(len(columns))]

    def line(row: list[str]) -> str:
        placed = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        )
        return "  ".join(placed).rstrip()

    return "\n".join([line(columns), "  ".join("-" * width for width in widths), *map(line, rows)])


def text_fields(fields: Mapping[str, object]) -> str:
    """Return aligned names and values as plain text, one pair in each line.

    Values are written by `show`. There must be at least one pair.
    """
    width = max(len(name) for name in fields)
    return "\n".join(f"{name:<{width}}  {show(value, name)}" for name, value in fields.items())


def is_numeric(cells: list[str]) -> bool:
    """Return whether a column is to be aligned right, as numbers are.

    True if each cell is empty or begins with a digit or one of - + . <; False if there are no
    cells.
    """
    return bool(cells) and all(cell[:1] in "0123456789-+.<" for cell in cells)


def show_epsilon(value: float, decimals: int = 4) -> str:
    """Return an epsilon as text, rounded up so that the printed guarantee holds too.

    The number that is rounded is the shortest decimal that reads back as this float: 0.1 is printed
    as 0.1000, although the float is slightly above a tenth, and 0.30000000000000004 as 0.3001.

    Args:
        value: The epsilon.
        decimals: The number of decimals.

    Returns:
        The text; "infinite" for infinity. An epsilon above 0 and below 10^-decimals is written with
        an exponent, unless `decimals` is 1 or less.

    Examples:
        >>> show_epsilon(0.1), show_epsilon(1.23456), show_epsilon(1.2e-7)
        ('0.1000', '1.2346', '1.200e-7')
    """
    if math.isinf(value):
        return "infinite"
    shortest = decimal.Decimal(repr(float(value)))
    # Without an exponent every small epsilon would be printed as 0.0001.
    if decimals > 1 and 0.0 < value < 10.0**-decimals:
        with decimal.localcontext(prec=decimals, rounding=decimal.ROUND_CEILING):
            return f"{+shortest:.{decimals - 1}e}"
    return _quantized(shortest, decimals, decimal.ROUND_CEILING)


def show_remaining(value: float, decimals: int = 4) -> str:
    """Return the rest of a budget as text, rounded down so that no more is printed than is left.

    Args:
        value: The epsilon that is left, which must be finite.
        decimals: The number of decimals.

    Returns:
        The text, such as "0.1234".
    """
    return _quantized(decimal.Decimal(repr(float(value))), decimals, decimal.ROUND_FLOOR)


def _quantized(value: decimal.Decimal, decimals: int, rounding: str) -> str:
    with decimal.localcontext(prec=400):  # This precision is exact for every float64.
        unit = decimal.Decimal(1).scaleb(-decimals)
        return str(value.quantize(unit, rounding=rounding))


def show_lower(value: float) -> str:
    """Return a lower bound in 4 decimals, rounded down so that the printed bound holds too.

    As in `show_epsilon`, the shortest decimal of the float is rounded. Infinity gives "infinite".
    """
    return "infinite" if value == math.inf else show_remaining(value)


# These override a notebook's own alignment and padding; no style here sets a text color.
_TABLE = "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.4em 0"
_CELL = "padding:.25em .7em;border-bottom:1px solid rgba(128,128,128,.35)"
_CAPTION = "caption-side:top;text-align:left;padding:.2em 0;font-weight:600"
MAX_ROWS = 60


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str = "", of: int = 0
) -> str:
    """Return a small HTML table.

    Args:
        columns: The headings.
        rows: The cells of each row.
        caption: The title.
        of: The number of all rows, where only some of them are given; a note below the table then
            says so. 0 for no note.

    Returns:
        The HTML.
    """
    aligned = [
        "right" if is_numeric([row[at] for row in rows]) else "left" for at in range(len(columns))
    ]

    def line(cells: Sequence[str], tag: str) -> str:
        inner = "".join(
            f'<{tag} style="{_CELL};text-align:{side}">{escape(cell)}</{tag}>'
            for cell, side in zip(cells, aligned, strict=True)
        )
        return f"<tr>{inner}</tr>"

    above = f'<caption style="{_CAPTION}">{escape(caption)}</caption>' if caption else ""
    body = "\n".join(line(row, "td") for row in rows)
    below = note(f"{len(rows)} of {of} rows") if of > len(rows) else ""
    return (
        f'<div style="overflow-x:auto"><table style="{_TABLE}">{above}\n'
        f"<thead>{line(columns, 'th')}</thead>\n<tbody>{body}</tbody></table>{below}</div>"
    )


def fields(values: Mapping[str, object], *, caption: str = "") -> str:
    """Return an HTML table of names and values, one pair in each row, as `show` writes them."""
    rows = "\n".join(
        f'<tr><th scope="row" style="{_CELL};text-align:left">{escape(name)}</th>'
        f'<td style="{_CELL};text-align:left">{escape(show(value, name))}</td></tr>'
        for name, value in values.items()
    )
    above = f'<caption style="{_CAPTION}">{escape(caption)}</caption>' if caption else ""
    return (
        f'<div style="overflow-x:auto"><table style="{_TABLE}">{above}<tbody>{rows}</tbody></table>'
        "</div>"
    )


def note(text: str) -> str:
    """Return text, which is escaped, as an HTML paragraph to put below a table."""
    return f'<p style="opacity:.75;max-width:60em;margin:.3em 0">{escape(text)}</p>'


def picture(svg: str, name: str) -> str:
    """Return an SVG drawing as an HTML image, which keeps its style apart from the page's.

    The drawing is embedded as a data URI; `name` is the text for those who cannot see it.
    """
    data = base64.b64encode(svg.encode()).decode()
    return (
        f'<img alt="{escape(name)}" style="max-width:36em;width:100%" '
        f'src="data:image/svg+xml;base64,{data}">'
    )


Row = TypeVar("Row", covariant=True)

OTHERS = "others"  # A field of this name holds further columns, which only some tables have.


class Table(Sequence[Row], Generic[Row]):
    """A sequence of frozen records, one for each row; the columns are their fields.

    Args:
        rows: The records, instances of dataclasses.
        caption: The title.
        columns: The headings of the shown columns by the name of the field; all fields if None.
            `to_dicts` and `to_pandas` always have all fields. A notebook or terminal shows at most
            60 rows.
    """

    __slots__ = ("_caption", "_columns", "_rows")

    def __init__(
        self,
        rows: Sequence[Row],
        *,
        caption: str = "",
        columns: Mapping[str, str] | None = None,
    ) -> None:
        self._rows, self._caption, self._columns = tuple(rows), caption, columns

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> "Table[Row]": ...
    def __getitem__(self, index: int | slice) -> "Row | Table[Row]":
        if isinstance(index, slice):
            return Table(self._rows[index], caption=self._caption, columns=self._columns)
        return self._rows[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self._rows == other._rows

    __hash__ = None  # type: ignore[assignment]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries.

        Returns:
            A dictionary for each row, with the values of all fields by their names. A field
            `others`, a mapping, is replaced by its entries.
        """
        return [_plain(row) for row in self._rows]

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the rows as a pandas data frame.

        Returns:
            A data frame with all fields.

        Raises:
            ParameterError: The package pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError:
            raise ParameterError(
                "to_pandas() needs the package pandas, which is not installed; install it (pip "
                "install pandas), or use to_dicts()"
            ) from None
        return pandas.DataFrame(self.to_dicts())

    def _shown(self, rows: Sequence[Any]) -> tuple[list[str], list[list[str]]]:
        plain = [_plain(row) for row in rows]
        names = self._columns or {name: name for row in plain for name in row}
        cells = [[_cell(row.get(name), name) for name in names] for row in plain]
        return list(names.values()), cells

    def __str__(self) -> str:
        if not self._rows:
            return f"{self._caption or 'table'}: no rows"
        some = self._rows[:MAX_ROWS]
        more = f"\n{len(some)} of {len(self)} rows" if len(some) < len(self) else ""
        caption = f"{self._caption}\n" if self._caption else ""
        return caption + text_table(*self._shown(some)) + more

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        if not self._rows:
            return note(str(self))
        columns, cells = self._shown(self._rows[:MAX_ROWS])
        return table(columns, cells, caption=self._caption, of=len(self))


def _plain(row: Any) -> dict[str, Any]:
    found = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    return found | dict(found.pop(OTHERS, {}))


def _cell(value: object, name: str) -> str:
    return "" if value is None else show(value, name)
