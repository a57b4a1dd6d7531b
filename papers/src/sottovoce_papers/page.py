"""The HTML page of an experiment: the claim, what was measured, and a table for each picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.core.charts.grids import HeatMap, ImageGrid
from sottovoce.core.charts.lines import LineChart
from sottovoce.core.charts.scatter import ScatterChart
from sottovoce.core.charts.style import PAGE
from sottovoce.reporting.interactive import templates

Chart = LineChart | HeatMap | ScatterChart | ImageGrid


def render_page(result: Mapping[str, Any], charts: Sequence[Chart]) -> str:
    """Return one self-contained HTML page from the contents of data.json and the charts."""
    environment = templates(Path(__file__).parent)
    environment.filters["cell"] = show_cell
    template = environment.get_template("experiment.html")
    figures = [
        {
            "title": chart.title,
            "caption": described["caption"],
            "svg": chart.svg(),
            "table": chart.table(),
        }
        for described, chart in zip(result["figures"], charts, strict=True)
    ]
    return template.render(style=PAGE, result=result, figures=figures)


def show_cell(value: object) -> str:
    """Return a cell of a table as text: numbers with four significant digits, strings unchanged."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case _:
            return str(value)
