"""The page of the demo: one file that needs no network, with a table for every chart."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sottovoce.core.charts.lines import ChartLine, LineChart
from sottovoce.core.charts.style import PAGE
from sottovoce.core.display import show_epsilon
from sottovoce.core.files import write_atomic
from sottovoce.reporting.interactive import line_figure, script, templates


def write_report(demo: Mapping[str, Any], path: Path) -> Path:
    """Write the page about the demo as one HTML file.

    Args:
        demo: The demo's result, as `runs.demo.run_demo` returns it.
        path: The HTML file to write; an existing one is replaced.

    Returns:
        `path`.
    """
    environment = templates()
    environment.filters["epsilon"] = lambda value: show_epsilon(value, 3)
    template = environment.get_template("demo.html")
    private = [row for row in demo["variants"] if row["private"]]
    page = template.render(
        style=PAGE,
        script=script(),
        demo=demo,
        variants=demo["variants"],
        comparison=demo["comparison"],
        private=private,
        compared=next(r for r in private if r["variant"] == demo["comparison"]["favourite"]),
        accuracy=line_figure(
            _accuracy_chart(demo),
            identity="accuracy",
            caption="Mean over seeds; the band runs from the lowest to the highest seed.",
        ),
        epsilon=line_figure(
            _epsilon_chart(private),
            identity="epsilon",
            caption="Epsilon of the client that has spent most, by the accountant with the "
            "smallest bound.",
        ),
    )
    write_atomic(path, page.encode())
    return path


def _accuracy_chart(demo: Mapping[str, Any]) -> LineChart:
    return LineChart(
        title="Test accuracy by round: mean over seeds, band from lowest to highest",
        x_label="round",
        y_label="test accuracy",
        lines=[
            ChartLine(
                name=row["variant"],
                x=[point["round"] for point in row["curve"]],
                y=[point["accuracy_mean"] for point in row["curve"]],
                low=[point["accuracy_low"] for point in row["curve"]],
                high=[point["accuracy_high"] for point in row["curve"]],
            )
            for row in demo["variants"]
        ],
    )


def _epsilon_chart(private: list[Any]) -> LineChart:
    return LineChart(
        title="Epsilon spent by round, largest over clients",
        x_label="round",
        y_label="epsilon",
        quantity="epsilon",
        lines=[
            ChartLine(
                name=f"{row['variant']} ({row['accountant']})",
                x=[point["round"] for point in row["curve"]],
                y=[point["epsilon"] for point in row["curve"]],
            )
            for row in private
        ],
    )
