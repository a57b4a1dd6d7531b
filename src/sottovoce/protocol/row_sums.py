"""Weighted means of decoded messages that are the rows of matrices, on the CPU or a CUDA device.

They have the bits of `sums.create_mean`, which takes one message after the other.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.native import Native, native
from sottovoce.core.stages import stage
from sottovoce.core.threads import threads_for_size
from sottovoce.mechanisms.encoding import PackedRows
from sottovoce.mechanisms.mechanism import (
    ExpandsToSigns,
    LevelCodes,
    Mechanism,
    SummableCodes,
    points_of,
)
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.protocol.sums import (
    EXPANDED_TOGETHER,
    MAX_LEVELS,
    MAX_PACKED_BITS,
    TABLE_SIZE,
    ExpandingMechanism,
    LevelCounts,
)

if TYPE_CHECKING:
    from sottovoce.mechanisms.kernels.cuda.row_sums import DeviceCounts, DeviceSum

_TABLES = 1024  # The number of messages whose tables of points are in memory at once.
_LEAST = 1 << 18  # The smallest number of coordinates that justifies a thread.
_LINE = 64


Weights = Sequence[float] | Vector
Places = Sequence[tuple[int, int]] | NDArray[np.int64]  # Two columns: groups, and rows in them.


class RowSums(Protocol):
    """A weighted sum of the decoded messages that are the rows of matrices."""

    def add(self, packed: PackedRows, weights: Weights) -> None:
        """Add messages, each times its weight.

        Args:
            packed: The packed codes of the messages.
            weights: The weight of each message.
        """

    def mean(self, weight: float, rotation: Rotation | None) -> Vector:
        """Return the sum divided by `weight`, and rotated back.

        Call it once, at the end: the result may take the memory of the sum.
        """


def create_row_sums(
    dimension: int, mechanism: Mechanism, *, equal_weights: bool
) -> "CountedRows | ExpandedRows | DecodedRows":
    """Return the fastest sum of the messages of one mechanism, with the bits of `create_mean`.

    Args:
        dimension: The number of coordinates.
        mechanism: The mechanism of all messages.
        equal_weights: Whether all weights are 1. Then codes (of at most 16 levels) or signs are
            counted; else messages are decoded and added in their order.

    Returns:
        The sum, of nothing yet.
    """
    return row_sums_of(dimension, mechanism, equal_weights=equal_weights)()


def row_sums_of(
    dimension: int, mechanism: Mechanism, *, equal_weights: bool
) -> Callable[[], "CountedRows | ExpandedRows | DecodedRows"]:
    """Return a function that returns a new sum, as `create_row_sums` does, but in less time."""
    if equal_weights and isinstance(mechanism, ExpandsToSigns):
        return partial(ExpandedRows, mechanism)
    points = points_of(mechanism, most=MAX_LEVELS) if equal_weights else None
    if points is not None:
        return partial(CountedRows, dimension, points)
    return partial(DecodedRows, dimension, mechanism)


class CountedRows:
    """A sum of messages of weight 1, computed from how often each code occurs.

    Messages on a CUDA device are counted there.
    """

    def __init__(self, dimension: int, points: Vector) -> None:
        self._dimension, self._points = dimension, points
        self._counts: LevelCounts | DeviceCounts | None = None

    def add(self, packed: PackedRows, weights: Weights) -> None:  # noqa: ARG002
        """Count the codes of messages; weights are 1."""
        if self._counts is None:
            self._counts = self._start(packed)
        if isinstance(self._counts, LevelCounts):
            self._counts.add_rows(packed.on_cpu())
        else:
            self._counts.add(packed.payloads)

    def _start(self, packed: PackedRows) -> "LevelCounts | DeviceCounts":
        if not packed.on_device:
            return LevelCounts(self._dimension, len(self._points))
        from sottovoce.mechanisms.kernels.cuda.row_sums import DeviceCounts

        return DeviceCounts(self._dimension, self._points, packed.payloads.device)

    def mean(self, weight: float, rotation: Rotation | None) -> Vector:
        """Return the sum so far divided by `weight`, and rotated back."""
        if self._counts is None:
            return np.zeros(self._dimension)
        if isinstance(self._counts, LevelCounts):
            return _mean(self._counts.total(self._points), weight, rotation)
        with stage("rotate back"):
            return self._counts.mean(weight, rotation)


class ExpandedRows:
    """A sum of messages of weight 1 whose codes expand to signs, which are counted."""

    def __init__(self, mechanism: ExpandingMechanism) -> None:
        self._mechanism, self._layout = mechanism, mechanism.layout()
        self._counts = LevelCounts(self._layout.num_signs, 2)

    def add(self, packed: PackedRows, weights: Weights) -> None:  # noqa: ARG002
        """Expand and count the signs of messages; weights are 1."""
        codes = packed.codes()
        for start in range(0, len(codes), EXPANDED_TOGETHER):
            some = np.stack(codes[start : start + EXPANDED_TOGETHER]).astype(np.uint32)
            self._counts.add_rows(self._mechanism.signs(some))

    def mean(self, weight: float, rotation: Rotation | None) -> Vector:
        """Return the sum so far divided by `weight`, and rotated back."""
        magnitude = self._mechanism.magnitude
        total = self._layout.fold(self._counts.total(np.array([-magnitude, magnitude])))
        return _mean(total, weight, rotation)


class SummedCodes:
    """The sum of the codes of messages of weight 1, of which a secure sum releases one mean."""

    def __init__(self, dimension: int, mechanism: Mechanism) -> None:
        assert isinstance(mechanism, SummableCodes), "the accounting refuses any other"
        self._mechanism, self._received = mechanism, 0
        self._total = np.zeros(dimension, dtype=np.int64)

    def add(self, packed: PackedRows, weights: Weights) -> None:  # noqa: ARG002
        """Add the codes of messages; weights are 1."""
        self._received += len(packed)
        if packed.code_format == LevelCodes(levels=2):
            bits = LevelCounts(len(self._total), 2)
            bits.add_rows(packed.on_cpu())
            self._total += bits.counts()[0]
        else:
            for codes in packed.codes():
                self._total += codes.astype(np.int64)

    def mean(self, weight: float, rotation: Rotation | None) -> Vector:  # noqa: ARG002
        """Return the mean of the values that the codes stand for, rotated back."""
        mean = self._mechanism.decode_sum(self._total, self._received)
        if rotation is None:
            return mean
        with stage("rotate back"):
            return rotation.inverse(mean)


class DecodedRows:
    """A sum of messages that are decoded and added one after the other, for each coordinate."""

    def __init__(self, dimension: int, mechanism: Mechanism) -> None:
        self._sum, self._mechanism = OrderedSum(dimension), mechanism

    def add(self, packed: PackedRows, weights: Weights) -> None:
        """Decode messages and add them, each times its weight."""
        rows = np.arange(len(packed))
        self._sum.add([(self._mechanism, packed)], weights, np.stack([rows * 0, rows], axis=1))

    def mean(self, weight: float, rotation: Rotation | None) -> Vector:
        """Return the sum so far divided by `weight`, and rotated back."""
        return self._sum.mean(weight, rotation)


class OrderedSum:
    """A sum of the messages of several mechanisms, added one after the other.

    Messages on a CUDA device are added there if their codes have at most 8 bits.
    """

    def __init__(self, dimension: int) -> None:
        self._total = np.zeros(dimension)
        self._device: DeviceSum | None = None
        self._empty = True

    def add(
        self,
        groups: Sequence[tuple[Mechanism, PackedRows]],
        weights: Weights,
        order: Places,
    ) -> None:
        """Add the decoded messages of several groups (see `_add_in_order`)."""
        points = self._points_on_device(groups)
        if points is not None:
            if self._device is None:
                from sottovoce.mechanisms.kernels.cuda.row_sums import DeviceSum

                device = groups[0][1].payloads.device
                self._device = DeviceSum(len(self._total), device)
            self._device.add([packed.payloads for _, packed in groups], points, weights, order)
        else:
            if self._device is not None:
                self._total, self._device = self._device.total(), None
            _add_in_order(self._total, groups, weights, order)
        self._empty = False

    def _points_on_device(
        self, groups: Sequence[tuple[Mechanism, PackedRows]]
    ) -> list[Vector] | None:
        """Return the points of each group if all can be added on the device, else None."""
        if not all(packed.on_device for _, packed in groups):
            return None
        if self._device is None and not self._empty:
            return None
        found = [points_of(mechanism, most=1 << MAX_PACKED_BITS) for mechanism, _ in groups]
        points = [one for one in found if one is not None]
        return points if len(points) == len(groups) else None

    def mean(self, weight: float, rotation: Rotation | None) -> Vector:
        """Return the sum so far divided by `weight`, and rotated back."""
        if self._device is None:
            return _mean(self._total, weight, rotation)
        with stage("rotate back"):
            return self._device.mean(weight, rotation)


def _mean(total: Vector, weight: float, rotation: Rotation | None) -> Vector:
    """Return a sum divided by `weight` and rotated back, in its own memory."""
    total /= weight
    if rotation is None:
        return total
    with stage("rotate back"):
        return rotation.undo(total)


def _add_in_order(
    total: Vector,
    groups: Sequence[tuple[Mechanism, PackedRows]],
    weights: Weights,
    order: Places,
) -> None:
    """Add the decoded messages of several groups to `total`, each times its weight, in an order.

    Args:
        total: The sum so far, which is changed.
        groups: The packed messages of each mechanism.
        weights: The weight of each message, in that order.
        order: The group of each message, and its row among the messages of the group.
    """
    places = np.asarray(order, dtype=np.int64).reshape(-1, 2)
    if not len(places):
        return
    begins = np.flatnonzero((np.diff(places, axis=0) != (0, 1)).any(axis=1)) + 1
    borders = [0, *begins.tolist(), len(places)]
    for start, end in pairwise(borders):  # Consecutive rows of a group.
        group, row = places[start].tolist()
        mechanism, packed = groups[group]
        _add_rows(total, mechanism, packed, weights[start:end], row)


def _add_rows(
    total: Vector, mechanism: Mechanism, packed: PackedRows, weights: Weights, row: int
) -> None:
    """Add consecutive rows of a matrix of messages, from `row` on, one for each weight."""
    kernels, stop = native(), row + len(weights)
    points = points_of(mechanism, most=1 << MAX_PACKED_BITS)
    if kernels is None or points is None:
        for codes, weight in zip(packed.take(row, stop).codes(), weights, strict=True):
            total += weight * (mechanism.decode(codes) if points is None else points[codes])
        return
    payloads = packed.on_cpu()[row:stop]
    for first in range(0, len(payloads), _TABLES):
        factors = np.array(weights[first : first + _TABLES], dtype=np.float64)
        _add_points(total, payloads[first : first + _TABLES], points, factors, kernels)


def _add_points(
    total: Vector, payloads: NDArray[np.uint8], points: Vector, factors: Vector, kernels: Native
) -> None:
    """Add the points of packed codes to `total`, those of row i times factor i."""
    rows, bits = np.ascontiguousarray(payloads), (len(points) - 1).bit_length()
    tables = np.zeros((len(rows), TABLE_SIZE))
    np.multiply(factors[:, None], points, out=tables[:, : len(points)])
    threads = threads_for_size(len(total), least=max(_LINE, _LEAST // len(rows)))
    kernels.library.add_point_rows(kernels.level, total, rows, rows.shape[1], bits, tables, threads)
