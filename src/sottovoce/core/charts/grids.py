"""Heat maps and grids of pictures as inline SVG.

A cell of a heat map shows its value by opacity: mechanism matrices, with their output values below,
or maps. Each picture has a caption and is embedded as a PNG data URI, so that a page needs no other
file. The PNG is encoded here, without a library.

Reference: ISO/IEC 15948 (PNG), clauses 5 and 11.
"""

import base64
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.charts.axes import WIDTH, ChartTable, tick_label
from sottovoce.core.errors import ParameterError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOR_TYPES = {1: 0, 3: 2}  # PNG color types by the number of channels: gray, RGB.


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return an image of bytes (height, width, 1 or 3 channels) as the content of a PNG file.

    One channel is gray, three are red, green and blue.
    """
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    # Each line starts with its filter; 0 means none.
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    return b"".join(
        [
            _SIGNATURE,
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(lines, 9)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def data_uri(image: NDArray[Any]) -> str:
    """Return an image (1 or 3 channels, height, width) as a PNG data URI for a page.

    -1/2 is black and 1/2 is full brightness; values outside are clipped. ParameterError is raised
    for any other shape.
    """
    if image.ndim != 3 or len(image) not in _COLOR_TYPES:
        raise ParameterError(
            f"a picture must have the shape (1 or 3 channels, height, width), got {image.shape}; "
            "data of other shapes cannot be drawn"
        )
    scaled = np.clip((np.moveaxis(image, 0, -1) + 0.5) * 255.0, 0.0, 255.0)
    pixels = np.ascontiguousarray(scaled.round().astype(np.uint8))
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode()


_LEFT, _IMAGE_TOP, _IMAGE_GAP, _CAPTION = 16, 30, 12, 20
_NAMES_WIDTH = 120
_LARGEST_SIDE = 112.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture, drawn in a square.

    Attributes:
        source: The data URI.
        caption: The text below it.
    """

    source: str
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureRow:
    """One row of an `ImageGrid`.

    Attributes:
        name: The name of the row, drawn at its left.
        pictures: The pictures (`Picture`) from left to right, exactly one for each column of the
            grid; with another number `ImageGrid.svg` raises ValueError.
    """

    name: str
    pictures: Sequence[Picture]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageGrid:
    """A grid of pictures with a name above each column.

    Attributes:
        title: The accessible name of the whole figure.
        columns: The names of the columns.
        rows: The rows from top to bottom.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[PictureRow]

    def svg(self) -> str:
        """Return the figure as SVG, with an accessible name for the whole and for each picture."""
        side = (WIDTH - _LEFT - _NAMES_WIDTH) / len(self.columns) - _IMAGE_GAP
        side = min(side, _LARGEST_SIDE)
        block = side + _CAPTION + _IMAGE_GAP
        height = _IMAGE_TOP + block * len(self.rows)
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(self.title)}">'
        ]
        for number, column in enumerate(self.columns):
            middle = _place(number, side) + side / 2.0
            parts.append(
                f'<text class="name" x="{middle:.1f}" y="18" text-anchor="middle">'
                f"{escape(column)}</text>"
            )
        for number, row in enumerate(self.rows):
            parts += self._row(row, side, _IMAGE_TOP + number * block)
        parts.append("</svg>")
        return "\n".join(parts)

    def table(self) -> ChartTable:
        """Return the captions as a table, for readers who do not see the figure.

        Returns:
            A row for each row of pictures: its name, then the caption of each picture.
        """
        return ChartTable(
            columns=["row", *self.columns],
            rows=[[row.name, *(picture.caption for picture in row.pictures)] for row in self.rows],
        )

    def _row(self, row: PictureRow, side: float, y: float) -> list[str]:
        parts = [
            f'<text class="name" x="{_LEFT}" y="{y + side / 2.0:.1f}">{escape(row.name)}</text>'
        ]
        for number, (column, picture) in enumerate(zip(self.columns, row.pictures, strict=True)):
            x = _place(number, side)
            place = f'x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}"'
            name = escape(": ".join(filter(None, (f"{row.name}, {column}", picture.caption))))
            parts += [
                f'<image {place} href="{picture.source}" image-rendering="pixelated">'
                f"<title>{name}</title></image>",
                f'<rect class="frame" {place}/>',
                f'<text x="{x + side / 2.0:.1f}" y="{y + side + 15:.1f}" text-anchor="middle">'
                f"{escape(picture.caption)}</text>",
            ]
        return parts


def _place(column: int, side: float) -> float:
    return _LEFT + _NAMES_WIDTH + column * (side + _IMAGE_GAP)


_GAP, _TOP, _STRIP = 28, 40, 58
_COLUMNS = 5
_MOST_NAMED_CELLS = 256  # The cells of a larger matrix get no accessible names of their own.


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The matrix of a mechanism with finitely many inputs and outputs.

    Attributes:
        name: The name above it.
        inputs: The inputs, one for each row.
        letters: The output values, one for each column.
        matrix: Row i has the probabilities of the outputs for the input inputs[i].
    """

    name: str
    inputs: Sequence[float]
    letters: Sequence[float]
    matrix: Sequence[Sequence[float]]

    def named_rows(self) -> Iterator[tuple[str, Sequence[float]]]:
        """Yield (name, numbers) of each row of the table.

        The first is ("letters", the output values), then a row of the matrix for each input x.
        """
        yield "letters", self.letters
        for x, row in zip(self.inputs, self.matrix, strict=True):
            yield f"x = {x:.4g}", row

    def cell_name(self, i: int, j: int) -> str:
        """Return the accessible name of cell (i, j): "P(output j | x = input i) = probability"."""
        given = f"{self.letters[j]:.3g} | x = {self.inputs[i]:.3g}"
        return f"P({given}) = {self.matrix[i][j]:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MapPanel:
    """A map that shows the share of people in each cell.

    Attributes:
        name: The name above it.
        matrix: The shares, row by row; the first row is the northernmost.
    """

    name: str
    matrix: Sequence[Sequence[float]]

    def named_rows(self) -> Iterator[tuple[str, Sequence[float]]]:
        """Yield (name, shares) of each row of the map, from north to south."""
        for number, row in enumerate(self.matrix, start=1):
            yield f"row {number} from the north", row

    def cell_name(self, i: int, j: int) -> str:
        """Return the accessible name of a cell: its position, counted from 1, and its share."""
        return f"row {i + 1} from the north, column {j + 1}: {self.matrix[i][j]:.2%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """A figure of matrices next to each other, whose cells are more opaque the larger their value.

    In each matrix the cell with the largest value is fully opaque, and 0 is transparent.
    Below the matrix of a mechanism, its output values are ticks on a line, on which the interval of
    the inputs is drawn thick.

    Attributes:
        title: The accessible name of the whole figure.
        panels: The matrices, all of the same type.
    """

    title: str
    panels: Sequence[Panel | MapPanel]

    def svg(self) -> str:
        """Return the figure as SVG, with an accessible name for the whole.

        Cells have accessible names too, in matrices of up to 256 cells.
        """
        columns = min(len(self.panels), _COLUMNS)
        side = (WIDTH - _GAP * (columns + 1)) / columns
        side = min(side, WIDTH / 3)
        block = _TOP + side + _STRIP
        height = block * -(-len(self.panels) // columns)
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(self.title)}">'
        ]
        for number, panel in enumerate(self.panels):
            x = _GAP + (number % columns) * (side + _GAP)
            y = (number // columns) * block
            parts.append(f'<g transform="translate({x:.1f} {y:.1f})">')
            below = _alphabet(panel, side) if isinstance(panel, Panel) else []
            parts += [*_cells(panel, side), *below, "</g>"]
        parts.append("</svg>")
        return "\n".join(parts)

    def table(self) -> ChartTable:
        """Return all matrices as a table, with a row for each row of each matrix.

        Each begins with the names of the matrix and the row. In the matrix of a mechanism, a row
        with its output values comes first.
        """
        width = max(len(row) for panel in self.panels for _, row in panel.named_rows())
        rows = []
        for panel in self.panels:
            for label, values in panel.named_rows():
                padding = [""] * (width - len(values))
                rows.append([panel.name, label, *(f"{value:.4g}" for value in values), *padding])
        kind = "code" if isinstance(self.panels[0], Panel) else "column"
        first = 0 if kind == "code" else 1
        names = [f"{kind} {number}" for number in range(first, first + width)]
        return ChartTable(columns=["matrix", "row", *names], rows=rows)


def _cells(panel: Panel | MapPanel, side: float) -> list[str]:
    largest = max(map(max, panel.matrix))
    height, width = side / len(panel.matrix), side / len(panel.matrix[0])
    named = len(panel.matrix) * len(panel.matrix[0]) <= _MOST_NAMED_CELLS
    parts = [
        f'<text class="name" x="0" y="16">{escape(panel.name)}</text>',
        f'<text x="0" y="32">largest = {largest:.2g}</text>',
        f'<rect class="frame" x="0" y="{_TOP}" width="{side:.1f}" height="{side:.1f}"/>',
    ]
    for i, row in enumerate(panel.matrix):
        for j, probability in enumerate(row):
            place = (
                f'x="{j * width:.2f}" y="{_TOP + i * height:.2f}" '
                f'width="{width:.2f}" height="{height:.2f}"'
            )
            shade = f'class="cell" fill-opacity="{probability / largest:.3f}"'
            if named:
                name = escape(panel.cell_name(i, j))
                parts.append(f"<rect {shade} {place}><title>{name}</title></rect>")
            else:
                parts.append(f"<rect {shade} {place}/>")
    return parts


def _alphabet(panel: Panel, side: float) -> list[str]:
    low = min(*panel.letters, *panel.inputs)
    high = max(*panel.letters, *panel.inputs)
    y = _TOP + side + 22

    def at(value: float) -> str:
        return f"{side * (value - low) / (high - low):.2f}"

    first, last = panel.inputs[0], panel.inputs[-1]
    return [
        f'<line class="grid" x1="0" x2="{side:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>',
        f'<line class="span" x1="{at(first)}" x2="{at(last)}" y1="{y:.1f}" y2="{y:.1f}"/>',
        *(
            f'<line class="letter" x1="{at(a)}" x2="{at(a)}" y1="{y - 7:.1f}" y2="{y + 7:.1f}">'
            f"<title>letter {a:.4g}</title></line>"
            for a in panel.letters
        ),
        f'<text x="0" y="{y + 22:.1f}">{tick_label(round(low, 2) + 0.0)}</text>',
        f'<text x="{side:.1f}" y="{y + 22:.1f}" text-anchor="end">'
        f"{tick_label(round(high, 2))}</text>",
    ]
