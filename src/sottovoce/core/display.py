"""Values in the words that people read, in a terminal and in a notebook alike.

HTML for notebooks: colours are the notebook's own, so that it reads in light and in dark.

Rows that show themselves: as text, as HTML in a notebook, as dictionaries, as a data frame.
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
    """A value for people; epsilons are rounded up; deltas, noise and parameters are exact."""
    if value is None:
        return "none"
    if isinstance(value, float):
        if name.endswith("epsilon") or name == "bounds":
            return show_epsilon(value)
        if name == "budget":
            return f"{value:.15g}"  # as it was entered
        # These get copied into other commands; an epsilon among them is asked for, not spent.
        exact = name in ("delta", "parameters", "example") or name.startswith("noise")
        return repr(value) if exact else f"{value:.6g}"
    if isinstance(value, Mapping):
        inner = name if name in ("bounds", "parameters", "example") else ""
        return ", ".join(f"{key}={show(item, inner or key)}" for key, item in value.items())
    return str(value)


def rounded(parameters: Mapping[str, Any]) -> str:
    """Parameters in a few digits: to be read, not to be copied."""
    return ", ".join(
        f"{name}={value:.5g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in parameters.items()
    )


def text_table(columns: list[str], rows: list[list[str]]) -> str:
    """A table in plain characters; numbers stand right, words left."""
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
    """Names and values, one a line."""
    width = max(len(name) for name in fields)
    return "\n".join(f"{name:<{width}}  {show(value, name)}" for name, value in fields.items())


def is_numeric(cells: list[str]) -> bool:
    """Whether a column holds numbers, and so stands right."""
    return bool(cells) and all(cell[:1] in "0123456789-+.<" for cell in cells)


def show_epsilon(value: float, decimals: int = 4) -> str:
    """An epsilon for people: rounded up, so that what is printed holds too.

    What is rounded is the shortest decimal that reads back as this very float: 0.1 is printed as
    0.1000, although the float is a little above a tenth, and 0.30000000000000004 as 0.3001.
    """
    if math.isinf(value):
        return "infinite"
    shortest = decimal.Decimal(repr(float(value)))
    if decimals > 1 and 0.0 < value < 10.0**-decimals:  # else every small one would look alike
        with decimal.localcontext(prec=decimals, rounding=decimal.ROUND_CEILING):
            return f"{+shortest:.{decimals - 1}e}"
    return _quantized(shortest, decimals, decimal.ROUND_CEILING)


def show_left(value: float, decimals: int = 4) -> str:
    """What is left of a budget, for people: rounded down, so that it is there."""
    return _quantized(decimal.Decimal(repr(float(value))), decimals, decimal.ROUND_FLOOR)


def _quantized(value: decimal.Decimal, decimals: int, rounding: str) -> str:
    with decimal.localcontext(prec=400):  # exact for every float64
        unit = decimal.Decimal(1).scaleb(-decimals)
        return str(value.quantize(unit, rounding=rounding))


def show_lower(value: float) -> str:
    """A lower bound for people: rounded down, so that what is printed holds too."""
    return f"{math.floor(value * 1e4) / 1e4:.4f}" if math.isfinite(value) else "infinite"


# A notebook's own style would centre, stripe or squeeze; nothing here sets a colour of text.
_TABLE = "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.4em 0"
_CELL = "padding:.25em .7em;border-bottom:1px solid rgba(128,128,128,.35)"
_CAPTION = "caption-side:top;text-align:left;padding:.2em 0;font-weight:600"
MAX_ROWS = 60


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str = "", of: int = 0
) -> str:
    """A small table; `of` is how many rows there are, where only some are shown."""
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
    """Names and values, one a row."""
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
    """A sentence below."""
    return f'<p style="opacity:.75;max-width:60em;margin:.3em 0">{escape(text)}</p>'


def picture(svg: str, name: str) -> str:
    """A drawing with its own style inside, which the notebook's page neither sees nor changes."""
    data = base64.b64encode(svg.encode()).decode()
    return (
        f'<img alt="{escape(name)}" style="max-width:36em;width:100%" '
        f'src="data:image/svg+xml;base64,{data}">'
    )


Row = TypeVar("Row", covariant=True)

OTHERS = "others"  # a field of this name holds further columns, which only some tables have


class Table(Sequence[Row], Generic[Row]):
    """Frozen records, one a row; the columns are their fields.

    `columns` are those shown, by name and heading [all of them]; `to_dicts` and `to_pandas` always
    have all.
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
        """The rows as plain data."""
        return [_plain(row) for row in self._rows]

    def to_pandas(self) -> "pandas.DataFrame":
        """The rows as a data frame; needs the package pandas."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise ParameterError(
                "to_pandas() needs the package pandas, which is not installed: pip install pandas; "
                "to_dicts() needs nothing"
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
