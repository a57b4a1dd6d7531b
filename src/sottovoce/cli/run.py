"""`sottovoce run`: one spec, one folder."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

import sottovoce.runs
from sottovoce.cli import interruption
from sottovoce.cli.data import DataDir, fetch_missing, use
from sottovoce.cli.mistakes import absent_spec
from sottovoce.cli.options import AllowCode, Log, Overrides, SpecFile
from sottovoce.cli.output import Json, print_result, print_warning, progress_bars, round_note, say
from sottovoce.core.errors import ConfigError


def _print_example(wanted: bool) -> None:
    if wanted:
        typer.echo((files(sottovoce.runs) / "example.toml").read_text("utf-8"), nl=False)
        raise typer.Exit


def run(
    spec: SpecFile,
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run folder [runs/NAME].")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    allow_code: AllowCode = False,
    data_dir: DataDir = None,
    log: Log = None,
    example: Annotated[  # noqa: ARG001  (its callback has answered)
        bool,
        typer.Option(
            "--example",
            callback=_print_example,
            is_eager=True,
            help="Print a spec to begin with, and nothing else.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Train as a spec says; results, ledger and checkpoints go into a run folder."""
    from sottovoce.runs.code_in_specs import check_code_allowed
    from sottovoce.runs.data_paths import load_for_run
    from sottovoce.runs.folder import RunFolder
    from sottovoce.runs.loading import load

    if not spec.exists():
        raise ConfigError(absent_spec(spec))
    folder = out or Path("runs") / load(spec, set_ or []).name
    begun = RunFolder(folder)
    loaded = load_for_run(
        spec, set_ or [], begun=begun.header() if resume and begun.exists else None
    )
    check_code_allowed(loaded, allow_code=allow_code)
    use(data_dir)
    is_ours = resume or not begun.exists
    try:
        with interruption.interruptible() as interrupted, progress_bars() as bars:
            fetch_missing(loaded.data.dataset, bars)
            from sottovoce.runs.launch import launch  # torch takes a while to load
            from sottovoce.runs.tracked import tracked

            with tracked(log or [], loaded, folder, warn=print_warning) as trackers:

                def on_round(row: dict[str, Any]) -> None:
                    bars.update(loaded.name, row["round"], loaded.rounds, round_note(row))
                    trackers(row)
                    interrupted.check()

                def on_resume(where: str) -> None:
                    say(where, err=True)

                result = launch(
                    loaded, folder, resume=resume, on_round=on_round, on_resume=on_resume
                )
                trackers.finish(result)
    except KeyboardInterrupt as interrupt:
        stopped = folder if is_ours and begun.exists else None
        interruption.end(interrupt, stopped, loaded.rounds, as_json=as_json)
    print_result(result, folder, as_json=as_json)
