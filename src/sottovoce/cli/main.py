"""The entry point of the command `sottovoce`.

An error that the user can correct is printed, mostly in one line, and ends with exit status 2;
`--debug` adds the traceback. Plug-ins add commands, see `commands`. Closed standard streams, and
pipes whose reader has ended, cause no traceback.
"""

import os
import shlex
import sys
import traceback
import warnings

import typer
import typer.core

from sottovoce.cli import (
    attack,
    audit,
    commands,
    completion,
    data,
    demo,
    deploy,
    doctor,
    estimate,
    explore,
    export,
    ledger,
    mechanism,
    mistakes,
    plan,
    plugins,
    privacy,
    report,
    run,
    tune,
    watch,
)
from sottovoce.cli.output import print_json
from sottovoce.core.printable_text import printable_lines
from sottovoce.version import __version__

# The exit status that a shell reports for a program ended by SIGPIPE, as in `yes | head -1`.
READER_GONE = 141
_STANDARD = {0: os.O_RDONLY, 1: os.O_WRONLY, 2: os.O_WRONLY}


def reopen_closed_streams() -> None:
    """Open the null device in place of standard streams that were closed (`>&-`).

    Otherwise the first file that is opened, such as a ledger, would get the number of the closed
    stream, and printed text would be written into that file.
    """
    for number, mode in _STANDARD.items():
        try:
            os.fstat(number)
        except OSError:
            _point_at_null(number, mode)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:  # as Python marks a closed stream
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def is_output_error(error: Exception) -> bool:
    """Return whether an error was raised by writing to standard output or standard error.

    Commands write to them through click, typer and rich, and this module flushes them, so the
    module that raised tells such an error from one about a file or a socket.

    Args:
        error: The error, with its traceback.
    """
    if not isinstance(error, OSError) or error.filename is not None:
        return False
    *_, (frame, _) = [*traceback.walk_tb(error.__traceback__)] or [(sys._getframe(), 0)]
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in ("click", "typer", "rich") or name == "sottovoce.cli.main"


def discard_output() -> None:
    """Replace standard output and error by the null device, so that flushing cannot fail."""
    for number in (1, 2):
        _point_at_null(number, os.O_WRONLY)


def print_error(text: str) -> None:
    """Print to standard error; if that fails, only the exit status reports the error."""
    try:
        typer.echo(text, err=True)
    except (OSError, ValueError):
        _point_at_null(2, os.O_WRONLY)


def _point_at_null(number: int, mode: int) -> None:
    handle = os.open(os.devnull, mode)
    if handle != number:
        os.dup2(handle, number)
        os.close(handle)


_INTERRUPTED = 130
_FIRST_STEPS = f"""\
Sottovoce {__version__}: federated learning and analytics with a few private bits per message.

  sottovoce demo               train on bundled data in half a minute and write a report
  sottovoce run SPEC.toml      train as a spec says; the folder examples/ has specs
  sottovoce report RUN         write a page about the privacy, accuracy and traffic of a run
  sottovoce estimate mean DATA.csv --column age --lower 0 --upper 120 --epsilon 1   a private mean
  sottovoce plan --epsilon 2 --delta 1e-5 --rounds 100 --dimension 10000   rank mechanisms
  sottovoce doctor             show what is installed and whether it works
  sottovoce --help             list all commands; each has a --help

In Python: import sottovoce, then use sottovoce.simulate, plan, spend and estimate."""
# Typer's help would print \\[default] where rich is installed and its markup is off.
typer.core.HAS_RICH = False

app = typer.Typer(
    name="sottovoce",
    cls=commands.CommandGroup,
    help="Federated learning and analytics with a few differentially private bits per coordinate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_NOUNS: dict[str, commands.Command] = {
    "demo": demo.demo,
    "run": run.run,
    "tune": tune.tune,
    "watch": watch.watch,
    "report": report.report,
    "plan": plan.plan,
    "explore": explore.explore,
    "export": export.export,
    "doctor": doctor.doctor,
    "plugins": plugins.plugins,
    "completion": completion.completion,
    "estimate": estimate.app,
    "attack": attack.app,
    "data": data.app,
    "mechanism": mechanism.app,
    "privacy": privacy.app,
    "ledger": ledger.app,
    "audit": audit.app,
    "deploy": deploy.app,
}
for _name, _noun in _NOUNS.items():
    commands.register_command(_name, _noun, module=__name__)
    commands.BUILT_IN[_name] = _noun


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sottovoce {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Set the options of all commands."""


def parser() -> commands.CommandGroup:
    """Return the parser of all commands of Sottovoce and sottovoce-papers, without plug-ins'."""
    group = typer.main.get_command(app)
    assert isinstance(group, commands.CommandGroup)
    group.add_own_commands()
    return group


_usual_format = warnings.formatwarning


def _in_one_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Return a warning's text; for missing kernels without the place in the code."""
    from sottovoce.core.native import NativeMissingWarning

    if issubclass(category, NativeMissingWarning):
        return f"warning: {message}\n"
    return _usual_format(message, category, filename, lineno, line)


def main() -> None:
    """Run the command that `sys.argv` names, and end the process with its exit status."""
    reopen_closed_streams()
    # torch's threads would wait for work in busy loops, on cores that our kernels need.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    warnings.formatwarning = _in_one_line
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1  # --debug may be anywhere on the line
    try:
        code = _run_command(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except Exception as error:
        code = _report_error(error, arguments, debug=debug)
    if code == _INTERRUPTED:
        print_error(f"interrupted; {_how_to_go_on(arguments)}")
    sys.exit(code)


def _run_command(arguments: list[str]) -> int:
    """Run the command that the arguments name and return its exit status."""
    if completion.VARIABLE in os.environ:
        completion.print_completions(app)
    if not arguments:
        typer.echo(_FIRST_STEPS)
        return 0
    try:
        return int(app(arguments, standalone_mode=False) or 0)
    except SystemExit as ended:
        # Typer exits with 1 for every broken pipe, including those of sockets.
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        raise


def _report_error(error: Exception, arguments: list[str], *, debug: bool) -> int:
    """Print what went wrong and return the exit status; raise again if it is a bug."""
    is_output = is_output_error(error)
    if is_output and isinstance(error, BrokenPipeError):
        discard_output()  # the reader of the pipe has ended
        return READER_GONE
    message = mistakes.explain(error, is_output=is_output)
    if message is None:
        raise error
    if debug:
        traceback.print_exception(error)
    print_error(printable_lines(message))
    if is_output:
        discard_output()
    elif "--json" in arguments:  # a program that reads stdout expects JSON
        try:
            print_json({"error": message.removeprefix("error: ")})
            sys.stdout.flush()
        except OSError:
            discard_output()
    return 2


def _how_to_go_on(arguments: list[str]) -> str:
    if arguments[:1] == ["experiment"] or arguments[:2] == ["attack", "membership"]:
        again = shlex.join(["sottovoce", *arguments])
        return f"finished models are kept; run the same command to continue: {again}"
    if arguments[:1] == ["report"]:
        return "no page was written; run the same command to start again"
    if arguments[:1] == ["audit"]:
        return "an audit saves nothing before its end; run the same command to start again"
    if arguments[:2] == ["deploy", "ask"]:
        return (
            "a link finishes its question, and a collector gives it up; to ask again is a new "
            "question, for which people are charged again"
        )
    return "run the same command to start again"
