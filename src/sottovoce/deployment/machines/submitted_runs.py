"""Runs that are submitted to a running program: what is submitted, and how far it has come.

A federation's link and a relay's collector take such runs. A question is a run of one round.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

ESTIMATE_NAME = "estimate.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSubmission:
    """A run to submit.

    Attributes:
        name: Name of the run, for people.
        task: What to do: a spec with `spec`, `resume` and `allow_code`, or a question with
            `question`, `about` and its terms.
        rounds: Number of rounds; 1 for a question.
        out: Output folder on the machine of the program.
    """

    name: str
    task: Mapping[str, str | bool | float | None]
    rounds: int
    out: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run as its program sees it; `state` is pending, starting, running or finished:OUTCOME.

    OUTCOME is completed, failed or stopped. `details` is why it failed, as far as this is known.
    """

    run_id: int
    state: str
    details: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether the run has finished, for any reason."""
        return self.state.startswith("finished")

    @property
    def was_stopped(self) -> bool:
        """Whether the run was stopped by a person."""
        return self.state == "finished:stopped"

    @property
    def failure(self) -> str | None:
        """Why the run failed; None if it has not failed."""
        if self.state != "finished:failed":
            return None
        return self.details or "for an unknown reason"


class RunsKeeper(Protocol):
    """A running program that takes runs; each method raises DeploymentError if it has ended."""

    def submit(self, order: RunSubmission) -> int:
        """Send a run, and return its number."""

    def status(self, number: int) -> RunStatus:
        """Return the state of a run."""

    def stop(self, number: int) -> bool:
        """Stop a run; return whether it is stopped."""

    def how_to_read_log(self, number: int) -> str:
        """Return the command that shows the log of a run."""


def describe_run(
    status: RunStatus, *, name: str | None, rounds: int | None, folder: Path | None
) -> dict[str, Any]:
    """Return the state of a run as plain data, with its folder and completed rounds."""
    return {
        "run": status.run_id,
        "name": name,
        "state": status.state,
        "details": status.failure or status.details,
        "rounds_done": rounds_done(folder) if folder else None,
        "rounds": rounds,
        "folder": str(folder) if folder else None,
    }


def rounds_done(folder: Path) -> int:
    """Return the number of completed rounds in a run's folder; an answered question has one.

    0 if the folder does not exist or has no metrics yet.
    """
    if (folder / ESTIMATE_NAME).is_file():
        return 1
    try:
        return (folder / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0
