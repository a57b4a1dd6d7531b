"""The command line of Sottovoce, with one file for each command or group of commands.

    python -m sottovoce plan --epsilon 2 --delta 1e-5 --dimension 10000

Commands print what the other packages compute; an error is one line. No other package imports this
one. It imports the other packages when a command is called, and it alone imports typer and rich.
"""

from typing import TYPE_CHECKING

from sottovoce.core.faces import export_lazily

if TYPE_CHECKING:
    from sottovoce.cli.commands import register_command as register_command

export_lazily(
    __name__,
    {
        "commands": ["register_command"],
    },
)
