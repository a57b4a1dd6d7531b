"""Means and counts of the messages that the server may read one by one, in O(d) memory.

`StreamingMean` is a weighted mean. `LevelCounts` counts how many clients sent each code, coordinate
by coordinate: sums that no order of arrival changes.

Payloads stay packed and are added up a batch at a time. One bit a coordinate is counted by
carry-save addition: bit k of every coordinate's count lies in a plane of its own, so that adding is
logic on whole registers, and n clients take log2 n bits a coordinate. Codes of 2 to 4 bits have a
counter of one byte for each code but 0, emptied into wider ones before any can overflow.
"""

from collections.abc import Iterable
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.domains import MAX_DIMENSION, Vector
from sottovoce.core.errors import ParameterError, WireError
from sottovoce.core.native import Native, native
from sottovoce.core.threads import over_ranges
from sottovoce.mechanisms.encoding import Octets, PackedCodes, check_rows, packed_size, unpack
from sottovoce.mechanisms.mechanism import Codes, Expanding, Mechanism, points_of
from sottovoce.protocol.message import Opened, codes_of

MAX_LEVELS: Final = 16
MAX_CLIENTS: Final = 2**32 - 1
BATCH: Final = 16  # payloads added up at once
BITS_BATCH: Final = 64  # and of one bit
_LEAST_BYTES = 1 << 16  # of each payload, for a thread of its own
_LINE = 64
_BYTE = 255
_COLUMNS = 1 << 14  # that counts are read for at once

Counts = NDArray[np.uint32]


class LevelCounts:
    """The codes of any number of clients, in O(d) memory: some bytes for each level but one."""

    def __init__(self, dimension: int, levels: int, *, threads: int | None = None) -> None:
        self._dimension = parameter_rules.integer("dimension", dimension, low=1, high=MAX_DIMENSION)
        self._levels = parameter_rules.integer(
            "levels", levels, low=2, high=MAX_LEVELS, remedy="add more levels up in a StreamingMean"
        )
        self._threads = threads
        self.received = 0
        self._waiting: list[Octets] = []
        kernels = native()
        self._tally: _BitPlanes | _ByteCounters
        if kernels is not None and levels == 2:
            self._tally = _BitPlanes(dimension, kernels, threads)
        else:
            self._tally = _ByteCounters(dimension, levels, kernels, threads)

    def add(self, packed: PackedCodes) -> None:
        """Count one client's codes in."""
        if (packed.count, packed.levels) != (self._dimension, self._levels):
            raise ParameterError(
                f"{packed.count} codes of {packed.levels} levels do not belong to counts of "
                f"{self._dimension} codes of {self._levels} levels"
            )
        self._expect(1)
        self._waiting.append(packed.payload)
        self.received += 1
        if len(self._waiting) == self._tally.batch:
            self._flush()

    def add_rows(self, payloads: NDArray[np.uint8]) -> None:
        """Count in the clients whose payloads are the rows of a matrix, none of which is kept."""
        check_rows(payloads, count=self._dimension, levels=self._levels)
        self._expect(len(payloads))
        rows: list[Octets] = list(np.ascontiguousarray(payloads))
        for start in range(0, len(rows), self._tally.batch):
            self._tally.add(rows[start : start + self._tally.batch])
        self.received += len(rows)

    def counts(self) -> Counts:
        """How often code j + 1 was sent for coordinate i, at [j, i]."""
        self._flush()
        found = np.empty((self._levels - 1, self._dimension), dtype=np.uint32)
        for start in range(0, self._dimension, _COLUMNS):
            end = min(self._dimension, start + _COLUMNS)
            found[:, start:end] = self._tally.read(start, end)
        return found

    def total(self, points: Vector) -> Vector:
        """The sum of points[code] over clients: points[0] n_0 + points[1] n_1 + ..., so rounded."""
        if points.shape != (self._levels,):
            raise ParameterError(f"{self._levels} levels have as many points, got {points.shape}")
        self._flush()
        values = np.ascontiguousarray(points, dtype=np.float64)
        total = np.empty(self._dimension)

        def work(begin: int, end: int) -> None:
            for start in range(begin, end, _COLUMNS):
                stop = min(end, start + _COLUMNS)
                counts = self._tally.read(start, stop)
                _combine(counts, self.received, values, total[start:stop], self._tally.kernels)

        over_ranges(
            work, self._dimension, unit=_COLUMNS, least=8 * _LEAST_BYTES, threads=self._threads
        )
        return total

    def _expect(self, clients: int) -> None:
        if self.received + clients > MAX_CLIENTS:
            raise ParameterError(f"counts hold {MAX_CLIENTS} clients at most; begin another sum")

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._tally.add(waiting)


