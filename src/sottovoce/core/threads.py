"""One piece of work on several threads: each does a range of it.

For kernels that let go of the interpreter. `SOTTOVOCE_THREADS` says how many threads at most;
without it as many as there are cores, up to 8.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules

VARIABLE: Final = "SOTTOVOCE_THREADS"
_TILE: Final = 1024  # coordinates of 16-bit draws that share 32 blocks of the keystream
_MOST: Final = 256
_ROOM: Final = 1024
_ALONE: Final = 1 << 20  # coordinates that are worth a thread
_LEAST_COORDINATES: Final = 1 << 14  # of rows that are worth a thread


def how_many(asked: int | None = None) -> int:
    """What was asked for, or else the environment's choice, or else the cores up to 8."""
    if asked is None:
        given = os.environ.get(VARIABLE)
        if given is None:
            return _cores()
        asked = int(given) if given.isdecimal() else 0
    return parameter_rules.integer(
        "threads", asked, low=1, high=_MOST, remedy=f"set {VARIABLE} to a whole number, or not"
    )


@cache  # asked at every encoding, and the system takes its time
def _cores() -> int:
    return max(1, min(8, os.cpu_count() or 1))


def over_ranges(
    work: Callable[[int, int], None],
    size: int,
    *,
    unit: int,
    least: int,
    threads: int | None = None,
) -> None:
    """work(begin, end) for ranges that cover 0 ... size; all but the last have multiples of `unit`.

    Ranges shorter than `least` are not worth a thread.
    """
    most = size // max(1, least)
    if most < 2:  # asking how many threads there are takes longer than small work
        return work(0, size)
    parts = min(how_many(threads), most)
    share = -(-size // (parts * unit)) * unit
    return _spread(work, size, share, _pool(parts) if parts > 1 else None)


def left_open(count: int, work: Callable[[int, int, NDArray[np.int64]], int]) -> list[int]:
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

    over_ranges(part, count, unit=_TILE, least=_ALONE)
    return sorted(found)


def over_rows(work: Callable[[int, int], None], rows: int, dimension: int) -> None:
    """Call work(begin, end) for ranges that cover `rows` rows of a matrix, on several threads.

    Kernels that `work` calls may use `over_ranges` themselves: rows have threads of their own, so
    none waits for a thread that waits for it.
    """
    most = min(rows, rows * dimension // _LEAST_COORDINATES)
    parts = 1 if most < 2 else min(how_many(), most)
    _spread(work, rows, -(-rows // parts), _row_pool(parts) if parts > 1 else None)


def _spread(
    work: Callable[[int, int], None], size: int, share: int, pool: ThreadPoolExecutor | None
) -> None:
    ends = [(begin, min(size, begin + share)) for begin in range(0, size, share or 1)]
    if pool is None or len(ends) < 2:
        return work(0, size)
    waiting = [pool.submit(work, *one) for one in ends[1:]]
    try:
        work(*ends[0])
    finally:
        wait(waiting)  # they write to what the caller owns
    for one in waiting:
        one.result()
    return None


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="sottovoce")


@cache
def _row_pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="sottovoce-rows")


if hasattr(os, "register_at_fork"):  # a child has the pool without its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
    os.register_at_fork(after_in_child=_row_pool.cache_clear)
