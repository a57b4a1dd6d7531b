"""The command `sottovoce deploy run`, which runs a spec at a link or a collector and follows it."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.options import AllowCode, Log, Overrides, ServerFolder, SpecFile
from sottovoce.cli.output import Json, print_warning, report_progress, round_note, say
from sottovoce.cli.servers import server_of
from sottovoce.cli.summary import print_result

if TYPE_CHECKING:
    from sottovoce.cli.servers import RunsServer
    from sottovoce.deployment.machines.submitted_runs import RunsKeeper, RunStatus
    from sottovoce.runs.folder import RunFolder
    from sottovoce.runs.spec import RunSpec
    from sottovoce.runs.tracking import Trackers

_POLL_SECONDS = 1.0
_INTERRUPTED = 130


def run(
    folder: ServerFolder,
    spec: SpecFile,
    set_: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder to write [DIR/runs/NAME].")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the interrupted run in its run folder.")
    ] = False,
    allow_code: AllowCode = False,
    log: Log = None,
    as_json: Json = False,
) -> None:
    """Train as a spec says on the clients' data, over a link or, for a collector, its relay.

    Link or collector must be running. The run continues if this command is interrupted.
    """
    from sottovoce.core.errors import OutputError
    from sottovoce.deployment.machines.submitted_runs import RunSubmission
    from sottovoce.runs.folder import RunFolder, describe_resume
    from sottovoce.runs.loading import check_code_allowed, load, load_for_run
    from sottovoce.runs.tracking import track_run

    server = server_of(folder)
    default = server.runs_folder / load(spec, set_ or []).name
    run_folder = RunFolder((out or default).absolute())
    _check_folder(run_folder, folder, resume=resume)
    begun = run_folder.header() if resume else None
    loaded = load_for_run(spec, set_ or [], absolute=True, resumed_header=begun)
    check_code_allowed(loaded, allow_code=allow_code)
    server.check_clients(loaded)
    _check_before(server, loaded, run_folder, resume=resume)
    trackers = track_run(log or [], loaded, run_folder.path, warn=print_warning)
    with trackers as rounds_log, server.running() as runs:
        order = RunSubmission(
            name=loaded.name,
            task={
                "spec": json.dumps(loaded.plain()),
                "resume": resume,
                "allow_code": allow_code,
            },
            rounds=loaded.rounds,
            out=run_folder.path,
        )
        resumed = [describe_resume(run_folder, loaded)] if resume else []
        run_id = runs.submit(order)
        for line in (f"run {run_id} has begun", *resumed):
            say(line, err=True)
        try:
            ended = _follow(runs, run_id, run_folder, loaded, rounds_log)
        except KeyboardInterrupt:
            say(
                f"the run continues; to see it run: sottovoce deploy status {folder}; "
                f"to stop it run: sottovoce deploy stop {folder} --run {run_id}",
                err=True,
            )
            raise SystemExit(_INTERRUPTED) from None
        _check_end(ended, runs, run_folder)
        result = run_folder.result()
        if result is None:
            raise OutputError(
                f"the run has ended, but {run_folder.path} has no result; run it with --resume"
            )
        rounds_log.finish(result)
    print_result(result, run_folder.path, as_json=as_json)


def _check_folder(run_folder: "RunFolder", folder: Path, *, resume: bool) -> None:
    """Refuse a run folder now that the server would refuse later."""
    from sottovoce.core.errors import OutputError

    path = run_folder.path
    if resume and not run_folder.exists:
        raise OutputError(
            f"nothing to resume: {path} is not a run folder; leave out --resume to begin a run, or "
            "name the folder of one with --out"
        )
    if resume:
        try:
            with run_folder.locked():
                pass
        except OutputError as error:
            raise OutputError(
                f"{error}. If it is a run of this folder, see 'sottovoce deploy status {folder}' "
                f"and stop it with 'sottovoce deploy stop {folder} --run ID'; if the program was "
                f"killed, end its remaining processes with 'sottovoce deploy stop {folder}'"
            ) from None
    if not resume and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise OutputError(
            f"{path} is not an empty folder; use --resume to continue a run of this spec in it, or "
            "choose another --out"
        )


def _check_before(
    server: "RunsServer", spec: "RunSpec", run_folder: "RunFolder", *, resume: bool
) -> None:
    """Build the run here, to find errors that the server would find later.

    Skipped where the server may have data or modules that this shell does not have.
    """
    from sottovoce.learning import datasets

    _, colon, path = spec.data.dataset.partition(":")
    elsewhere = bool(colon) and not Path(path).is_absolute()  # as older versions wrote it
    if spec.model.user_functions or elsewhere:
        return
    if datasets.where_found(spec.data.dataset) is None:
        return
    server.check_spec(spec, run_folder, resume=resume)


def _follow(
    runs: "RunsKeeper", run_id: int, run_folder: "RunFolder", spec: "RunSpec", log: "Trackers"
) -> "RunStatus":
    """Show and log rounds until the run has ended; return how it ended."""
    logged = 0
    with report_progress() as bars:
        while True:
            # Read before the rounds, so that none is missed at the end.
            status = runs.status(run_id)
            rows = run_folder.metrics()
            if rows:
                bars.update(spec.name, rows[-1]["round"], spec.rounds, round_note(rows[-1]))
            for row in rows:
                if row["round"] > logged:
                    log(row)
                    logged = row["round"]
            if status.has_ended:
                return status
            time.sleep(_POLL_SECONDS)


def _check_end(ended: "RunStatus", runs: "RunsKeeper", run_folder: "RunFolder") -> None:
    from sottovoce.core.errors import DeploymentError

    if ended.failure is not None:
        remedy = (
            "; use --resume to continue, no finished round is charged again"
            if run_folder.exists
            else ""
        )
        raise DeploymentError(
            f"the run failed: {ended.failure}{remedy}; to read its log run: "
            f"{runs.how_to_read_log(ended.run_id)}"
        )
    if ended.was_stopped:
        say(f"the run was stopped; use --resume to continue in {run_folder.path}", err=True)
        raise SystemExit(_INTERRUPTED)
