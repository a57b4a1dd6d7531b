"""The command `sottovoce completion`, which prints scripts that complete words in a shell.

A shell asks at every press of the key, so names are read from source files and folders: importing
every mechanism and experiment would take seconds. Names of plug-ins are those of their entry
points. Parameters of commands are recognized by their names, unless a command lists their values
itself (`autocompletion`), as a plug-in's command may.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sottovoce.core.registry import plugin_names

VARIABLE = "_SOTTOVOCE_COMPLETE"
_PACKAGE = Path(__file__).parents[1]
_USAGE = {
    "bash": 'eval "$(sottovoce completion bash)"       # in ~/.bashrc',
    "zsh": 'eval "$(sottovoce completion zsh)"        # in ~/.zshrc, after compinit',
    "fish": "sottovoce completion fish | source        # in ~/.config/fish/config.fish",
}


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")
    ],
) -> None:
    """Print the script that completes commands, options, mechanisms, experiments and runs."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    typer.echo(f"# {_USAGE[shell]}")
    typer.echo(get_completion_script(prog_name="sottovoce", complete_var=VARIABLE, shell=shell))


def print_completions(app: typer.Typer) -> None:
    """Print the words that complete the command line at the shell's cursor, and end the process.

    Args:
        app: The command line; the shell passes what is typed in environment variables.
    """
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()
    command: Any = typer.main.get_command(app)
    command.on_load = lambda name, inner: _attach(inner, (name,))
    _attach(command, ())
    command.main(args=[], prog_name="sottovoce", complete_var=VARIABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """One completion, with the fields of click's `CompletionItem`."""

    value: str
    type: str = "plain"
    help: str | None = None


Names = Callable[[str], Sequence[str]]


def _attach(command: Any, path: tuple[str, ...]) -> None:
    for parameter in getattr(command, "params", []):
        names = _names_for(path, parameter.name)
        if names is not None:
            parameter.shell_complete = _completer(names)
    for name, inner in getattr(command, "commands", {}).items():
        _attach(inner, (*path, name))


def _completer(names: Names) -> Callable[[Any, str], list[_Item]]:
    def complete(_context: Any, incomplete: str) -> list[_Item]:
        return [_Item(value=name) for name in names(incomplete) if name.startswith(incomplete)]

    return complete


def _names_for(path: tuple[str, ...], parameter: str) -> Names | None:
    """Return what lists a parameter's values, by its name and its command; None if unknown."""
    group = path[0] if path else ""
    match group, parameter:
        case (_, "mechanism") | ("mechanism" | "audit", "kind"):
            return lambda _: mechanisms()
        case "data", "name":
            return lambda _: datasets()
        case (_, "run" | "runs") | ("ledger", "path"):
            return run_folders
        case _:
            return None


def mechanisms() -> list[str]:
    """Return the names of mechanisms, those of plug-ins included."""
    return _registered("mechanisms", _PACKAGE / "mechanisms")


def datasets() -> list[str]:
    """Return the names of data sets; one that takes an argument ends in a colon."""
    return _registered("datasets", _PACKAGE / "learning" / "datasets")


def _registered(kinds: str, folder: Path) -> list[str]:
    plugged = plugin_names(f"sottovoce.{kinds}")
    return sorted({*decorator_arguments(folder, "register"), *plugged})


def decorator_arguments(folder: Path, decorator: str) -> Iterator[str]:
    """Yield the first argument of a decorator wherever it is at the beginning of a line.

    Args:
        folder: The folder whose source files are read.
        decorator: The decorator's name.
    """
    return find_matches(folder, rf'^@{decorator}\(\s*"([^"]+)"')


def find_matches(folder: Path, pattern: str) -> Iterator[str]:
    """Yield what the group of a pattern matches in the source files of a folder.

    Args:
        folder: The folder, with its subfolders.
        pattern: A regular expression with one group; `^` matches at every line.
    """
    compiled = re.compile(pattern, re.MULTILINE)
    for file in folder.rglob("*.py"):
        yield from compiled.findall(file.read_text(encoding="utf-8"))


def run_folders(incomplete: str) -> list[str]:
    """Return folders that complete a path: runs, and other folders with a slash at the end.

    Args:
        incomplete: What is typed; if empty, the runs in this folder and in runs/ are returned.
    """
    if not incomplete:
        return sorted(str(found.parent) for found in _found(Path(), ("*", "runs/*")))
    head, slash, _ = incomplete.rpartition("/")
    found = []
    for folder in _folders(Path(head + slash or ".")):
        is_run = (folder / "run.json").is_file()
        found.append(f"{head}{slash}{folder.name}{'' if is_run else '/'}")
    return sorted(found)


def _found(place: Path, patterns: Sequence[str]) -> Iterator[Path]:
    for pattern in patterns:
        yield from place.glob(f"{pattern}/run.json")


def _folders(place: Path) -> list[Path]:
    try:
        return [one for one in place.expanduser().iterdir() if one.is_dir()]
    except OSError:  # the folder does not exist or cannot be read
        return []
