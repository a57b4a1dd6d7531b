"""Flower's own programs as children of ours: started, watched, and ended in order.

Each has a guard between it and its keeper (`guard.py`), by which it ends with all that it has
started when its keeper does, even where that one is killed.

A keeper is the process that keeps a link or a node, in the foreground or the background. It holds
a lock in its folder for as long as it lives, so a stale file never looks like a running
program. What a killed keeper has started ends with it; if its guards were killed as well, the next
keeper, or 'deploy stop', ends what they have written down.
"""

import contextlib
import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sottovoce.core import files
from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines import guard
from sottovoce.deployment.machines.address import LOOPBACK
from sottovoce.deployment.machines.guard import Process, end_recorded

POLL_SECONDS = 0.2
_RECORDS = "processes"  # in a keeper's folder: what its guards have written down
STOP_SECONDS = 15.0
_GUARD_SECONDS = 5.0  # what a guard takes beyond that
_LAST_LINES = 12
_UMASK = 0o077  # nothing that a link or a node writes is for other users of the machine
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class ChildEndedError(DeploymentError):
    """A program that should run has ended; it may be started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A program that runs for us; `name` is what people know it by, `process` is its guard."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    record: Path

    @classmethod
    def start(
        cls, name: str, command: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> "Child":
        record = log.parent / _RECORDS / f"{log.stem}.json"
        with files.explained("write", log), files.open_private(log) as output:
            record.parent.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
            process = subprocess.Popen(  # noqa: S603  (our own list, and no shell)
                [sys.executable, "-I", "-S", guard.__file__, str(record)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=log.parent,
                umask=_UMASK,
                start_new_session=True,  # a group of its own: we end the children, and in order
                preexec_fn=guard.die_with_parent(),
            )
        given = {"command": list(command), "stop_seconds": STOP_SECONDS}
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(json.dumps(given).encode())
        return cls(name=name, process=process, log=log, record=record)

    def check_alive(self) -> None:
        """Raise with the log's last lines if the program has ended."""
        code = self.process.poll()
        if code is not None:
            raise ChildEndedError(
                f"{self.name} ended with code {code}; the last lines of {self.log}:\n"
                f"{last_lines(self.log)}"
            )

    def stop(self) -> None:
        """Ask the program and what it has started to end; its guard makes them if they do not."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS + _GUARD_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        guard.end_recorded([self.record], seconds=STOP_SECONDS)  # of a guard that was killed


@contextlib.contextmanager
def stopped_at_the_end() -> Iterator[list[Child]]:
    """A list for children, which are stopped in reverse order, whatever happens.

    Meanwhile a signal to end (SIGTERM, SIGINT) ends this process calmly, by SystemExit.
    """
    children: list[Child] = []
    before = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield children
    finally:
        for number in before:  # a second Ctrl-C must not leave children behind
            signal.signal(number, signal.SIG_IGN)
        for child in reversed(children):
            child.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_until(
    ready: Callable[[], bool], children: Sequence[Child], *, what: str, timeout_seconds: float
) -> None:
    """Wait for something that the last child brings about; say why if it does not come."""
    deadline = time.monotonic() + timeout_seconds
    while not ready():
        for child in children:
            child.check_alive()
        if time.monotonic() > deadline:
            log = children[-1].log
            raise DeploymentError(
                f"{what} after {timeout_seconds:.0f} seconds; the last lines of {log}:\n"
                f"{last_lines(log)}"
            )
        time.sleep(POLL_SECONDS)


def watch(children: Sequence[Child]) -> None:
    """Stay until a signal ends this process; a child that ends by itself is an error."""
    while True:
        for child in children:
            child.check_alive()
        time.sleep(POLL_SECONDS)


def last_lines(log: Path) -> str:
    """The end of a log, without its colours, for an error's text."""
    with files.explained("read", log):
        text = _COLOUR.sub("", log.read_bytes().decode(errors="replace"))
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-_LAST_LINES:])


def records_in(keeper_folder: Path) -> list[Path]:
    """What guards have written down; those that ended as they should have left nothing."""
    return sorted((keeper_folder / _RECORDS).glob("*.json"))


def program(name: str) -> str:
    """One of Flower's programs: the one installed beside this Python."""
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise DeploymentError(f"this needs Flower's {name}: pip install 'sottovoce[flower]'")
    return found


