"""`sottovoce`: the entry point. A user's mistake is one line and exit 2; `--debug` shows where.

Plug-ins add commands, see `commands`.

Standard output and error that are closed, or whose reader has gone, without a traceback.
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
    watch,
)
from sottovoce.cli.output import print_json
from sottovoce.core.printable_text import printable_lines
from sottovoce.version import __version__

# What a shell reports of a program that SIGPIPE ended, as it ends `yes | head -1`.
READER_GONE = 141
_STANDARD = {0: os.O_RDONLY, 1: os.O_WRONLY, 2: os.O_WRONLY}


def reopen_closed() -> None:
    """Put the null device where a standard stream was closed (`>&-`).

    Otherwise the first file that is opened, a ledger for one, would get the stream's number, and
    whatever is printed would be written into it.
    """
    for number, mode in _STANDARD.items():
        try:
            os.fstat(number)
        except OSError:
            _point_at_null(number, mode)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:  # Python's word for a stream that was closed
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def is_of_output(error: Exception) -> bool:
    """Whether an error is that standard output or error cannot be written.

    Both are written by click and rich, and flushed by the entry point; files are not, and neither
    are sockets.
    """
    if not isinstance(error, OSError) or error.filename is not None:
        return False
    *_, (frame, _) = [*traceback.walk_tb(error.__traceback__)] or [(sys._getframe(), 0)]
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in ("click", "typer", "rich") or name == "sottovoce.cli.main"


def abandon() -> None:
    """Keep the interpreter from complaining at exit of what it can no longer write."""
    for number in (1, 2):
        _point_at_null(number, os.O_WRONLY)


def tell(text: str) -> None:
    """Print to standard error, if it can be written: the exit status tells the rest."""
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
Sottovoce {__version__}: federated learning and analytics in a whisper, a few private bits each.

  sottovoce demo               train privately on bundled data, in half a minute, and look at a page
  sottovoce run SPEC.toml      train as a spec says; examples/ has some
  sottovoce report RUN         a page about what was spent, learned and sent
  sottovoce estimate mean DATA.csv --column age --lower 0 --upper 120 --epsilon 1   with interval
  sottovoce plan --epsilon 2 --delta 1e-5 --rounds 100 --dimension 10000   which mechanism?
  sottovoce doctor             what is installed, and whether it works
  sottovoce --help             every command; each has a --help of its own

In Python: import sottovoce, then sottovoce.simulate, plan, spend and estimate."""
# Of typer's help only, which would print \\[default] where rich is installed but not asked to draw.
typer.core.HAS_RICH = False

app = typer.Typer(
    name="sottovoce",
    cls=commands.OpenGroup,
    help="Federated learning in a whisper: a few differentially private bits per coordinate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_NOUNS: dict[str, commands.Noun] = {
    "demo": demo.demo,
    "run": run.run,
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
    if isinstance(_noun, typer.Typer):
        app.add_typer(_noun, name=_name)
    else:
        app.command(_name)(_noun)


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
    """Federated learning in a whisper: a few differentially private bits per coordinate."""


def parser() -> commands.OpenGroup:
    """Return the parser of all commands of ours, for whoever lists them."""
    group = typer.main.get_command(app)
    assert isinstance(group, commands.OpenGroup)
    group.add_ours()
    return group


_usual_format = warnings.formatwarning


def _in_one_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Missing kernels are for users to know; where in our code that was noticed is not."""
    from sottovoce.core.native import NativeMissingWarning

    if issubclass(category, NativeMissingWarning):
        return f"warning: {message}\n"
    return _usual_format(message, category, filename, lineno, line)


def main() -> None:
    """Run the command line."""
    reopen_closed()
    warnings.formatwarning = _in_one_line
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1  # --debug is welcome anywhere on the line
    try:
        code = _answer(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except Exception as error:
        code = _told(error, arguments, debug=debug)
    if code == _INTERRUPTED:
        tell(f"interrupted; {_how_to_go_on(arguments)}")
    sys.exit(code)


def _answer(arguments: list[str]) -> int:
    """Do what is asked; the exit status."""
    if completion.VARIABLE in os.environ:
        completion.answer(app)
    if not arguments:
        typer.echo(_FIRST_STEPS)
        return 0
    try:
        return int(app(arguments, standalone_mode=False) or 0)
    except SystemExit as ended:
        # typer ends with 1 for every broken pipe, a socket's too.
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        raise


def _told(error: Exception, arguments: list[str], *, debug: bool) -> int:
    """Say what went wrong, and return the exit status; a bug of ours is raised again."""
    is_output = is_of_output(error)
    if is_output and isinstance(error, BrokenPipeError):
        abandon()  # its reader has seen enough
        return READER_GONE
    message = mistakes.explain(error, is_output=is_output)
    if message is None:
        raise error
    if debug:
        traceback.print_exception(error)
    tell(printable_lines(message))
    if is_output:
        abandon()
    elif "--json" in arguments:  # a program that reads JSON finds some
        try:
            print_json({"error": message.removeprefix("error: ")})
            sys.stdout.flush()
        except OSError:
            abandon()
    return 2


def _how_to_go_on(arguments: list[str]) -> str:
    if arguments[:1] in (["experiment"], ["attack"]):
        again = shlex.join(["sottovoce", *arguments])
        return f"models that are finished are kept, and the same command goes on: {again}"
    if arguments[:1] == ["report"]:
        return "a page is written whole or not at all, so the same command begins anew"
    if arguments[:1] == ["audit"]:
        return "an audit keeps nothing before its end, so the same command begins anew"
    return "the same command begins anew"
