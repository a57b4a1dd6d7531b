"""Counts of packed codes: what naive counting gives, in any order, for any size, on every level."""

import functools
import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce.core import native
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError, WireError
from sottovoce.mechanisms.packing import PackedCodes, pack
from sottovoce.protocol.sums import BATCH, LevelCounts

LEVELS = [2, 3, 4, 5, 8, 11, 16]
# Around the widths of registers, lines and tiles, of one-bit payloads and of wider ones.
DIMENSIONS = [1, 7, 8, 9, 255, 256, 257, 511, 513, 1000, 4096, 5003]
Rows = NDArray[np.uint8]


def some_codes(clients: int, dimension: int, levels: int) -> Rows:
    generator = np.random.default_rng([clients, dimension, levels])
    return generator.integers(0, levels, (clients, dimension), dtype=np.uint8)


def packed(codes: Rows, levels: int) -> PackedCodes:
    payload = pack(codes, (levels - 1).bit_length())
    return PackedCodes(payload, count=len(codes), levels=levels)


def counted(rows: Rows, levels: int, threads: int | None = None) -> LevelCounts:
    counts = LevelCounts(rows.shape[1], levels, threads=threads)
    for codes in rows:
        counts.add(packed(codes, levels))
    return counts


def naive(rows: Rows, levels: int) -> NDArray[np.int64]:
    return np.stack([(rows == code).sum(axis=0) for code in range(1, levels)])


@pytest.mark.parametrize("kernels", native.levels())
@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_codes_are_counted(kernels: str, levels: int, dimension: int) -> None:
    rows = some_codes(BATCH + 5, dimension, levels)
    with native.using(kernels):
        counts = counted(rows, levels)
        assert counts.received == len(rows)
        np.testing.assert_array_equal(counts.counts(), naive(rows, levels))


@pytest.mark.parametrize("kernels", native.levels())
@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("clients", [0, 1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 600])
def test_any_number_of_clients_is_counted(kernels: str, levels: int, clients: int) -> None:
    """Counters of one byte end at 255."""
    rows = some_codes(clients, 131, levels)
    rows[:, 0] = levels - 1  # one coordinate that reaches every number
    with native.using(kernels):
        np.testing.assert_array_equal(counted(rows, levels).counts(), naive(rows, levels))


LONG = 3 * 8 * (1 << 16) + 77  # enough for each of three threads


@functools.lru_cache(maxsize=1)
def long_rows(levels: int) -> tuple[list[PackedCodes], NDArray[np.int64]]:
    """Three clients' codes, and how many of each there are; kernels take turns at them."""
    rows = some_codes(3, LONG, levels)
    return [packed(codes, levels) for codes in rows], naive(rows, levels)


@pytest.mark.parametrize("kernels", native.levels())
@pytest.mark.parametrize(
    "levels", [2, 16, *(pytest.param(levels, marks=pytest.mark.slow) for levels in (4, 8))]
)
def test_several_threads_count_as_one_does(kernels: str, levels: int) -> None:
    rows, expected = long_rows(levels)
    with native.using(kernels):
        for threads in (3, 1):
            counts = LevelCounts(LONG, levels, threads=threads)
            for codes in rows:
                counts.add(codes)
            np.testing.assert_array_equal(counts.counts(), expected)


@pytest.mark.parametrize("levels", LEVELS)
def test_the_sum_is_the_same_in_any_order_on_any_level(levels: int) -> None:
    rows = some_codes(300, 777, levels)
    points: Vector = np.random.default_rng(levels).normal(size=levels)
    found = set()
    for kernels in native.levels():
        with native.using(kernels):
            for order in (rows, rows[::-1], np.random.default_rng(1).permutation(rows)):
                found.add(counted(order, levels).total(points).tobytes())
    (total,) = found
    np.testing.assert_allclose(np.frombuffer(total), points[rows].sum(axis=0), atol=1e-11)


@pytest.mark.parametrize("kernels", native.levels())
@pytest.mark.parametrize("levels", [2, 3, 16])
def test_reading_early_changes_nothing(kernels: str, levels: int) -> None:
    rows = some_codes(40, 300, levels)
    with native.using(kernels):
        counts = LevelCounts(300, levels)
        for number, codes in enumerate(rows):
            np.testing.assert_array_equal(counts.counts(), naive(rows[:number], levels))
            counts.add(packed(codes, levels))
            counts.counts()[:] = 0  # the caller's own


