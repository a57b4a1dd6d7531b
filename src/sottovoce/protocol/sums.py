"""Weighted means and code counts of the messages that a server may read, in O(d) memory.

`StreamingMean` is a weighted mean. `LevelCounts` counts how many clients sent each code at each
coordinate; counts do not depend on the order of arrival.

Payloads stay packed and are added in batches. Codes of one bit are counted by carry-save addition:
bit k of every coordinate's count lies in plane k, so that adding is logic on whole registers, and
counts of n clients take log2 n bits per coordinate. Codes of 2 to 4 bits have a one-byte counter
for each code except 0, which is added to wider counters before any byte can overflow.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.domains import MAX_DIMENSION, Vector, sized_vector
from sottovoce.core.errors import ParameterError, WireError
from sottovoce.core.native import Native, native
from sottovoce.core.threads import over_ranges, threads_for_size
from sottovoce.mechanisms.mechanism import Codes, ExpandsToSigns, Mechanism, points_of
from sottovoce.mechanisms.packing import Octets, PackedCodes, check_rows, packed_size, unpack
from sottovoce.protocol.message import MessageContent, codes_of

if TYPE_CHECKING:
    pass

MAX_LEVELS: Final = 16
MAX_CLIENTS: Final = 2**32 - 1
BATCH: Final = 16  # The number of payloads that are added at once.
BITS_BATCH: Final = 64  # The same for payloads of one bit per coordinate.
_LEAST_BYTES = 1 << 16  # The smallest part of a payload that justifies a thread.
_LINE = 64
_BYTE = 255
_ROWS_IN_BYTES = 240  # The rows that are counted before bytes are added to wider counters.
_COLUMNS = 1 << 14  # The number of coordinates whose counts are read at once.

Counts = NDArray[np.uint32]


class LevelCounts:
    """Counts of how many clients sent each code, 0 to levels - 1, at each of d coordinates.

    They take O(d) memory for each level but one. At most 2^32 - 1 clients can be counted.

    Attributes:
        received: The number of clients counted.
    """

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
        """Count one client's codes.

        Raises:
            ParameterError: The number of codes or levels differs from that of the counts, or there
                are too many clients. Nothing is counted then.
        """
        if (packed.count, packed.levels) != (self._dimension, self._levels):
            raise ParameterError(
                f"expected {self._dimension} codes of {self._levels} levels, got {packed.count} "
                f"codes of {packed.levels} levels; create counts of that size for them"
            )
        self._expect(1)
        self._waiting.append(packed.payload)
        self.received += 1
        if len(self._waiting) == self._tally.batch:
            self._flush()

    def add_rows(self, payloads: NDArray[np.uint8]) -> None:
        """Count the clients whose packed codes are the rows of a byte matrix, which is not kept.

        Raises:
            WireError: The rows have the wrong length or type, a code is not below `levels`, or
                padding bits are not 0. Nothing is counted then.
            ParameterError: There are too many clients. Nothing is counted then.
        """
        check_rows(payloads, count=self._dimension, levels=self._levels)
        self._expect(len(payloads))
        self._tally.add_rows(np.ascontiguousarray(payloads))
        self.received += len(payloads)

    def counts(self) -> Counts:
        """Return how many clients sent code j + 1 for coordinate i, at position [j, i].

        All others of the `received` clients sent code 0.
        """
        self._flush()
        found = np.empty((self._levels - 1, self._dimension), dtype=np.uint32)
        for start in range(0, self._dimension, _COLUMNS):
            end = min(self._dimension, start + _COLUMNS)
            found[:, start:end] = self._tally.read(start, end)
        return found

    def total(self, points: Vector) -> Vector:
        """Return, for each coordinate, the sum over clients of points[code], the value of its code.

        It is computed as points[0] n_0 + points[1] n_1 + ..., in this order, where n_j clients sent
        code j.
        """
        if points.shape != (self._levels,):
            raise ParameterError(
                f"points must be a vector with one value for each of the {self._levels} levels, "
                f"got shape {points.shape}"
            )
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
            raise ParameterError(
                f"counts hold at most {MAX_CLIENTS} clients; start new counts for the others"
            )

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._tally.add(waiting)


class _BitPlanes:
    """Counts of one-bit codes: bit k of coordinate i's count is bit i of plane k."""

    batch: Final = BITS_BATCH

    def __init__(self, dimension: int, kernels: Native, threads: int | None) -> None:
        self.kernels, self._threads = kernels, threads
        self._size = packed_size(dimension, 1)
        self._planes: list[NDArray[np.uint8]] = []
        self._most = 0  # The largest value that a count can have.

    def add(self, payloads: list[Octets]) -> None:
        self._most += len(payloads)
        while len(self._planes) < max(5, self._most.bit_length()):  # 16 payloads fill five planes.
            self._planes.append(np.zeros(_pad_to_lines(self._size), dtype=np.uint8))
        library, level = self.kernels

        def work(begin: int, end: int) -> None:
            library.count_bits(level, self._planes, payloads, begin, end)

        over_ranges(work, self._size, unit=_LINE, least=_LEAST_BYTES, threads=self._threads)

    def add_rows(self, payloads: NDArray[np.uint8]) -> None:
        """Count the clients whose payloads are the rows of a matrix."""
        self._most += len(payloads)
        while len(self._planes) < max(5, self._most.bit_length()):
            self._planes.append(np.zeros(_pad_to_lines(self._size), dtype=np.uint8))
        library, level = self.kernels
        least = _least_of_rows(len(payloads))
        threads = threads_for_size(self._size, least=least, threads=self._threads)
        library.count_bit_rows(level, self._planes, payloads, self._size, threads)

    def read(self, start: int, end: int) -> Counts:
        """Return the counts of the coordinates from `start`, a multiple of 64, to `end`."""
        found = np.zeros(end - start, dtype=np.uint32)
        if self._planes:
            library, level = self.kernels
            library.read_counts(level, self._planes, start, found)
        return found[None]


