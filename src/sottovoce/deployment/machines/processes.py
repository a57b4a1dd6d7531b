"""Flower's programs as child processes: started, watched, and stopped in order.

Each program has a guard process between it and its supervisor (`guard.py`). With it the program and
all its descendants end when the supervisor ends, even if that is killed.

A supervisor is the process that runs a link or a node, in the foreground or the background. It
holds a lock in its folder as long as it lives, so a stale file never looks like a running program.
Programs of a killed supervisor end with it. If its guards were killed as well, the next supervisor,
or 'deploy stop', ends the processes that the guards have recorded.
"""

import contextlib
import fcntl
import json
import os
import re
import select
import shlex
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
_RECORDS = "processes"  # in a supervisor's folder: the records of its guards
STOP_SECONDS = 15.0
_GUARD_SECONDS = 5.0  # additional time for the guard
_LAST_LINES = 12
_UMASK = 0o077  # other users of the machine may read nothing that a link or node writes
_COLOR_CODE = re.compile(r"\x1b\[[0-9;]*m")


class ChildEndedError(DeploymentError):
    """A program that should run has ended; it may be started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A running program.

    Attributes:
        name: Name of the program for messages.
        process: Its guard process.
        log: The file that gets its output.
        record: The file in which its guard lists the processes.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    record: Path

    @classmethod
    def start(
        cls, name: str, command: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> "Child":
        """Start a program under a guard, with its output in a private log file, and do not wait.

        The guard is a process that ends the program and its descendants when this process ends.
        Raises OutputError if the log cannot be written.
        """
        record = log.parent / _RECORDS / f"{log.stem}.json"
        with files.explain_os_errors("write", log), files.open_private(log) as output:
            record.parent.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
            process = subprocess.Popen(  # noqa: S603  (a fixed list, without a shell)
                [sys.executable, "-I", "-S", guard.__file__, str(record)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=log.parent,
                umask=_UMASK,
                start_new_session=True,  # its own group, so that children are stopped in order
                preexec_fn=guard.die_with_parent(),
            )
        given = {"command": list(command), "stop_seconds": STOP_SECONDS}
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(json.dumps(given).encode())
        return cls(name=name, process=process, log=log, record=record)

    def check_alive(self) -> None:
        """Raise ChildEndedError with the log's last lines if the program has ended."""
        code = self.process.poll()
        if code is not None:
            raise ChildEndedError(
                f"{self.name} ended with code {code}; see the last lines of {self.log}:\n"
                f"{last_lines(self.log)}"
            )

    def stop(self) -> None:
        """Stop the program and its descendants, and wait until they have ended.

        What does not end by itself within 15 seconds is killed.
        """
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS + _GUARD_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        guard.end_recorded([self.record], seconds=STOP_SECONDS)  # in case the guard was killed


@contextlib.contextmanager
def stop_children_at_exit() -> Iterator[list[Child]]:
    """Yield a list for children, which are stopped in reverse order when the block ends.

    Inside the block SIGTERM and SIGINT raise SystemExit(0). They are ignored while the children are
    stopped, and have their earlier handlers afterwards.
    """
    children: list[Child] = []
    before = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield children
    finally:
        for number in before:  # a second Ctrl-C must not leave children running
            signal.signal(number, signal.SIG_IGN)
        for child in reversed(children):
            child.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_until(
    ready: Callable[[], bool], children: Sequence[Child], *, what: str, timeout_seconds: float
) -> None:
    """Wait until `ready()` is true; raise DeploymentError if a child ends or time is up.

    `what` starts the message about the time, as in "the node did not start", which also shows the
    end of the last child's log.
    """
    deadline = time.monotonic() + timeout_seconds
    while not ready():
        for child in children:
            child.check_alive()
        if time.monotonic() > deadline:
            log = children[-1].log
            raise DeploymentError(
                f"{what} after {timeout_seconds:.0f} seconds; see the last lines of {log}:\n"
                f"{last_lines(log)}"
            )
        time.sleep(POLL_SECONDS)


def watch(children: Sequence[Child]) -> None:
    """Watch children and never return; raise ChildEndedError if one of them ends."""
    while True:
        for child in children:
            child.check_alive()
        time.sleep(POLL_SECONDS)


def last_lines(log: Path) -> str:
    """Return the last 12 lines of a log that are not blank, without color codes, for a message."""
    with files.explain_os_errors("read", log):
        text = _COLOR_CODE.sub("", log.read_bytes().decode(errors="replace"))
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-_LAST_LINES:])


def records_in(keeper_folder: Path) -> list[Path]:
    """Return the files in which the guards of a link or node list the processes they have started.

    A guard removes its file when it ends, unless it was killed.
    """
    return sorted((keeper_folder / _RECORDS).glob("*.json"))


def program(name: str) -> str:
    """Return the path of one of Flower's programs, preferably next to this Python.

    Raises DeploymentError if it is not installed.
    """
    installed = Path(sysconfig.get_path("scripts")) / name
    found = str(installed) if installed.exists() else shutil.which(name)
    if found is None:
        raise DeploymentError(
            f"Flower's program {name} is not installed; install it with: pip install "
            "'sottovoce[flower]'"
        )
    return found


def environment(flower_home: Path) -> dict[str, str]:
    """Return this process's environment with changes for Flower's programs.

    They use `flower_home` as FLWR_HOME, send no telemetry, and use no proxy on this machine.
    """
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
    """Return environment variables by which calls to this machine itself use no proxy."""
    given = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    hosts = ",".join(filter(None, [given, LOOPBACK, "localhost"]))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def _end(_number: int, _frame: object) -> None:
    raise SystemExit(0)


