"""Functions shared by the benchmarks: timing in turns, the form of a result, and size checks."""

import importlib.metadata
import os
import platform
import re
import subprocess
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
# Share of the free memory that a benchmark may use.
_SHARE_OF_MEMORY = 0.7
MAX_THREADS = 256


class WrongResult(AssertionError):
    """A result that differs from its reference, and is therefore not timed."""


def require(holds: object, message: str) -> None:
    """Raise WrongResult with the message unless `holds`; called before anything is timed."""
    if not holds:
        raise WrongResult(message)


@dataclass(frozen=True, slots=True)
class TimedAction:
    """An action to be timed: one call does `amount` units of work."""

    run: Callable[[], object]
    amount: float


def rates(actions: Mapping[str, TimedAction], seconds: float) -> dict[str, float]:
    """Return the best rate of each action, in units of work per second.

    The actions take turns, the one with the least time so far next, so that other load on the
    machine slows all of them alike; the best of all turns is what the machine can do. Each action
    has at least three turns, unless it exceeds `seconds` before.
    """
    parameter_rules.positive("seconds", seconds)
    spent = dict.fromkeys(actions, 0.0)
    runs = dict.fromkeys(actions, 0)
    best = dict.fromkeys(actions, float("inf"))
    share = seconds / max(1, len(actions))
    while waiting := [
        name
        for name in actions
        if spent[name] < share or (runs[name] < _LEAST_RUNS and spent[name] < seconds)
    ]:
        name = min(waiting, key=spent.__getitem__)
        start = time.perf_counter()
        actions[name].run()
        taken = max(time.perf_counter() - start, 1e-9)
        spent[name] += taken
        runs[name] += 1
        best[name] = min(best[name], taken)
    return {name: one.amount / best[name] for name, one in actions.items()}


def side_by_side(actions: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """Return a function that calls every action at the same time, each in its own thread."""
    if len(actions) == 1:
        return actions[0]
    pool = ThreadPoolExecutor(len(actions))

    def run() -> None:
        for waiting in [pool.submit(action) for action in actions]:
            waiting.result()

    return run


@contextmanager
def limited_to(threads: int) -> Iterator[None]:
    """Limit our kernels, and torch if it is installed, to so many threads within the context."""
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
    """Return the number of threads if it is allowed."""
    return parameter_rules.integer("threads", threads, low=1, high=MAX_THREADS)


def cores(threads: int) -> str:
    """Return the number of threads as text."""
    return "one core" if threads == 1 else f"{threads} threads"


def check_memory(needed: float, remedy: str) -> None:
    """Refuse a size before it is allocated if the machine does not have that much free memory."""
    free = _free_bytes()
    if needed > _SHARE_OF_MEMORY * free:
        raise ParameterError(
            f"this would take about {needed / 1e9:.3g} GB of memory, but only {free / 1e9:.3g} GB "
            f"are free; {remedy}"
        )


def _free_bytes() -> float:
    """Return the memory available without swapping, or all memory if the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def kernels_in_use() -> str:
    """Return the name of the C kernels in use, or numpy."""
    found = native.native()
    return found.name if found else "numpy"


def ratio(ours: float, other: float | None) -> float | None:
    """Return how many times faster ours is, or None if there is nothing to compare with."""
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
    """Return the result of one benchmark as plain values; None where nothing was compared.

    Args:
        unit: Name of the speed, such as coordinates_per_second.
        ours: Our speed.
        checked: What was checked before anything was timed.
        numpy: Speed of plain numpy, or None.
        torch: Speed of torch, or None.
        limit: What the machine's limit is, in words.
        limit_per_second: The limit, measured in the same run.
        notes: Why a value is None, and what a baseline does.
        **details: Further values of the result.

    Returns:
        The values by name.
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
    """Return what the numbers belong to: processor, cores, system and versions."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "scipy", "cryptography", "torch")},
    }


def version(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """Return the name of the processor, from the system's own list or the tool that reads it."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    if "model name" not in text.lower():  # As on ARM and on macOS.
        commands = (["lscpu"], ["sysctl", "machdep.cpu.brand_string"])
        text = "".join(_printed(command) for command in commands)
    found = re.search(r"^(?:model name|machdep\.cpu\.brand_string)\s*:\s*(.+)$", text, re.M | re.I)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _printed(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
