"""A durable queue of jobs for one worker process, in a SQLite file.

Several processes may submit jobs and look at them; one at a time takes them. A job is marked as
running, durably, before it begins. So a worker that was killed finds it again, and knows that it
may have been begun.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sottovoce.core.errors import DeploymentError
from sottovoce.protocol.secure.state_file import StateFile

_TABLE = """CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL, folder TEXT NOT NULL, payload TEXT NOT NULL,
    state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '',
    must_stop INTEGER NOT NULL DEFAULT 0, interruptions INTEGER NOT NULL DEFAULT 0)"""
_COLUMNS = "number, kind, folder, payload, state, reason, must_stop, interruptions"


class JobState(StrEnum):
    """How far a job has come."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


_OPEN = (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job in a queue.

    Attributes:
        number: Its number, from 1 in the order of submission.
        kind: What kind of job it is.
        folder: The folder that it writes, which no other open job has.
        payload: What the job needs, as JSON data.
        state: How far it has come.
        reason: Why it failed or was stopped; empty otherwise.
        must_stop: Whether a person has asked to stop it.
        interruptions: How often its worker has ended while it ran, since its last progress.
    """

    number: int
    kind: str
    folder: Path
    payload: Mapping[str, Any]
    state: JobState
    reason: str
    must_stop: bool
    interruptions: int

    @property
    def is_open(self) -> bool:
        """Whether it waits or runs."""
        return self.state in _OPEN


class JobQueue:
    """A queue of jobs in a file, which is made if it does not exist.

    Every method is durable when it returns, and raises LedgerError if the file cannot be used.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, shared=True)
        with self._file.transaction():
            self._file.execute(_TABLE)

    def submit(self, kind: str, payload: Mapping[str, Any], *, folder: Path) -> int:
        """Add a job and return its number.

        Args:
            kind: What kind of job it is.
            payload: What the job needs, as JSON data.
            folder: The folder that it writes.

        Raises:
            DeploymentError: An open job has this folder.
        """
        with self._file.transaction():
            for other in self._jobs("WHERE folder = ?", (str(folder),)):
                if other.is_open:
                    raise DeploymentError(
                        f"run {other.number}, which has not ended, writes to {folder}; wait for "
                        "it, stop it, or choose another folder with --out"
                    )
            added = self._file.execute(
                "INSERT INTO jobs (kind, folder, payload, state) VALUES (?, ?, ?, ?)",
                (kind, str(folder), json.dumps(dict(payload)), JobState.QUEUED),
            )
            return int(added.lastrowid or 0)

    def take(self) -> Job | None:
        """Mark the next job as running and return it; None if no job waits.

        A job that is running already comes first: its worker has ended, which is counted as an
        interruption.
        """
        with self._file.transaction():
            found = self._jobs("WHERE state = ? ORDER BY number LIMIT 1", (JobState.RUNNING,))
            if found:
                (job,) = found
                self._set(job.number, "interruptions = interruptions + 1")
                return self.job(job.number)
            found = self._jobs("WHERE state = ? ORDER BY number LIMIT 1", (JobState.QUEUED,))
            if not found:
                return None
            (job,) = found
            self._set(job.number, "state = ?", JobState.RUNNING)
            return self.job(job.number)

    def end(self, number: int, state: JobState, reason: str = "") -> None:
        """Mark a running job as ended, for a reason if it has failed or was stopped."""
        with self._file.transaction():
            if self.job(number).state is JobState.RUNNING:
                self._set(number, "state = ?, reason = ?", state, reason)

    def note_progress(self, number: int) -> None:
        """Forget how often a job was interrupted, since it has come further."""
        with self._file.transaction():
            self._set(number, "interruptions = 0")

    def ask_to_stop(self, number: int) -> Job:
        """Ask to stop a job, and return it: it is stopped at once if it has not begun.

        Raises:
            DeploymentError: There is no such job, or it has ended.
        """
        with self._file.transaction():
            job = self.job(number)
            if not job.is_open:
                raise DeploymentError(f"run {number} has ended already: it is {job.state}")
            self._set(number, "must_stop = 1")
            if job.state is JobState.QUEUED:
                self._set(number, "state = ?", JobState.STOPPED)
            return self.job(number)

    def end_stopped(self) -> None:
        """Mark as stopped what a person asked to stop while no worker was there to do it."""
        with self._file.transaction():
            self._file.execute(
                "UPDATE jobs SET state = ? WHERE must_stop AND state = ?",
                (JobState.STOPPED, JobState.RUNNING),
            )

    def job(self, number: int) -> Job:
        """Return a job; raise DeploymentError if there is none of this number."""
        found = self._jobs("WHERE number = ?", (number,))
        if not found:
            raise DeploymentError(
                f"there is no run {number}; see the runs with 'sottovoce deploy status'"
            )
        return found[0]

    def jobs(self) -> list[Job]:
        """Return all jobs, the oldest first."""
        return self._jobs("ORDER BY number")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _jobs(self, which: str, values: Sequence[Any] = ()) -> list[Job]:
        rows = self._file.all(f"SELECT {_COLUMNS} FROM jobs {which}", values)  # noqa: S608
        return [
            Job(
                number=number,
                kind=kind,
                folder=Path(folder),
                payload=json.loads(payload),
                state=JobState(state),
                reason=reason,
                must_stop=bool(must_stop),
                interruptions=interruptions,
            )
            for number, kind, folder, payload, state, reason, must_stop, interruptions in rows
        ]

    def _set(self, number: int, what: str, *values: Any) -> None:
        self._file.execute(f"UPDATE jobs SET {what} WHERE number = ?", (*values, number))  # noqa: S608


@contextlib.contextmanager
def open_jobs(path: Path) -> Iterator[JobQueue]:
    """Open the queue of a file, and close it when the block ends."""
    with contextlib.closing(JobQueue(path)) as queue:
        yield queue
