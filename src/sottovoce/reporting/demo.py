"""The demo's report: one page, no network, a table behind every picture."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sottovoce.files import write_atomic
from sottovoce.privacy.accounting import show_epsilon
from sottovoce.reporting.figures import Line, LineChart
from sottovoce.reporting.style import PAGE

_TEMPLATE = Path(__file__).with_name("demo.html")


def write_report(demo: Mapping[str, Any], path: Path) -> Path:
    """Write the page and return its path."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["epsilon"] = lambda value: show_epsilon(value, 3)
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    private = [row for row in demo["variants"] if row["private"]]
    page = template.render(
        style=PAGE,
        demo=demo,
        variants=demo["variants"],
        comparison=demo["comparison"],
        private=private,
        favourite=next(r for r in private if r["variant"] == demo["comparison"]["favourite"]),
        accuracy=_accuracy_chart(demo).svg(),
        epsilon=_epsilon_chart(private).svg(),
    )
    write_atomic(path, page.encode())
    return path


def _accuracy_chart(demo: Mapping[str, Any]) -> LineChart:
    return LineChart(
        title="Test accuracy by round: mean over seeds, band from lowest to highest",
        x_label="round",
        y_label="test accuracy",
        lines=[
            Line(
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
        lines=[
            Line(
                name=row["variant"],
                x=[point["round"] for point in row["curve"]],
                y=[point["epsilon"] for point in row["curve"]],
            )
            for row in private
        ],
    )
