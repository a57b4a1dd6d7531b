"""What every chart over two axes shares: scales, ticks, grid, legend places, marks, a table."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from sottovoce.core.charts.style import NUM_COLOURS
from sottovoce.core.errors import ParameterError

WIDTH = 720
HEIGHT = 360
LEFT, RIGHT, TOP, BOTTOM = 64, 28, 16, 48
LEGEND_ROW = 20
_FLAT = 1e-6  # a range that is this part of its values is none: its ticks would all read the same
_DASHES = ("", "7 4", "2 3", "9 3 2 3")  # told apart without colour, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The size of a chart and of the margins around its curves, in pixels."""

    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = RIGHT
    top: int = TOP
    bottom: int = BOTTOM

    @property
    def across(self) -> tuple[int, int]:
        """Where the x axis begins and ends."""
        return self.left, self.width - self.right

    @property
    def upward(self) -> tuple[int, int]:
        """Where the y axis begins and ends."""
        return self.height - self.bottom, self.top


WIDE = Frame()
HALF = Frame(width=560, height=300, left=70, right=18, top=12)  # two in a row of a page


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The numbers behind a picture, as text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def show(value: float) -> str:
    """A tick's number, short enough for the margin: 1e5 and 2e-4 rather than 100000 and 0.0002."""
    if value == 0.0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:g}"
    mantissa, _, exponent = f"{value:.5e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def legend_places(names: Sequence[str]) -> list[tuple[float, int]]:
    """Where each entry goes: x in pixels and the row, filled from the left."""
    places: list[tuple[float, int]] = []
    x, row = float(LEFT), 0
    for name in names:
        width = 66.0 + 6.6 * len(name)
        if x > LEFT and x + width > WIDTH:
            x, row = float(LEFT), row + 1
        places.append((x, row))
        x += width
    return places


@dataclass(frozen=True, slots=True)
class Scale:
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
class Axis:
    """What is marked on an axis, and where."""

    ticks: Sequence[float]
    scale: Scale


def axis_of(values: Iterable[float], log: bool, start: float, end: float) -> Axis:
    """An axis that spans `values`, from pixel `start` to pixel `end`."""
    low, high = min(values := list(values)), max(values)
    if log:
        if low <= 0.0:
            raise ParameterError(f"a logarithmic axis has no place for {low:g}; use a linear one")
        first, last, marks = log_ticks(low, high)
        return Axis(marks, Scale(first, last, start, end, log=True))
    marks = ticks(low, high)
    return Axis(marks, Scale(marks[0], marks[-1], start, end))


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Round numbers that span [low, high]."""
    largest = max(abs(low), abs(high))
    if not high - low > _FLAT * largest:
        low, high = low - max(0.5, 0.05 * largest), high + max(0.5, 0.05 * largest)
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


def dash(number: int) -> str:
    """Lines of the same colour differ in dashes."""
    return _DASHES[(number + number // NUM_COLOURS) % len(_DASHES)]


def dot(number: int, x: float, y: float) -> str:
    """A point of a line; those of the same colour differ in shape."""
    return mark(number // NUM_COLOURS, f"dot {series_class(number)}", x, y)


def series_class(number: int) -> str:
    """Its colour, and a class that is the series' own."""
    return f"c{number % NUM_COLOURS} s{number}"


def mark(shape: int, style: str, x: float, y: float, name: str = "") -> str:
    """A point in one of four shapes; `name` is what it is called when asked."""
    title = f"<title>{escape(name)}</title>" if name else ""
    match shape % 4:
        case 0:
            return f'<circle class="{style}" cx="{x}" cy="{y}" r="3">{title}</circle>'
        case 1:
            place = f'x="{x - 3}" y="{y - 3}" width="6" height="6"'
            return f'<rect class="{style}" {place}>{title}</rect>'
        case 2:
            corners = f"{x},{y - 4} {x + 4},{y} {x},{y + 4} {x - 4},{y}"
        case _:
            corners = f"{x},{y - 4} {x + 4},{y + 3} {x - 4},{y + 3}"
    return f'<polygon class="{style}" points="{corners}">{title}</polygon>'


def draw_axes(x: Axis, y: Axis, x_label: str, y_label: str, frame: Frame = WIDE) -> list[str]:
    """Grid lines, the numbers beside them, and what both axes show."""
    (left, right), (bottom, top) = frame.across, frame.upward
    parts = []
    for tick in y.ticks:
        at = y.scale(tick)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{left - 8}" y="{at + 4}" text-anchor="end">{show(tick)}</text>')
    for tick in x.ticks:
        parts.append(
            f'<text x="{x.scale(tick)}" y="{bottom + 18}" text-anchor="middle">{show(tick)}</text>'
        )
    middle_x, middle_y = (left + right) / 2, (top + bottom) / 2
    parts.append(
        f'<text x="{middle_x}" y="{frame.height - 8}" text-anchor="middle">{escape(x_label)}</text>'
    )
    parts.append(
        f'<text class="upright" transform="translate(16 {middle_y}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>'
    )
    return parts
