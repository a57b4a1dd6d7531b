"""`sottovoce run`: one spec, one folder.

End a run on SIGINT or SIGTERM: save what is finished, and say in one line how to go on.
"""

import contextlib
import dataclasses
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import sottovoce.runs
from sottovoce.cli.data import DataDir, fetch_missing, use
from sottovoce.cli.mistakes import absent_spec
from sottovoce.cli.options import AllowCode, Log, Overrides, SpecFile
from sottovoce.cli.output import (
    Json,
    print_json,
    print_warning,
    progress_bars,
    round_note,
    say,
)
from sottovoce.cli.summary import print_result
from sottovoce.core.errors import ConfigError, SottovoceError

if TYPE_CHECKING:
    from sottovoce.runs.checked import Checked

_STOPPING = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """The work was ended by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interruption:
    """The signal that has come, if any."""

    def __init__(self) -> None:
        self.number: int | None = None

    def check(self) -> None:
        """Raise if a signal has come whose exception was lost, as it is in a finalizer."""
        if self.number is not None:
            raise Interrupted(self.number)


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Raise `Interrupted` here on the first signal; the second one ends the process at once.

    A signal that the process was told to ignore, as in a shell's background, stays ignored.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption  # signals are the main thread's
        return
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in _STOPPING}

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for one in handled:
            signal.signal(one, signal.SIG_DFL)
        interruption.number = number
        raise Interrupted(number)

    handled = [number for number in _STOPPING if before[number] is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield interruption
    finally:
        for number in handled:
            signal.signal(number, before[number])


def end(
    interrupt: KeyboardInterrupt, folder: Path | None, rounds: int, *, as_json: bool
) -> NoReturn:
    """Say how far the run in `folder` has come and how to go on; exit with the signal's status.

    Args:
        interrupt: What ended the work.
        folder: The run's folder, or None where the run had not begun.
        rounds: How many rounds the spec has.
        as_json: Whether stdout is read as JSON.
    """
    from sottovoce.runs.folder import RunFolder

    number = interrupt.number if isinstance(interrupt, Interrupted) else signal.SIGINT
    name = signal.Signals(number).name
    saved = RunFolder(folder).checkpoint_saved() if folder else None
    done = saved[0] if saved else 0
    again = ["sottovoce", *(word for word in sys.argv[1:] if word != "--debug")]
    if folder is None:
        where = f"before the run began; begin it with: {shlex.join(again)}"
    else:
        again += [] if "--resume" in again else ["--resume"]
        after = f"after round {done}" if done else "before the end of round 1"
        where = f"{after} of {rounds}; go on with: {shlex.join(again)}"
    say(f"stopped by {name} {where}", err=True)
    if as_json:
        place = str(folder) if folder else None
        print_json({"stopped_by": name, "rounds_done": done, "rounds": rounds, "folder": place})
    raise SystemExit(128 + number)


def _print_example(wanted: bool) -> None:
    if wanted:
        typer.echo((files(sottovoce.runs) / "example.toml").read_text("utf-8"), nl=False)
        raise typer.Exit


def run(
    spec: SpecFile,
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run folder [runs/NAME].")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Print what the run would cost, and every refusal; charge and write nothing.",
        ),
    ] = False,
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
    """Train as a spec says; results, ledger and checkpoints go into a run folder.

    With --check nothing is trained: it prints epsilon, bytes and estimates of time and memory, and
    exits 0 if the spec would run, 2 if it would be refused or stop before its first round.
    """
    if check:
        if resume or log:
            raise ConfigError(
                "--check is for a run that has not begun: leave out --resume and --log"
            )
        use(data_dir)
        with progress_bars():
            checked = _checked(spec, set_ or [], out, allow_code=allow_code)
        if as_json:
            print_json(checked.to_dict())
        else:
            say(str(checked))
        if not checked.would_run:
            raise typer.Exit(2)
        return
    from sottovoce.runs.folder import RunFolder
    from sottovoce.runs.loading import check_code_allowed, load, load_for_run

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
        with interruptible() as interrupted, progress_bars() as bars:
            fetch_missing(loaded.data.dataset, bars)
            from sottovoce.runs.runner import launch  # torch takes a while to load
            from sottovoce.runs.tracking import tracked

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
        end(interrupt, stopped, loaded.rounds, as_json=as_json)
    print_result(result, folder, as_json=as_json)


def _checked(spec: Path, overrides: list[str], out: Path | None, *, allow_code: bool) -> "Checked":
    """Return what a run would cost, and every reason for which it would be refused."""
    from sottovoce.runs.checked import Checked, problems_of
    from sottovoce.runs.loading import data_folders, parse_assignments, read_all, read_table

    try:
        if not spec.exists():
            raise ConfigError(absent_spec(spec))
        table = read_table(spec, overrides)
    except SottovoceError as error:
        checked = Checked(problems=problems_of(error))
    else:
        folders = data_folders(spec, parse_assignments(overrides, "--set"))
        read = read_all(table, str(spec), folders)
        try:  # torch takes a while to load
            from sottovoce.runs.check import check_read
            from sottovoce.runs.folder import RunFolder
        except ModuleNotFoundError:  # without it, what cannot be read is told all the same
            if not read.problems:
                raise
            checked = Checked(problems=read.problems)
        else:
            checked = check_read(read, allow_code=allow_code)
            if out is None and read.spec is not None and "name" not in read.broken:
                out = Path("runs") / read.spec.name
            try:
                if out is not None:
                    RunFolder(out).check_new()
            except SottovoceError as error:
                checked = dataclasses.replace(checked, problems=(*checked.problems, str(error)))
    return checked
