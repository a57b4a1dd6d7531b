"""Runs and questions of a collector: how they are submitted, seen and stopped.

They are jobs in a queue on disk. The collector's program works on them one after another.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines.job_queue import Job, JobQueue, JobState, open_jobs
from sottovoce.deployment.machines.processes import state_of
from sottovoce.deployment.machines.submitted_runs import RunStatus, RunSubmission, describe_run
from sottovoce.deployment.operators.folders import CollectorFolder

RUN, QUESTION = "run", "ask"  # kinds of jobs
_STOP_SECONDS = 90.0
_POLL_SECONDS = 0.2
# The same words as those of a federation's link.
_STATES = {
    JobState.QUEUED: "pending",
    JobState.RUNNING: "running",
    JobState.FINISHED: "finished:completed",
    JobState.FAILED: "finished:failed",
    JobState.STOPPED: "finished:stopped",
}
INTERRUPTED = "interrupted"


def queue_file(collector: CollectorFolder) -> Path:
    """Return the file of the queue; it does not exist before the collector's first start."""
    return collector.state_folder / "jobs.sqlite"


def ready_file(collector: CollectorFolder) -> Path:
    """Return the file that the worker writes once it takes jobs."""
    return collector.state_folder / "ready"


def worker_log(collector: CollectorFolder) -> Path:
    """Return the worker's log."""
    return collector.state_folder / "worker.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorRuns:
    """The runs of a collector's queue.

    Attributes:
        collector: The collector's folder.
        queue: Its jobs.
    """

    collector: CollectorFolder
    queue: JobQueue

    def submit(self, order: RunSubmission) -> int:
        """Send a run or a question to the running collector, and return its number.

        Raises:
            DeploymentError: The collector does not run, or another run writes to the folder.
        """
        _check_running(self.collector)
        kind = QUESTION if "question" in order.task else RUN
        payload = {"name": order.name, "rounds": order.rounds, "task": dict(order.task)}
        return self.queue.submit(kind, payload, folder=order.out)

    def status(self, number: int) -> RunStatus:
        """Return the state of a run.

        Raises:
            DeploymentError: There is no such run; or it has not ended, and the collector's program
                has.
        """
        job = self.queue.job(number)
        if job.is_open and state_of(self.collector.state_folder) is None:
            job = self.queue.job(number)  # It may have ended just before the program.
        if job.is_open and state_of(self.collector.state_folder) is None:
            then = "the question is then listed as failed; ask it again"
            if job.kind == RUN:
                then = "the run then continues by itself"
            elif job.state is JobState.QUEUED:
                then = "the question, which has not begun, is then asked; do not ask it again"
            raise DeploymentError(
                f"the collector has ended, and run {number} has not; start it with '"
                f"{start_command(self.collector)}': {then}"
            )
        return _status(job, running=True)

    def stop(self, number: int) -> bool:
        """Stop a run, also while the collector does not run, and return True.

        Raises:
            DeploymentError: There is no such run, it has ended, or it takes longer to stop.
        """
        self.queue.ask_to_stop(number)
        deadline = time.monotonic() + _STOP_SECONDS
        while self.queue.job(number).is_open and state_of(self.collector.state_folder) is not None:
            if time.monotonic() > deadline:
                raise DeploymentError(
                    f"run {number} has been told to stop, and has not stopped within "
                    f"{_STOP_SECONDS:.0f} seconds; see 'sottovoce deploy status "
                    f"{self.collector.folder}' later"
                )
            time.sleep(_POLL_SECONDS)
        return True

    def how_to_read_log(self, number: int) -> str:  # noqa: ARG002  (one log for all runs)
        """Return the command that shows the log of the collector."""
        return f"cat {worker_log(self.collector)}"

    def rows(self) -> list[dict[str, Any]]:
        """Return the state of all runs as plain data, the oldest first."""
        running = state_of(self.collector.state_folder) is not None
        return [
            describe_run(
                _status(job, running=running),
                name=job.payload["name"],
                rounds=job.payload["rounds"],
                folder=job.folder,
            )
            for job in self.queue.jobs()
        ]


def start_command(collector: CollectorFolder) -> str:
    """Return the command that starts a collector."""
    return f"sottovoce deploy collector {collector.folder} --background"


def _check_running(collector: CollectorFolder) -> None:
    state = state_of(collector.state_folder)
    if not state or not state["ready"]:
        raise DeploymentError(
            f"the collector of {collector.folder} is not running; start it with "
            f"'{start_command(collector)}'"
        )


def _status(job: Job, *, running: bool) -> RunStatus:
    """Return the state of a job, which does not go on while the program is not `running`."""
    state, details = _STATES[job.state], job.reason
    if job.state is JobState.RUNNING and not running:
        state = INTERRUPTED
        details = "it continues when the collector is started"
        if job.kind == QUESTION:
            details = "it fails when the collector is started; ask again"
        if job.must_stop:
            state, details = _STATES[JobState.STOPPED], ""
    return RunStatus(run_id=job.number, state=state, details=details)


@contextlib.contextmanager
def open_collector_runs(collector: CollectorFolder) -> Iterator[CollectorRuns]:
    """Open the runs of a collector that runs.

    Raises:
        DeploymentError: It does not run.
    """
    _check_running(collector)
    with open_jobs(queue_file(collector)) as queue:
        yield CollectorRuns(collector=collector, queue=queue)


def stop_collector_run(collector: CollectorFolder, number: int) -> bool:
    """Stop a run of a collector, whether its program runs or not, as `CollectorRuns.stop` does."""
    _check_started(collector)
    with open_jobs(queue_file(collector)) as queue:
        return CollectorRuns(collector=collector, queue=queue).stop(number)


def runs_of(collector: CollectorFolder) -> list[dict[str, Any]]:
    """Return the state of a collector's runs as plain data, whether its program runs or not."""
    if not queue_file(collector).exists():
        return []
    with open_jobs(queue_file(collector)) as queue:
        return CollectorRuns(collector=collector, queue=queue).rows()


def latest_run_folder(collector: CollectorFolder) -> Path | None:
    """Return the folder of the run that was submitted last, no question; None if there is none."""
    if not queue_file(collector).exists():
        return None
    with open_jobs(queue_file(collector)) as queue:
        folders = [job.folder for job in queue.jobs() if job.kind == RUN]
    return folders[-1] if folders else None


def _check_started(collector: CollectorFolder) -> None:
    if not queue_file(collector).exists():
        raise DeploymentError(
            f"the collector of {collector.folder} has no runs yet; start it with "
            f"'{start_command(collector)}'"
        )
