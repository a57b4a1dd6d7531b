"""One piece of work on several threads: each does a range of it.

For kernels that let go of the interpreter. `SOTTOVOCE_THREADS` says how many threads at most;
without it as many as there are cores, up to 8.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Final

from sottovoce.core import parameter_rules

VARIABLE: Final = "SOTTOVOCE_THREADS"
_MOST: Final = 256


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
    parts = max(1, min(how_many(threads), size // max(1, least)))
    share = -(-size // (parts * unit)) * unit
    ends = [(begin, min(size, begin + share)) for begin in range(0, size, share or 1)]
    if len(ends) < 2:
        return work(0, size)
    waiting = [_pool(parts).submit(work, *one) for one in ends[1:]]
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


if hasattr(os, "register_at_fork"):  # a child has the pool without its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