@pytest.mark.parametrize("kernels", native.levels())
def test_a_payload_that_its_sender_changes_afterwards_counts_as_it_came(kernels: str) -> None:
    with native.using(kernels):
        counts = LevelCounts(16, 2)
        for payload in (bytearray(b"\x0f\xf0"), np.array([15, 240], dtype=np.uint8)):
            counts.add(PackedCodes(payload, count=16, levels=2))
            payload[0] = 0
        expected = 2 * np.unpackbits(np.array([15, 240], dtype=np.uint8), bitorder="little")
        assert counts.counts()[0].tolist() == expected.tolist()


@pytest.mark.parametrize("kernels", native.levels())
@pytest.mark.parametrize("levels", [2, 3, 8, 16])
def test_rows_of_a_matrix_count_like_single_payloads(kernels: str, levels: int) -> None:
    rows = some_codes(300, 77, levels)
    payloads = np.stack(
        [np.frombuffer(packed(codes, levels).payload, dtype=np.uint8) for codes in rows]
    )
    with native.using(kernels):
        counts = LevelCounts(77, levels)
        counts.add(packed(rows[0], levels))
        counts.add_rows(payloads[1:20])
        counts.add_rows(np.repeat(payloads[20:], 2, axis=0)[::2])  # not contiguous
        counts.add_rows(payloads[:0])
        assert counts.received == 300
        np.testing.assert_array_equal(counts.counts(), naive(rows, levels))
        payloads[7, -1] |= 0x80
        with pytest.raises(WireError, match="padding"):
            counts.add_rows(payloads)
        assert counts.received == 300
        np.testing.assert_array_equal(counts.counts(), naive(rows, levels))


def test_what_does_not_belong_is_refused_and_changes_nothing() -> None:
    counts = LevelCounts(16, 4)
    counts.add(PackedCodes(b"\xff\x00\x00\x00", count=16, levels=4))
    for count, levels in ((15, 4), (16, 3), (16, 2)):
        bits = (levels - 1).bit_length()
        other = PackedCodes(bytes((count * bits + 7) // 8), count=count, levels=levels)
        with pytest.raises(ParameterError, match="expected 16 codes of 4 levels, got"):
            counts.add(other)
    assert counts.received == 1
    assert counts.counts().sum() == 4
    with pytest.raises(ParameterError, match="one value for each of the 4 levels"):
        counts.total(np.ones(3))


@pytest.mark.parametrize(("dimension", "levels"), [(0, 2), (-1, 2), (5, 1), (5, 17), (5, 2.0)])
def test_nonsense_is_refused(dimension: Any, levels: Any) -> None:
    with pytest.raises(ParameterError, match=r"dimension|levels"):
        LevelCounts(dimension, levels)


@pytest.mark.parametrize(("levels", "vectors"), [(2, 2.0), (4, 2.0), (16, 4.0)])
def test_memory_does_not_grow_with_clients(levels: int, vectors: float) -> None:
    dimension = 50_000
    one = packed(some_codes(1, dimension, levels)[0], levels)
    payload = bytes(one.payload)
    gc.collect()
    tracemalloc.start()
    try:
        counts = LevelCounts(dimension, levels)
        for _ in range(250):
            fresh = bytes(bytearray(payload))
            counts.add(PackedCodes(fresh, count=dimension, levels=levels))
        del fresh
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < vectors * 8 * dimension


@pytest.mark.parametrize("level", native.levels())
def test_many_bits_of_many_clients_are_counted_strip_by_strip(level: str) -> None:
    dimension, clients = 40_003, 150  # more bytes than a strip, and more clients than a batch
    bits = np.random.default_rng(3).integers(0, 2, (clients, dimension), dtype=np.uint8)
    payloads = np.packbits(bits, axis=1, bitorder="little")
    with native.using(level):
        alone, together = LevelCounts(dimension, 2), LevelCounts(dimension, 2)
        for payload in payloads:
            alone.add(PackedCodes(payload.tobytes(), count=dimension, levels=2))
        together.add_rows(payloads)
        for counts in (alone, together):
            np.testing.assert_array_equal(counts.counts()[0], bits.sum(axis=0))
