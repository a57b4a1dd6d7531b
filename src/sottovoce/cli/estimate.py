"""`sottovoce estimate`: private statistics of a csv file, each row a person."""

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.file_estimate import FileEstimate
from sottovoce.cli.options import (
    AnswerMechanism,
    Bins,
    Categories,
    Confidence,
    Decimal,
    Lower,
    LowerIfAny,
    Missing,
    PersonBits,
    PersonEpsilon,
    Upper,
    UpperIfAny,
    missing_way,
    number_list,
    word_list,
)
from sottovoce.cli.output import Json

app = typer.Typer(
    help="Estimate statistics of a csv file from a few private bits a person, with intervals.",
    no_args_is_help=True,
)

Data = Annotated[Path, typer.Argument(metavar="DATA.csv", help="A csv file; each row is a person.")]
Column = Annotated[
    str | None,
    typer.Option(
        help="The column: its name, or its number from 0 with --no-header [the only one]."
    ),
]
Header = Annotated[bool, typer.Option("--header/--no-header", help="Whether the first row names.")]
Delimiter = Annotated[str | None, typer.Option(help="Between cells [found in the first line].")]
Encoding = Annotated[str, typer.Option(help="Of the file, such as latin-1.")]
MissingWords = Annotated[
    list[str] | None,
    typer.Option(help="What else stands for nothing, such as 99,unknown; repeatable."),
]
Seed = Annotated[
    int | None, typer.Option(help="Repeatable noise, for simulation [the system's randomness].")
]
ShowTrue = Annotated[
    bool,
    typer.Option(
        "--show-true", help="Also print the true value (of clipped values), which is not private."
    ),
]
LedgerFile = Annotated[Path | None, typer.Option(help="Charge the people's account in this file.")]
BudgetLimit = Annotated[
    float | None, typer.Option(help="The account's budget: epsilon over all questions.")
]
Account = Annotated[
    str | None,
    typer.Option(help="Whose data it is, with --ledger: all that is asked by this name adds up."),
]


@app.command()
def mean(
    data: Data,
    lower: Lower,
    upper: Upper,
    epsilon: PersonEpsilon,
    column: Column = None,
    bits: PersonBits = None,
    mechanism: AnswerMechanism = "auto",
    confidence: Confidence = 0.95,
    header: Header = True,
    delimiter: Delimiter = None,
    encoding: Encoding = "utf-8",
    decimal: Decimal = ".",
    missing: Missing = "refuse",
    missing_words: MissingWords = None,
    ledger: LedgerFile = None,
    budget: BudgetLimit = None,
    account: Account = None,
    seed: Seed = None,
    show_true: ShowTrue = False,
    as_json: Json = False,
) -> None:
    """The mean of a column."""
    estimate = FileEstimate(
        data=data,
        columns=(column,),
        confidence=confidence,
        header=header,
        delimiter=delimiter,
        encoding=encoding,
        decimal=decimal,
        missing=missing_way(missing),
        missing_words=missing_words,
        ledger=ledger,
        budget=budget,
        account=account,
        seed=seed,
        show_true=show_true,
        as_json=as_json,
    )
    estimate.print(
        "mean", lower=lower, upper=upper, epsilon=epsilon, bits=bits, mechanism=mechanism
    )


@app.command()
def variance(
    data: Data,
    lower: Lower,
    upper: Upper,
    epsilon: PersonEpsilon,
    column: Column = None,
    bits: PersonBits = None,
    mechanism: AnswerMechanism = "auto",
    confidence: Confidence = 0.95,
    header: Header = True,
    delimiter: Delimiter = None,
    encoding: Encoding = "utf-8",
    decimal: Decimal = ".",
    missing: Missing = "refuse",
    missing_words: MissingWords = None,
    ledger: LedgerFile = None,
    budget: BudgetLimit = None,
    account: Account = None,
    seed: Seed = None,
    show_true: ShowTrue = False,
    as_json: Json = False,
) -> None:
    """The variance of a column: half of the people are asked for their value, half its square."""
    estimate = FileEstimate(
        data=data,
        columns=(column,),
        confidence=confidence,
        header=header,
        delimiter=delimiter,
        encoding=encoding,
        decimal=decimal,
        missing=missing_way(missing),
        missing_words=missing_words,
        ledger=ledger,
        budget=budget,
        account=account,
        seed=seed,
        show_true=show_true,
        as_json=as_json,
    )
    estimate.print(
        "variance", lower=lower, upper=upper, epsilon=epsilon, bits=bits, mechanism=mechanism
    )


