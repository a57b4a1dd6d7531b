"""The C functions of the server's side refuse what would make them read or write beyond an end."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sottovoce.core.native import levels, native, using

HERE = native() if len(levels()) > 1 else None  # where nothing is built, asking would warn
pytestmark = pytest.mark.skipif(HERE is None, reason="the C kernels are not built, or not chosen")


def octets(size: int) -> np.ndarray:
    return np.zeros(size, dtype=np.uint8)


def call(name: str, *arguments: Any, level: int = 0) -> Any:
    assert HERE is not None
    return getattr(HERE.library, name)(level, *arguments)


PLANES = [octets(128) for _ in range(5)]
READ_ONLY = octets(128)
READ_ONLY.flags.writeable = False
ODD = np.zeros(4096 + 8, dtype=np.uint8)  # for misaligned views


def misaligned(dtype: str, count: int) -> np.ndarray:
    size = np.dtype(dtype).itemsize
    return np.frombuffer(ODD.data[1 : 1 + count * size], dtype=dtype)


REFUSED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "no payloads": ("count_bits", (PLANES, [], 0, 0)),
    "too many payloads": ("count_bits", (PLANES, [b"\0" * 100] * 65, 0, 100)),
    "four planes": ("count_bits", (PLANES[:4], [b"\0" * 100], 0, 100)),
    "short planes": ("count_bits", ([octets(64)] * 5, [b"\0" * 100], 0, 100)),
    "short payload": ("count_bits", (PLANES, [b"\0" * 100, b"\0" * 99], 0, 100)),
    "beyond the end": ("count_bits", (PLANES, [b"\0" * 100], 0, 101)),
    "half a line": ("count_bits", (PLANES, [b"\0" * 100], 0, 50)),
    "backwards": ("count_bits", (PLANES, [b"\0" * 100], 64, 0)),
    "before the start": ("count_bits", (PLANES, [b"\0" * 100], -64, 100)),
    "counts beyond planes": ("read_counts", (PLANES, 0, np.zeros(1025, dtype=np.uint32))),
    "counts from beyond": ("read_counts", (PLANES, 2048, np.zeros(1, dtype=np.uint32))),
    "counts from amid": ("read_counts", (PLANES, 8, np.zeros(8, dtype=np.uint32))),
    "counts of odd bytes": ("read_counts", (PLANES, 0, octets(7))),
    "few counters": ("count_levels", (octets(64 * 11), 4, 2, [b"\0" * 10], 0, 10)),
    "levels beyond bits": ("count_levels", (octets(64 * 16), 5, 2, [b"\0" * 10], 0, 10)),
    "five bits": ("count_levels", (octets(64 * 31), 32, 5, [b"\0" * 10], 0, 10)),
    "range amid threes": ("count_levels", (octets(1024 * 7), 8, 3, [b"\0" * 384], 64, 384)),
    "wide beyond counters": ("widen", (octets(64), 4, 0, np.zeros(65, dtype=np.uint32))),
    "wide by three": ("widen", (octets(63), 3, 0, np.zeros(6, dtype=np.uint32))),
    "few counts": ("combine", (octets(4 * 9), 1, np.zeros(2), np.zeros(10))),
    "one point": ("combine", (octets(0), 1, np.zeros(1), np.zeros(10))),
    "many points": ("combine", (octets(4 * 16 * 10), 1, np.zeros(17), np.zeros(10))),
    "points short": ("add_points", (np.zeros(10), [b"\0\0"], b"\1", np.zeros(255), 0, 10)),
    "payload short": ("add_points", (np.zeros(10), [b"\0"], b"\1", np.zeros(256), 0, 10)),
    "no bits": ("add_points", (np.zeros(10), [b""], b"\0", np.zeros(256), 0, 10)),
    "nine bits": ("add_points", (np.zeros(8), [b"\0" * 9], b"\x09", np.zeros(256), 0, 8)),
    "bits missing": ("add_points", (np.zeros(8), [b"\0"] * 2, b"\1", np.zeros(512), 0, 8)),
    "sum misaligned": (
        "add_points",
        (misaligned("f8", 8), [b"\0"], b"\1", np.zeros(256), 0, 8),
    ),
    "pack into less": ("pack", (octets(9), 1, octets(1))),
    "pack 33 bits": ("pack", (octets(4), 33, octets(5))),
    "pack odd bytes": ("pack", (octets(3), 9, octets(2))),
    "unpack from less": ("unpack", (octets(1), 1, octets(9))),
    "unpack misaligned": ("unpack", (octets(5), 10, misaligned("u2", 4))),
    "largest of less": ("largest", (octets(1), 9, 1)),
    "largest of minus one": ("largest", (octets(0), -1, 1)),
    "largest of nine bits": ("largest", (octets(9), 8, 9)),
    "transform of 768": ("rotate", (np.zeros(768), b"", b"", 1)),
    "transform of 256": ("rotate", (np.zeros(256), b"", b"", 1)),
    "transform of nothing": ("rotate", (np.zeros(0), b"", b"", 1)),
    "transform misaligned": ("rotate", (misaligned("f8", 512), b"", b"", 1)),
    "signs before short": ("rotate", (np.zeros(512), b"\0" * 63, b"", 1)),
    "signs after short": ("rotate", (np.zeros(512), b"", b"\0" * 63, 1)),
    "no threads": ("rotate", (np.zeros(512), b"", b"", 0)),
    "too many threads": ("rotate", (np.zeros(512), b"", b"", 257)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_sizes_that_do_not_fit_are_refused(case: str) -> None:
    name, arguments = REFUSED[case]
    with pytest.raises(ValueError):  # noqa: PT011 - every function has its own words
        call(name, *arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("count_bits", ([READ_ONLY] * 5, [b"\0" * 100], 0, 100)),
        ("count_bits", (PLANES, [octets(200)[::2]], 0, 100)),
        ("count_bits", (PLANES, ["text"], 0, 100)),
        ("read_counts", (PLANES, 0, bytes(8))),
        ("pack", (octets(16)[::2], 1, octets(1))),
        ("unpack", (octets(1), 1, READ_ONLY[:8])),
        ("rotate", (np.zeros(1024)[::2], b"", b"", 1)),
        ("rotate", (None, b"", b"", 1)),
    ],
)
def test_buffers_that_are_not_plain_are_refused(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError, BufferError)):
        call(name, *arguments)


@pytest.mark.parametrize("level", [-1, 3, 99])
@pytest.mark.parametrize(
    "refused",
    [
        lambda level: call("rotate", np.zeros(512), b"", b"", 1, level=level),
        lambda level: call("count_bits", PLANES, [b"\0" * 100], 0, 100, level=level),
        lambda level: call("pack", octets(8), 1, octets(1), level=level),
    ],
)
def test_a_level_that_is_not_there_is_refused(level: int, refused: Callable[[int], Any]) -> None:
    with pytest.raises(ValueError, match=f"no kernels of level {level}"):
        refused(level)


def test_numpy_can_be_chosen_for_a_while() -> None:
    with using("numpy"):
        assert native() is None
    assert native() == HERE
