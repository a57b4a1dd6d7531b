"""The command `sottovoce run`, which trains as a spec says and writes a run folder.

SIGINT and SIGTERM end a run: finished rounds are saved, and a line says how to continue.
"""

import contextlib
import dataclasses
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import sottovoce.runs
from sottovoce.cli.data import DataDir, fetch_missing, set_data_folder
from sottovoce.cli.mistakes import missing_spec_message
from sottovoce.cli.options import AllowCode, Log, Overrides, SpecFile
from sottovoce.cli.output import (
    Json,
    print_json,
    print_warning,
    report_progress,
    round_note,
    say,
)
from sottovoce.cli.summary import print_result
from sottovoce.core.errors import ConfigError, SottovoceError

if TYPE_CHECKING:
    from sottovoce.runs.checked import CheckResult
    from sottovoce.runs.spec import RunSpec

_STOPPING = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """The error that SIGINT or SIGTERM raises to end the work; `number` is the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interruption:
    """The number of the signal that has arrived; None before one has."""

    def __init__(self) -> None:
        self.number: int | None = None

    def check(self) -> None:
        """Raise `Interrupted` if a signal arrived and its exception was lost, as in a finalizer."""
        if self.number is not None:
            raise Interrupted(self.number)


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Turn the first SIGINT or SIGTERM into `Interrupted`; the second ends the process at once.

    A signal that the process ignores, as in the background of a shell, stays ignored.

    Yields:
        The signal that has arrived; call its `check` after code that may swallow exceptions.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption  # only the main thread may handle signals
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


def end_interrupted_run(
    interrupt: KeyboardInterrupt, folder: Path | None, rounds: int, *, as_json: bool
) -> NoReturn:
    """Print how far an interrupted run has come and how to continue it; exit with 128 + signal.

    Args:
        interrupt: The exception that ended the work; its signal gives the exit status.
        folder: The run's folder, or None where the run had not begun.
        rounds: The number of rounds in the spec.
        as_json: Whether to print JSON on stdout as well.
    """
    from sottovoce.runs.folder import RunFolder

    number = interrupt.number if isinstance(interrupt, Interrupted) else signal.SIGINT
    name = signal.Signals(number).name
    saved = RunFolder(folder).last_checkpoint() if folder else None
    done = saved[0] if saved else 0
    again = ["sottovoce", *(word for word in sys.argv[1:] if word != "--debug")]
    if folder is None:
        where = f"before the run began; start it with: {shlex.join(again)}"
    else:
        again += [] if "--resume" in again else ["--resume"]
        after = f"after round {done}" if done else "before the end of round 1"
        where = f"{after} of {rounds}; continue with: {shlex.join(again)}"
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
    out: Annotated[Path | None, typer.Option(help="The run folder to write [runs/NAME].")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the interrupted run in its run folder.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Print what the run would cost and every reason to refuse it; train nothing.",
        ),
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print at the end how long each stage took.")
    ] = False,
    no_privacy: Annotated[
        bool,
        typer.Option(
            "--no-privacy",
            help="Train the baseline instead: without noise, clipping, rounding, budgets and "
            "ledger, in runs/NAME-no-privacy.",
        ),
    ] = False,
    keep_clipping: Annotated[
        bool,
        typer.Option("--keep-clipping", help="With --no-privacy: clip as the private run does."),
    ] = False,
    allow_code: AllowCode = False,
    data_dir: DataDir = None,
    log: Log = None,
    example: Annotated[  # noqa: ARG001  (its callback prints it)
        bool,
        typer.Option(
            "--example",
            callback=_print_example,
            is_eager=True,
            help="Print an example of a spec and exit.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Train as a spec says and write results, ledger and checkpoints into a run folder.

    With --check nothing is trained: it prints epsilon, bytes and estimates of time and memory, and
    exits with 0 if the spec would run, 2 if it would be refused or stop before its first round.
    """
    if keep_clipping and not no_privacy:
        raise ConfigError(
            "--keep-clipping is for the baseline without noise; add --no-privacy, since a private "
            "run always clips"
        )
    if check:
        if resume or log or profile or no_privacy:
            raise ConfigError(
                "--check trains nothing; leave out --resume, --log, --profile and --no-privacy "
                "(which costs no privacy budget), or --check"
            )
        set_data_folder(data_dir)
        with report_progress():
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
        raise ConfigError(missing_spec_message(spec))

    def as_wanted(read: "RunSpec") -> "RunSpec":
        if not no_privacy:
            return read
        from sottovoce.runs.baseline import without_privacy

        return without_privacy(read, keep_clipping=keep_clipping)

    folder = out or Path("runs") / as_wanted(load(spec, set_ or [])).name
    begun = RunFolder(folder)
    header = begun.header() if resume and begun.exists else None
    loaded = as_wanted(load_for_run(spec, set_ or [], resumed_header=header))
    check_code_allowed(loaded, allow_code=allow_code)
    if profile and loaded.runtime.backend != "fast":
        raise ConfigError(
            "--profile measures a run in this process (runtime.backend = 'fast'), but this run "
            f"has the backend '{loaded.runtime.backend}', whose clients work in other processes; "
            "leave out --profile, or add --set runtime.backend=fast"
        )
    set_data_folder(data_dir)
    is_ours = resume or not begun.exists
    try:
        with interruptible() as interrupted, report_progress() as bars:
            bars.announce(f"{loaded.name}: loading torch and '{loaded.data.dataset}'")
            fetch_missing(loaded.data.dataset, bars)
            from sottovoce.runs.runner import launch  # torch takes a while to load
            from sottovoce.runs.tracking import track_run

            with track_run(log or [], loaded, folder, warn=print_warning) as trackers:

                def on_round(row: dict[str, Any]) -> None:
                    bars.update(loaded.name, row["round"], loaded.rounds, round_note(row))
                    trackers(row)
                    interrupted.check()

                def on_resume(where: str) -> None:
                    say(where, err=True)

                with measured_if(profile) as stages:
                    result = launch(
                        loaded, folder, resume=resume, on_round=on_round, on_resume=on_resume
                    )
                trackers.finish(result)
    except KeyboardInterrupt as interrupt:
        stopped = folder if is_ours and begun.exists else None
        end_interrupted_run(interrupt, stopped, loaded.rounds, as_json=as_json)
    print_result(result, folder, as_json=as_json, profile=stages)


