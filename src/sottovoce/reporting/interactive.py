"""Charts for pages: the drawing, the data that a script reads, and the table of numbers.

The drawing needs no script. `charts.js`, which is included in pages, adds a crosshair with the
values of every series, a legend that hides series, and a switch between scales.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.core.charts.axes import dash, mark
from sottovoce.core.charts.lines import LineChart
from sottovoce.core.charts.scatter import ScatterChart
from sottovoce.core.charts.style import NUM_COLORS, content_policy

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = Path(__file__).parent
_SQUASHED = 8.0  # ratio of the largest to the smallest last value above which a linear axis is bad


def templates(*folders: Path) -> "Environment":
    """Return the jinja2 environment of the page templates.

    Values are escaped unless they are marked safe.

    Args:
        folders: Further folders with templates, which are searched first.

    Raises:
        ModuleNotFoundError: jinja2, of the extra `report`, is not installed.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FileSystemLoader([*folders, _HERE], encoding="utf-8"),
    )
    environment.globals["policy"] = content_policy
    return environment


def script() -> str:
    """Return the script that makes the charts of a page interactive; it goes at the end."""
    return (_HERE / "charts.js").read_text(encoding="utf-8")


def line_figure(
    chart: LineChart, *, identity: str, caption: str = "", log_switch: bool = False
) -> dict[str, Any]:
    """Return the data from which the template `figure.html` draws a line chart.

    Args:
        chart: The chart.
        identity: The id of the figure on the page.
        caption: The text below.
        log_switch: Whether to offer a logarithmic vertical axis in addition, if all values are
            positive.

    Returns:
        The drawings as SVG, one for each axis, the legend, the table of numbers, and the data that
        the page's script reads.
    """
    charts = [chart]
    if log_switch and all(y > 0.0 for line in chart.lines for y in line.y):
        charts = [dataclasses.replace(chart, y_log=log) for log in (False, True)]
    places = [one.pixels() for one in charts]
    grids: list[dict[str, Any]] = []
    series = []
    for number, line in enumerate(chart.lines):
        grid = {
            "x": [x for x, _ in places[0][number]],
            "at": [f"{chart.x_label} {x:.6g}" for x in line.x],
        }
        if grid not in grids:
            grids.append(grid)
        series.append(
            {
                "name": line.name,
                "color": _color(number),
                "grid": grids.index(grid),
                "y": [[y for _, y in found[number]] for found in places],
                "text": [chart.shown(y) for y in line.y],
            }
        )
    return {
        **_described(chart, identity, caption),
        "svgs": [one.svg(legend=False) for one in charts],
        "scales": ["linear", "logarithmic"] if len(charts) > 1 else [],
        "chosen": int(len(charts) > 1 and _is_squashed(chart)),
        "legend": [
            {
                "name": line.name,
                "sign": f'<line class="curve {_color(number)}" x1="0" x2="26" y1="5" y2="5" '
                f'stroke-dasharray="{dash(number)}"/>',
            }
            for number, line in enumerate(chart.lines)
        ],
        "data": {"kind": "lines", **_inside(chart), "grids": grids, "series": series},
    }


def scatter_figure(chart: ScatterChart, *, identity: str, caption: str = "") -> dict[str, Any]:
    """Return the data from which the template `figure.html` draws a scatter chart.

    Args:
        chart: The chart.
        identity: The id of the figure on the page.
        caption: The text below.

    Returns:
        The drawing as SVG, the legend, the table of numbers, and the data with which the page's
        script shows the values of the point under the pointer.
    """
    series = []
    for number, (one, points) in enumerate(zip(chart.series, chart.pixels(), strict=True)):
        texts = [
            f"{chart.x_label} {x:.4g}, {chart.y_label} {y:.4g}"
            for x, y in zip(one.x, one.y, strict=True)
        ]
        found = {"name": one.name, "color": _color(number), "points": points, "text": texts}
        series.append(found)
    return {
        **_described(chart, identity, caption),
        "svgs": [chart.svg(legend=False)],
        "scales": [],
        "chosen": 0,
        "legend": [
            {"name": one.name, "sign": mark(number, f"dot {_color(number)}", 13, 5)}
            for number, one in enumerate(chart.series)
        ],
        "data": {"kind": "points", **_inside(chart), "series": series},
    }


def _color(number: int) -> str:
    return f"c{number % NUM_COLORS}"


def _described(chart: LineChart | ScatterChart, identity: str, caption: str) -> dict[str, Any]:
    return {"id": identity, "title": chart.title, "caption": caption, "table": chart.table()}


def _inside(chart: LineChart | ScatterChart) -> dict[str, float | Sequence[float]]:
    (left, right), (bottom, top) = chart.frame.across, chart.frame.upward
    return {"width": chart.frame.width, "left": left, "right": right, "top": top, "bottom": bottom}


def _is_squashed(chart: LineChart) -> bool:
    last = [line.y[-1] for line in chart.lines]
    return max(last) > _SQUASHED * min(last)
