"""A queue of jobs loses none and begins none twice unnoticed, whenever its worker is killed."""

import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines.job_queue import Job, JobQueue, JobState, open_jobs
from sottovoce.protocol.secure.state_file import StateFile


class Killed(BaseException):
    """The process has ended."""


@contextlib.contextmanager
def killed_at(write: int, *, after: bool) -> Iterator[None]:
    """Kill this process before or after its commit of this number, from 0."""
    numbers = itertools.count()
    real = StateFile.transaction

    @contextlib.contextmanager
    def mortal(self: StateFile) -> Iterator[None]:
        dies = next(numbers) == write
        with real(self):
            yield
            if dies and not after:
                raise Killed
        if dies:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StateFile, "transaction", mortal)
        with contextlib.suppress(Killed):
            yield


def work(path: Path, begun: list[tuple[int, bool]]) -> None:
    """Take all jobs and end them; `begun` notes which began, and whether as an interrupted one."""
    with open_jobs(path) as queue:
        while (job := queue.take()) is not None:
            begun.append((job.number, job.interruptions > 0))
            queue.note_progress(job.number)
            queue.end(job.number, JobState.FINISHED)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("write", range(8))
def test_a_killed_worker_loses_no_job_and_begins_none_twice_unnoticed(
    tmp_path: Path, write: int, after: bool
) -> None:
    path = tmp_path / "jobs.sqlite"
    with open_jobs(path) as queue:
        numbers = [queue.submit("run", {}, folder=tmp_path / str(one)) for one in range(2)]
    begun: list[tuple[int, bool]] = []
    with killed_at(write, after=after):
        work(path, begun)
    work(path, begun)
    with open_jobs(path) as queue:
        assert [job.state for job in queue.jobs()] == [JobState.FINISHED] * 2
    for number in numbers:
        first, *later = [interrupted for begins, interrupted in begun if begins == number]
        assert all(later), (first, later)


def submitted(tmp_path: Path, count: int = 1) -> tuple[JobQueue, list[int]]:
    queue = JobQueue(tmp_path / "jobs.sqlite")
    return queue, [
        queue.submit("run", {"one": number}, folder=tmp_path / str(number))
        for number in range(count)
    ]


def taken(queue: JobQueue) -> Job:
    job = queue.take()
    assert job is not None
    return job


def test_jobs_are_taken_in_order_and_keep_their_payload(tmp_path: Path) -> None:
    queue, (first, second) = submitted(tmp_path, 2)
    job = taken(queue)
    assert (job.number, job.kind, job.payload) == (first, "run", {"one": 0})
    queue.end(first, JobState.FAILED, "no disk")
    assert queue.job(first).reason == "no disk"
    assert taken(queue).number == second
    queue.end(second, JobState.FINISHED)
    queue.end(second, JobState.FAILED, "too late")
    assert queue.job(second).state is JobState.FINISHED
    assert queue.take() is None
    queue.close()


def test_interruptions_are_counted_until_there_is_progress(tmp_path: Path) -> None:
    queue, (number,) = submitted(tmp_path)
    assert [taken(queue).interruptions for _ in range(3)] == [0, 1, 2]
    queue.note_progress(number)
    assert taken(queue).interruptions == 1
    queue.close()


def test_a_job_that_waits_is_stopped_at_once_and_one_that_runs_is_told(tmp_path: Path) -> None:
    queue, (running, waiting) = submitted(tmp_path, 2)
    taken(queue)
    assert queue.ask_to_stop(waiting).state is JobState.STOPPED
    told = queue.ask_to_stop(running)
    assert (told.state, told.must_stop) == (JobState.RUNNING, True)
    queue.end_stopped()  # as a worker does that starts
    assert queue.take() is None
    with pytest.raises(DeploymentError, match="run 1 has ended already: it is stopped"):
        queue.ask_to_stop(running)
    with pytest.raises(DeploymentError, match="there is no run 7"):
        queue.ask_to_stop(7)
    queue.close()


def test_an_open_job_keeps_its_folder_to_itself(tmp_path: Path) -> None:
    queue, (number,) = submitted(tmp_path)
    with pytest.raises(DeploymentError, match="run 1, which has not ended, writes to"):
        queue.submit("ask", {}, folder=tmp_path / "0")
    taken(queue)
    queue.end(number, JobState.FAILED, "no disk")
    assert queue.submit("run", {}, folder=tmp_path / "0") == 2
    queue.close()


def test_two_who_submit_at_once_get_numbers_of_their_own(tmp_path: Path) -> None:
    path, numbers = tmp_path / "jobs.sqlite", list[int]()
    JobQueue(path).close()

    def submit(who: str) -> None:
        with open_jobs(path) as queue:
            for count in range(10):
                numbers.append(queue.submit("run", {}, folder=tmp_path / f"{who}{count}"))

    threads: list[Any] = [threading.Thread(target=submit, args=(who,)) for who in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 21))
