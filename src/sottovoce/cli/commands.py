"""The register of commands: those of this package and those of plug-ins.

    app = typer.Typer(help="...")
    register_command("whistle", app, module=__name__)      # `sottovoce whistle ...`

A command is a typer app, or a function whose parameters typer reads. Name its module under the
entry point group `sottovoce.commands` (see `sottovoce.core.registry`). Import large modules inside
functions: the module is imported whenever one of its commands is called. `sottovoce --help`
imports no plug-in except sottovoce-papers, and shell completion imports one only for the words
after its command.
"""

import inspect
from collections.abc import Callable
from typing import Any

import typer
import typer.core
import typer.main
import typer.models

from sottovoce.core.registry import Register

Command = typer.Typer | Callable[..., Any]

COMMANDS: Register[Command] = Register("command", places={})
# The commands of this package in the order of the help text, filled by `sottovoce.cli.main`.
BUILT_IN: dict[str, Command] = {}


def register_command(name: str, command: Command, *, module: str) -> None:
    """Register a command.

    Args:
        name: The word after `sottovoce`.
        command: A typer app, or a function whose parameters typer reads.
        module: The module that registers it, `__name__`.

    Raises:
        PluginError: Another module has registered the name.
    """
    COMMANDS.enter(name, command, module=module)


class CommandGroup(typer.core.TyperGroup):
    """The group of built-in commands and of plug-ins' commands, each prepared when it is called.

    A plug-in cannot replace a built-in command; `sottovoce plugins` lists those that try.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.on_load: Callable[[str, Any], None] = _ignore

    def add_own_commands(self) -> None:
        """Prepare the built-in commands and those of sottovoce-papers, where it is installed."""
        names = [name for name in COMMANDS.names() if name not in BUILT_IN]
        for name in [*BUILT_IN, *(one for one in names if COMMANDS.find_ours(one) is not None)]:
            if name not in self.commands:
                self.commands[name] = self._loaded(name)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of all commands, the built-in ones first."""
        return [*BUILT_IN, *(name for name in COMMANDS.names() if name not in BUILT_IN)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command for the help text, without its parameters; None if it is unknown.

        Of a plug-in's command, only its name and its distribution are known: it is not imported.
        """
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        noun = BUILT_IN.get(cmd_name)
        if noun is None:
            if cmd_name not in COMMANDS.names():
                return None
            noun = COMMANDS.find_ours(cmd_name)
        if noun is None:
            sources = " and ".join(COMMANDS.sources(cmd_name))
            return typer.core.TyperCommand(cmd_name, help=f"Plug-in of {sources}.")
        return typer.core.TyperCommand(cmd_name, help=_help_of(noun))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is called, importing it if a plug-in defines it."""
        name = args[0]
        if name not in self.commands and not name.startswith("-"):
            if name in BUILT_IN or name in COMMANDS.names():
                return name, self._loaded(name), args[1:]
            if COMMANDS.is_in_papers(name):
                raise COMMANDS.unknown(name)
            self.add_own_commands()  # The error suggests one of them.
        return super().resolve_command(ctx, args)

    def _loaded(self, name: str) -> Any:
        noun = BUILT_IN.get(name) or COMMANDS.find(name)
        alone = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
        )
        alone.callback()(_nothing)  # makes a group although there is one command
        if isinstance(noun, typer.Typer):
            alone.add_typer(noun, name=name)
        else:
            alone.command(name)(noun)
        group: Any = typer.main.get_command(alone)
        command = group.commands[name]
        self.on_load(name, command)
        return command


def _help_of(noun: Command) -> str | None:
    if isinstance(noun, typer.Typer):
        return typer.main.solve_typer_info_help(typer.models.TyperInfo(noun))
    return inspect.getdoc(noun)


def _nothing() -> None:
    """Do nothing."""


def _ignore(_name: str, _command: Any) -> None:
    """Do nothing with a command that was loaded."""
