"""Flower's own programs as children of ours: started, watched, and ended in order.

Children end with the process that started them, even where that one is killed.
"""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sottovoce import files
from sottovoce.deployment.machines.address import LOOPBACK
from sottovoce.errors import DeploymentError

POLL_SECONDS = 0.2
_STOP_SECONDS = 15.0
_LAST_LINES = 12
_PR_SET_PDEATHSIG = 1
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A program that runs for us; `name` is what people know it by."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(
        cls, name: str, command: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> "Child":
        with files.explained("write", log), files.open_private(log) as output:
            process = subprocess.Popen(  # noqa: S603  (our own list, and no shell)
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=log.parent,
                start_new_session=True,  # a group of its own: we end the children, and in order
                preexec_fn=_die_with_parent(os.getpid()),
            )
        return cls(name=name, process=process, log=log)

    def check_alive(self) -> None:
        """Raise with the log's last lines if the program has ended."""
        code = self.process.poll()
        if code is not None:
            raise DeploymentError(
                f"{self.name} ended with code {code}; the last lines of {self.log}:\n"
                f"{last_lines(self.log)}"
            )

    def stop(self) -> None:
        """Ask the program and what it has started to end, and make them if they do not."""
        deadline = time.monotonic() + _STOP_SECONDS
        self._signal(signal.SIGTERM)
        while self._signal(0) and time.monotonic() < deadline:
            self.process.poll()
            time.sleep(POLL_SECONDS)
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: int) -> bool:
        """Send a signal to the program's group; False if nobody is left in it."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return False
        return True


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


def _die_with_parent(parent: int) -> Callable[[], None] | None:
    """What a child does before it becomes its program, where the system can do this."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)  # loaded before the fork

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return prepare
