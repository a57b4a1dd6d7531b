"""Sums of decoded messages whose packed codes are on a CUDA device, with the bits of the CPU.

Where all messages have the same mechanism and the same weight, codes are counted, and the counts
become a mean at the end. Otherwise the value of each code times the weight of its message is added
in float64, for each coordinate in the order of the messages. Only the mean leaves the device.
"""

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.mechanisms.kernels.cuda.counts import OneCounts
from sottovoce.mechanisms.kernels.cuda.launcher import launched
from sottovoce.mechanisms.kernels.cuda.level_counts import CudaLevelCounts
from sottovoce.mechanisms.kernels.cuda.place import numbers_on, on_device
from sottovoce.mechanisms.kernels.cuda.rotation import rotate_back
from sottovoce.mechanisms.rotation import Rotation

_BLOCK = 128
_SHORT = 1 << 16  # Up to so many numbers, the CPU rotates back before a GPU's kernels are launched.
_TOGETHER = 8  # The messages whose codes are read before the first of them is added.


@launched("dimension")
def _mean_of_counts(
    counts, numbers, means, dimension, levels: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Store (points[0] n_0 + points[1] n_1 + ...) / weight, where code j occurred n_j times.

    `numbers` holds the points, the number of messages and the weight.
    """
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    real = i < dimension
    others = tl.zeros((block,), tl.float64) + tl.load(numbers + levels)
    for j in tl.static_range(1, levels):
        at = (j - 1) * dimension.to(tl.int64) + i
        others -= tl.load(counts + at, mask=real, other=0).to(tl.float64)
    total = tl.load(numbers) * others
    for j in tl.static_range(1, levels):
        at = (j - 1) * dimension.to(tl.int64) + i
        total += tl.load(numbers + j) * tl.load(counts + at, mask=real, other=0).to(tl.float64)
    tl.store(means + i, total / tl.load(numbers + levels + 1), mask=real)


@triton.jit
def _code(row, i, bits, here):
    """Return code i of a payload; 0 where not here."""
    first = i * bits
    at = first // 8
    into = (first - at * 8).to(tl.int32)
    found = tl.load(row + at, mask=here, other=0).to(tl.int32)
    more = tl.load(row + at + 1, mask=here & (into + bits > 8), other=0).to(tl.int32)
    return ((found | (more << 8)) >> into) & ((1 << bits) - 1)


@triton.jit(do_not_specialize=["dimension", "count", "width"])
def _add_in_order(
    sums, addresses, sizes, tables, dimension, count, width,
    together: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Add table[code] of each message to the sums, in the order of the messages.

    Message e begins at `addresses[e]`, has codes of `sizes[e]` bits, and row e of `tables`.
    """
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    real = i < dimension
    total = tl.load(sums + i, mask=real, other=0.0)
    for first in range(0, count, together):
        codes = ()
        for e in tl.static_range(together):
            there = first + e < count
            row = tl.load(addresses + first + e, mask=there, other=0).to(tl.pointer_type(tl.uint8))
            bits = tl.load(sizes + first + e, mask=there, other=1)
            codes = codes + (_code(row, i, bits, real & there),)
        values = ()
        for e in tl.static_range(together):
            at = width.to(tl.int64) * (first + e) + codes[e]
            values = values + (tl.load(tables + at, mask=real & (first + e < count), other=0.0),)
        for e in tl.static_range(together):
            total = tl.where(first + e < count, total + values[e], total)
    tl.store(sums + i, total, mask=real)


class DeviceCounts:
    """The mean of messages of weight 1, computed from how often each code occurs.

    Args:
        dimension: The number of coordinates.
        points: The value of each code: at most 16.
        device: The device of the messages.
    """

    def __init__(self, dimension: int, points: Vector, device: torch.device) -> None:
        self._dimension, self._points = dimension, points
        self._counts: OneCounts | CudaLevelCounts
        if len(points) == 2:
            self._counts = OneCounts(dimension, device)
        else:
            self._counts = CudaLevelCounts(dimension, len(points), device)

    def add(self, payloads: torch.Tensor) -> None:
        """Count the codes of payloads [clients, bytes], on the device."""
        self._counts.add(payloads)

    def mean(self, weight: float, rotation: Rotation | None) -> Vector:
        """Return the sum of the decoded messages, divided by `weight` and rotated back.

        The result is on the CPU. Its bits are those of `LevelCounts.total`, the division and
        `Rotation.inverse`.
        """
        counts = self._counts.counts
        given = np.array([*self._points, self._counts.clients, weight])
        # They are the same in each round if as many clients take part.
        numbers = numbers_on(given.tobytes(), counts.device)
        means = torch.empty(self._dimension, dtype=torch.float64, device=counts.device)
        with on_device(counts):
            _mean_of_counts[(-(-self._dimension // _BLOCK),)](
                counts, numbers, means, self._dimension,
                levels=len(self._points), block=_BLOCK, num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip
        return _on_cpu(means, rotation)


class DeviceSum:
    """The weighted mean of messages, whose values are added one after the other.

    Args:
        dimension: The number of coordinates.
        device: The device of the messages.
    """

    def __init__(self, dimension: int, device: torch.device) -> None:
        self._sums = torch.zeros(dimension, dtype=torch.float64, device=device)

    def add(
        self,
        payloads: Sequence[torch.Tensor],
        points: Sequence[Vector],
        weights: Sequence[float] | Vector,
        order: Sequence[tuple[int, int]] | NDArray[np.int64],
    ) -> None:
        """Add messages, each times its weight.

        Args:
            payloads: The packed codes of several groups of messages, one message in each row.
            points: The value of each code, for each group: at most 256.
            weights: The weight of each message, in the order in which they are added.
            order: The group of each message and its row, in that order.
        """
        groups, rows = np.asarray(order, dtype=np.int64).reshape(-1, 2).T
        starts = np.array([one.data_ptr() for one in payloads], dtype=np.int64)
        strides = np.array([one.stride(0) for one in payloads], dtype=np.int64)
        sizes = np.array([(len(one) - 1).bit_length() for one in points], dtype=np.int32)
        tables = _tables(points, groups, np.asarray(weights, dtype=np.float64))
        count, dimension = len(order), len(self._sums)
        with on_device(self._sums):
            _add_in_order[(-(-dimension // _BLOCK),)](
                self._sums, self._here(starts[groups] + strides[groups] * rows),
                self._here(sizes[groups]), self._here(tables), dimension, count, tables.shape[1],
                together=_TOGETHER, block=_BLOCK, num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip

    def total(self) -> Vector:
        """Return the sum so far, on the CPU."""
        return np.asarray(self._sums.cpu().numpy())

    def mean(self, weight: float, rotation: Rotation | None) -> Vector:
        """Return the sum, divided by `weight` and rotated back, on the CPU."""
        # A tensor, because torch divides by a Python number less exactly.
        divisor = torch.tensor(weight, dtype=torch.float64, device=self._sums.device)
        return _on_cpu(self._sums / divisor, rotation)

    def _here(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._sums.device, non_blocking=True)


def _tables(
    points: Sequence[Vector], groups: NDArray[np.int64], weights: Vector
) -> NDArray[np.float64]:
    """Return the value of each code times the weight, in a row for each message."""
    values = np.zeros((len(points), max(len(one) for one in points)))
    for row, one in zip(values, points, strict=True):
        row[: len(one)] = one
    return np.asarray(weights[:, None] * values[groups])


def _on_cpu(means: torch.Tensor, rotation: Rotation | None) -> Vector:
    if rotation is None or len(means) <= _SHORT:
        found: Vector = means.cpu().numpy()
        return found if rotation is None else rotation.undo(found)
    rotate_back(means, rotation)
    return np.asarray(means.cpu().numpy())
