"""What goes into the C kernels: float32 or float64 vectors, and room for what is left open."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.domains import Vector
from sottovoce.errors import DomainError

Floats = NDArray[np.float32] | Vector

TILE: Final = 1024  # coordinates of 16-bit draws that share 32 blocks of the keystream
THREADS: Final = max(1, min(8, os.cpu_count() or 1))
_ROOM: Final = 1024
_ALONE: Final = 1 << 21  # fewer coordinates than this are not worth a second thread


def vector(values: NDArray[Any]) -> Floats:
    """`values` as kernels take them: float16 becomes float32, exactly; anything wider, float64."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise DomainError(f"expected a vector, got shape {array.shape}; flatten it first")
    if array.dtype.kind not in "fiu":
        raise DomainError(f"expected numbers, got {array.dtype}")
    narrow = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    return np.require(array, np.float32 if narrow else np.float64, ["C", "A"])


def in_parts(count: int, work: Callable[[int, int, NDArray[np.int64]], int]) -> list[int]:
    """The coordinates left open by `work(start, stop, open)` over whole tiles, on several threads.

    `work` writes as many of them as fit into `open` and returns how many there are.
    """
    threads = 1 if count < _ALONE else THREADS
    size = max(TILE, -(-count // (threads * TILE)) * TILE)

    def part(start: int) -> list[int]:
        room = _ROOM
        while True:
            left = np.empty(room, dtype=np.int64)
            room = work(start, min(start + size, count), left)
            if room <= len(left):
                return [int(i) for i in left[:room]]

    starts = range(0, count, size)
    if threads == 1:
        return [i for start in starts for i in part(start)]
    with ThreadPoolExecutor(threads) as pool:
        return [i for found in pool.map(part, starts) for i in found]
