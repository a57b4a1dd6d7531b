"""Small pictures as PNG, in a few lines and without a library.

Reference: ISO/IEC 15948 (PNG), clauses 5 and 11.
"""

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
