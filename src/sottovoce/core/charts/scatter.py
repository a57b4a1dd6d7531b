"""Scatter charts as inline SVG: points with intervals, and the best y for each bound on x."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from sottovoce.core.charts.axes import (
    LEGEND_ROW,
    WIDE,
    Axis,
    ChartTable,
    Frame,
    Scale,
    axis_of,
    draw_axes,
    legend_places,
    mark,
    series_class,
)
from sottovoce.core.errors import ParameterError

Frontiers = Literal["each", "common", "none"]

_APART_PIXELS = 7  # Between adjacent series at the same x, so that no interval hides another.
_PAPER = "hollow: printed in the paper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Named points with vertical intervals.

    Attributes:
        name: Its name in the legend.
        x: The x values of its points.
        y: The y values of its points.
        low: The lower ends of the intervals, one for each point; empty for none.
        high: The upper ends of the intervals.
        paper_x: The x values of points that a paper reports, drawn hollow.
        paper_y: The y values of points that a paper reports.

    Raises:
        ParameterError: The lengths do not match.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    paper_x: Sequence[float] = ()
    paper_y: Sequence[float] = ()

    def __post_init__(self) -> None:
        pairs = [(self.x, self.y), (self.paper_x, self.paper_y), (self.low, self.high)]
        if any(len(a) != len(b) for a, b in pairs) or len(self.low) not in (0, len(self.x)):
            raise ParameterError(
                f"series '{self.name}' must have as many x as y, and intervals for all points or "
                f"none; got {len(self.x)} x, {len(self.y)} y, {len(self.low)} low, "
                f"{len(self.high)} high, {len(self.paper_x)} paper_x, {len(self.paper_y)} paper_y"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A named height to compare with, such as the accuracy without privacy."""

    name: str
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterChart:
    """Points with intervals over the same axes, with a dashed frontier.

    The frontier is the step function of the largest y among the points with at most this x.

    Attributes:
        title: The title.
        x_label: What the x axis shows.
        y_label: What the y axis shows.
        series: The points.
        levels: Heights to compare with.
        x_log: Whether the x axis is logarithmic.
        frontiers: "each" draws a frontier for each series, "common" one for all; "none" is for a y
            of which more is not better.
        frame: The size and the margins.
        apart_pixels: The horizontal distance between series at the same x.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    levels: Sequence[Level] = ()
    x_log: bool = False
    frontiers: Frontiers = "each"
    frame: Frame = WIDE
    apart_pixels: int = _APART_PIXELS

    def svg(self, *, legend: bool = True) -> str:
        """Return the chart as SVG with an accessible name, a description and named points.

        A legend is drawn below if `legend`.
        """
        x_axis, y_axis = self._axes()
        places = legend_places(self._legend_names()) if legend else []
        (left, right), width, height = self.frame.across, self.frame.width, self.frame.height
        if legend:
            height += LEGEND_ROW * (1 + places[-1][1])
        parts = [
            f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(self.title)}">',
            f"<desc>{escape(self._description())}</desc>",
            *draw_axes(x_axis, y_axis, self.x_label, self.y_label, self.frame),
        ]
        for level in self.levels:
            parts.append(_level(left, right, y_axis.scale(level.y), level.name))
        places_of_series = self._places(x_axis, y_axis)
        if self.frontiers == "common":
            everything = Series(
                name="all",
                x=[x for one in self.series for x in one.x],
                y=[y for one in self.series for y in one.y],
            )
            parts.append(_steps(everything, "common", places_of_series[0], x_axis.scale.high))
        for number, (one, place) in enumerate(zip(self.series, places_of_series, strict=True)):
            if self.frontiers == "each" and one.x:
                parts.append(_steps(one, series_class(number), place, self._end()))
            parts += _draw_series(one, number, place)
        return "\n".join([*parts, *self._legend(places), "</svg>"])

    def pixels(self) -> list[list[tuple[float, float]]]:
        """Return the (x, y) pixels of the points of each series, without those of a paper."""
        places = self._places(*self._axes())
        return [
            [place(x, y) for x, y in zip(one.x, one.y, strict=True)]
            for one, place in zip(self.series, places, strict=True)
        ]

    def _axes(self) -> tuple[Axis, Axis]:
        (left, right), (bottom, top) = self.frame.across, self.frame.upward
        xs = [x for one in self.series for x in (*one.x, *one.paper_x)]
        ys = [y for one in self.series for y in (*one.y, *one.low, *one.high, *one.paper_y)]
        return (
            axis_of(xs, self.x_log, left + 14, right - 14),
            axis_of([*ys, *(level.y for level in self.levels)], False, bottom, top),
        )

    def _end(self) -> float:
        return max(x for one in self.series for x in (*one.x, *one.paper_x))

    def _places(self, x_axis: Axis, y_axis: Axis) -> "list[_Place]":
        middle = (len(self.series) - 1) / 2.0
        return [
            _Place(x_axis.scale, y_axis.scale, self.apart_pixels * (number - middle))
            for number in range(len(self.series))
        ]

    def table(self) -> ChartTable:
        """Return a table with a row for each point, those that a paper reports and levels too.

        The columns are the series, x, y, the interval and, unless there are no frontiers, whether
        the point is on the frontier.
        """
        rows = []
        common = {
            *frontier([x for s in self.series for x in s.x], [y for s in self.series for y in s.y])
        }
        for one in self.series:
            best = common if self.frontiers == "common" else {*frontier(one.x, one.y)}
            for i, (x, y) in enumerate(zip(one.x, one.y, strict=True)):
                interval = f"{one.low[i]:.4g} to {one.high[i]:.4g}" if one.low else ""
                on = "yes" if (x, y) in best else "no"
                rows.append([one.name, f"{x:.6g}", f"{y:.4g}", interval, on])
            for x, y in zip(one.paper_x, one.paper_y, strict=True):
                rows.append([f"{one.name}, printed", f"{x:.6g}", f"{y:.4g}", "", ""])
        rows += [[level.name, "", f"{level.y:.4g}", "", ""] for level in self.levels]
        columns = ["series", self.x_label, self.y_label, "interval", "on the frontier"]
        shown = -1 if self.frontiers == "none" else len(columns)
        return ChartTable(columns=columns[:shown], rows=[row[:shown] for row in rows])

    def _has_paper(self) -> bool:
        return any(one.paper_x for one in self.series)

    def _description(self) -> str:
        names = ", ".join(one.name for one in self.series)
        steps = f"dashed steps show the best {self.y_label} at this {self.x_label} or less; "
        apart = "series stand a few pixels apart. " if self.apart_pixels else ""
        return (
            f"{self.y_label} by {self.x_label} for {names}. Bars are intervals; "
            f"{'' if self.frontiers == 'none' else steps}{apart}The table holds every number."
        )

    def _legend_names(self) -> list[str]:
        paper = [_PAPER] if self._has_paper() else []
        return [*(s.name for s in self.series), *(level.name for level in self.levels), *paper]

    def _legend(self, places: Sequence[tuple[float, int]]) -> list[str]:
        parts = []
        for number, (name, (x, row)) in enumerate(zip(self._legend_names(), places, strict=False)):
            y = self.frame.height + LEGEND_ROW * row + 8
            if number < len(self.series):
                color = series_class(number)
                steps = f'class="frontier {color}" x1="{x}" x2="{x + 34}" y1="{y}" y2="{y}"'
                parts += [f"<line {steps}/>"] if self.frontiers == "each" else []
                parts.append(mark(number, f"dot {color}", x + 17, y))
            elif number < len(self.series) + len(self.levels):
                parts.append(_level(x, x + 34, y))
            else:
                parts.append(mark(0, "hollow c0", x + 17, y))
            parts.append(f'<text x="{x + 42}" y="{y + 4}">{escape(name)}</text>')
        return parts


def frontier(x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
    """Return the points whose y exceeds that of every point with a smaller x, by increasing x.

    Of points with the same x only the highest counts. The step function through the points is
    best(t) = max {y_i : x_i <= t}.
    """
    best: list[tuple[float, float]] = []
    for point in sorted(zip(x, y, strict=True), key=lambda point: (point[0], -point[1])):
        if not best or point[1] > best[-1][1]:
            best.append(point)
    return best


@dataclass(frozen=True, slots=True)
class _Place:
    """The map from data to pixels for one series."""

    x: Scale
    y: Scale
    apart: float

    def __call__(self, x: float, y: float) -> tuple[float, float]:
        return round(self.x(x) + self.apart, 2), self.y(y)


def _level(start: float, end: float, y: float, name: str = "") -> str:
    title = f"<title>{escape(name)}</title>" if name else ""
    return f'<line class="level" x1="{start}" x2="{end}" y1="{y}" y2="{y}">{title}</line>'


def _draw_series(one: Series, number: int, place: _Place) -> list[str]:
    """Draw intervals, the paper's values, and the points on top."""
    color = series_class(number)
    parts = []
    for x, low, high in zip(one.x, one.low, one.high, strict=False):
        (at, bottom), (_, top) = place(x, low), place(x, high)
        for a, b, y1, y2 in ((0, 0, bottom, top), (-3, 3, bottom, bottom), (-3, 3, top, top)):
            ends = f'x1="{at + a}" x2="{at + b}" y1="{y1}" y2="{y2}"'
            parts.append(f'<line class="whisker {color}" {ends}/>')
    for x, y in zip(one.paper_x, one.paper_y, strict=True):
        name = f"{one.name}, printed in the paper: {y:.4g} at {x:.4g}"
        parts.append(mark(number, f"hollow {color}", *place(x, y), name))
    for x, y in zip(one.x, one.y, strict=True):
        parts.append(mark(number, f"dot {color}", *place(x, y), f"{one.name}: {y:.4g} at {x:.4g}"))
    return parts


def _steps(one: Series, color: str, place: _Place, end: float) -> str:
    corners: list[tuple[float, float]] = []
    for x, y in frontier(one.x, one.y):
        if corners:
            corners.append(place(x, 0.0)[:1] + corners[-1][1:])
        corners.append(place(x, y))
    corners.append(place(end, 0.0)[:1] + corners[-1][1:])
    points = " ".join(f"{x},{y}" for x, y in corners)
    return f'<polyline class="frontier {color}" points="{points}"/>'
