"""The collector as a running program: its supervisor, which keeps a worker for runs and questions.

The worker is `collector_worker`. It takes jobs from a queue on disk, so that a worker that is
started again goes on with what was interrupted.
"""

import os
import sys
import time
from collections.abc import Callable

from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines.processes import (
    Child,
    hold_supervisor_lock,
    state_of,
    stop_children_at_exit,
    wait_until,
)
from sottovoce.deployment.machines.restarts import restart_pauses
from sottovoce.deployment.operators.collector_runs import ready_file, worker_log
from sottovoce.deployment.operators.folders import CollectorFolder

START_SECONDS = 60.0


def keep_collector(collector: CollectorFolder, *, on_ready: Callable[[], None]) -> None:
    """Run the collector until a signal ends it; start its worker again if it ends by itself.

    Args:
        collector: The collector's folder.
        on_ready: Called once, when runs and questions are taken.

    Raises:
        DeploymentError: The operators are not paired, another process runs this collector, or its
            worker ends soon after several starts.
    """
    if collector.operators.collector != collector.card:
        raise DeploymentError(
            f"{collector.folder / 'operators.toml'} has another card of this collector than "
            "collector.pub; restore both files from a backup"
        )
    with (
        hold_supervisor_lock(collector.state_folder, what="the collector") as announce,
        stop_children_at_exit() as children,
    ):
        ready_file(collector).unlink(missing_ok=True)
        children[:] = [_child(collector)]
        wait_until(
            ready_file(collector).exists,
            children,
            what="the collector's worker did not start",
            timeout_seconds=START_SECONDS,
        )
        announce({})
        on_ready()
        for pause_seconds in restart_pauses(children):
            time.sleep(pause_seconds)
            children[:] = [_child(collector)]


def program_state(collector: CollectorFolder) -> str:
    """Return whether the collector's program is "running", "starting" or "not running"."""
    state = state_of(collector.state_folder)
    if state is None:
        return "not running"
    return "running" if state["ready"] else "starting"


def _child(collector: CollectorFolder) -> Child:
    return Child.start(
        "the collector's worker",
        [
            *(sys.executable, "-m", "sottovoce.deployment.operators.collector_worker"),
            str(collector.folder),
        ],
        log=worker_log(collector),
        environment={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
