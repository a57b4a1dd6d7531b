"""The commands `sottovoce deploy status` and `stop`, for programs and runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli import deploy_relay
from sottovoce.cli.output import Json, print_fields, print_json, print_table, say


def status(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The folder of a federation, relay or collector."),
    ],
    as_json: Json = False,
) -> None:
    """Show whether a link, relay or collector runs, its sites or clients, and the state of runs."""
    found = _status_of(folder)
    if as_json:
        print_json(found)
        return
    print_fields({key: value for key, value in found.items() if key not in _BELOW})
    if "sites" in found:
        print_table(["site", "state"], [[site, state] for site, state in found["sites"].items()])
    runs = found.get("runs", [])
    if runs:
        columns = ["run", "name", "state", "rounds", "folder"]
        print_table(columns, [_run_cells(row) for row in runs])
    for row in runs:
        if row["state"] in ("finished:failed", "interrupted"):
            say(f"run {row['run']}: {row['details']}")
    if found.get("problem"):
        say(f"warning: {found['problem']}", err=True)
    for site, warning in found.get("ledger_warnings", {}).items():
        say(f"warning: the ledger of '{site}': {warning}", err=True)


_BELOW = ("sites", "runs", "problem", "ledger_warnings")


def _status_of(folder: Path) -> dict[str, Any]:
    from sottovoce.core.errors import ConfigError
    from sottovoce.deployment.machines.federation import Federation
    from sottovoce.deployment.operators.folders import RelayFolder

    if deploy_relay.is_device(folder):
        raise ConfigError(
            f"{folder} is the folder of a client of a relay; to see whether it can answer run: "
            f"sottovoce deploy check {folder}"
        )
    if not deploy_relay.is_operator(folder):
        from sottovoce.flower.runs import status_of

        return status_of(Federation.read(folder))
    from sottovoce.deployment.operators.checks import collector_status, relay_status

    operator = deploy_relay.operator_of(folder)
    if isinstance(operator, RelayFolder):
        return relay_status(operator)
    return collector_status(operator)


def _run_cells(row: dict[str, Any]) -> list[str]:
    rounds = "" if row["rounds"] is None else f"{row['rounds_done']} of {row['rounds']}"
    return [str(row["run"]), row["name"] or "", row["state"], rounds, row["folder"] or ""]


def stop(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The folder of a federation, site, relay, collector or client."
        ),
    ],
    run: Annotated[
        int | None,
        typer.Option(
            help="Stop only the run with this number, as 'deploy status' shows it; the link or "
            "the collector keeps running."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Stop a link, a node, a relay, a collector or a run; each can be started again.

    What a collector's run has not finished continues when the collector is started again. With
    --run it does not: 'deploy run ... --resume' continues it.
    """
    if run is not None:
        _stop_run(folder, run, as_json=as_json)
        return
    from sottovoce.deployment.machines.processes import (
        describe_process,
        end_leftovers,
        stop_supervisor,
    )
    from sottovoce.deployment.machines.site_folder import supervisor_folder

    keeper = deploy_relay.operator_keeper(folder) or supervisor_folder(folder)
    what = f"the {keeper.name}"
    stopped = stop_supervisor(keeper)
    left = end_leftovers(keeper)
    interrupted = _interrupted_runs(folder)
    if as_json:
        print_json(
            {
                "stopped": what if stopped else None,
                "leftovers": [process.pid for process in left],
                **({"interrupted": interrupted} if interrupted is not None else {}),
            }
        )
        return
    say(f"{what} is stopped" if stopped else f"{what} was not running")
    for process in left:
        say(f"also ended a process that was left: {describe_process(process)}")
    for number in interrupted or ():
        say(
            f"run {number} is interrupted, and goes on when the collector is started again; to end "
            f"it run: sottovoce deploy stop {folder} --run {number}"
        )


def _interrupted_runs(folder: Path) -> list[int] | None:
    """Return the numbers of a collector's runs that are interrupted; None for another folder."""
    if not deploy_relay.is_collector(folder):
        return None
    from sottovoce.deployment.operators.collector_runs import INTERRUPTED, runs_of
    from sottovoce.deployment.operators.folders import CollectorFolder

    rows = runs_of(CollectorFolder.read(folder))
    return [row["run"] for row in rows if row["state"] == INTERRUPTED]


def _stop_run(folder: Path, number: int, *, as_json: bool) -> None:
    from sottovoce.core.errors import DeploymentError

    if deploy_relay.is_operator(folder):
        from sottovoce.deployment.operators.collector_runs import stop_collector_run
        from sottovoce.deployment.operators.folders import CollectorFolder

        stopped = stop_collector_run(CollectorFolder.read(folder), number)
    else:
        from sottovoce.deployment.machines.federation import Federation
        from sottovoce.flower.link import running_link

        with running_link(Federation.read(folder)) as control:
            stopped = control.stop_run(number)
    if not stopped:
        raise DeploymentError(
            f"run {number} could not be stopped; see 'sottovoce deploy status {folder}'"
        )
    if as_json:
        print_json({"stopped": f"run {number}"})
    else:
        say(f"run {number} is stopped; 'sottovoce deploy run ... --resume' continues it")
