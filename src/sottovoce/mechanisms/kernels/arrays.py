"""What goes into the C kernels: contiguous float32 or float64 vectors, and room for the rest."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Floats as Floats
from sottovoce.core.errors import DomainError
from sottovoce.core.threads import over_ranges

TILE: Final = 1024  # coordinates of 16-bit draws that share 32 blocks of the keystream
_ROOM: Final = 1024
_ALONE: Final = 1 << 20  # coordinates that are worth a thread


def vector(values: NDArray[Any]) -> Floats:
    """`values` as kernels take them: float16 becomes float32, exactly; anything wider, float64."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise DomainError(f"expected a vector, got shape {array.shape}; flatten it first")
    if array.dtype.kind not in "fiu":
        raise DomainError(f"expected numbers, got {array.dtype}")
    if array.dtype.kind == "f" and array.dtype.itemsize <= 4:
        return np.require(array, np.float32, ["C", "A"])
    return np.require(array, np.float64, ["C", "A"])


def in_parts(count: int, work: Callable[[int, int, NDArray[np.int64]], int]) -> list[int]:
    """The coordinates left open by `work(start, stop, open)` over whole tiles, on several threads.

    `work` writes as many of them as fit into `open` and returns how many there are.
    """
    found: list[int] = []

    def part(start: int, stop: int) -> None:
        room = _ROOM
        while True:
            left = np.empty(room, dtype=np.int64)
            room = work(start, stop, left)
            if room <= len(left):
                found.extend(left[:room].tolist())
                return

    over_ranges(part, count, unit=TILE, least=_ALONE)
    return sorted(found)
