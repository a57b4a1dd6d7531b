"""Line charts as inline SVG, without scripts or network, readable in light and dark themes."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, assert_never

from sottovoce.core.charts.axes import (
    LEGEND_ROW,
    WIDE,
    Axis,
    ChartTable,
    Frame,
    Scale,
    axis_of,
    dash,
    dot,
    draw_axes,
    legend_places,
    series_class,
)
from sottovoce.core.display import show_epsilon

_FEW_POINTS = 12  # Curves with at most this many points get a dot at each of them.

Quantity = Literal["number", "epsilon", "bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """A named curve.

    Attributes:
        name: Its name in the legend.
        x: The x values of its points.
        y: The y values of its points.
        low: The lower end of a band around it, for each point; empty for no band.
        high: The upper end of the band.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """Several curves over the same axes, with the legend below, where it covers no curve.

    A chart is plain data, so that results can store it.

    Attributes:
        title: The title.
        x_label: What the x axis shows.
        y_label: What the y axis shows.
        lines: The curves.
        x_log: Whether the x axis is logarithmic.
        y_log: Whether the y axis is logarithmic.
        frame: The size and the margins.
        quantity: What y is, and so how the table writes it; an epsilon is rounded up.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[ChartLine]
    x_log: bool = False
    y_log: bool = False
    frame: Frame = WIDE
    quantity: Quantity = "number"

    def svg(self, *, legend: bool = True) -> str:
        """Return the chart as SVG with an accessible name, and with a legend below if `legend`."""
        x_axis, y_axis = self._axes()
        places = legend_places([line.name for line in self.lines]) if legend else []
        width, height = self.frame.width, self.frame.height
        if legend:
            height += LEGEND_ROW * (1 + places[-1][1])
        parts = [
            f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(self.title)}">',
            *draw_axes(x_axis, y_axis, self.x_label, self.y_label, self.frame),
        ]
        for number, line in enumerate(self.lines):
            parts += _curve(line, number, x_axis.scale, y_axis.scale)
        parts += [*self._legend(places), "</svg>"] if legend else ["</svg>"]
        return "\n".join(parts)

    def shown(self, value: float) -> str:
        """Return a y value as the table writes it.

        4 significant digits for a number, whole bytes, and an epsilon as `show_epsilon` writes it.
        """
        match self.quantity:
            case "number":
                return f"{value:.4g}"
            case "epsilon":
                return show_epsilon(value)
            case "bytes":
                return f"{value:,.0f}"
            case _:
                assert_never(self.quantity)

    def pixels(self) -> list[list[tuple[float, float]]]:
        """Return the (x, y) pixels of the points of each line, in the order of `lines`."""
        x, y = (axis.scale for axis in self._axes())
        return [[(x(a), y(b)) for a, b in zip(line.x, line.y, strict=True)] for line in self.lines]

    def _axes(self) -> tuple[Axis, Axis]:
        xs = [value for line in self.lines for value in line.x]
        ys = [value for line in self.lines for value in line.y]
        bands = [value for line in self.lines for part in (line.low, line.high) for value in part]
        if self.y_log:  # A band may reach 0; it is drawn down to the axis.
            bands = [value for value in bands if value >= min(ys) / 10.0]
        return (
            axis_of(xs, self.x_log, *self.frame.across),
            axis_of(ys + bands, self.y_log, *self.frame.upward),
        )

    def table(self) -> ChartTable:
        """Return a table with a row for each x, in order, and a column for each curve.

        A cell has the y value and the band, and is empty where a curve has no point.
        """
        cells: dict[float, dict[str, str]] = {}
        for line in self.lines:
            for i, (x, y) in enumerate(zip(line.x, line.y, strict=True)):
                band = ""
                if line.low:
                    band = f" ({self.shown(line.low[i])} to {self.shown(line.high[i])})"
                cells.setdefault(x, {})[line.name] = f"{self.shown(y)}{band}"
        names = [line.name for line in self.lines]
        return ChartTable(
            columns=[self.x_label, *names],
            rows=[[f"{x:.6g}", *(cells[x].get(name, "") for name in names)] for x in sorted(cells)],
        )

    def _legend(self, places: Sequence[tuple[float, int]]) -> list[str]:
        parts = []
        for number, (line, (x, row)) in enumerate(zip(self.lines, places, strict=True)):
            y = self.frame.height + LEGEND_ROW * row + 8
            parts.append(
                f'<line class="curve {series_class(number)}" x1="{x}" x2="{x + 34}" y1="{y}" '
                f'y2="{y}" stroke-dasharray="{dash(number)}"/>'
                f'<text x="{x + 42}" y="{y + 4}">{escape(line.name)}</text>'
            )
            if len(line.x) <= _FEW_POINTS:
                parts.append(dot(number, x + 17, y))
        return parts


def _curve(line: ChartLine, number: int, x: Scale, y: Scale) -> list[str]:
    def points(values: Sequence[float]) -> list[str]:
        return [f"{x(a)},{y(b)}" for a, b in zip(line.x, values, strict=True)]

    color = series_class(number)
    parts = []
    if line.low and line.high:
        band = " ".join([*points(line.high), *reversed(points(line.low))])
        parts.append(f'<polygon class="band {color}" points="{band}"/>')
    parts.append(
        f'<polyline class="curve {color}" stroke-dasharray="{dash(number)}" '
        f'points="{" ".join(points(line.y))}"/>'
    )
    if len(line.x) <= _FEW_POINTS:
        parts += [dot(number, x(a), y(b)) for a, b in zip(line.x, line.y, strict=True)]
    return parts