def environment(flower_home: Path) -> dict[str, str]:
    """What Flower's programs find around them: no telemetry, and nothing in anybody's home."""
    scripts = sysconfig.get_path("scripts")
    return {
        **os.environ,
        "FLWR_HOME": str(flower_home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        **without_proxy(),
    }


def without_proxy() -> dict[str, str]:
    """Calls to this machine itself never go through a proxy that the environment names."""
    given = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    hosts = ",".join(filter(None, [given, LOOPBACK, "localhost"]))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def _end(_number: int, _frame: object) -> None:
    raise SystemExit(0)


_LOCK_SECONDS = 2.0
_STOP_SECONDS = 60.0
_LOG_NAME = "keeper.log"

Announce = Callable[[dict[str, Any]], None]


@contextlib.contextmanager
def keeping(folder: Path, *, what: str) -> Iterator[Announce]:
    """Be the keeper of `folder`; gives a function that announces that all is up, with facts."""
    with contextlib.ExitStack() as stack:
        with files.explained("write", folder):
            folder.mkdir(mode=0o700, exist_ok=True)
            lock = stack.enter_context(files.open_private(folder / "lock", append=True))
        _acquire(lock, what)
        # What a killed keeper has announced is no longer true, and its number may be another's.
        (folder / "state.json").unlink(missing_ok=True)
        files.make_private(folder)
        for process in end_recorded(records_in(folder), seconds=STOP_SECONDS):
            print(f"ended what was left of an earlier start: {shown(process)}", file=sys.stderr)
        stack.callback((folder / "state.json").unlink, missing_ok=True)
        state = {"pid": os.getpid(), "ready": False}
        files.write_json(folder / "state.json", state, mode=files.PRIVATE)
        yield lambda facts: files.write_json(
            folder / "state.json", {**state, "ready": True, **facts}, mode=files.PRIVATE
        )


def state_of(folder: Path) -> dict[str, Any] | None:
    """What the keeper of `folder` has announced; None where there is no keeper."""
    while True:
        try:
            with (folder / "lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
        except FileNotFoundError:
            return None
        except BlockingIOError:
            # A keeper that has just come has not written yet, and one that goes has taken it away.
            with contextlib.suppress(FileNotFoundError):
                state: dict[str, Any] = json.loads((folder / "state.json").read_bytes())
                return state
        time.sleep(POLL_SECONDS / 4)


def start_in_background(
    command: Sequence[str], folder: Path, *, timeout_seconds: float
) -> dict[str, Any]:
    """Start a keeper that outlives this process, wait for its announcement, and return it."""
    log = folder / _LOG_NAME
    with files.explained("write", log):
        folder.mkdir(mode=0o700, exist_ok=True)
        output = files.open_private(log)
    with output:
        process = subprocess.Popen(  # noqa: S603  (our own list, and no shell)
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + timeout_seconds
    while not ((state := state_of(folder)) and state["ready"] and state["pid"] == process.pid):
        if process.poll() is not None:
            said = log.read_text(errors="replace").strip()
            raise DeploymentError(said.removeprefix("error: ") or f"it ended; see {log}")
        if time.monotonic() > deadline:
            process.terminate()
            process.wait()
            raise DeploymentError(f"it was not up after {timeout_seconds:.0f} seconds; see {log}")
        time.sleep(POLL_SECONDS)
    return state


def stop_keeper(folder: Path) -> bool:
    """End the keeper of `folder` and its children; False if there was none."""
    state = state_of(folder)
    if state is None:
        return False
    with _process(state["pid"]) as process:
        with contextlib.suppress(ProcessLookupError):
            os.kill(state["pid"], signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        # It lets the lock go a little before it has ended.
        while state_of(folder) is not None or _is_alive(process):
            if time.monotonic() > deadline:
                raise DeploymentError(
                    f"process {state['pid']} has not ended after {_STOP_SECONDS:.0f} seconds; "
                    f"end it with: kill -9 {state['pid']}"
                )
            time.sleep(POLL_SECONDS)
    return True


def end_leftovers(folder: Path) -> list[Process]:
    """End what a killed keeper of `folder` has left; gives the processes that there were."""
    if not records_in(folder):
        return []
    with files.explained("open", folder / "lock"):
        lock = files.open_private(folder / "lock", append=True)
    with lock:
        _acquire(lock, "it")
        return end_recorded(records_in(folder), seconds=STOP_SECONDS)


def shown(process: Process) -> str:
    """A process for people."""
    return f"process {process.pid} ({process.command[:200]})"


@contextlib.contextmanager
def _process(pid: int) -> Iterator[int | None]:
    """A file that can be read once the process has ended; None where Linux does not give one."""
    try:
        process = os.pidfd_open(pid)
    except (AttributeError, OSError):  # another system, or it has ended
        yield None
        return
    try:
        yield process
    finally:
        os.close(process)


def _is_alive(process: int | None) -> bool:
    # Unlike signal 0 this does not take a process for alive that nobody has waited for.
    return process is not None and not select.select([process], [], [], 0.0)[0]


def _acquire(lock: IO[bytes], what: str) -> None:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            # Whoever only looks holds the lock for an instant.
            if time.monotonic() > deadline:
                raise DeploymentError(
                    f"{what} is already running; stop it with 'sottovoce deploy stop'"
                ) from None
            time.sleep(POLL_SECONDS / 4)
