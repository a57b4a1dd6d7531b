"""`sottovoce`: the entry point. A user's mistake is one line and exit 2; `--debug` shows where.

Plug-ins add commands, see `commands`.
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
    standard_streams,
    watch,
)
from sottovoce.cli.output import print_json
from sottovoce.core.printable_text import printable_lines
from sottovoce.version import __version__

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
    standard_streams.reopen_closed()
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
        standard_streams.tell(f"interrupted; {_how_to_go_on(arguments)}")
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
    is_output = standard_streams.is_of_output(error)
    if is_output and isinstance(error, BrokenPipeError):
        standard_streams.abandon()  # its reader has seen enough
        return standard_streams.READER_GONE
    message = mistakes.explain(error, is_output=is_output)
    if message is None:
        raise error
    if debug:
        traceback.print_exception(error)
    standard_streams.tell(printable_lines(message))
    if is_output:
        standard_streams.abandon()
    elif "--json" in arguments:  # a program that reads JSON finds some
        try:
            print_json({"error": message.removeprefix("error: ")})
            sys.stdout.flush()
        except OSError:
            standard_streams.abandon()
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
