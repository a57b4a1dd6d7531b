"""Running a source in its own process, and measuring how busy the machine was otherwise."""

import contextlib
import dataclasses
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from figures.figure import OUT, ROOT, Output, Source

# What a source's numbers depend on. The register itself is left out: its readers read again.
CODE = (
    *("src", "tests", "examples", "docs", "tools", "benchmarks", ":!benchmarks/figures"),
    *("pyproject.toml", "constraints.txt", "setup.py", "Makefile"),
)
_PROGRAMS = {
    "sottovoce": [sys.executable, "-m", "sottovoce"],
    "pytest": [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
    "python": [sys.executable],
    "mkdocs": [sys.executable, "-m", "mkdocs"],
}
# Above these shares of all cores, of others' work and of time that the host took, times are not
# judged.
MOST_OTHERS, MOST_STOLEN = 0.15, 0.03


class NotMeasuredError(Exception):
    """An error: a source gave no output that can be read. The text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The output of a source, and the circumstances of the measurement."""

    output: Output
    commit: str
    date: str
    others: float  # share of all cores that others had
    stolen: float  # share of all cores that the host had
    load: float  # the load average at the start
    machine: str

    @property
    def busy(self) -> bool:
        return was_busy(self.others, self.stolen)


def was_busy(others: float, stolen: float) -> bool:
    """Return whether these shares of all cores are too large for times to be judged."""
    return others > MOST_OTHERS or stolen > MOST_STOLEN


def code_commit() -> str:
    """Return the last commit of what is measured; '+' if files differ from it."""
    last = _git("log", "-1", "--format=%h", "--", *CODE)
    changed = _git("status", "--porcelain", "--", *CODE)
    return f"{last or 'unknown'}{'+' if changed else ''}"


def kept_date(path: str) -> str:
    """Return the day on which a kept file was last committed."""
    return _git("log", "-1", "--format=%cs", "--", path) or "an unknown day"


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def measure(source: Source, folder: Path, commit: str) -> Measurement:
    """Run a source, `repeats` times; `folder` holds what it writes, and then its output."""
    shutil.rmtree(folder, ignore_errors=True)
    before = _others_now()
    load = os.getloadavg()[0]
    processors = _jiffies()
    runs = [_run(source, folder / "out") for _ in range(source.repeats)]
    used = _jiffies()
    after = _others_now()
    quickest = min((run for run, _ in runs), key=lambda one: one.seconds)
    own = sum(seconds for _, seconds in runs)
    others, stolen = _shares(processors, used, own)
    measured = Measurement(
        output=quickest,
        commit=commit,
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        others=max(others, before, after),
        stolen=stolen,
        load=load,
        machine=machine(),
    )
    _remember(source, measured, folder)
    return measured


def kept(source: Source, folder: Path, commit: str) -> Measurement | None:
    """Return what was measured at this commit; nothing if files differ from the commit."""
    path = folder / "measurement.json"
    if commit.endswith("+") or not path.exists():
        return None
    found = json.loads(path.read_text())
    if found["commit"] != commit or found["command"] != source.command or "machine" not in found:
        return None
    output = found.pop("output")
    del found["command"]
    output["folder"] = Path(output["folder"])
    return Measurement(output=Output(**output), **found)


def _remember(source: Source, measured: Measurement, folder: Path) -> None:
    """Keep a measurement, so that it is not made again at the same commit."""
    values = dataclasses.asdict(measured)
    values["output"]["folder"] = str(measured.output.folder)
    values["command"] = source.command
    (folder / "measurement.json").write_text(json.dumps(values))


def _run(source: Source, out: Path) -> tuple[Output, float]:
    """Return the output of one run, and the seconds of processors that it took."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    words = [word.replace(OUT, str(out)) for word in source.words]
    words = [*_PROGRAMS.get(words[0], words[:1]), *words[1:]]
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    start = time.perf_counter()
    with (out.parent / "stderr").open("wb") as errors, (out.parent / "stdout").open("w+b") as text:
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=text, stderr=errors, start_new_session=True
        )
        timer = threading.Timer(source.timeout_seconds, _end, [process.pid])
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            _end(process.pid)
            raise
        finally:
            timer.cancel()
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        text.seek(0)
        printed = text.read().decode(errors="replace")
    if seconds >= source.timeout_seconds:
        raise NotMeasuredError(f"ended after {seconds / 60.0:.0f} minutes without a result")
    if process.returncode not in source.exits:
        last = (out.parent / "stderr").read_text(errors="replace").strip().rpartition("\n")[2]
        raise NotMeasuredError(
            f"{shlex.join(source.words)} ended with {process.returncode}: {last}"
        )
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    output = Output(text=printed, seconds=seconds, peak_bytes=peak, folder=out)
    return output, usage.ru_utime + usage.ru_stime


def _end(group: int) -> None:
    """End a process that we started, and all that it started."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


@dataclass(frozen=True, slots=True)
class _Jiffies:
    busy: float
    stolen: float
    total: float


def _jiffies() -> _Jiffies | None:
    """Return what all cores did since the machine started, or None if Linux does not say."""
    try:
        words = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, idle, waiting, irq, soft, stolen = map(float, words)
    busy = user + nice + system + irq + soft
    return _Jiffies(busy, stolen, busy + idle + waiting + stolen)


def _shares(
    before: _Jiffies | None, after: _Jiffies | None, own_seconds: float
) -> tuple[float, float]:
    """Return the shares of all cores that others had, and that the host had."""
    if before is None or after is None or after.total <= before.total:
        return 0.0, 0.0
    total = after.total - before.total
    own = own_seconds * os.sysconf("SC_CLK_TCK")
    others = max(0.0, after.busy - before.busy - own) / total
    return others, (after.stolen - before.stolen) / total


def _others_now() -> float:
    """Return how busy the machine is while this process does nothing for a second."""
    before = _jiffies()
    time.sleep(1.0)
    others, stolen = _shares(before, _jiffies(), 0.0)
    return others + stolen


def busy_now() -> bool:
    """Return whether other processes keep the machine busy at this moment."""
    return _others_now() > MOST_OTHERS


def machine() -> str:
    """Return what the numbers belong to."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        model = found[1] if found else model
    return (
        f"{model}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    )