@app.command()
def histogram(
    data: Data,
    epsilon: PersonEpsilon,
    lower: LowerIfAny = None,
    upper: UpperIfAny = None,
    bins: Bins = None,
    categories: Categories = None,
    column: Column = None,
    bits: PersonBits = None,
    mechanism: AnswerMechanism = "auto",
    confidence: Confidence = 0.95,
    header: Header = True,
    delimiter: Delimiter = None,
    encoding: Encoding = "utf-8",
    decimal: Decimal = ".",
    missing: Missing = "refuse",
    missing_words: MissingWords = None,
    ledger: LedgerFile = None,
    budget: BudgetLimit = None,
    account: Account = None,
    seed: Seed = None,
    show_true: ShowTrue = False,
    as_json: Json = False,
) -> None:
    """The share of people in each bin or category."""
    estimate = FileEstimate(
        data=data,
        columns=(column,),
        confidence=confidence,
        header=header,
        delimiter=delimiter,
        encoding=encoding,
        decimal=decimal,
        missing=missing_way(missing),
        missing_words=missing_words,
        ledger=ledger,
        budget=budget,
        account=account,
        seed=seed,
        show_true=show_true,
        as_json=as_json,
    )
    estimate.print(
        "histogram",
        lower=lower,
        upper=upper,
        bins=bins,
        categories=word_list("--categories", categories) if categories else None,
        epsilon=epsilon,
        bits=bits,
        mechanism=mechanism,
    )


@app.command()
def quantiles(
    data: Data,
    lower: Lower,
    upper: Upper,
    epsilon: PersonEpsilon,
    quantiles: Annotated[str, typer.Option(help="Levels between 0 and 1.")] = "0.25,0.5,0.75",
    column: Column = None,
    bits: PersonBits = None,
    mechanism: AnswerMechanism = "auto",
    confidence: Confidence = 0.95,
    header: Header = True,
    delimiter: Delimiter = None,
    encoding: Encoding = "utf-8",
    decimal: Decimal = ".",
    missing: Missing = "refuse",
    missing_words: MissingWords = None,
    ledger: LedgerFile = None,
    budget: BudgetLimit = None,
    account: Account = None,
    seed: Seed = None,
    show_true: ShowTrue = False,
    as_json: Json = False,
) -> None:
    """Quantiles of a column, such as its median."""
    estimate = FileEstimate(
        data=data,
        columns=(column,),
        confidence=confidence,
        header=header,
        delimiter=delimiter,
        encoding=encoding,
        decimal=decimal,
        missing=missing_way(missing),
        missing_words=missing_words,
        ledger=ledger,
        budget=budget,
        account=account,
        seed=seed,
        show_true=show_true,
        as_json=as_json,
    )
    estimate.print(
        "quantiles",
        lower=lower,
        upper=upper,
        epsilon=epsilon,
        bits=bits,
        mechanism=mechanism,
        quantiles=number_list("--quantiles", quantiles),
    )


@app.command()
def location(
    data: Data,
    latitude: Annotated[str, typer.Option(help="The column of latitudes, in degrees.")],
    longitude: Annotated[str, typer.Option(help="The column of longitudes, in degrees.")],
    centre: Annotated[str, typer.Option(help="The map's centre: LATITUDE,LONGITUDE.")],
    side_km: Annotated[float, typer.Option(help="The map's side, in kilometres.")],
    epsilon: Annotated[float, typer.Option(help="Per kilometre between two places.")],
    bits: Annotated[int | None, typer.Option(help="Of each of the two coordinates [3].")] = None,
    cells: Annotated[int, typer.Option(help="Cells to a side of the density map.")] = 16,
    plot: Annotated[Path | None, typer.Option(help="Draw the density map: .svg or .png.")] = None,
    confidence: Confidence = 0.95,
    header: Header = True,
    delimiter: Delimiter = None,
    encoding: Encoding = "utf-8",
    decimal: Decimal = ".",
    missing: Missing = "refuse",
    missing_words: MissingWords = None,
    ledger: LedgerFile = None,
    budget: BudgetLimit = None,
    account: Account = None,
    seed: Seed = None,
    show_true: ShowTrue = False,
    as_json: Json = False,
) -> None:
    """The mean place and a density map, under geo-indistinguishability."""
    _check_picture(plot)
    estimate = FileEstimate(
        data=data,
        columns=(latitude, longitude),
        confidence=confidence,
        header=header,
        delimiter=delimiter,
        encoding=encoding,
        decimal=decimal,
        missing=missing_way(missing),
        missing_words=missing_words,
        ledger=ledger,
        budget=budget,
        account=account,
        seed=seed,
        show_true=show_true,
        as_json=as_json,
        plot=plot,
    )
    estimate.print(
        "location",
        centre=tuple(number_list("--centre", centre)),
        side_km=side_km,
        epsilon=epsilon,
        bits=bits,
        cells=cells,
    )


def _check_picture(plot: Path | None) -> None:
    from sottovoce.core.errors import OutputError, ParameterError

    if plot is None:
        return
    if plot.suffix not in (".svg", ".png"):
        raise ParameterError(f"--plot draws a file that ends in .svg or .png, got '{plot}'")
    if not plot.parent.is_dir():
        raise OutputError(f"there is no folder '{plot.parent}' for --plot; make it first")
