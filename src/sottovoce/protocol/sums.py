"""Means of messages that the server may read one by one.

The weighted mean, streamed: O(d) memory for any number of clients.
"""

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError, WireError
from sottovoce.core.native import native
from sottovoce.core.threads import over_ranges
from sottovoce.mechanisms.mechanism import Codes, Expanding, Mechanism, points_of
from sottovoce.mechanisms.packing import PackedCodes
from sottovoce.protocol.level_counts import BATCH, MAX_LEVELS, LevelCounts
from sottovoce.protocol.message import Opened, codes_of

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
