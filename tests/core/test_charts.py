import itertools
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.core.charts.axes import log_ticks, tick_label, ticks
from sottovoce.core.charts.grids import HeatMap, Panel
from sottovoce.core.charts.lines import ChartLine, LineChart
from sottovoce.core.charts.style import standalone
from sottovoce.core.errors import ParameterError


@given(low=st.floats(-1e6, 1e6), width=st.floats(1e-6, 1e6))
def test_ticks_are_increasing_and_span_the_data(low: float, width: float) -> None:
    high = low + width
    found = ticks(low, high)
    slack = 1e-6 * width + 1e-9
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert all(a < b for a, b in itertools.pairwise(found))
    assert 2 <= len(found) <= 12


@pytest.mark.parametrize("value", [0.0, 3.0, 4.0 - 1e-9, 2.5e9])
def test_a_flat_line_still_has_an_axis(value: float) -> None:
    for high in (value, value * (1.0 + 1e-13)):
        found = [tick_label(tick) for tick in ticks(value, high)]
        assert len(set(found)) == len(found) >= 2


def test_a_chart_is_well_formed_and_escapes_what_it_is_given() -> None:
    line = ChartLine(name="a < b & c", x=[1, 2], y=[0.5, 0.6], low=[0.4, 0.5], high=[0.6, 0.7])
    chart = LineChart(title='"quoted" <title>', x_label="x", y_label="y", lines=[line])
    tree = ElementTree.fromstring(chart.svg())
    assert tree.attrib["role"] == "img"
    assert tree.attrib["aria-label"] == '"quoted" <title>'
    assert "a < b & c" in [text.text for text in tree.iter("text")]


@given(low=st.floats(1e-9, 1e6), factor=st.floats(1.0, 1e9))
def test_log_ticks_are_increasing_and_span_the_data(low: float, factor: float) -> None:
    first, last, marks = log_ticks(low, low * factor)
    assert first <= low * (1.0 + 1e-6)
    assert last >= low * factor * (1.0 - 1e-6)
    assert all(a < b for a, b in itertools.pairwise(marks))
    assert 1 <= len(marks) <= 20
    assert all(first <= mark <= last for mark in marks)


def _points(svg: str) -> list[tuple[float, float]]:
    line = ElementTree.fromstring(svg).find("polyline")
    assert line is not None
    return [(float(x), float(y)) for x, y in (p.split(",") for p in line.attrib["points"].split())]


def test_a_power_law_is_straight_on_logarithmic_axes() -> None:
    line = ChartLine(
        name="1/n", x=[1, 10, 100], y=[1.0, 0.1, 0.01], low=[-1, 0, 0.001], high=[2, 1, 1]
    )
    chart = LineChart(title="t", x_label="x", y_label="y", lines=[line], x_log=True, y_log=True)
    first, middle, last = _points(chart.svg())
    assert middle[0] == pytest.approx((first[0] + last[0]) / 2, abs=0.02)
    assert middle[1] == pytest.approx((first[1] + last[1]) / 2, abs=0.02)


def test_a_logarithmic_axis_refuses_zero() -> None:
    line = ChartLine(name="zero", x=[0, 1], y=[1.0, 2.0])
    with pytest.raises(ParameterError, match="logarithmic axis"):
        LineChart(title="t", x_label="x", y_label="y", lines=[line], x_log=True).svg()


def test_the_legend_stands_below_every_curve() -> None:
    lines = [ChartLine(name=f"a rather long name {n}", x=[0, 1], y=[0, n]) for n in range(1, 9)]
    svg = LineChart(title="t", x_label="x", y_label="y", lines=lines).svg()
    tree = ElementTree.fromstring(svg)
    curves = [p.attrib["points"] for p in tree.iter("polyline")]
    lowest = max(float(pair.split(",")[1]) for points in curves for pair in points.split())
    names = {text.text: text for text in tree.iter("text")}
    height = float(tree.attrib["viewBox"].split()[3])
    for line in lines:
        assert lowest < float(names[line.name].attrib["y"]) <= height
        assert float(names[line.name].attrib["x"]) < 600


def test_a_charts_table_holds_every_number() -> None:
    lines = [
        ChartLine(name="a", x=[1, 2], y=[0.5, 0.6], low=[0.4, 0.5], high=[0.6, 0.7]),
        ChartLine(name="b", x=[2, 3], y=[7.0, 8.0]),
    ]
    table = LineChart(title="t", x_label="n", y_label="y", lines=lines).table()
    assert table.columns == ["n", "a", "b"]
    assert table.rows == [
        ["1", "0.5 (0.4 to 0.6)", ""],
        ["2", "0.6 (0.5 to 0.7)", "7"],
        ["3", "", "8"],
    ]


def _heat_map() -> HeatMap:
    panel = Panel(
        name="a < b", inputs=[0.0, 1.0], letters=[-0.5, 1.5], matrix=[[0.75, 0.25], [0.25, 0.75]]
    )
    return HeatMap(title='"P" & A', panels=[panel, panel])


def test_a_heat_map_names_itself_and_every_cell() -> None:
    tree = ElementTree.fromstring(_heat_map().svg())
    assert tree.attrib["role"] == "img"
    assert tree.attrib["aria-label"] == '"P" & A'
    titles = [title.text for title in tree.iter("title")]
    assert titles.count("P(-0.5 | x = 0) = 0.75") == 2
    assert titles.count("letter 1.5") == 2
    shades = [r.attrib["fill-opacity"] for r in tree.iter("rect") if "fill-opacity" in r.attrib]
    assert sorted(set(shades)) == ["0.333", "1.000"]


def test_a_heat_maps_table_holds_letters_and_rows() -> None:
    table = _heat_map().table()
    assert table.rows[0] == ["a < b", "letters", "-0.5", "1.5"]
    assert table.rows[2] == ["a < b", "x = 1", "0.25", "0.75"]
    assert len(table.rows) == 6


def test_a_standalone_figure_brings_its_style() -> None:
    svg = standalone(_heat_map().svg())
    tree = ElementTree.fromstring(svg)
    assert tree.tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme: dark" in svg


@pytest.mark.parametrize(
    ("value", "text"), [(1e5, "1e5"), (-2e-4, "-2e-4"), (0.5, "0.5"), (0.0, "0")]
)
def test_tick_labels_are_short(value: float, text: str) -> None:
    assert tick_label(value) == text
