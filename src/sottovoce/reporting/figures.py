"""Line charts as inline SVG: no script, no network, readable in light and dark."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 48
_DASHES = ("", "7 4", "2 3", "9 3 2 3")  # told apart without colour, too


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
    """Several curves over one axis."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]

    def svg(self) -> str:
        """The chart, with an accessible name and a legend."""
        xs = [value for line in self.lines for value in line.x]
        ys = [
            value for line in self.lines for part in (line.y, line.low, line.high) for value in part
        ]
        x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
        x_scale = _Scale(x_ticks[0], x_ticks[-1], _LEFT, _WIDTH - _RIGHT)
        y_scale = _Scale(y_ticks[0], y_ticks[-1], _HEIGHT - _BOTTOM, _TOP)
        parts = [
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(self.title)}">',
            *self._axes(x_scale, y_scale, x_ticks, y_ticks),
        ]
        for number, line in enumerate(self.lines):
            parts += _curve(line, number, x_scale, y_scale)
        parts += [*self._legend(), "</svg>"]
        return "\n".join(parts)

    def _axes(
        self, x: "_Scale", y: "_Scale", x_ticks: Sequence[float], y_ticks: Sequence[float]
    ) -> list[str]:
        bottom = _HEIGHT - _BOTTOM
        parts = []
        for tick in y_ticks:
            at = y(tick)
            parts.append(
                f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>'
            )
            parts.append(f'<text x="{_LEFT - 8}" y="{at + 4}" text-anchor="end">{tick:g}</text>')
        for tick in x_ticks:
            parts.append(
                f'<text x="{x(tick)}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>'
            )
        middle_x, middle_y = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + bottom) / 2
        parts.append(
            f'<text x="{middle_x}" y="{_HEIGHT - 8}" text-anchor="middle">'
            f"{escape(self.x_label)}</text>"
        )
        parts.append(
            f'<text transform="translate(16 {middle_y}) rotate(-90)" text-anchor="middle">'
            f"{escape(self.y_label)}</text>"
        )
        return parts

    def _legend(self) -> list[str]:
        parts = []
        for number, line in enumerate(self.lines):
            y = _HEIGHT - _BOTTOM - 18 * (len(self.lines) - number) + 4
            x = _WIDTH - _RIGHT - 190
            parts.append(
                f'<line class="curve c{number}" x1="{x}" x2="{x + 34}" y1="{y}" y2="{y}" '
                f'stroke-dasharray="{_dash(number)}"/>'
                f'<text x="{x + 42}" y="{y + 4}">{escape(line.name)}</text>'
            )
        return parts


@dataclass(frozen=True, slots=True)
class _Scale:
    """An affine map from data to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        fraction = (value - self.low) / (self.high - self.low)
        return round(self.start + fraction * (self.end - self.start), 2)


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Round numbers that span [low, high]."""
    if not high > low:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / (count - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _dash(number: int) -> str:
    return _DASHES[number % len(_DASHES)]


def _curve(line: Line, number: int, x: _Scale, y: _Scale) -> list[str]:
    def path(values: Sequence[float], *, backwards: bool = False) -> str:
        points = [f"{x(a)},{y(b)}" for a, b in zip(line.x, values, strict=True)]
        return " ".join(reversed(points) if backwards else points)

    parts = []
    if line.low and line.high:
        band = f"{path(line.high)} {path(line.low, backwards=True)}"
        parts.append(f'<polygon class="band c{number}" points="{band}"/>')
    parts.append(
        f'<polyline class="curve c{number}" stroke-dasharray="{_dash(number)}" '
        f'points="{path(line.y)}"/>'
    )
    return parts
