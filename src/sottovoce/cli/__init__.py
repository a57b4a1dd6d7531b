"""The command line: one file for each noun.

    python -m sottovoce plan --epsilon 2 --delta 1e-5 --dimension 10000

Commands print what the other packages compute, a mistake in one line. Nothing imports it; it
imports all others, each when its command is called, and typer and rich, which nobody else does.
"""

from typing import TYPE_CHECKING

from sottovoce.core.faces import show

if TYPE_CHECKING:
    from sottovoce.cli.commands import register_command as register_command

show(
    __name__,
    {
        "commands": ["register_command"],
    },
)
