"""Line charts as inline SVG: no script, no network, readable in light and dark."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from sottovoce.errors import ParameterError
from sottovoce.reporting.style import NUM_COLOURS

WIDTH = 720
_HEIGHT = 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 28, 16, 48
_LEGEND_ROW = 20
_DASHES = ("", "7 4", "2 3", "9 3 2 3")  # told apart without colour, too
_FEW_POINTS = 12  # up to here each point gets a dot


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The numbers behind a picture, as text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A named curve; `low` and `high` draw a band around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """Several curves over one axis; the legend stands below, where no curve is."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    x_log: bool = False
    y_log: bool = False

    def svg(self) -> str:
        """The chart, with an accessible name and a legend."""
        xs = [value for line in self.lines for value in line.x]
        ys = [value for line in self.lines for value in line.y]
        bands = [value for line in self.lines for part in (line.low, line.high) for value in part]
        if self.y_log:  # a band may reach 0; it is drawn down to the axis
            bands = [value for value in bands if value >= min(ys) / 10.0]
        x_axis = _axis(xs, self.x_log, _LEFT, WIDTH - _RIGHT)
        y_axis = _axis(ys + bands, self.y_log, _HEIGHT - _BOTTOM, _TOP)
        places = _legend_places([line.name for line in self.lines])
        height = _HEIGHT + _LEGEND_ROW * (1 + places[-1][1])
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(self.title)}">',
            *self._axes(x_axis, y_axis),
        ]
        for number, line in enumerate(self.lines):
            parts += _curve(line, number, x_axis.scale, y_axis.scale)
        parts += [*self._legend(places), "</svg>"]
        return "\n".join(parts)

    def table(self) -> Table:
        """One row for each x, one column for each curve; bands in brackets."""
        cells: dict[float, dict[str, str]] = {}
        for line in self.lines:
            for i, (x, y) in enumerate(zip(line.x, line.y, strict=True)):
                band = f" ({line.low[i]:.4g} to {line.high[i]:.4g})" if line.low else ""
                cells.setdefault(x, {})[line.name] = f"{y:.4g}{band}"
        names = [line.name for line in self.lines]
        return Table(
            columns=[self.x_label, *names],
            rows=[[f"{x:.6g}", *(cells[x].get(name, "") for name in names)] for x in sorted(cells)],
        )

    def _axes(self, x: "_Axis", y: "_Axis") -> list[str]:
        bottom = _HEIGHT - _BOTTOM
        parts = []
        for tick in y.ticks:
            at = y.scale(tick)
            parts.append(
                f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>'
            )
            parts.append(
                f'<text x="{_LEFT - 8}" y="{at + 4}" text-anchor="end">{show(tick)}</text>'
            )
        for tick in x.ticks:
            parts.append(
                f'<text x="{x.scale(tick)}" y="{bottom + 18}" text-anchor="middle">'
                f"{show(tick)}</text>"
            )
        middle_x, middle_y = (_LEFT + WIDTH - _RIGHT) / 2, (_TOP + bottom) / 2
        parts.append(
            f'<text x="{middle_x}" y="{_HEIGHT - 8}" text-anchor="middle">'
            f"{escape(self.x_label)}</text>"
        )
        parts.append(
            f'<text transform="translate(16 {middle_y}) rotate(-90)" text-anchor="middle">'
            f"{escape(self.y_label)}</text>"
        )
        return parts

    def _legend(self, places: Sequence[tuple[float, int]]) -> list[str]:
        parts = []
        for number, (line, (x, row)) in enumerate(zip(self.lines, places, strict=True)):
            y = _HEIGHT + _LEGEND_ROW * row + 8
            parts.append(
                f'<line class="curve c{number % NUM_COLOURS}" x1="{x}" x2="{x + 34}" y1="{y}" '
                f'y2="{y}" stroke-dasharray="{_dash(number)}"/>'
                f'<text x="{x + 42}" y="{y + 4}">{escape(line.name)}</text>'
            )
            if len(line.x) <= _FEW_POINTS:
                parts.append(_dot(number, x + 17, y))
        return parts