_LOCK_SECONDS = 2.0
_STOP_SECONDS = 90.0
_REPEAT_SECONDS = 20.0  # Python loses a signal that arrives while it deletes an object.
_LOG_NAME = "keeper.log"

Announce = Callable[[dict[str, Any]], None]


@contextlib.contextmanager
def hold_supervisor_lock(folder: Path, *, what: str) -> Iterator[Announce]:
    """Hold the lock of `folder` as its supervisor; yield a function that announces readiness.

    A supervisor is the process that runs a link or a node. The function takes a dict of facts,
    which `state_of` then returns to other processes. What a killed supervisor has left running is
    ended first. Raises DeploymentError if another supervisor has the lock; `what` names the
    program in its message.
    """
    with contextlib.ExitStack() as stack:
        with files.explain_os_errors("write", folder):
            folder.mkdir(mode=0o700, exist_ok=True)
            lock = stack.enter_context(files.open_private(folder / "lock", append=True))
        _acquire(lock, what)
        # The announcement of a killed supervisor is no longer true, and its process number may
        # belong to another process.
        (folder / "state.json").unlink(missing_ok=True)
        files.make_private(folder)
        for process in end_recorded(records_in(folder), seconds=STOP_SECONDS):
            print(
                f"ended a process that an earlier start left: {describe_process(process)}",
                file=sys.stderr,
            )
        stack.callback((folder / "state.json").unlink, missing_ok=True)
        state = {"pid": os.getpid(), "ready": False}
        files.write_json(folder / "state.json", state, mode=files.PRIVATE)
        yield lambda facts: files.write_json(
            folder / "state.json", {**state, "ready": True, **facts}, mode=files.PRIVATE
        )


def state_of(folder: Path) -> dict[str, Any] | None:
    """Return what the supervisor of `folder`, a running link or node, has announced.

    The dict has `pid`, `ready` and, once it is ready, the announced facts. None if no supervisor
    runs. Waits while one is starting or stopping.
    """
    while True:
        try:
            with (folder / "lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
        except FileNotFoundError:
            return None
        except BlockingIOError:
            # A supervisor that has just started has not written the file yet, and one that stops
            # has removed it.
            with contextlib.suppress(FileNotFoundError):
                state: dict[str, Any] = json.loads((folder / "state.json").read_bytes())
                return state
        time.sleep(POLL_SECONDS / 4)


def start_in_background(
    command: Sequence[str], folder: Path, *, timeout_seconds: float
) -> dict[str, Any]:
    """Start a supervisor that outlives this process; return its announcement once it is ready.

    A supervisor is the process that runs a link or a node; see `state_of` for the announcement.

    Raises:
        DeploymentError: The supervisor ended, or was not ready in time and was stopped.
    """
    log = folder / _LOG_NAME
    with files.explain_os_errors("write", log):
        folder.mkdir(mode=0o700, exist_ok=True)
        output = files.open_private(log)
    with output:
        process = subprocess.Popen(  # noqa: S603  (a fixed list, without a shell)
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
            raise DeploymentError(
                said.removeprefix("error: ")
                or f"'{shlex.join(command)}' ended without a message; see {log}"
            )
        if time.monotonic() > deadline:
            process.terminate()
            process.wait()
            raise DeploymentError(
                f"'{shlex.join(command)}' was not ready after {timeout_seconds:.0f} seconds and "
                f"was stopped; find the cause in its log {log}, then start it again"
            )
        time.sleep(POLL_SECONDS)
    return state


def stop_supervisor(folder: Path) -> bool:
    """Stop the link or node that runs in `folder`, and wait; return False if none was running.

    Raises DeploymentError if it has not ended after 90 seconds.
    """
    state = state_of(folder)
    if state is None:
        return False
    with _process(state["pid"]) as process:
        asked = time.monotonic()
        deadline = asked + _STOP_SECONDS
        # A supervisor releases the lock shortly before it ends.
        while state_of(folder) is not None or _is_alive(process):
            if time.monotonic() >= asked:
                asked += _REPEAT_SECONDS
                with contextlib.suppress(ProcessLookupError):
                    os.kill(state["pid"], signal.SIGTERM)
            if time.monotonic() > deadline:
                raise DeploymentError(
                    f"process {state['pid']} has not ended after {_STOP_SECONDS:.0f} seconds; "
                    f"end it with: kill -9 {state['pid']}"
                )
            time.sleep(POLL_SECONDS)
    return True


def end_leftovers(folder: Path) -> list[Process]:
    """End the processes that a killed link or node of `folder` has left, and return them.

    Raises DeploymentError if a link or node is running there.
    """
    if not records_in(folder):
        return []
    with files.explain_os_errors("open", folder / "lock"):
        lock = files.open_private(folder / "lock", append=True)
    with lock:
        _acquire(lock, "the program")
        return end_recorded(records_in(folder), seconds=STOP_SECONDS)


def describe_process(process: Process) -> str:
    """Return the number and command line of a process, as text for messages."""
    return f"process {process.pid} ({process.command[:200]})"


@contextlib.contextmanager
def _process(pid: int) -> Iterator[int | None]:
    """Yield a file descriptor that is readable once the process has ended.

    None if the process has ended already, and on systems other than Linux.
    """
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
    # Unlike signal 0, this does not count a process that has ended and was not reaped.
    return process is not None and not select.select([process], [], [], 0.0)[0]


def _acquire(lock: IO[bytes], what: str) -> None:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            # A process that only reads the state holds the lock for an instant.
            if time.monotonic() > deadline:
                raise DeploymentError(
                    f"{what} is already running; stop it with 'sottovoce deploy stop'"
                ) from None
            time.sleep(POLL_SECONDS / 4)
