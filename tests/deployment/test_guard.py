"""What a keeper's programs have started ends with it, however it dies, and nothing else does."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sottovoce.deployment.machines import guard, processes
from sottovoce.deployment.machines.processes import (
    Child,
    end_leftovers,
    hold_supervisor_lock,
    records_in,
    state_of,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as Linux does")

PATIENCE_SECONDS = 60.0
# A stubborn program whose child has a session of its own and whose grandchild is an orphan.
FAMILY = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder = pathlib.Path(sys.argv[1])
for name in ("child", "grandchild"):
    if os.fork():
        time.sleep(0.5 if name == "grandchild" else 3600)
        os._exit(0)  # the orphan's parent ends
    os.setsid()
    (folder / name).write_text(str(os.getpid()))
time.sleep(3600)
"""
KEEPER = """
import os, pathlib, sys
from sottovoce.deployment.machines.processes import hold_supervisor_lock
from sottovoce.deployment.machines.processes import Child, stop_children_at_exit, watch
folder = pathlib.Path(sys.argv[1])
with hold_supervisor_lock(folder, what="the link") as announce, stop_children_at_exit() as children:
    command = [sys.executable, "-c", sys.argv[2], str(folder)]
    children.append(Child.start("it", command, log=folder / "it.log", environment=os.environ))
    announce({})
    watch(children)
"""


def eventually(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def processes_in(folder: Path) -> list[guard.Process]:
    return guard.find_recorded(records_in(folder))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a keeper whose program has a family."""
    folder = tmp_path / "link"
    with subprocess.Popen([sys.executable, "-c", KEEPER, str(folder), FAMILY]) as started:
        pids = [folder / "child", folder / "grandchild"]
        eventually(lambda: all(path.exists() and path.read_text() for path in pids))
        wanted = {int(path.read_text()) for path in pids[1:]}
        eventually(lambda: wanted <= {process.pid for process in recorded_alone(folder)})
        yield folder
        started.kill()


def recorded_alone(folder: Path) -> list[guard.Process]:
    """What the guard has written down by now."""
    rows = json.loads((folder / "processes" / "it.json").read_text())
    return [guard.Process(*row) for row in rows]


def keeper_of(folder: Path) -> int:
    state = state_of(folder)
    assert state
    return int(state["pid"])


def test_a_killed_keeper_takes_the_whole_family_with_it(folder: Path) -> None:
    family = processes_in(folder)
    assert len(family) >= 3  # the guard, the program, and the orphan in a session of its own
    os.kill(keeper_of(folder), signal.SIGKILL)
    eventually(lambda: not any(process.is_alive() for process in family))
    assert records_in(folder) == []
    assert end_leftovers(folder) == []


def test_leftovers_of_a_killed_keeper_and_guard_are_found_and_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.5)
    family = processes_in(folder)
    orphan = int((folder / "grandchild").read_text())
    guards = [process.pid for process in family if guard.__file__ in process.command]
    for pid in (keeper_of(folder), *guards):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: state_of(folder) is None)
    assert orphan in {process.pid for process in end_leftovers(folder)}
    assert not any(process.is_alive() for process in family)
    assert end_leftovers(folder) == []


def test_a_guard_that_is_killed_leaves_nothing_to_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.5)
    command = [sys.executable, "-c", FAMILY, str(tmp_path)]
    child = Child.start("it", command, log=tmp_path / "it.log", environment=os.environ)
    eventually(lambda: (tmp_path / "grandchild").exists() and len(recorded_alone(tmp_path)) >= 3)
    family = processes_in(tmp_path)
    child.process.kill()
    child.stop()
    assert not any(process.is_alive() for process in family)


def test_a_number_that_another_process_has_by_now_is_not_signalled(tmp_path: Path) -> None:
    records = tmp_path / "processes"
    records.mkdir()
    with subprocess.Popen(["sleep", "60"]) as other:
        (records / "it.json").write_text(json.dumps([[other.pid, "long ago", "sleep 60"]]))
        assert end_leftovers(tmp_path) == []
        guard.Process(pid=other.pid, began="long ago", command="").signal(signal.SIGKILL)
        assert other.poll() is None
        other.kill()


def test_a_program_keeps_its_code_and_its_files_are_its_owners(tmp_path: Path) -> None:
    for program, code in (
        ("open('new', 'w'); raise SystemExit(3)", 3),
        ("import os; os.abort()", -6),
    ):
        command = [sys.executable, "-c", program]
        child = Child.start("it", command, log=tmp_path / "it.log", environment=os.environ)
        assert child.process.wait(PATIENCE_SECONDS) == code
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
    missing = Child.start("it", ["/no/such"], log=tmp_path / "it.log", environment=os.environ)
    assert missing.process.wait(PATIENCE_SECONDS) == 127
    assert "No such file" in (tmp_path / "it.log").read_text()


def test_files_of_an_earlier_version_become_their_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "link"
    folder.mkdir(mode=0o755)
    for name in ("flower.sqlite", "flower.sqlite-wal"):
        (folder / name).touch(0o644)
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold_supervisor_lock(folder, what="the link"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("flower*")} == {0o600}
