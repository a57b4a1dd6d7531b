"""`sottovoce`: the entry point. A user's mistake is one line and exit 2; `--debug` shows where."""

import os
import shlex
import sys
import traceback

import typer

from sottovoce import __version__
from sottovoce.cli import (
    attack,
    audit,
    benchmark,
    data,
    demo,
    deploy,
    experiment,
    export,
    ledger,
    mechanism,
    plan,
    privacy,
    report,
    run,
)
from sottovoce.errors import SottovoceError

_INTERRUPTED = 130
# Which extra brings an optional package.
_EXTRAS = {
    "torch": "learn",
    "sklearn": "learn",
    "safetensors": "learn",
    "flwr": "flower",
    "httpx": "flower",
    "starlette": "flower",
    "uvicorn": "flower",
    "jinja2": "report",
}

app = typer.Typer(
    name="sottovoce",
    help="Federated learning in a whisper: a few differentially private bits per coordinate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("report")(report.report)
app.command("plan")(plan.plan)
app.command("export")(export.export)
app.add_typer(experiment.app, name="experiment")
app.add_typer(attack.app, name="attack")
app.add_typer(data.app, name="data")
app.add_typer(mechanism.app, name="mechanism")
app.add_typer(privacy.app, name="privacy")
app.add_typer(ledger.app, name="ledger")
app.add_typer(audit.app, name="audit")
app.add_typer(deploy.app, name="deploy")
app.add_typer(benchmark.app, name="benchmark")


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


def main() -> None:
    """Run the command line."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1  # --debug is welcome anywhere on the line
    try:
        code = app(arguments, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except Exception as error:
        message = _explain(error)
        if message is None:
            raise
        if debug:
            traceback.print_exc()
        typer.echo(message, err=True)
        sys.exit(2)
    if code == _INTERRUPTED:
        typer.echo(f"interrupted; {_how_to_go_on(arguments)}", err=True)
    sys.exit(code or 0)


def _how_to_go_on(arguments: list[str]) -> str:
    if arguments[:1] in (["experiment"], ["attack"]):
        again = shlex.join(["sottovoce", *arguments])
        return f"models that are finished are kept, and the same command goes on: {again}"
    if arguments[:1] == ["attack"]:
        again = shlex.join(["sottovoce", *arguments])
        return f"shadow models that are finished are kept, and the same command goes on: {again}"
    if arguments[:1] == ["report"]:
        return "a page is written whole or not at all, so the same command begins anew"
    if arguments[:1] == ["audit"]:
        return "an audit keeps nothing before its end, so the same command begins anew"
    return "'run' goes on from its last checkpoint with --resume"


def _explain(error: Exception) -> str | None:
    """A user's mistake, or a state of the world, in one line; None for a bug of ours."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error)
    if isinstance(error, SottovoceError):
        return f"error: {error}"
    if hasattr(error, "format_message"):  # a usage error, wherever typer keeps its click
        return f"error: {error.format_message().rstrip('.')}{_given(error)}; see --help"
    if isinstance(error, ModuleNotFoundError):
        extra = _EXTRAS.get((error.name or "").split(".")[0])
        return extra and f"error: this needs {error.name}: pip install 'sottovoce[{extra}]'"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        return (
            "error: out of memory; train fewer clients in a round or a smaller model, or set "
            "runtime.device = 'cpu'. A run goes on from its last checkpoint with --resume"
        )
    if isinstance(error, OSError):
        return f"error: cannot write the output: {error.strerror or error}"
    return None


def _given(error: Exception) -> str:
    """The value that an option was given, which click's own message leaves out."""
    for option in getattr(getattr(error, "param", None), "opts", []):
        if option in sys.argv[:-1]:
            return f", got '{sys.argv[sys.argv.index(option) + 1]}'"
    return ""


if __name__ == "__main__":
    main()