@contextlib.contextmanager
def measured_if(wanted: bool) -> Iterator[dict[str, dict[str, float]]]:
    """Measure the stages of the `with` block, if that is wanted.

    Yields:
        A table that is filled at the end of the block: by stage, its seconds and its share of all;
        it stays empty if nothing is measured.
    """
    from sottovoce.core.stages import measure_stages

    table: dict[str, dict[str, float]] = {}
    with contextlib.ExitStack() as measuring:
        times = measuring.enter_context(measure_stages()) if wanted else None
        begun = time.perf_counter()
        yield table
        if times is not None:
            table.update(times.profile(time.perf_counter() - begun))


def _checked(
    spec: Path, overrides: list[str], out: Path | None, *, allow_code: bool
) -> "CheckResult":
    """Return what a run would cost, and every reason for which it would be refused."""
    from sottovoce.runs.checked import CheckResult, problems_of
    from sottovoce.runs.loading import (
        data_folders,
        parse_assignments,
        read_table,
        read_with_problems,
    )

    try:
        if not spec.exists():
            raise ConfigError(missing_spec_message(spec))
        table = read_table(spec, overrides)
    except SottovoceError as error:
        checked = CheckResult(problems=problems_of(error))
    else:
        folders = data_folders(spec, parse_assignments(overrides, "--set"))
        read = read_with_problems(table, str(spec), folders)
        try:  # torch takes a while to load
            from sottovoce.runs.check import check_read
            from sottovoce.runs.folder import RunFolder
        except ModuleNotFoundError:  # without torch, errors in the spec are still reported
            if not read.problems:
                raise
            checked = CheckResult(problems=read.problems)
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
