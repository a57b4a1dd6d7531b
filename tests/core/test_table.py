"""Rows as text, as HTML, as dictionaries and as a data frame."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from sottovoce.core.display import MAX_ROWS, Table
from sottovoce.core.errors import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    name: str
    epsilon: float | None
    others: Mapping[str, Any] = field(default_factory=dict)


ROWS = [Point(name="a<b", epsilon=1.00001), Point(name="c", epsilon=None, others={"more": 3})]


def test_rows_are_records_in_their_order() -> None:
    table = Table(ROWS)
    assert table[0] is ROWS[0]
    assert [row.name for row in table] == ["a<b", "c"]
    assert len(table[1:]) == 1
    assert table[1:][0].others == {"more": 3}
    assert table == Table(ROWS)
    assert table != Table(ROWS[:1])


def test_every_field_is_in_the_dictionaries_and_the_data_frame() -> None:
    plain = [{"name": "a<b", "epsilon": 1.00001}, {"name": "c", "epsilon": None, "more": 3}]
    assert Table(ROWS).to_dicts() == plain
    frame = Table(ROWS).to_pandas()
    assert list(frame.columns) == ["name", "epsilon", "more"]
    assert frame["epsilon"][0] == 1.00001


def test_text_has_a_line_a_row_and_rounds_epsilon_up() -> None:
    lines = str(Table(ROWS, caption="points")).splitlines()
    assert lines[0] == "points"
    assert lines[1].split() == ["name", "epsilon", "more"]
    assert lines[3].split() == ["a<b", "1.0001"]
    assert repr(Table(ROWS)) == str(Table(ROWS))


def test_html_is_escaped_and_sets_no_color_of_text() -> None:
    page = Table(ROWS, caption="<points>", columns={"name": "who"})._repr_html_()
    assert "&lt;points&gt;" in page
    assert "a&lt;b" in page
    assert "who" in page
    assert "1.0001" not in page
    assert ";color:" not in page
    assert "background" not in page


def test_long_tables_are_cut_and_say_so() -> None:
    many = Table(ROWS * MAX_ROWS)
    assert f"{MAX_ROWS} of {2 * MAX_ROWS} rows" in str(many)
    assert f"{MAX_ROWS} of {2 * MAX_ROWS} rows" in many._repr_html_()
    assert len(many.to_dicts()) == 2 * MAX_ROWS


def test_a_table_without_rows_says_so() -> None:
    assert str(Table([], caption="points")) == "points: no rows"
    assert "no rows" in Table([])._repr_html_()


def test_without_pandas_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ParameterError, match="pip install pandas"):
        Table(ROWS).to_pandas()
