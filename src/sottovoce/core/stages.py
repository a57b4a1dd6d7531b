"""The time that each stage of a round takes, for `run --profile` and for benchmarks.

    with measure_stages() as times:
        ...  # code with `with stage("train"):` around its parts
    times.seconds["train"]

Outside `measure_stages` a stage costs almost nothing. Times are exclusive: a stage inside another
one is not counted in the outer one. On a GPU the device is synchronized at every border, so that
its work is counted where it belongs; a profiled run is therefore a little slower.
"""

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass
class StageTimes:
    """The seconds of each stage so far, by its name, without the stages inside it."""

    seconds: dict[str, float] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _since: float = 0.0
    _thread: int = field(default_factory=threading.get_ident)

    def _switch(self) -> None:
        """Count the time since the last border for the innermost open stage."""
        _wait_for_device()
        now = time.perf_counter()
        if self._open:
            name = self._open[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now

    def enter(self, name: str) -> None:
        """Begin a stage inside the current one."""
        self._switch()
        self._open.append(name)

    def leave(self) -> None:
        """End the current stage."""
        self._switch()
        self._open.pop()

    def profile(self, total_seconds: float) -> dict[str, dict[str, float]]:
        """Return the seconds of each stage and its share of a total, the longest stage first.

        Args:
            total_seconds: The seconds in which the stages passed, and whatever else.

        Returns:
            By the name of the stage, `seconds` and `share`; last "other", the rest of the total.
        """
        longest = sorted(self.seconds.items(), key=lambda one: -one[1])
        rest = max(0.0, total_seconds - sum(self.seconds.values()))
        return {
            name: {"seconds": seconds, "share": seconds / total_seconds if total_seconds else 0.0}
            for name, seconds in [*longest, ("other", rest)]
        }


_active: StageTimes | None = None


@contextmanager
def measure_stages() -> Iterator[StageTimes]:
    """Measure the stages that this thread passes inside a `with` block."""
    global _active
    before, _active = _active, StageTimes()
    try:
        yield _active
    finally:
        _active = before


_NOTHING: AbstractContextManager[None] = nullcontext()


def stage(name: str) -> AbstractContextManager[None]:
    """Count the time of a `with` block for the stage `name`, if stages are measured."""
    times = _active
    if times is None or times._thread != threading.get_ident():
        return _NOTHING  # The threads that share the work of a stage are within its time.
    return _within(times, name)


@contextmanager
def _within(times: StageTimes, name: str) -> Iterator[None]:
    times.enter(name)
    try:
        yield
    finally:
        times.leave()


def staged(name: str, items: Iterable[T]) -> Iterator[T]:
    """Yield the items, and count the time that it takes to make each of them for a stage."""
    iterator = iter(items)
    while True:
        with stage(name):
            try:
                made = [next(iterator)]
            except StopIteration:
                return
        yield made.pop()  # So that a large item is not kept here while the next one is made.


def _wait_for_device() -> None:
    """Wait until a CUDA device has done its work, if this process uses one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
