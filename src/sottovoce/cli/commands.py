"""The register of commands: nouns of the command line, ours and those of plug-ins.

    app = typer.Typer(help="...")
    register_command("whistle", app, module=__name__)      # `sottovoce whistle ...`

A command is a typer app, or a function whose parameters typer reads. Name its module under the
entry point group `sottovoce.commands` (see `sottovoce.core.registry`). Import heavy modules inside
functions: the module is imported whenever one of its commands is called. `sottovoce --help` and
shells that complete words import no plug-in but sottovoce-papers.
"""

from collections.abc import Callable
from typing import Any

import typer
import typer.core

from sottovoce.core.registry import Register

Noun = typer.Typer | Callable[..., Any]

COMMANDS: Register[Noun] = Register("command", places={})


def register_command(name: str, noun: Noun, *, module: str) -> None:
    """Enter a command under its noun."""
    COMMANDS.enter(name, noun, module=module)


class OpenGroup(typer.core.TyperGroup):
    """The built-in commands, and those of plug-ins, each imported when it is called.

    A built-in command has its name whatever is installed; `sottovoce plugins` lists who else claims
    it.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.on_load: Callable[[str, Any], None] = _ignore

    def add_ours(self) -> None:
        """Put every command of ours that works here among the built-in ones."""
        for name in COMMANDS.names():
            if name not in self.commands and COMMANDS.find_ours(name) is not None:
                self.commands[name] = self._loaded(name)

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *(name for name in COMMANDS.names() if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command to be shown; of a plug-in, its name and where it is from."""
        found = super().get_command(ctx, cmd_name)
        if found is not None or cmd_name not in COMMANDS.names():
            return found
        if COMMANDS.find_ours(cmd_name) is not None:
            return self._loaded(cmd_name)
        sources = " and ".join(COMMANDS.sources(cmd_name))
        return typer.core.TyperCommand(cmd_name, help=f"Plug-in of {sources}.")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that is called, and import it if it is a plug-in's."""
        name = args[0]
        if name not in self.commands and not name.startswith("-"):
            if name in COMMANDS.names():
                return name, self._loaded(name), args[1:]
            if COMMANDS.is_in_papers(name):
                raise COMMANDS.unknown(name)
        return super().resolve_command(ctx, args)

    def _loaded(self, name: str) -> Any:
        noun = COMMANDS.find(name)
        alone = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
        )
        alone.callback()(_nothing)  # a group, though it has one command
        if isinstance(noun, typer.Typer):
            alone.add_typer(noun, name=name)
        else:
            alone.command(name)(noun)
        group: Any = typer.main.get_command(alone)
        command = group.commands[name]
        self.on_load(name, command)
        return command


def _nothing() -> None:
    """Do nothing."""


def _ignore(_name: str, _command: Any) -> None:
    """Do nothing with a command that was loaded."""
