"""`sottovoce`: the entry point. A user's mistake is one line and exit 2; `--debug` shows where."""

import os
import sys

import typer

from sottovoce import __version__
from sottovoce.cli import demo, export, ledger, mechanism, privacy, run
from sottovoce.errors import SottovoceError

# Which extra brings an optional package.
_EXTRAS = {"torch": "learn", "sklearn": "learn", "safetensors": "learn", "jinja2": "report"}

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
app.command("export")(export.export)
app.add_typer(mechanism.app, name="mechanism")
app.add_typer(privacy.app, name="privacy")
app.add_typer(ledger.app, name="ledger")


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
        app(arguments)
    except SottovoceError as error:
        if debug:
            raise
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").split(".")[0])
        if debug or extra is None:
            raise
        typer.echo(f"error: this needs {error.name}: pip install 'sottovoce[{extra}]'", err=True)
        sys.exit(2)
    except BrokenPipeError:
        # Whoever read our output has seen enough; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo(
            "interrupted; 'sottovoce run ... --resume' goes on from the checkpoint", err=True
        )
        sys.exit(130)


if __name__ == "__main__":
    main()