def show(value: float) -> str:
    """A tick's number, short enough for the margin: 1e5 and 2e-4 rather than 100000 and 0.0002."""
    if value == 0.0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:g}"
    mantissa, _, exponent = f"{value:.5e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def _legend_places(names: Sequence[str]) -> list[tuple[float, int]]:
    """Where each entry goes: x in pixels and the row, filled from the left."""
    places: list[tuple[float, int]] = []
    x, row = float(_LEFT), 0
    for name in names:
        width = 66.0 + 6.6 * len(name)
        if x > _LEFT and x + width > WIDTH:
            x, row = float(_LEFT), row + 1
        places.append((x, row))
        x += width
    return places


@dataclass(frozen=True, slots=True)
class _Scale:
    """A map from data to pixels, affine or in the logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value = max(value, low)  # only bands reach below the axis
            value, low, high = math.log(value), math.log(low), math.log(high)
        fraction = (value - low) / (high - low)
        return round(self.start + fraction * (self.end - self.start), 2)


@dataclass(frozen=True, slots=True)
class _Axis:
    ticks: Sequence[float]
    scale: _Scale


def _axis(values: Iterable[float], log: bool, start: float, end: float) -> _Axis:
    low, high = min(values := list(values)), max(values)
    if log:
        if low <= 0.0:
            raise ParameterError(f"a logarithmic axis has no place for {low:g}; use a linear one")
        first, last, marks = log_ticks(low, high)
        return _Axis(marks, _Scale(first, last, start, end, log=True))
    marks = ticks(low, high)
    return _Axis(marks, _Scale(marks[0], marks[-1], start, end))


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Round numbers that span [low, high]."""
    if not high > low:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / (count - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int = 8) -> tuple[float, float, list[float]]:
    """Both ends of an axis that spans [low, high] in steps 1-2-5, and what to mark on it."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = [float(f"{m}e{decade}") for decade in decades for m in (1, 2, 5)]
    first = max(step for step in steps if step <= low * (1.0 + 1e-9))
    last = min(step for step in steps if step >= high * (1.0 - 1e-9))
    if first == last:
        first, last = first / 2.0, last * 2.0
    marks = [step for step in steps if first <= step <= last]
    if len(marks) > count:
        marks = [step for step in marks if f"{step:e}".startswith("1.0")]
    return first, last, marks


def _dash(number: int) -> str:
    """Lines of the same colour differ in dashes."""
    return _DASHES[(number + number // NUM_COLOURS) % len(_DASHES)]


def _dot(number: int, x: float, y: float) -> str:
    """A point of a line; those of the same colour differ in shape."""
    style = f'class="dot c{number % NUM_COLOURS}"'
    match number // NUM_COLOURS % 3:
        case 0:
            return f'<circle {style} cx="{x}" cy="{y}" r="3"/>'
        case 1:
            return f'<rect {style} x="{x - 3}" y="{y - 3}" width="6" height="6"/>'
        case _:
            corners = f"{x},{y - 4} {x + 4},{y} {x},{y + 4} {x - 4},{y}"
            return f'<polygon {style} points="{corners}"/>'


def _curve(line: Line, number: int, x: _Scale, y: _Scale) -> list[str]:
    def points(values: Sequence[float]) -> list[str]:
        return [f"{x(a)},{y(b)}" for a, b in zip(line.x, values, strict=True)]

    colour = f"c{number % NUM_COLOURS}"
    parts = []
    if line.low and line.high:
        band = " ".join([*points(line.high), *reversed(points(line.low))])
        parts.append(f'<polygon class="band {colour}" points="{band}"/>')
    parts.append(
        f'<polyline class="curve {colour}" stroke-dasharray="{_dash(number)}" '
        f'points="{" ".join(points(line.y))}"/>'
    )
    if len(line.x) <= _FEW_POINTS:
        parts += [_dot(number, x(a), y(b)) for a, b in zip(line.x, line.y, strict=True)]
    return parts
