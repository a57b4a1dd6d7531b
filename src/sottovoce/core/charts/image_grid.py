"""Pictures in rows and columns as inline SVG, each with a caption: originals beside what was made.

Pictures are held as PNG data URIs, so a page needs nothing beside itself.

Small pictures as PNG, in a few lines and without a library.

Reference: ISO/IEC 15948 (PNG), clauses 5 and 11.
"""

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.charts.axes import WIDTH, Table
from sottovoce.core.errors import ParameterError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {1: 0, 3: 2}  # channels: grey, red green blue


def png(pixels: NDArray[np.uint8]) -> bytes:
    """An image (height, width, 1 or 3) of bytes as a PNG file."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    # Each line starts with its filter: 0, none.
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
    """An image (1 or 3 channels, height, width) in [-1/2, 1/2] for use inside a page."""
    if image.ndim != 3 or len(image) not in _COLOUR_TYPES:
        raise ParameterError(
            f"a picture has 1 or 3 channels, height and width, got shape {image.shape}; "
            "there is nothing to draw of other rows"
        )
    scaled = np.clip((np.moveaxis(image, 0, -1) + 0.5) * 255.0, 0.0, 255.0)
    pixels = np.ascontiguousarray(scaled.round().astype(np.uint8))
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode()


_LEFT, _TOP, _GAP, _CAPTION = 16, 30, 12, 20
_NAMES_WIDTH = 120
_LARGEST_SIDE = 112.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture, square or not, drawn in a square; `caption` stands below it."""

    source: str
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureRow:
    """Pictures beside a name, one for each column."""

    name: str
    pictures: Sequence[Picture]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageGrid:
    """Rows of pictures under the names of columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[PictureRow]

    def svg(self) -> str:
        """The figure, with an accessible name for the whole and for each picture."""
        side = (WIDTH - _LEFT - _NAMES_WIDTH) / len(self.columns) - _GAP
        side = min(side, _LARGEST_SIDE)
        block = side + _CAPTION + _GAP
        height = _TOP + block * len(self.rows)
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
            parts += self._row(row, side, _TOP + number * block)
        parts.append("</svg>")
        return "\n".join(parts)

    def table(self) -> Table:
        """What stands below the pictures."""
        return Table(
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
    return _LEFT + _NAMES_WIDTH + column * (side + _GAP)
