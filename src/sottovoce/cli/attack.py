"""`sottovoce attack`: what an attacker learns from a run."""

import typer

from sottovoce.cli.attack_attributes import attributes
from sottovoce.cli.attack_reconstruction import reconstruction

app = typer.Typer(help="What an attacker learns from a run.", no_args_is_help=True)
app.command("reconstruction")(reconstruction)
app.command("attributes")(attributes)
