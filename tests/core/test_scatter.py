import itertools
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.core.charts.scatter import Level, ScatterChart, Series, frontier
from sottovoce.core.charts.style import standalone
from sottovoce.core.errors import ParameterError

numbers = st.floats(0.1, 100.0)


@given(points=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20), at=numbers)
def test_the_frontier_is_the_best_of_every_budget(
    points: list[tuple[float, float]], at: float
) -> None:
    found = frontier([x for x, _ in points], [y for _, y in points])
    assert set(found) <= set(points)
    assert all(a < c and b < d for (a, b), (c, d) in itertools.pairwise(found))
    within = [y for x, y in points if x <= at]
    assert max(within, default=None) == max((y for x, y in found if x <= at), default=None)


def _chart() -> ScatterChart:
    return ScatterChart(
        title='"A" & B',
        x_label="epsilon",
        y_label="accuracy",
        x_log=True,
        levels=[Level(name="no privacy", y=0.95)],
        series=[
            Series(
                name="a < b",
                x=[1.0, 10.0, 100.0],
                y=[0.5, 0.9, 0.8],
                low=[0.4, 0.85, 0.7],
                high=[0.6, 0.95, 0.9],
                paper_x=[10.0],
                paper_y=[0.91],
            ),
            Series(name="c", x=[10.0], y=[0.7]),
        ],
    )


def test_a_scatter_chart_is_well_formed_named_and_described() -> None:
    tree = ElementTree.fromstring(_chart().svg())
    assert tree.attrib["role"] == "img"
    assert tree.attrib["aria-label"] == '"A" & B'
    description = tree.find("desc")
    assert description is not None
    assert "accuracy by epsilon for a < b, c" in (description.text or "")
    titles = [title.text for title in tree.iter("title")]
    assert "a < b: 0.9 at 10" in titles
    assert "a < b, printed in the paper: 0.91 at 10" in titles
    texts = [text.text for text in tree.iter("text")]
    assert {"a < b", "c", "no privacy", "hollow: printed in the paper"} <= set(texts)


def test_series_differ_in_shape_and_stand_apart() -> None:
    tree = ElementTree.fromstring(_chart().svg())
    (square,) = [r for r in tree.iter("rect") if r.find("title") is not None]
    circles = [c for c in tree.iter("circle") if c.attrib["class"] == "dot c0 s0"]
    middle = circles[1].attrib["cx"]
    assert float(square.attrib["x"]) + 3 - float(middle) == pytest.approx(7.0, abs=0.02)


def test_intervals_and_frontier_are_where_the_axis_says() -> None:
    tree = ElementTree.fromstring(_chart().svg())
    whiskers = [
        line
        for line in tree.iter("line")
        if line.attrib["class"] == "whisker c0 s0" and line.attrib["x1"] == line.attrib["x2"]
    ]
    points = [c for c in tree.iter("circle") if c.attrib["class"] == "dot c0 s0"]
    for whisker, point in zip(whiskers, points[:3], strict=True):
        y = float(point.attrib["cy"])
        assert float(whisker.attrib["y2"]) < y < float(whisker.attrib["y1"])
        assert whisker.attrib["x1"] == point.attrib["cx"]
    steps = next(p for p in tree.iter("polyline") if p.attrib["class"] == "frontier c0 s0")
    corners = [tuple(map(float, pair.split(","))) for pair in steps.attrib["points"].split()]
    assert len(corners) == 4  # up once, then level to the end: the third point is below the second
    assert corners[2][1] == corners[3][1] == float(points[1].attrib["cy"])
    assert corners[3][0] == float(points[2].attrib["cx"])


def test_the_table_holds_every_number() -> None:
    table = _chart().table()
    assert table.columns == ["series", "epsilon", "accuracy", "interval", "on the frontier"]
    assert table.rows == [
        ["a < b", "1", "0.5", "0.4 to 0.6", "yes"],
        ["a < b", "10", "0.9", "0.85 to 0.95", "yes"],
        ["a < b", "100", "0.8", "0.7 to 0.9", "no"],
        ["a < b, printed", "10", "0.91", "", ""],
        ["c", "10", "0.7", "", "yes"],
        ["no privacy", "", "0.95", "", ""],
    ]


def test_a_standalone_scatter_chart_brings_its_style() -> None:
    svg = standalone(_chart().svg())
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert ".hollow.c0" in svg


def test_points_without_their_partner_are_refused() -> None:
    with pytest.raises(ParameterError, match="series 'a' must have as many x as y"):
        Series(name="a", x=[1.0], y=[])
    with pytest.raises(ParameterError, match="intervals for all points or none"):
        Series(name="a", x=[1.0, 2.0], y=[1.0, 2.0], low=[0.0], high=[1.0])


def test_without_frontiers_nothing_speaks_of_them() -> None:
    series = [Series(name="a", x=[1.0, 2.0], y=[0.1, 0.2], low=[0.0, 0.1], high=[0.2, 0.3])]
    chart = ScatterChart(title="t", x_label="x", y_label="y", series=series, frontiers="none")
    assert "frontier" not in chart.svg()
    assert "dashed" not in chart.svg()
    assert chart.table().columns == ["series", "x", "y", "interval"]
    assert chart.table().rows[0] == ["a", "1", "0.1", "0 to 0.2"]
