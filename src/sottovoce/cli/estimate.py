"""`sottovoce estimate`: private statistics of a csv file, each row a person."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.file_estimate import FileEstimate
from sottovoce.cli.options import (
    AnswerMechanism,
    Bins,
    Categories,
    Lower,
    LowerIfAny,
    PersonBits,
    PersonEpsilon,
    Upper,
    UpperIfAny,
    check_plot,
    number_list,
    spread,
    word_list,
)

app = typer.Typer(
    help="Estimate statistics of a csv file from a few private bits a person, with intervals.",
    no_args_is_help=True,
)

Data = Annotated[Path, typer.Argument(metavar="DATA.csv", help="A csv file; each row is a person.")]


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Options of a question about values between two bounds."""

    lower: Lower
    upper: Upper
    epsilon: PersonEpsilon


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Options that say which column is asked for, and how people answer."""

    column: Annotated[
        str | None,
        typer.Option(
            help="The column: its name, or its number from 0 with --no-header [the only one]."
        ),
    ] = None
    bits: PersonBits = None
    mechanism: AnswerMechanism = "auto"


@app.command()
@spread
def mean(*, data: Data, bounds: Bounds, answer: Answer, file: FileEstimate) -> None:
    """The mean of a column."""
    file.print("mean", data, **vars(bounds), **vars(answer))


@app.command()
@spread
def variance(*, data: Data, bounds: Bounds, answer: Answer, file: FileEstimate) -> None:
    """The variance of a column: half of the people are asked for their value, half its square."""
    file.print("variance", data, **vars(bounds), **vars(answer))


@app.command()
@spread
def histogram(
    *,
    data: Data,
    epsilon: PersonEpsilon,
    lower: LowerIfAny = None,
    upper: UpperIfAny = None,
    bins: Bins = None,
    categories: Categories = None,
    answer: Answer,
    file: FileEstimate,
) -> None:
    """The share of people in each bin or category."""
    words = word_list("--categories", categories) if categories else None
    bounds: dict[str, Any] = {"lower": lower, "upper": upper, "bins": bins, "categories": words}
    file.print("histogram", data, **bounds, epsilon=epsilon, **vars(answer))


@app.command()
@spread
def quantiles(
    *,
    data: Data,
    bounds: Bounds,
    quantiles: Annotated[str, typer.Option(help="Levels between 0 and 1.")] = "0.25,0.5,0.75",
    answer: Answer,
    file: FileEstimate,
) -> None:
    """Quantiles of a column, such as its median."""
    levels = number_list("--quantiles", quantiles)
    file.print("quantiles", data, **vars(bounds), **vars(answer), quantiles=levels)


@app.command()
@spread
def location(
    *,
    data: Data,
    latitude: Annotated[str, typer.Option(help="The column of latitudes, in degrees.")],
    longitude: Annotated[str, typer.Option(help="The column of longitudes, in degrees.")],
    centre: Annotated[str, typer.Option(help="The map's centre: LATITUDE,LONGITUDE.")],
    side_km: Annotated[float, typer.Option(help="The map's side, in kilometres.")],
    epsilon: Annotated[float, typer.Option(help="Per kilometre between two places.")],
    bits: Annotated[int | None, typer.Option(help="Of each of the two coordinates [3].")] = None,
    cells: Annotated[int, typer.Option(help="Cells to a side of the density map.")] = 16,
    plot: Annotated[Path | None, typer.Option(help="Draw the density map: .svg or .png.")] = None,
    file: FileEstimate,
) -> None:
    """The mean place and a density map, under geo-indistinguishability."""
    check_plot(plot, ".png")
    file.print(
        "location",
        data,
        (latitude, longitude),
        plot,
        centre=tuple(number_list("--centre", centre)),
        side_km=side_km,
        epsilon=epsilon,
        bits=bits,
        cells=cells,
    )
