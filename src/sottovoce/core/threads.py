"""Distribution of one task over several threads, each of which works on a range of it.

This is for kernels that release the interpreter's lock. The environment variable
`SOTTOVOCE_THREADS` limits the number of threads; the default is the number of cores, at most 8.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError

VARIABLE: Final = "SOTTOVOCE_THREADS"
_TILE: Final = 1024  # Coordinates whose 16-bit draws come from the same 32 keystream blocks.
_MOST: Final = 256
_FIRST_CAPACITY: Final = 1024
_ALONE: Final = 1 << 20  # The fewest coordinates that are worth a thread.
_LEAST_COORDINATES: Final = 1 << 14  # The fewest coordinates of rows that are worth a thread.


def thread_count(asked: int | None = None) -> int:
    """Return the number of threads to use, from 1 to 256.

    Args:
        asked: The number; None for that of the environment variable SOTTOVOCE_THREADS or, if it is
            unset, the number of cores, at most 8.

    Returns:
        The number.

    Raises:
        ParameterError: `asked` or the variable is not an integer from 1 to 256.
    """
    if asked is None:
        given = os.environ.get(VARIABLE)
        if given is None:
            return _cores()
        if not given.isdecimal() or not 1 <= int(given) <= _MOST:
            raise ParameterError(
                f"{VARIABLE} must be an integer from 1 to {_MOST}, got '{given}'; correct it, or "
                "leave it unset"
            )
        return int(given)
    return parameter_rules.integer("threads", asked, low=1, high=_MOST)


@cache  # Every encoding asks for it, and the system call is slow.
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
    """Call work(begin, end) for ranges that together cover 0 to `size`, on several threads.

    `end` is excluded. The call returns when all ranges are done; then the first exception of `work`
    is raised. Work too small for two threads is done by one call in this thread.

    Args:
        work: The task; it must be safe to run on several threads at once.
        size: The end of the last range.
        unit: The length of every range, except the last one, is a multiple of this.
        least: The shortest range that is worth a thread.
        threads: The most threads to use; the default of `thread_count` if None.
    """
    most = size // max(1, least)
    if most < 2:  # Asking for the number of threads would take longer than the work.
        return work(0, size)
    parts = min(thread_count(threads), most)
    share = -(-size // (parts * unit)) * unit
    return _spread(work, size, share, _pool(parts) if parts > 1 else None)


def collect_undecided(count: int, work: Callable[[int, int, NDArray[np.int64]], int]) -> list[int]:
    """Return the coordinates whose code `work` could not decide from their draw, in order.

    Args:
        count: The number of coordinates, 0 to count - 1, which are divided among threads.
        work: Is called as work(start, stop, undecided) for a range of coordinates. It writes the
            undecided ones of them, as many as fit, into the array `undecided` and returns their
            full number. If they did not fit, it is called again for that range with an array that
            is long enough.
    """
    found: list[int] = []

    def part(start: int, stop: int) -> None:
        number = _FIRST_CAPACITY
        while True:
            undecided = np.empty(number, dtype=np.int64)
            number = work(start, stop, undecided)
            if number <= len(undecided):
                found.extend(undecided[:number].tolist())
                return

    over_ranges(part, count, unit=_TILE, least=_ALONE)
    return sorted(found)


def over_rows(work: Callable[[int, int], None], rows: int, dimension: int) -> None:
    """Call work(begin, end) for ranges that cover `rows` rows of a matrix, on several threads.

    A row has `dimension` coordinates, which decides how many threads are worth it. Exceptions of
    `work` are raised when all ranges are done. Kernels that `work` calls may use `over_ranges`:
    rows have a thread pool of their own, so no thread waits for a task that is queued behind it.
    """
    most = min(rows, rows * dimension // _LEAST_COORDINATES)
    parts = 1 if most < 2 else min(thread_count(), most)
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
        wait(waiting)  # They write to memory that the caller owns.
    for one in waiting:
        one.result()
    return None


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="sottovoce")


@cache
def _row_pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="sottovoce-rows")


if hasattr(os, "register_at_fork"):  # A forked child inherits the pool without its threads.
    os.register_at_fork(after_in_child=_pool.cache_clear)
    os.register_at_fork(after_in_child=_row_pool.cache_clear)
