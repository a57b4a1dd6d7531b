"""The command `sottovoce deploy run`, which runs a spec on a federation and follows it."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.deploy_relay import is_operator, run_for_collector
from sottovoce.cli.options import AllowCode, FederationFolder, Log, Overrides, SpecFile
from sottovoce.cli.output import Json, print_warning, report_progress, round_note, say
from sottovoce.cli.summary import print_result

if TYPE_CHECKING:
    from sottovoce.deployment.machines.federation import Federation
    from sottovoce.flower.control import Control, RunStatus
    from sottovoce.runs.folder import RunFolder
    from sottovoce.runs.spec import RunSpec
    from sottovoce.runs.tracking import Trackers

_POLL_SECONDS = 1.0
_INTERRUPTED = 130


def run(
    folder: FederationFolder,
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

    A run over a link continues if this command is interrupted. A collector's run ends then, after
    the round, and --resume continues it.
    """
    if is_operator(folder):
        run_for_collector(
            folder, spec, set_ or [], out, resume, allow_code, log or [], as_json=as_json
        )
        return
    from sottovoce.core.errors import OutputError
    from sottovoce.deployment.machines.federation import Federation
    from sottovoce.flower.link import running_link
    from sottovoce.flower.runs import RunSubmission, submit
    from sottovoce.runs.folder import RunFolder, describe_resume
    from sottovoce.runs.loading import check_code_allowed, load, load_for_run
    from sottovoce.runs.tracking import track_run

    federation, name = Federation.read(folder), load(spec, set_ or []).name
    run_folder = RunFolder((out or federation.runs_folder / name).absolute())
    _check_folder(run_folder, folder, resume=resume)
    begun = run_folder.header() if resume else None
    loaded = load_for_run(spec, set_ or [], absolute=True, resumed_header=begun)
    check_code_allowed(loaded, allow_code=allow_code)
    _check_clients(loaded, federation)
    trackers = track_run(log or [], loaded, run_folder.path, warn=print_warning)
    with trackers as rounds_log, running_link(federation) as control:
        _check_before(loaded, run_folder, resume=resume)
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
        run_id = submit(order, federation)
        for line in (f"run {run_id} has begun", *resumed):
            say(line, err=True)
        try:
            ended = _follow(control, run_id, run_folder, loaded, rounds_log)
        except KeyboardInterrupt:
            say(
                f"the run continues; to see it run: sottovoce deploy status {folder}; "
                f"to stop it run: sottovoce deploy stop {folder} --run {run_id}",
                err=True,
            )
            raise SystemExit(_INTERRUPTED) from None
        _check_end(ended, federation, run_folder)
        result = run_folder.result()
        if result is None:
            raise OutputError(
                f"the run has ended, but {run_folder.path} has no result; run it with --resume"
            )
        rounds_log.finish(result)
    print_result(result, run_folder.path, as_json=as_json)


def _check_folder(run_folder: "RunFolder", federation: Path, *, resume: bool) -> None:
    """Refuse a folder now that the link's server would refuse later."""
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
                f"{error}. If it is a run of the link, see 'sottovoce deploy status {federation}' "
                f"and stop it with 'sottovoce deploy stop {federation} --run ID'; if the link was "
                f"killed, end its remaining processes with 'sottovoce deploy stop {federation}'"
            ) from None
    if not resume and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise OutputError(
            f"{path} is not an empty folder; use --resume to continue a run of this spec in it, or "
            "choose another --out"
        )


def _check_clients(spec: "RunSpec", federation: "Federation") -> None:
    """Refuse a spec with clients that are not sites; the run would wait for them forever."""
    from sottovoce.core.errors import ConfigError
    from sottovoce.core.printable_text import client_name

    data = spec.data
    numbered = [client_name(number) for number in range(data.clients or 0)]
    clients = list(data.sites) or list(data.names) or numbered
    unknown = [name for name in clients if name not in federation.sites]
    if unknown:
        raise ConfigError(
            f"the spec's client '{unknown[0]}' is not a site of the federation; name its sites "
            f"in 'data.names' (or 'data.sites'): {', '.join(federation.sites)}"
        )
    if ":" in data.dataset and not data.sites:
        raise ConfigError(
            f"the dataset '{data.dataset}' has an argument after the colon, such as a file, and "
            "sites read no data set that a run describes so; state in 'data.sites' how many "
            "records each site has, or name a data set without a colon that all sites have"
        )


def _check_before(spec: "RunSpec", run_folder: "RunFolder", *, resume: bool) -> None:
    """Build the run here, to find errors that the link's server would find a minute later.

    Skipped where the link's server may have data or modules that this shell does not have.
    """
    from sottovoce.flower.remote import check_buildable
    from sottovoce.learning import datasets

    _, colon, path = spec.data.dataset.partition(":")
    elsewhere = bool(colon) and not Path(path).is_absolute()  # as older versions wrote it
    if spec.model.user_factory is not None or elsewhere:
        return
    if datasets.where_found(spec.data.dataset) is None:
        return
    check_buildable(spec, run_folder, resume=resume)


def _follow(
    control: "Control", run_id: int, run_folder: "RunFolder", spec: "RunSpec", log: "Trackers"
) -> "RunStatus":
    """Show and log rounds until the run has ended; return how it ended."""
    logged = 0
    with report_progress() as bars:
        while True:
            status = control.run(
                run_id
            )  # read before the rounds, so that none is missed at the end
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


def _check_end(ended: "RunStatus", federation: "Federation", run_folder: "RunFolder") -> None:
    from sottovoce.core.errors import DeploymentError

    if ended.failure is not None:
        remedy = (
            "; use --resume to continue, no round is charged twice" if run_folder.exists else ""
        )
        raise DeploymentError(
            f"the run failed: {ended.failure}{remedy}; to read its log run: "
            f"FLWR_HOME={federation.link_folder}/flower flwr log {ended.run_id} --show"
        )
    if ended.was_stopped:
        say(f"the run was stopped; use --resume to continue in {run_folder.path}", err=True)
        raise SystemExit(_INTERRUPTED)
