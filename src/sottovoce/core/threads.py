"""Distribution of one task over several threads, each of which works on a range of it.

This is for kernels that release the interpreter's lock. The environment variable
`SOTTOVOCE_THREADS` limits the number of threads; the default is the number of cores that this
process may use, at most 64.
"""

import os
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError

VARIABLE: Final = "SOTTOVOCE_THREADS"
_TILE: Final = 1024  # Coordinates whose 16-bit draws come from the same 32 keystream blocks.
_MOST: Final = 256
_MOST_BY_DEFAULT: Final = 64
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")  # The limit of a container on Linux.
_SHARES: Final = 4  # The ranges of rows for each thread, so that none waits long for the last one.
_FIRST_CAPACITY: Final = 1024
_ALONE: Final = 1 << 20  # The fewest coordinates that are worth a thread.
_LEAST_COORDINATES: Final = 1 << 14  # The fewest coordinates of rows that are worth a thread.


def thread_count(asked: int | None = None) -> int:
    """Return the number of threads to use, from 1 to 256.

    Args:
        asked: The number; None for that of the environment variable SOTTOVOCE_THREADS or, if it is
            unset, the number of cores that this process may use, at most 64.

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
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only.
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min(_MOST_BY_DEFAULT, cores, _quota()))


def _quota() -> int:
    """Return how many cores a container grants, rounded up; many if it grants all."""
    try:
        allowed, period = _QUOTA.read_text(encoding="ascii").split()
        return _MOST if allowed == "max" else -(-int(allowed) // int(period))
    except (OSError, ValueError):
        return _MOST


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
    parts = threads_for_size(size, least=least, threads=threads)
    share = max(1, -(-size // (parts * unit)) * unit)
    return _spread(work, size, share, parts)


def threads_for_size(size: int, *, least: int, threads: int | None = None) -> int:
    """Return how many threads are worth it if a thread is worth a range of `least`.

    Args:
        size: The size of the work.
        least: The shortest range that is worth a thread.
        threads: The most threads to use; the default of `thread_count` if None.
    """
    most = size // max(1, least)
    # Asking for the number of threads would take longer than little work.
    return 1 if most < 2 else min(thread_count(threads), most)


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


def threads_for_rows(rows: int, dimension: int) -> int:
    """Return how many threads are worth it for rows of `dimension` coordinates each.

    Kernels that are given this number share the rows among threads of their own, which do not wait
    for the interpreter's lock.
    """
    most = min(rows, rows * dimension // _LEAST_COORDINATES)
    return 1 if most < 2 else min(thread_count(), most)


def over_rows(work: Callable[[int, int], None], rows: int, dimension: int) -> None:
    """Call work(begin, end) for ranges that cover `rows` rows of a matrix, on several threads.

    A row has `dimension` coordinates, which decides how many threads are worth it. Exceptions of
    `work` are raised when all ranges are done. `work` may call this function and `over_ranges`.
    """
    parts = threads_for_rows(rows, dimension)
    shares = parts if rows < 2 * _SHARES * parts else _SHARES * parts
    _spread(work, rows, -(-rows // shares), parts)


def _spread(work: Callable[[int, int], None], size: int, share: int, threads: int) -> None:
    if threads < 2 or share >= size:
        return work(0, size)
    job = _Job(work, size, share)
    _workers.help(job, threads - 1)
    job.run()
    return job.finish()


class _Job:
    """Ranges of one task, which threads take one after the other.

    The thread that made the job takes part, so the job ends even if all others are busy.
    """

    def __init__(self, work: Callable[[int, int], None], size: int, share: int) -> None:
        self._work, self._size, self._share = work, size, share
        self._ranges: Iterator[int] = iter(range(0, size, share))
        self._lock, self._done = threading.Lock(), threading.Event()
        self._left = -(-size // share)
        self._errors: dict[int, BaseException] = {}

    def run(self) -> None:
        """Take ranges until none is left, and call the work for each."""
        while True:
            with self._lock:
                begin = next(self._ranges, None)
            if begin is None:
                return
            try:
                self._work(begin, min(self._size, begin + self._share))
            except BaseException as error:  # Raised by the thread that waits.
                self._errors[begin] = error
            with self._lock:
                self._left -= 1
                if not self._left:
                    self._done.set()

    def finish(self) -> None:
        """Wait until all ranges are done, and raise the error of the first one that failed."""
        self._done.wait()  # The ranges write to memory that the caller owns.
        if self._errors:
            raise self._errors[min(self._errors)]


class _Workers:
    """Threads that help with jobs; they are started when they are first needed."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._started, self._lock = 0, threading.Lock()

    def help(self, job: _Job, threads: int) -> None:
        """Let up to that many threads work on a job."""
        with self._lock:
            while self._started < threads:
                name = f"sottovoce-{self._started}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
                self._started += 1
        for _ in range(threads):
            self._jobs.put(job)

    def _run(self) -> None:
        while True:
            self._jobs.get().run()


_workers = _Workers()


def _forget_workers() -> None:
    """Forget the threads in a forked child, which does not inherit them."""
    global _workers
    _workers = _Workers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)
