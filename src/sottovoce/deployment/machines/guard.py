"""A guard process: when a program or its supervisor ends, it ends the program's descendants.

A supervisor starts each program through a guard, its child, which is a script of its own:

    python -I -S guard.py RECORD

The command is sent as JSON on standard input. On Linux the guard becomes the parent of every orphan
among the program's descendants (PR_SET_CHILD_SUBREAPER), including those with a session of their
own, and gets a signal when its supervisor dies (PR_SET_PDEATHSIG). On other systems it checks for
both at intervals. RECORD lists the processes with their start times, for the case that the guard
itself is killed; the file exists as long as the guard runs.

This module uses only the standard library, so that as a script it starts in a few milliseconds.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LINUX = sys.platform.startswith("linux")
_LOOK_SECONDS = 1.0 if _LINUX else 3.0
_POLL_SECONDS = 0.1
_ORPHAN_SECONDS = 3.0  # time for a program to end by itself after its supervisor has died
_NOT_FOUND = 127


class Process(NamedTuple):
    """A process, identified by its number and its start time, since numbers are used again.

    Attributes:
        pid: The process number.
        began: The start time, as `began_at` returns it.
        command: The command line, for messages; empty if it could not be read.
    """

    pid: int
    began: str
    command: str

    def is_alive(self) -> bool:
        """Return whether this process still runs."""
        return began_at(self.pid) == self.began

    def signal(self, number: int) -> None:
        """Send a signal to this process, unless it has ended.

        Another process that has got its number since then receives no signal.
        """
        try:
            handle = os.pidfd_open(self.pid)
        except AttributeError:  # not Linux
            if self.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)
            return
        except OSError:  # it has ended
            return
        try:
            if self.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


# -- reading processes ----------------------------------------------------------------------------


def began_at(pid: int) -> str | None:
    """Return when a process started, as a text unique on this machine; None if it has ended.

    A process that has ended and was not waited for yet counts as ended.
    """
    if not _LINUX:
        return _ps("-o", "lstart=", "-p", str(pid)) or None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{_boot()} {fields[19]}"


def command_of(pid: int) -> str:
    """Return a process's command line, joined by spaces; "" if it has ended or cannot be read."""
    if not _LINUX:
        return _ps("-o", "command=", "-p", str(pid))
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()


