"""Submission of runs to a federation's link, and its status.

A run is a Flower app that contains a spec or a question, and no code.
"""

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.core import bounded_json, files
from sottovoce.core.errors import DeploymentError, OutputError
from sottovoce.deployment.machines import certificates, processes
from sottovoce.deployment.machines.federation import FILE_NAME, Federation
from sottovoce.deployment.machines.processes import state_of
from sottovoce.deployment.machines.submitted_runs import (
    RunStatus,
    RunSubmission,
    describe_run,
)
from sottovoce.deployment.machines.witness_store import warnings_of
from sottovoce.flower.control import Control
from sottovoce.flower.link import CONNECTION, flower_home, flower_keys, running_link
from sottovoce.version import __version__

_SUBMIT_SECONDS = 120.0
# Installed modules, so that no machine runs code that comes with a run.
_SERVER_APP = "sottovoce.flower.app_server:app"
_CLIENT_APP = "sottovoce.flower.app_client:app"


def write_app(folder: Path, order: RunSubmission, federation: Federation) -> None:
    """Write the Flower app of a run to `folder`, as the pyproject.toml that `flwr run` reads."""
    config = {
        **order.task,
        "out": str(order.out),
        "sites": str(federation.folder / FILE_NAME),
    }
    lines = [
        "[project]",
        'name = "sottovoce-run"',
        f'version = "{__version__}"',
        'description = "A private run; its code is what each site has installed."',
        'license = "Apache-2.0"',
        "",
        "[tool.flwr.app]",
        'publisher = "sottovoce"',
        "",
        "[tool.flwr.app.components]",
        f'serverapp = "{_SERVER_APP}"',
        f'clientapp = "{_CLIENT_APP}"',
        "",
        "[tool.flwr.app.config]",
        *(f"{key} = {json.dumps(value)}" for key, value in config.items()),
    ]
    (folder / "pyproject.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def submit(order: RunSubmission, federation: Federation) -> int:
    """Send a run to the link, record its name and folder there, and return its run id.

    Raises DeploymentError if the link does not accept the run.
    """
    with tempfile.TemporaryDirectory(prefix="sottovoce-") as folder:
        write_app(Path(folder), order, federation)
        try:
            found = subprocess.run(  # noqa: S603  (our own list, and no shell)
                [processes.program("flwr"), "run", folder, CONNECTION, "--format", "json"],
                capture_output=True,
                text=True,
                env=processes.environment(flower_home(federation)),
                timeout=_SUBMIT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DeploymentError(
                f"the link has not answered within {_SUBMIT_SECONDS:.0f} seconds whether it takes "
                "the run; see with 'sottovoce deploy status' whether it did before you submit it "
                "again"
            ) from error
    answer = _json_in(found.stdout)
    if not answer.get("success"):
        reason = answer.get("error-message") or found.stderr or found.stdout
        raise DeploymentError(
            f"the link did not accept the run: {str(reason).strip()}; correct the cause and submit "
            "the run again; the link's logs may say more"
        )
    run_id = int(answer["run-id"])
    record = {"name": order.name, "folder": str(order.out), "rounds": order.rounds}
    records = _records(federation)
    records.mkdir(mode=0o700, exist_ok=True)
    files.write_json(records / f"{run_id}.json", record, mode=files.PRIVATE)
    return run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRuns:
    """The runs of a federation whose link is running.

    Attributes:
        federation: The federation.
        control: The link's control interface.
    """

    federation: Federation
    control: Control

    def submit(self, order: RunSubmission) -> int:
        """Send a run to the link, and return its run id."""
        return submit(order, self.federation)

    def status(self, number: int) -> RunStatus:
        """Return the state of a run."""
        return self.control.run(number)

    def stop(self, number: int) -> bool:
        """Stop a run; return whether the link has stopped it."""
        return self.control.stop_run(number)

    def how_to_read_log(self, number: int) -> str:
        """Return the command that shows the log of a run."""
        return f"FLWR_HOME={flower_home(self.federation)} flwr log {number} --show"


@contextmanager
def open_link_runs(federation: Federation) -> Iterator[LinkRuns]:
    """Open the runs of a link; raise DeploymentError if the link is not ready."""
    with running_link(federation) as control:
        yield LinkRuns(federation=federation, control=control)


def run_row(federation: Federation, run: RunStatus) -> dict[str, Any]:
    """Return the state of a run as plain data, with its folder and completed rounds.

    Name, rounds, completed rounds and folder are None if the run was not submitted by `submit`.
    """
    path = _records(federation) / f"{run.run_id}.json"
    if not path.exists():  # Other tools may submit runs too.
        return describe_run(run, name=None, rounds=None, folder=None)
    known = _record(path)
    return describe_run(
        run, name=known["name"], rounds=known["rounds"], folder=Path(known["folder"])
    )


def latest_folder(federation: Federation) -> Path | None:
    """Return the folder of the run that was submitted last, even if the link is down.

    None if no run was submitted.
    """
    records = list(_records(federation).glob("*.json"))
    if not records:
        return None
    latest = max(records, key=lambda path: path.stat().st_mtime)
    return Path(_record(latest)["folder"])


def _records(federation: Federation) -> Path:
    return federation.link_folder / "runs"


def _record(path: Path) -> dict[str, Any]:
    """Return what was recorded when a run was submitted."""
    found = files.read_json(path)
    if not isinstance(found, dict) or not isinstance(found.get("folder"), str):
        raise OutputError(
            f"{path}, written when the run was submitted, is damaged: it names no run folder. "
            "Remove it; the run is then listed without its name and folder"
        )
    return {"name": None, "rounds": None, **found}


def _json_in(text: str) -> dict[str, Any]:
    try:
        found = bounded_json.loads(text.encode(errors="replace"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


_UNREGISTERED = "its key is not registered; restart the link, which prints the reason"


def status_of(federation: Federation) -> dict[str, Any]:
    """Return the state of the link, its sites and its runs, the oldest first, as plain data.

    If the link is not up, sites with a key are "unknown" and no runs are listed.
    """
    state = state_of(federation.link_folder)
    link = "down" if state is None else "up" if state["ready"] else "starting"
    keys = flower_keys(federation)
    sites = {site: "unknown" if site in keys else "no key yet" for site in federation.sites}
    runs: list[dict[str, Any]] = []
    if link == "up":
        with running_link(federation) as control:
            seen = {node.public_key: node.state for node in control.nodes()}
            runs = [run_row(federation, run) for run in control.runs()]
        sites |= {site: seen.get(key, _UNREGISTERED) for site, key in keys.items()}
    return {
        "federation": federation.name,
        "address": str(federation.address),
        "link": link,
        "expires": f"{certificates.expires_at(federation.certificate):%Y-%m-%d}",
        "problem": federation.certificate_problem(),
        "sites": sites,
        "ledger_warnings": warnings_of(federation),
        "runs": runs,
    }
