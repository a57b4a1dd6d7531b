"""The command `sottovoce export`, which writes a trained model."""

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.options import FinishedRun
from sottovoce.cli.output import Json, print_fields, print_json


def export(
    run: FinishedRun,
    model: Annotated[Path, typer.Argument(help="The file to write, such as model.safetensors.")],
    averaged: Annotated[
        bool, typer.Option("--averaged", help="Write the average that algorithm.averaging keeps.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a run's model as a safetensors file, with its guarantee and epsilon in the metadata.

    It is the model of the newest checkpoint; the run may be unfinished.
    """
    from sottovoce.runs.opened import export_model

    written = export_model(run, model, averaged=averaged)
    if as_json:
        print_json(written)
    else:
        print_fields(written)
