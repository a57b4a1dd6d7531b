"""`sottovoce completion`: what a shell needs to complete commands, options and names.

A shell asks at every press of the key, so names are read from source files and folders: importing
every mechanism and experiment would take seconds; of plug-ins, names are those of their entry
points. Commands know nothing of this: their parameters are recognised by name, unless a command
says itself (`autocompletion`) what may stand there, as a plug-in's may.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sottovoce.core.registry import named_by_plug_ins

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


def answer(app: typer.Typer) -> None:
    """Say what can stand where the shell's cursor is, and end the process."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()
    command: Any = typer.main.get_command(app)
    command.on_load = lambda name, inner: _attach(inner, (name,))
    _attach(command, ())
    command.main(args=[], prog_name="sottovoce", complete_var=VARIABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """One completion, with the fields that click's own have."""

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
    """What a parameter's values are, by its name and by the command that has it."""
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
    """The names under which mechanisms are registered, here and by plug-ins."""
    return _registered("mechanisms", _PACKAGE / "mechanisms")


def datasets() -> list[str]:
    """The data sets that need no path; one that takes an argument ends in a colon."""
    return _registered("datasets", _PACKAGE / "learning" / "datasets")


def _registered(kinds: str, folder: Path) -> list[str]:
    plugged = named_by_plug_ins(f"sottovoce.{kinds}")
    return sorted({*decorated(folder, "register"), *plugged})


def decorated(folder: Path, decorator: str) -> Iterator[str]:
    """The first argument of a decorator, wherever it stands at the beginning of a line."""
    return matches(folder, rf'^@{decorator}\(\s*"([^"]+)"')


def matches(folder: Path, pattern: str) -> Iterator[str]:
    """What a pattern's group finds in the source files of a folder."""
    compiled = re.compile(pattern, re.MULTILINE)
    for file in folder.rglob("*.py"):
        yield from compiled.findall(file.read_text(encoding="utf-8"))


def run_folders(incomplete: str) -> list[str]:
    """Folders that hold a run, and others on the way to one, with a slash.

    Where nothing is typed yet, the runs of this folder and of runs/.
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
    except OSError:  # no such folder, or not to be looked into
        return []