def descendants(pid: int) -> list[int]:
    """Return the numbers of all processes that a process has started, directly or indirectly."""
    if _LINUX and Path("/proc/thread-self/children").exists():
        return list(_below(pid))
    with subprocess.Popen(
        ["/bin/ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE, text=True
    ) as lister:
        table = lister.communicate()[0].split()
    parents = dict(zip(map(int, table[::2]), map(int, table[1::2]), strict=True))
    parents.pop(lister.pid, None)  # the lister itself
    found = [pid]
    for parent in found:  # the list grows during the loop
        found += [child for child, above in parents.items() if above == parent]
    return found[1:]


def _below(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from _below(int(child))


def identify(pid: int) -> Process | None:
    """Return a process with its start time; None if it has ended."""
    began = began_at(pid)
    return None if began is None else Process(pid=pid, began=began, command=command_of(pid))


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _ps(*words: str) -> str:
    found = subprocess.run(  # noqa: S603  (a fixed list, without a shell)
        ["/bin/ps", *words], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


# -- records --------------------------------------------------------------------------------------


def find_recorded(records: Sequence[Path]) -> list[Process]:
    """Return the processes in these records that still run, with their descendants.

    A record is a file in which a guard lists processes; one that cannot be read is skipped.
    """
    found: dict[int, Process] = {}
    for path in records:
        with contextlib.suppress(OSError, ValueError, TypeError):
            for row in json.loads(path.read_bytes()):
                process = Process(*row)
                if process.is_alive():
                    found[process.pid] = process
    for pid in list(found):
        for child in descendants(pid):
            identified = identify(child)
            if identified is not None:
                found.setdefault(child, identified)
    return list(found.values())


def end_recorded(records: Sequence[Path], *, seconds: float) -> list[Process]:
    """End the processes in these records and their descendants, by SIGTERM and then by SIGKILL.

    A record is a file in which a guard lists processes. SIGKILL follows after `seconds`; processes
    that start after the call get only SIGKILL. Waits until all have ended, removes the records, and
    returns the processes that were running at the call or have started since.
    """
    found = alive = find_recorded(records)
    deadline = time.monotonic() + seconds
    for process in found:
        process.signal(signal.SIGTERM)
    while alive:
        if time.monotonic() > deadline:
            for process in alive:
                process.signal(signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
        started = [process for process in find_recorded(records) if process not in found]
        found += started  # since the last look
        alive = [process for process in found if process.is_alive()]
    for path in records:
        path.unlink(missing_ok=True)
    return found


# -- the guard ------------------------------------------------------------------------------------


def die_with_parent(number: int = signal.SIGTERM) -> Callable[[], None] | None:
    """Return a function after whose call a child process gets signal `number` when its parent dies.

    The child calls it before it starts its program. None on systems other than Linux.
    """
    if not _LINUX:
        return None
    libc, parent = ctypes.CDLL(None), os.getpid()  # loaded before the fork

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # the parent died before the call
            os._exit(1)

    return prepare


class _Guard:
    """A running program and everything that it has started."""

    def __init__(self, record: Path, *, stop_seconds: float) -> None:
        self._record, self._written = record, set[int]()
        self._stop_seconds = stop_seconds
        self._parent = os.getppid()
        self._asked = False
        self._code: int | None = None
        if _LINUX:
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._wake, writing = os.pipe()
        for end in (self._wake, writing):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ask)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def _ask(self, *_: Any) -> None:
        self._asked = True

    def run(self, command: list[str]) -> int:
        """Wait until the program has ended or must end; return its code (negative: a signal's)."""
        try:
            program = subprocess.Popen(  # noqa: S603  (the supervisor's list, without a shell)
                command,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGKILL),
            )
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr)
            return _NOT_FOUND
        self._pid = program.pid
        while not self._asked and self._code is None and os.getppid() == self._parent:
            self._write_record()
            self._wait(_LOOK_SECONDS)
        self._end()
        self._record.unlink(missing_ok=True)
        program.returncode = self._code  # reaped here, not by Popen
        return self._code or 0

    def _end(self) -> None:
        """Ask the program's group and then its other descendants to end, then kill them."""
        began, signaled = time.monotonic(), False
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGTERM)
        while left := self._left():
            seconds = self._stop_seconds if os.getppid() == self._parent else _ORPHAN_SECONDS
            if time.monotonic() - began > seconds:
                self._signal(left, signal.SIGKILL)
            elif self._code is not None and not signaled:
                self._signal(left, signal.SIGTERM)
                signaled = True
            self._wait(_POLL_SECONDS)

    def _left(self) -> list[int]:
        """Return the numbers of the processes that have not ended.

        Other systems than Linux give an orphan another parent, so that it is not found here. There
        the program's process group is killed once no descendant is found.
        """
        found = descendants(os.getpid())
        if not found and not _LINUX:
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
        return found

    @staticmethod
    def _signal(pids: list[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _wait(self, seconds: float) -> None:
        """Wait for a signal or `seconds`, then reap processes that have ended."""
        select.select([self._wake], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._pid:
                    self._code = os.waitstatus_to_exitcode(ended[1])

    def _write_record(self) -> None:
        pids = {os.getpid(), *descendants(os.getpid())}
        if pids == self._written:
            return
        found = [process for pid in sorted(pids) if (process := identify(pid))]
        temporary = self._record.with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk must not end the program
            temporary.write_text(json.dumps(found))
            temporary.replace(self._record)
            self._written = pids


def main(record: str) -> NoReturn:
    """Run the program that standard input names under a guard, and exit as it did.

    `record` is the file that lists its processes meanwhile. Standard input has the JSON object
    {"command": [...], "stop_seconds": number}.
    """
    given = json.loads(sys.stdin.buffer.read())
    code = _Guard(Path(record), stop_seconds=given["stop_seconds"]).run(given["command"])
    if code < 0:  # end by the same signal, so that the supervisor sees it
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
