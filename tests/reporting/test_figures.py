import itertools
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.reporting.figures import Line, LineChart, ticks


@given(low=st.floats(-1e6, 1e6), width=st.floats(1e-6, 1e6))
def test_ticks_are_increasing_and_span_the_data(low: float, width: float) -> None:
    high = low + width
    found = ticks(low, high)
    slack = 1e-6 * width + 1e-9
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert all(a < b for a, b in itertools.pairwise(found))
    assert 2 <= len(found) <= 12


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_a_flat_line_still_has_an_axis(value: float) -> None:
    assert len(ticks(value, value)) >= 2


def test_a_chart_is_well_formed_and_escapes_what_it_is_given() -> None:
    line = Line(name="a < b & c", x=[1, 2], y=[0.5, 0.6], low=[0.4, 0.5], high=[0.6, 0.7])
    chart = LineChart(title='"quoted" <title>', x_label="x", y_label="y", lines=[line])
    tree = ElementTree.fromstring(chart.svg())
    assert tree.attrib["role"] == "img"
    assert tree.attrib["aria-label"] == '"quoted" <title>'
    assert "a < b & c" in [text.text for text in tree.iter("text")]
