"""`sottovoce estimate ... --federation DIR`: one question to the sites of a federation."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sottovoce.cli.output import progress_bars

if TYPE_CHECKING:
    from sottovoce.analytics.question import Question

_POLL_SECONDS = 0.5


def ask_federation(
    folder: Path,
    question: "Question",
    *,
    about: str,
    out: Path | None,
    deadline_seconds: float,
    minimum_sites: int,
    confidence: float,
) -> dict[str, Any]:
    """What the link's side wrote down of the answers; its folder is among it."""
    from sottovoce import files
    from sottovoce.analytics.question import to_json
    from sottovoce.deployment.asking import ESTIMATE_NAME
    from sottovoce.deployment.machines.federation import Federation
    from sottovoce.deployment.machines.link import running_link
    from sottovoce.deployment.machines.runs import Order, submit
    from sottovoce.errors import DeploymentError, OutputError

    federation = Federation.read(folder)
    name = f"{question.kind}-{about}"
    path = (out or _free(federation.runs_folder, name)).absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise OutputError(f"{path} is not empty; choose another --out")
    task: dict[str, str | bool | float] = {
        "question": to_json(question),
        "about": about,
        "deadline_seconds": deadline_seconds,
        "minimum_sites": float(minimum_sites),
        "confidence": confidence,
    }
    with running_link(federation) as control:
        run_id = submit(Order(name=name, task=task, rounds=1, out=path), federation)
        with progress_bars() as bars:
            bars.update(name, 0, 1, f"asking {len(federation.sites)} sites")
            while not (ended := control.run(run_id)).has_ended:
                time.sleep(_POLL_SECONDS)
            bars.update(name, 1, 1, "answered")
    if ended.failure is not None:
        raise DeploymentError(f"the question failed: {ended.failure}")
    if not (path / ESTIMATE_NAME).exists():
        raise DeploymentError(f"the question has ended without an estimate in {path}")
    typer.echo(f"question, ledger and estimate are in {path}", err=True)
    found: dict[str, Any] = files.read_json(path / ESTIMATE_NAME)
    return found


def _free(folder: Path, name: str) -> Path:
    """A new folder for every time that a question is asked."""
    number = 1
    while (folder / f"{name}-{number}").exists():
        number += 1
    return folder / f"{name}-{number}"
