"""A question over Flower's grid: for a federation of ours, and for an app of yours.

@app.main()
def main(grid: Grid, context: Context) -> None:
    question = question_for("mean", lower=0, upper=120, epsilon=1.0)
    print(ask_on_grid(grid, question, about="age", folder=Path("ages")))
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from flwr.serverapp import Grid

from sottovoce.analytics.question import Question
from sottovoce.analytics.result import Estimate
from sottovoce.core import files
from sottovoce.core.errors import OutputError
from sottovoce.deployment.asking import Asking, ask, run_name
from sottovoce.deployment.post import Witness, witnessed
from sottovoce.flower.grid_post import (
    AskedDirectory,
    Directory,
    GridPost,
    KeyedDirectory,
    nobody_counts,
)

_POLL_SECONDS = 0.2


def ask_on_grid(
    grid: Grid,
    question: Question,
    *,
    about: str,
    folder: Path,
    name_of_key: Mapping[bytes, str] | None = None,
    sites: Sequence[str] = (),
    wait_seconds: float = 30.0,
    deadline_seconds: float = 600.0,
    minimum_sites: int = 1,
    confidence: float = 0.95,
    witness: Witness | None = None,
) -> Estimate:
    """Ask the sites of a grid, and estimate from what they answer.

    Sites go by their keys, or else by what they say. All `sites` are waited for, `wait_seconds` at
    most; where none are named, whoever is there is asked. The question, the charges and the
    estimate go into `folder`, which must be new. A `witness` keeps what sites state about their
    ledgers.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} is not empty; every question has a folder of its own")
    folder.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
    directory: Directory = (
        KeyedDirectory(grid, name_of_key) if name_of_key else AskedDirectory(grid)
    )
    asking = Asking(
        question=question,
        about=about,
        run=run_name(question, about, secrets.token_hex(4)),
        sites=_present(grid, directory, sites, wait_seconds),
        deadline_seconds=deadline_seconds,
        minimum_sites=minimum_sites,
        confidence=confidence,
    )
    return ask(asking, witnessed(GridPost(grid, directory, nobody_counts), witness), folder)


def _present(
    grid: Grid, directory: Directory, sites: Sequence[str], wait_seconds: float
) -> Sequence[str]:
    """The sites to ask: those named, once all are there or the wait is over; else all nodes."""
    ends = time.monotonic() + wait_seconds
    while True:
        online = directory.online()
        if sites:
            complete = set(sites) <= online.keys()
        else:
            complete = bool(online) and len(online) >= len(list(grid.get_node_ids()))
        if complete or time.monotonic() >= ends:
            return sites or sorted(online)
        time.sleep(_POLL_SECONDS)
