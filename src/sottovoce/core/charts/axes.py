"""The parts that charts with two axes share: scales, ticks, grid, legend, marks, a table."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from sottovoce.core.charts.style import NUM_COLORS
from sottovoce.core.errors import ParameterError

WIDTH = 720
HEIGHT = 360
LEFT, RIGHT, TOP, BOTTOM = 64, 28, 16, 48
LEGEND_ROW = 20
_FLAT = 1e-6  # A relatively smaller range is widened: the labels of its ticks would be equal.
_DASHES = ("", "7 4", "2 3", "9 3 2 3")  # These distinguish lines also without color.


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
        """The x coordinates of the left and the right end of the x axis, in pixels."""
        return self.left, self.width - self.right

    @property
    def upward(self) -> tuple[int, int]:
        """The y coordinates of the lower and upper end of the y axis, in pixels from the top."""
        return self.height - self.bottom, self.top


WIDE = Frame()
HALF = Frame(width=560, height=300, left=70, right=18, top=12)  # Two of these fit in a row.


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartTable:
    """The numbers behind a picture, as text.

    Attributes:
        columns: The headings.
        rows: The cells of each row, one for each heading.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tick_label(value: float) -> str:
    """Return the label of a tick, short enough for the margin: 1e5 rather than 100000."""
    if value == 0.0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:g}"
    mantissa, _, exponent = f"{value:.5e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def legend_places(names: Sequence[str]) -> list[tuple[float, int]]:
    """Return the position of each entry of a legend: (x in pixels, number of its row from 0).

    Entries fill a row from left to right; the next one begins where a name would not fit.
    """
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
    """A map from data to pixels, linear or logarithmic; call it with a value.

    Attributes:
        low: The value that is drawn at pixel `start`.
        high: The value that is drawn at pixel `end`.
        start: The pixel at which the axis begins.
        end: The pixel at which the axis ends.
        log: Whether the map is logarithmic; values below `low` are then drawn at `start`.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value = max(value, low)  # Only bands reach below the axis.
            value, low, high = math.log(value), math.log(low), math.log(high)
        fraction = (value - low) / (high - low)
        return round(self.start + fraction * (self.end - self.start), 2)


@dataclass(frozen=True, slots=True)
class Axis:
    """The ticks of an axis, as values of the data, and its scale."""

    ticks: Sequence[float]
    scale: Scale


def axis_of(values: Iterable[float], log: bool, start: float, end: float) -> Axis:
    """Return an axis that spans `values`, from pixel `start` to pixel `end`, with round ticks.

    Args:
        values: At least one value.
        log: Whether the axis is logarithmic.
        start: The pixel of the smaller end.
        end: The pixel of the larger end.

    Raises:
        ParameterError: The axis is logarithmic and a value is not positive.
    """
    low, high = min(values := list(values)), max(values)
    if log:
        if low <= 0.0:
            raise ParameterError(
                f"values on a logarithmic axis must be positive, got {low:g}; use a linear axis"
            )
        first, last, marks = log_ticks(low, high)
        return Axis(marks, Scale(first, last, start, end, log=True))
    marks = ticks(low, high)
    return Axis(marks, Scale(marks[0], marks[-1], start, end))


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Return increasing round numbers, about `count`, the first <= low and the last >= high.

    Their distance is 1, 2, 2.5 or 5 times a power of ten.
    """
    largest = max(abs(low), abs(high))
    if not high - low > _FLAT * largest:
        low, high = low - max(0.5, 0.05 * largest), high + max(0.5, 0.05 * largest)
    raw = (high - low) / (count - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int = 8) -> tuple[float, float, list[float]]:
    """Return both ends of a logarithmic axis that spans [low, high], and its ticks.

    Args:
        low: The smallest value, above 0.
        high: The largest value.
        count: The most ticks of the form 1, 2 or 5 times a power of ten; if there would be more,
            only powers of ten are ticks.

    Returns:
        (lower end, upper end, ticks); the ends are 1, 2 or 5 times a power of ten, or half or twice
        that if all values are equal.
    """
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
    """Return the SVG dash pattern of line number `number`, from 0; "" for a solid line.

    The first four lines of the same color have different patterns.
    """
    return _DASHES[(number + number // NUM_COLORS) % len(_DASHES)]


def dot(number: int, x: float, y: float) -> str:
    """Return a point at pixel (x, y) as SVG, in the color of line number `number`, from 0.

    The first four lines of the same color have points of different shapes.
    """
    return mark(number // NUM_COLORS, f"dot {series_class(number)}", x, y)


def series_class(number: int) -> str:
    """Return the CSS classes of series `number`, from 0: "c1 s9" is color 1 of 8 and series 9."""
    return f"c{number % NUM_COLORS} s{number}"


def mark(shape: int, style: str, x: float, y: float, name: str = "") -> str:
    """Return a point at pixel (x, y) as SVG.

    Args:
        shape: A number whose remainder by 4 means a circle, square, diamond or triangle.
        style: The CSS classes.
        x: The horizontal pixel of the center.
        y: The vertical pixel of the center.
        name: The tooltip; none if empty.
    """
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
    """Return horizontal grid lines and the labels of ticks and axes, as SVG elements."""
    (left, right), (bottom, top) = frame.across, frame.upward
    parts = []
    for tick in y.ticks:
        at = y.scale(tick)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{at}" y2="{at}"/>')
        parts.append(
            f'<text x="{left - 8}" y="{at + 4}" text-anchor="end">{tick_label(tick)}</text>'
        )
    for tick in x.ticks:
        parts.append(
            f'<text x="{x.scale(tick)}" y="{bottom + 18}" text-anchor="middle">'
            f"{tick_label(tick)}</text>"
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
