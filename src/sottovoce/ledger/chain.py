"""Digests chained from row to row, so that an edited, removed or reordered row is noticed."""

import hashlib
import json
from functools import lru_cache

Cell = str | int | float | None

_DIGEST_BYTES = 16


@lru_cache(maxsize=1 << 16, typed=True)  # names and events come again and again
def _as_json(cell: Cell) -> str:
    return json.dumps(cell)


def link(previous: bytes, row: tuple[Cell, ...]) -> bytes:
    """BLAKE2b-128(previous link, row as a JSON array)."""
    text = ",".join([_as_json(cell) for cell in row])
    return digest(previous + f"[{text}]".encode())


def digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def as_hex(content: bytes | None) -> str | None:
    """Bytes as a row holds them for its digest."""
    return None if content is None else content.hex()
