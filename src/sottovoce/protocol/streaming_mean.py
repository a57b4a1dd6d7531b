"""The weighted mean, streamed: O(d) memory for any number of clients."""

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.native import native
from sottovoce.core.threads import over_ranges
from sottovoce.mechanisms.packing import PackedCodes
from sottovoce.protocol.level_counts import BATCH

MAX_PACKED_BITS = 8
_TABLE = 1 << MAX_PACKED_BITS
_LEAST = 1 << 18  # coordinates for a thread of its own


class StreamingMean:
    """sum_k weight_k x_k / sum_k weight_k, one vector at a time.

    Vectors come as they are, or as packed codes and the points these stand for; either way the same
    products are added in the same order. A few payloads wait until there is a batch of them.
    """

    def __init__(self, dimension: int, *, threads: int | None = None) -> None:
        self._sum = np.zeros(dimension)
        self._weight = 0.0
        self._kernels = native()
        self._threads = threads
        self._waiting: list[tuple[PackedCodes, Vector]] = []

    def add(self, values: Vector, weight: float) -> None:
        self._flush()
        self._sum += weight * values
        self._weight += weight

    def add_packed(self, packed: PackedCodes, points: Vector, weight: float) -> None:
        """The vector points[codes], for codes of up to 8 bits."""
        if packed.count != len(self._sum) or points.shape != (packed.levels,):
            raise ParameterError(
                f"{packed.count} codes of {packed.levels} levels and {points.shape} points do not "
                f"make a vector of dimension {len(self._sum)}"
            )
        if packed.bits > MAX_PACKED_BITS or self._kernels is None:
            self.add(points[packed.codes()], weight)
            return
        table = np.zeros(_TABLE)
        table[: packed.levels] = weight * points
        self._waiting.append((packed, table))
        self._weight += weight
        if len(self._waiting) == BATCH:
            self._flush()

    def result(self) -> Vector | None:
        """The mean, or None if nothing was added."""
        self._flush()
        return self._sum / self._weight if self._weight > 0.0 else None

    def total(self) -> Vector:
        """The sum of weight_k x_k."""
        self._flush()
        return self._sum.copy()

    def _flush(self) -> None:
        if not self._waiting or self._kernels is None:
            return
        payloads = [packed.payload for packed, _ in self._waiting]
        bits = bytes(packed.bits for packed, _ in self._waiting)
        tables = np.stack([table for _, table in self._waiting])
        library, level = self._kernels

        def work(begin: int, end: int) -> None:
            library.add_points(level, self._sum, payloads, bits, tables, begin, end)

        over_ranges(work, len(self._sum), unit=8, least=_LEAST, threads=self._threads)
        self._waiting = []
