"""Private questions over Flower's grid, for deployed federations and for your own apps.

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
from sottovoce.deployment.asking import FederatedQuestion, ask, run_name
from sottovoce.deployment.masked_asking import SumTerms
from sottovoce.deployment.post import Witness, with_witness
from sottovoce.flower.grid_post import (
    GridPost,
    KeyedDirectory,
    NodeDirectory,
    ReportedNameDirectory,
    count_no_traffic,
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
    secure_sum: SumTerms | None = None,
    witness: Witness | None = None,
) -> Estimate:
    """Ask the sites of a grid a private question and estimate the answer.

    The question, the charges and the estimate are written to `folder`.

    Args:
        grid: The grid of the `ServerApp`.
        question: What is asked, with its privacy parameters.
        about: Name of the column that is asked about.
        folder: A new or empty folder for question, ledger and estimate.
        name_of_key: Site names by public key; without it nodes are asked for their names.
        sites: Names of the sites to ask; empty for all nodes that are online.
        wait_seconds: The longest wait until all `sites` are online; then those that are get asked.
        deadline_seconds: The time that sites have to answer.
        minimum_sites: With fewer sites online, or fewer answers, an error is raised.
        confidence: Confidence level of the estimate's interval.
        secure_sum: The terms under which sites reveal only the sum of their tallies; None if each
            sends its own.
        witness: Where to keep what sites state about their ledgers.

    Returns:
        The estimate with its confidence interval and cost.

    Raises:
        OutputError: If `folder` exists and is not empty.
        DeploymentError: If fewer than `minimum_sites` are online (none is charged then), or answer
            (all that were asked are charged in the server's ledger).

    Examples:
        In the server app:

            question = question_for("mean", lower=0, upper=120, epsilon=1.0)
            estimate = ask_on_grid(grid, question, about="age", folder=Path("ages"))
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} is not an empty folder; name a new folder for each question")
    folder.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
    directory: NodeDirectory = (
        KeyedDirectory(grid, name_of_key) if name_of_key else ReportedNameDirectory(grid)
    )
    asking = FederatedQuestion(
        question=question,
        about=about,
        run=run_name(question, about, secrets.token_hex(4)),
        sites=_wait_for_sites(grid, directory, sites, wait_seconds),
        deadline_seconds=deadline_seconds,
        minimum_sites=minimum_sites,
        confidence=confidence,
        secure_sum=secure_sum,
    )
    return ask(asking, with_witness(GridPost(grid, directory, count_no_traffic), witness), folder)


def _wait_for_sites(
    grid: Grid, directory: NodeDirectory, sites: Sequence[str], wait_seconds: float
) -> Sequence[str]:
    """Return the sites to ask: `sites`, once online or the wait is over, or else all nodes."""
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