class _BitPlanes:
    """Counts of one bit: coordinate i's count has its bit k at bit i of plane k."""

    batch: Final = BITS_BATCH

    def __init__(self, dimension: int, kernels: Native, threads: int | None) -> None:
        self.kernels, self._threads = kernels, threads
        self._size = packed_size(dimension, 1)
        self._planes: list[NDArray[np.uint8]] = []
        self._most = 0  # that a count can be

    def add(self, payloads: list[Octets]) -> None:
        self._most += len(payloads)
        while len(self._planes) < max(5, self._most.bit_length()):  # 16 payloads fill five
            self._planes.append(np.zeros(_padded(self._size), dtype=np.uint8))
        library, level = self.kernels

        def work(begin: int, end: int) -> None:
            library.count_bits(level, self._planes, payloads, begin, end)

        over_ranges(work, self._size, unit=_LINE, least=_LEAST_BYTES, threads=self._threads)

    def read(self, start: int, end: int) -> Counts:
        """The counts of some coordinates; `start` is a multiple of 64."""
        found = np.zeros(end - start, dtype=np.uint32)
        if self._planes:
            library, level = self.kernels
            library.read_counts(level, self._planes, start, found)
        return found[None]


class _ByteCounters:
    """A byte for each code but 0, and wider counters from the 256th client on.

    The kernels count codes of 2 and 4 bits where they lie in their bytes: counter [j, s, i] is for
    code `per` * i + s. Everything else has one counter after the other.
    """

    batch: Final = BATCH

    def __init__(
        self, dimension: int, levels: int, kernels: Native | None, threads: int | None
    ) -> None:
        self._dimension, self._levels, self._bits = dimension, levels, (levels - 1).bit_length()
        self.kernels, self._threads = kernels, threads
        self._size = packed_size(dimension, self._bits)
        in_place = kernels is not None and self._bits != 3
        self._per = 8 // self._bits if in_place else 1
        stride = _padded(self._size if in_place else 8 * -(-dimension // 8))
        self._counters = np.zeros((levels - 1, self._per, stride), dtype=np.uint8)
        self._most = 0  # that a byte can be
        self._wide: Counts | None = None

    def add(self, payloads: list[Octets]) -> None:
        if self._most + len(payloads) > _BYTE:
            if self._wide is None:
                self._wide = np.zeros((self._levels - 1, self._dimension), dtype=np.uint32)
            self._widen(0, self._wide)
            self._counters[:] = 0
            self._most = 0
        self._most += len(payloads)
        if self.kernels is None:
            for payload in payloads:
                codes = unpack(payload, self._dimension, self._bits)
                for code in range(1, self._levels):
                    self._counters[code - 1, 0, : self._dimension] += codes == code
            return
        library, level = self.kernels

        def work(begin: int, end: int) -> None:
            library.count_levels(
                level, self._counters, self._levels, self._bits, payloads, begin, end
            )

        # 512 codes of three bits are three lines.
        over_ranges(work, self._size, unit=3 * _LINE, least=_LEAST_BYTES, threads=self._threads)

    def read(self, start: int, end: int) -> Counts:
        """The counts of some coordinates; `start` is a multiple of 64."""
        if self._wide is None:
            found = np.zeros((self._levels - 1, end - start), dtype=np.uint32)
        else:
            found = self._wide[:, start:end].copy()
        self._widen(start, found)
        return found

    def _widen(self, start: int, wide: Counts) -> None:
        for row, counters in zip(wide, self._counters, strict=True):
            if self.kernels is None:
                row += counters[0, start : start + len(row)]
            else:
                library, level = self.kernels
                library.widen(level, counters, self._per, start, row)


def _combine(
    counts: Counts, received: int, points: Vector, out: Vector, kernels: Native | None
) -> None:
    """points[0] n_0 + points[1] n_1 + ..., added in this order."""
    if kernels is not None:
        kernels.library.combine(kernels.level, counts, received, points, out)
        return
    np.multiply(points[0], received - counts.sum(axis=0, dtype=np.float64), out=out)
    for point, count in zip(points[1:], counts, strict=True):
        out += point * count


def _padded(size: int) -> int:
    """Up to whole cache lines."""
    return -(-size // _LINE) * _LINE


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


_EXPANDED_TOGETHER = 16  # messages whose signs are in memory at once

Cohort = Iterable[tuple[Mechanism, float]]


class ExpandingMechanism(Expanding, Mechanism, Protocol):
    """A mechanism whose codes stand for signs."""


def mean_of(dimension: int, cohort: Cohort) -> "Mean":
    """Counts codes, or signs, if all of the cohort have one weight and one mechanism of a few."""
    mechanism = _one_for_all(cohort)
    if mechanism is not None and isinstance(mechanism, Expanding):
        return ExpandedMean(mechanism)
    points = None if mechanism is None else points_of(mechanism, most=MAX_LEVELS)
    if mechanism is None or points is None:
        return DecodedMean(dimension)
    return CountedMean(dimension, mechanism, points)


class CountedMean:
    """The mean of equally weighted messages, from how often each code came: in any order."""

    def __init__(self, dimension: int, mechanism: Mechanism, points: Vector) -> None:
        self._mechanism, self._points = mechanism, points
        self._counts = LevelCounts(dimension, len(points))

    def add(self, mechanism: Mechanism, weight: float, opened: Opened) -> None:  # noqa: ARG002
        # Equal weights, which the plan has seen, cancel.
        same = mechanism is self._mechanism or mechanism == self._mechanism
        if not same or not isinstance(opened, PackedCodes):
            raise WireError("a message of another mechanism does not belong into this mean")
        self._counts.add(opened)

    def result(self) -> Vector | None:
        if not self._counts.received:
            return None
        return self._counts.total(self._points) / self._counts.received


class ExpandedMean:
    """The mean of equally weighted messages that stand for signs: expanded, counted, folded once.

    So it does not depend on the order either.
    """

    def __init__(self, mechanism: ExpandingMechanism) -> None:
        self._mechanism, self._layout = mechanism, mechanism.layout()
        self._counts = LevelCounts(self._layout.num_signs, 2)
        self._waiting: list[Codes] = []

    def add(self, mechanism: Mechanism, weight: float, opened: Opened) -> None:  # noqa: ARG002
        # Equal weights, which the plan has seen, cancel.
        same = mechanism is self._mechanism or mechanism == self._mechanism
        if not same:
            raise WireError("a message of another mechanism does not belong into this mean")
        self._waiting.append(codes_of(opened))
        if len(self._waiting) == _EXPANDED_TOGETHER:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._counts.add_rows(self._mechanism.signs(np.stack(waiting).astype(np.uint32)))

    def result(self) -> Vector | None:
        self._flush()
        if not self._counts.received:
            return None
        magnitude = self._mechanism.magnitude
        mean = self._layout.folded(self._counts.total(np.array([-magnitude, magnitude])))
        mean /= self._counts.received  # in place: nobody else has it, and it may be large
        return mean


class DecodedMean:
    """The weighted mean of decoded messages, added up as they come."""

    def __init__(self, dimension: int) -> None:
        self._mean = StreamingMean(dimension)
        # Of the mechanism that came last: most often many have the same.
        self._points: tuple[Mechanism, Vector | None] | None = None

    def add(self, mechanism: Mechanism, weight: float, opened: Opened) -> None:
        points = self._points_of(mechanism)
        if points is None or not isinstance(opened, PackedCodes):
            self._mean.add(mechanism.decode(codes_of(opened)), weight)
        else:
            self._mean.add_packed(opened, points, weight)

    def result(self) -> Vector | None:
        return self._mean.result()

    def total(self) -> Vector:
        """What the mean is before it is divided by the weights."""
        return self._mean.total()

    def _points_of(self, mechanism: Mechanism) -> Vector | None:
        if self._points is None or self._points[0] is not mechanism:
            self._points = mechanism, points_of(mechanism, most=1 << MAX_PACKED_BITS)
        return self._points[1]


Mean = CountedMean | ExpandedMean | DecodedMean


def _one_for_all(cohort: Cohort) -> Mechanism | None:
    """The mechanism that all of a cohort have with one weight, if there is one."""
    members = iter(cohort)
    first = next(members, None)
    if first is None:
        return None
    mechanism, weight = first
    for other, own in members:
        if own != weight or not (other is mechanism or other == mechanism):
            return None
    return mechanism
