"""What every benchmark shares: taking turns, the shape of a result, and what refuses to run."""

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.core import native, parameter_rules
from sottovoce.core import threads as our_threads
from sottovoce.core.errors import ParameterError

_LEAST_RUNS = 3
# Of the memory that is free: what a benchmark may plan to take.
_SHARE_OF_MEMORY = 0.7
MAX_THREADS = 256


class WrongResult(AssertionError):
    """A result that differs from its reference: it is not timed."""


def require(holds: object, message: str) -> None:
    """The gate before the clock: WrongResult with the message unless `holds`."""
    if not holds:
        raise WrongResult(message)


@dataclass(frozen=True, slots=True)
class Contender:
    """Something that is timed: one call does `amount` units of work."""

    run: Callable[[], object]
    amount: float


def rates(contenders: Mapping[str, Contender], seconds: float) -> dict[str, float]:
    """The best rate of each contender, in units of work a second.

    They take turns, whoever has had the least time next, so that a busy machine slows all alike;
    the best of all turns is what the machine can do. Everybody has three turns at least, unless
    one alone outlasts `seconds`.
    """
    parameter_rules.positive("seconds", seconds)
    spent = dict.fromkeys(contenders, 0.0)
    runs = dict.fromkeys(contenders, 0)
    best = dict.fromkeys(contenders, float("inf"))
    share = seconds / max(1, len(contenders))
    while waiting := [
        name
        for name in contenders
        if spent[name] < share or (runs[name] < _LEAST_RUNS and spent[name] < seconds)
    ]:
        name = min(waiting, key=spent.__getitem__)
        start = time.perf_counter()
        contenders[name].run()
        taken = max(time.perf_counter() - start, 1e-9)
        spent[name] += taken
        runs[name] += 1
        best[name] = min(best[name], taken)
    return {name: one.amount / best[name] for name, one in contenders.items()}


def side_by_side(actions: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """One call of each action at the same time, each in a thread of its own."""
    if len(actions) == 1:
        return actions[0]
    pool = ThreadPoolExecutor(len(actions))

    def run() -> None:
        for waiting in [pool.submit(action) for action in actions]:
            waiting.result()

    return run


@contextmanager
def limited_to(threads: int) -> Iterator[None]:
    """Our own kernels use so many threads at most, and torch, if it is here, for a while."""
    before = os.environ.get(our_threads.VARIABLE)
    os.environ[our_threads.VARIABLE] = str(threads)
    try:
        with _torch_limited_to(threads):
            yield
    finally:
        if before is None:
            del os.environ[our_threads.VARIABLE]
        else:
            os.environ[our_threads.VARIABLE] = before


@contextmanager
def _torch_limited_to(threads: int) -> Iterator[None]:
    if version("torch") is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_threads(threads: int) -> int:
    return parameter_rules.integer("threads", threads, low=1, high=MAX_THREADS)


def cores(threads: int) -> str:
    """In words."""
    return "one core" if threads == 1 else f"{threads} threads"


def check_memory(needed: float, remedy: str) -> None:
    """Refuses a size before it is allocated, if the machine has not that much memory to spare."""
    free = _free_bytes()
    if needed > _SHARE_OF_MEMORY * free:
        raise ParameterError(
            f"this would take some {needed / 1e9:.3g} GB of memory, and {free / 1e9:.3g} GB are "
            f"free; {remedy}"
        )


def _free_bytes() -> float:
    """Memory that can be had without swapping; all of it where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def kernels_in_use() -> str:
    """The level of the C kernels that runs, or numpy."""
    found = native.native()
    return found.name if found else "numpy"


def ratio(ours: float, other: float | None) -> float | None:
    """How many times faster, or None where there is nothing to compare with."""
    return None if other is None else ours / other


def result(
    unit: str,
    ours: float,
    *,
    checked: str,
    numpy: float | None,
    torch: float | None,
    limit: str | None,
    limit_per_second: float | None,
    notes: Mapping[str, str] | None = None,
    **details: Any,
) -> dict[str, Any]:
    """One benchmark as a table of plain values; None is what could not or need not be compared.

    unit       names the speed, such as coordinates_per_second
    checked    what was compared before anything was timed
    limit      in words: what alone would take this long on this machine, measured in the same run
    notes      why something is None, and what a yardstick does
    """
    return {
        unit: ours,
        "ratio_to_numpy": ratio(ours, numpy),
        "ratio_to_torch": ratio(ours, torch),
        "fraction_of_limit": ratio(ours, limit_per_second),
        "limit": limit,
        "limit_per_second": limit_per_second,
        "kernels": kernels_in_use(),
        **details,
        "checked": checked,
        "notes": dict(notes or {}),
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """What the numbers belong to: processor, cores, system and versions."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "scipy", "cryptography", "torch")},
    }


def version(package: str) -> str | None:
    """The version that is installed, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
