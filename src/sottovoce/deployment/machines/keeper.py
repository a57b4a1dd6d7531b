"""A process that keeps a link or a node, in the foreground or the background.

It holds a lock in its folder for as long as it lives, so a stale file never looks like a running
program. What a killed keeper has started ends with it; if its guards were killed as well, the next
keeper, or 'deploy stop', ends what they have written down.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from sottovoce.core import files
from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines.guard import Process, end_recorded
from sottovoce.deployment.machines.processes import POLL_SECONDS, STOP_SECONDS, records_in

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
