"""`sottovoce benchmark`: how fast things are, on this machine, beside its own limits."""

from typing import Annotated

import typer

from sottovoce.cli.output import Json, print_json, print_table

app = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True)


@app.callback()
def benchmarks() -> None:
    """Measure speed on this machine: it reports, it never fails on slowness."""


@app.command("simulate")
def simulate(
    clients: Annotated[int, typer.Option(help="Clients in a round, one sample each.")] = 1000,
    dimension: Annotated[int, typer.Option(help="Parameters of the linear model.")] = 20_000,
    bits: Annotated[int, typer.Option(help="Bits a coordinate.")] = 1,
    messages: Annotated[
        str, typer.Option(help="packed: exact codes, packed and unpacked; none: drawn by torch.")
    ] = "packed",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 5.0,
    as_json: Json = False,
) -> None:
    """Clients a second through whole rounds: gradient, clip, codes, packing, sum, new model."""
    from sottovoce import parameters
    from sottovoce.experiments import speed

    parameters.integer("bits", bits, low=1, high=8)
    parameters.integer("clients", clients, low=4, high=10**7)
    parameters.integer("dimension", dimension, low=20, high=10**9)
    parameters.positive("seconds", seconds)
    found = speed.simulate(
        clients=clients,
        dimension=dimension,
        levels=2**bits,
        messages=messages,
        device=device,
        seconds=seconds,
    )
    if as_json:
        print_json(found)
        return
    print_table(
        ["what", "measured"],
        [
            [key.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value)]
            for key, value in found.items()
        ],
    )