class _ByteCounters:
    """A one-byte counter for each code except 0, with wider counters from the 256th client on.

    The kernels count codes of 2 and 4 bits in the order in which they lie in their bytes: counter
    [j, s, i] is for code `per` * i + s. In all other cases counters are in the order of
    coordinates.
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
        stride = _pad_to_lines(self._size if in_place else 8 * -(-dimension // 8))
        self._counters = np.zeros((levels - 1, self._per, stride), dtype=np.uint8)
        self._most = 0  # The largest value that a byte can have.
        self._wide: Counts | None = None

    def add_rows(self, payloads: NDArray[np.uint8]) -> None:
        """Count the clients whose payloads are the rows of a matrix."""
        if self.kernels is None:
            for start in range(0, len(payloads), self.batch):
                self.add(list(payloads[start : start + self.batch]))
            return
        library, level = self.kernels
        for start in range(0, len(payloads), _ROWS_IN_BYTES):
            rows = payloads[start : start + _ROWS_IN_BYTES]
            self._prevent_overflow(len(rows))
            least = _least_of_rows(len(rows))
            threads = threads_for_size(self._size, least=least, threads=self._threads)
            library.count_level_rows(
                level, self._counters, self._levels, self._bits, rows, self._size, threads
            )

    def _prevent_overflow(self, clients: int) -> None:
        """Add the bytes to the wider counters if they could overflow."""
        if self._most + clients > _BYTE:
            if self._wide is None:
                self._wide = np.zeros((self._levels - 1, self._dimension), dtype=np.uint32)
            self._widen(0, self._wide)
            self._counters[:] = 0
            self._most = 0
        self._most += clients

    def add(self, payloads: list[Octets]) -> None:
        self._prevent_overflow(len(payloads))
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

        # 512 codes of three bits fill three cache lines.
        over_ranges(work, self._size, unit=3 * _LINE, least=_LEAST_BYTES, threads=self._threads)

    def read(self, start: int, end: int) -> Counts:
        """Return the counts of the coordinates from `start`, a multiple of 64, to `end`."""
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
    """Compute points[0] n_0 + points[1] n_1 + ... in this order, into `out`."""
    if kernels is not None:
        kernels.library.combine(kernels.level, counts, received, points, out)
        return
    np.multiply(points[0], received - counts.sum(axis=0, dtype=np.float64), out=out)
    for point, count in zip(points[1:], counts, strict=True):
        out += point * count


def _least_of_rows(rows: int) -> int:
    """Return the fewest bytes of each of several payloads that are worth a thread."""
    return max(1, _LEAST_BYTES // max(1, rows))


def _pad_to_lines(size: int) -> int:
    """Round a size up to whole cache lines."""
    return -(-size // _LINE) * _LINE


MAX_PACKED_BITS: Final = 8
TABLE_SIZE: Final = 1 << MAX_PACKED_BITS
_LEAST = 1 << 18  # The smallest number of coordinates that justifies a thread.


class StreamingMean:
    """The weighted mean sum_k weight_k x_k / sum_k weight_k, computed one vector at a time.

    Vectors are added as they are, or as packed codes with the points that the codes stand for. Both
    ways add the same products in the same order. Payloads are collected into small batches first.
    """

    def __init__(self, dimension: int, *, threads: int | None = None) -> None:
        self._sum = np.zeros(dimension)
        self._weight = 0.0
        self._kernels = native()
        self._threads = threads
        self._waiting: list[tuple[PackedCodes, Vector]] = []

    def add(self, values: Vector, weight: float) -> None:
        """Add one vector with its weight; raise DomainError if it has another dimension."""
        added = sized_vector(values, len(self._sum))
        self._flush()
        self._sum += weight * added
        self._weight += weight

    def add_packed(self, packed: PackedCodes, points: Vector, weight: float) -> None:
        """Add the vector points[codes] with its weight, from packed codes.

        Raises:
            ParameterError: The number of codes is not the dimension, or `points` does not have one
                value for each level.
        """
        if packed.count != len(self._sum) or points.shape != (packed.levels,):
            raise ParameterError(
                f"expected {len(self._sum)} codes and one point for each level, got {packed.count} "
                f"codes of {packed.levels} levels and points of shape {points.shape}; use the "
                "mechanism that the mean was created for"
            )
        if packed.bits > MAX_PACKED_BITS or self._kernels is None:
            self.add(points[packed.codes()], weight)
            return
        table = np.zeros(TABLE_SIZE)
        table[: packed.levels] = weight * points
        self._waiting.append((packed, table))
        self._weight += weight
        if len(self._waiting) == BATCH:
            self._flush()

    def result(self) -> Vector | None:
        """Return the mean, or None if nothing was added."""
        self._flush()
        return self._sum / self._weight if self._weight > 0.0 else None

    def total(self) -> Vector:
        """Return the sum of weight_k x_k, not divided by anything; zeros if nothing was added."""
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


EXPANDED_TOGETHER: Final = 16  # The number of messages whose signs are in memory at once.

Cohort = Iterable[tuple[Mechanism, float]]


class ExpandingMechanism(ExpandsToSigns, Mechanism, Protocol):
    """A mechanism whose codes expand to signs."""


def create_mean(dimension: int, cohort: Cohort) -> "Mean":
    """Return the fastest object that computes the mean of a cohort's messages.

    Messages are passed to its method `add`; `result` returns the mean. If all clients have the same
    weight and the same mechanism, codes (of at most 16 levels) or signs are counted; otherwise each
    message is decoded and added.
    """
    mechanism = _shared_mechanism(cohort)
    if mechanism is not None and isinstance(mechanism, ExpandsToSigns):
        return ExpandedMean(mechanism)
    points = None if mechanism is None else points_of(mechanism, most=MAX_LEVELS)
    if mechanism is None or points is None:
        return DecodedMean(dimension)
    return CountedMean(dimension, mechanism, points)


class CountedMean:
    """The mean of equally weighted messages, computed from how often each code arrived.

    It does not depend on the order of arrival.
    """

    def __init__(self, dimension: int, mechanism: Mechanism, points: Vector) -> None:
        self._mechanism, self._points = mechanism, points
        self._counts = LevelCounts(dimension, len(points))

    def add(self, mechanism: Mechanism, weight: float, opened: MessageContent) -> None:  # noqa: ARG002
        # The plan has checked that all weights are equal, so they cancel.
        same = mechanism is self._mechanism or mechanism == self._mechanism
        if not same or not isinstance(opened, PackedCodes):
            raise WireError("expected a message of the cohort's mechanism, got one of another")
        self._counts.add(opened)

    def result(self) -> Vector | None:
        if not self._counts.received:
            return None
        mean = self._counts.total(self._points)
        mean /= self._counts.received  # In place, because the array is new and may be large.
        return mean


class ExpandedMean:
    """The mean of equally weighted messages whose codes expand to signs.

    Signs are expanded, counted and folded into coordinates once, so the mean does not depend on the
    order of arrival.
    """

    def __init__(self, mechanism: ExpandingMechanism) -> None:
        self._mechanism, self._layout = mechanism, mechanism.layout()
        self._counts = LevelCounts(self._layout.num_signs, 2)
        self._waiting: list[Codes] = []

    def add(self, mechanism: Mechanism, weight: float, opened: MessageContent) -> None:  # noqa: ARG002
        # The plan has checked that all weights are equal, so they cancel.
        same = mechanism is self._mechanism or mechanism == self._mechanism
        if not same:
            raise WireError("expected a message of the cohort's mechanism, got one of another")
        self._waiting.append(codes_of(opened))
        if len(self._waiting) == EXPANDED_TOGETHER:
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
        mean = self._layout.fold(self._counts.total(np.array([-magnitude, magnitude])))
        mean /= self._counts.received  # In place, because the array is new and may be large.
        return mean


class DecodedMean:
    """The weighted mean of messages that are decoded and added in the order of arrival."""

    def __init__(self, dimension: int) -> None:
        self._mean = StreamingMean(dimension)
        # The points of the last mechanism, because consecutive messages mostly share one.
        self._points: tuple[Mechanism, Vector | None] | None = None

    def add(self, mechanism: Mechanism, weight: float, opened: MessageContent) -> None:
        points = self._points_of(mechanism)
        if points is None or not isinstance(opened, PackedCodes):
            self._mean.add(mechanism.decode(codes_of(opened)), weight)
        else:
            self._mean.add_packed(opened, points, weight)

    def result(self) -> Vector | None:
        return self._mean.result()

    def total(self) -> Vector:
        """Return the sum of the decoded messages, each times its weight."""
        return self._mean.total()

    def _points_of(self, mechanism: Mechanism) -> Vector | None:
        if self._points is None or self._points[0] is not mechanism:
            self._points = mechanism, points_of(mechanism, most=1 << MAX_PACKED_BITS)
        return self._points[1]


Mean = CountedMean | ExpandedMean | DecodedMean


def _shared_mechanism(cohort: Cohort) -> Mechanism | None:
    """Return the mechanism of a cohort that shares mechanism and weight, or None if it does not."""
    members = iter(cohort)
    first = next(members, None)
    if first is None:
        return None
    mechanism, weight = first
    for other, own in members:
        if own != weight or not (other is mechanism or other == mechanism):
            return None
    return mechanism
