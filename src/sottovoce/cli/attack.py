"""`sottovoce attack`: what a run's model or messages give away; a file for each attack."""

import typer

from sottovoce.cli.attack_attributes import attributes
from sottovoce.cli.attack_membership import membership
from sottovoce.cli.attack_reconstruction import reconstruction

app = typer.Typer(help="Attack a finished run: what does it give away?", no_args_is_help=True)
app.command("membership")(membership)
app.command("reconstruction")(reconstruction)
app.command("attributes")(attributes)
