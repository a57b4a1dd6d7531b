"""Rows that show themselves: as text, as HTML in a notebook, as dictionaries, as a data frame."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from sottovoce.core import html
from sottovoce.core.errors import ParameterError
from sottovoce.core.shown import show, text_table

if TYPE_CHECKING:
    import pandas

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
        some = self._rows[: html.MAX_ROWS]
        more = f"\n{len(some)} of {len(self)} rows" if len(some) < len(self) else ""
        caption = f"{self._caption}\n" if self._caption else ""
        return caption + text_table(*self._shown(some)) + more

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        if not self._rows:
            return html.note(str(self))
        columns, cells = self._shown(self._rows[: html.MAX_ROWS])
        return html.table(columns, cells, caption=self._caption, of=len(self))


def _plain(row: Any) -> dict[str, Any]:
    found = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    return found | dict(found.pop(OTHERS, {}))


def _cell(value: object, name: str) -> str:
    return "" if value is None else show(value, name)
