"""The collector's worker process, which works on one run or question after another.

It is started by the collector's supervisor. A run that was interrupted, because this process or the
machine has ended, is resumed: an attempt that was open is lost and never opened, and the next one
is charged again. A question that was interrupted has failed, since its clients may be charged.
"""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from sottovoce.core import files, printable_text
from sottovoce.core.errors import DeploymentError, SottovoceError
from sottovoce.deployment.machines.job_queue import Job, JobQueue, JobState, open_jobs
from sottovoce.deployment.machines.submitted_runs import ESTIMATE_NAME
from sottovoce.deployment.operators.collector_runs import (
    QUESTION,
    RUN,
    queue_file,
    ready_file,
)
from sottovoce.deployment.operators.folders import CollectorFolder

_LOOK_SECONDS = 0.5
MOST_INTERRUPTIONS = 5  # Each costs an attempt, which clients are charged for.
_LOG = printable_text.logger()


class JobStopped(KeyboardInterrupt):
    """Raised in a job that a person has asked to stop; a run then saves its finished rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentJob:
    """The job that this process works on.

    Attributes:
        queue: The queue.
        job: The job.
        pause: Sleeps for a number of seconds.
    """

    queue: JobQueue
    job: Job
    pause: Callable[[float], None] = time.sleep

    def wait(self, seconds: float) -> None:
        """Sleep, but raise `JobStopped` if the job must stop."""
        deadline = time.monotonic() + seconds
        while True:
            self.check()
            left = deadline - time.monotonic()
            if left <= 0.0:
                return
            self.pause(min(left, _LOOK_SECONDS))

    def note_round(self, row: Mapping[str, Any]) -> None:
        """Write down that a round is done; raise `JobStopped` if the job must stop."""
        self.queue.note_progress(self.job.number)
        _LOG.info("run %d: round %d is done", self.job.number, row["round"])
        self.check()

    def check(self) -> None:
        """Raise `JobStopped` if the job must stop."""
        if self.queue.job(self.job.number).must_stop:
            raise JobStopped


Work: TypeAlias = Callable[[CollectorFolder, CurrentJob], None]


def run_spec(collector: CollectorFolder, current: CurrentJob) -> None:
    """Run a spec, or continue it if it was interrupted."""
    from sottovoce.deployment.operators.relay_runs import run_through_relay
    from sottovoce.runs.folder import RunFolder
    from sottovoce.runs.loading import check_code_allowed, parse

    job = current.job
    task, interrupted = job.payload["task"], job.interruptions > 0
    if job.interruptions > MOST_INTERRUPTIONS:
        raise DeploymentError(
            f"the collector's worker has ended {job.interruptions} times in the same round; "
            "correct the cause before you resume the run, since each attempt is charged"
        )
    spec = parse(json.loads(task["spec"]), "the run's spec")
    check_code_allowed(spec, allow_code=task["allow_code"], how="--allow-code")
    run_through_relay(
        spec,
        job.folder,
        collector,
        resume=task["resume"] or (interrupted and RunFolder(job.folder).exists),
        on_round=current.note_round,
        on_resume=lambda where: _LOG.info("run %d: %s", job.number, where),
        wait=current.wait,
    )


def ask_question(collector: CollectorFolder, current: CurrentJob) -> None:
    """Ask a question; one that was interrupted is not asked a second time."""
    from sottovoce.deployment.operators.relay_asking import ask_through_relay

    job = current.job
    if job.interruptions and (job.folder / ESTIMATE_NAME).is_file():
        return  # The worker ended after it had written the estimate.
    if job.interruptions:
        raise DeploymentError(
            "the collector's worker ended while the question was open; clients that had answered "
            "are charged, and nothing of their answers is ever opened; ask again"
        )
    ask_through_relay(collector, job.folder, **job.payload["task"], wait=current.wait)


KINDS: Mapping[str, Work] = {RUN: run_spec, QUESTION: ask_question}


def work_once(folder: Path, queue: JobQueue, kinds: Mapping[str, Work] = KINDS) -> bool:
    """Take the next job and finish it; return False if there is none.

    A job fails by its own errors. A signal that ends this process leaves it as it is, so that the
    next worker finds it.

    Args:
        folder: The collector's folder, which is read again for each job.
        queue: The jobs.
        kinds: What to do, by the kind of a job.
    """
    job = queue.take()
    if job is None:
        return False
    try:
        _LOG.info("run %d (%s) begins", job.number, job.payload["name"])
        kinds[job.kind](CollectorFolder.read(folder), CurrentJob(queue=queue, job=job))
    except JobStopped:
        _LOG.info("run %d is stopped", job.number)
        queue.end(job.number, JobState.STOPPED)
    except SottovoceError as error:
        _LOG.error("run %d has failed: %s", job.number, error)
        queue.end(job.number, JobState.FAILED, str(error))
    except Exception as error:
        _LOG.exception("run %d has failed", job.number)
        queue.end(job.number, JobState.FAILED, f"{type(error).__name__}: {error}")
    else:
        _LOG.info("run %d is finished", job.number)
        queue.end(job.number, JobState.FINISHED)
    return True


def main(folder: str) -> None:
    """Run the jobs of a collector's folder until a signal ends this process."""
    logging.basicConfig(format="%(asctime)s %(message)s")
    _LOG.setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, _end)
    collector = CollectorFolder.read(Path(folder))
    lock = collector.state_folder / "worker.lock"
    files.open_private(lock, append=True).close()
    with files.locked(lock), open_jobs(queue_file(collector)) as queue:
        queue.end_stopped()
        files.write_atomic(ready_file(collector), f"{os.getpid()}\n".encode(), mode=files.PRIVATE)
        while True:
            if not work_once(collector.folder, queue):
                time.sleep(_LOOK_SECONDS)


def _end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
