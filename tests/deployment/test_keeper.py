"""A keeper that is told to stop has ended when `stop_supervisor` returns."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sottovoce.deployment.machines.processes import state_of, stop_supervisor

LINGERING = """
import pathlib, signal, sys, time
from sottovoce.deployment.machines.processes import hold_supervisor_lock
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
try:
    with hold_supervisor_lock(pathlib.Path(sys.argv[1]), what="the link") as announce:
        announce({})
        time.sleep(60.0)
finally:
    time.sleep(1.0)  # as a large program that takes itself apart
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux tells when a process has ended")
def test_a_keeper_that_lingers_without_its_lock_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "link"
    with subprocess.Popen([sys.executable, "-c", LINGERING, str(folder)]) as keeper:
        deadline = time.monotonic() + 60.0
        while not (state := state_of(folder)) or not state["ready"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert stop_supervisor(folder)
        assert keeper.poll() == 0
    assert not stop_supervisor(folder)
