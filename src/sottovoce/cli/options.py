"""Options and arguments that several commands take: one name, one meaning, one place."""

from pathlib import Path
from typing import Annotated, Literal

import typer

FinishedRun = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
FederationFolder = Annotated[Path, typer.Argument(metavar="DIR", help="A federation's folder.")]
MechanismKind = Annotated[
    str, typer.Argument(metavar="KIND", help="A name from 'sottovoce mechanism list'.")
]
SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="A TOML file; see examples/.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a key, as a.b=c; repeatable."),
]
Log = Annotated[
    list[str] | None,
    typer.Option("--log", help="Log rounds to tensorboard or mlflow; repeatable."),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"] | None,
    typer.Option(help="What trains models [what the spec says]."),
]

# Of a question about people's values, in a file here or at the sites of a federation.
Lower = Annotated[float, typer.Option(help="The least value, known beforehand; others are moved.")]
Upper = Annotated[float, typer.Option(help="The largest value, known beforehand.")]
LowerIfAny = Annotated[
    float | None,
    typer.Option(help="The least value, known beforehand; others are moved."),
]
UpperIfAny = Annotated[float | None, typer.Option(help="The largest value, known beforehand.")]
PersonEpsilon = Annotated[float, typer.Option(help="What a person's answer may tell: pure, local.")]
PersonBits = Annotated[int | None, typer.Option(help="At most so many bits a person.")]
AnswerMechanism = Annotated[
    str, typer.Option(help="How answers are privatised [the least variance].")
]
AnswerMechanismIfAny = Annotated[
    str | None, typer.Option(help="How answers are privatised [the least variance].")
]
Confidence = Annotated[float, typer.Option(help="How often intervals cover, such as 0.95.")]
Bins = Annotated[int | None, typer.Option(help="How many equal bins a histogram has [10].")]
Categories = Annotated[
    str | None,
    typer.Option(help="In place of bins: a public list, a,b,c; all else counts as other."),
]
Decimal = Annotated[str, typer.Option(help="The decimal sign of a csv file: a point or a comma.")]
Missing = Annotated[str, typer.Option(help="Rows with a missing cell: refuse or skip.")]


def number_list(option: str, text: str) -> list[float]:
    """Numbers with commas between them."""
    from sottovoce.errors import ParameterError

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError(
            f"{option} takes numbers with commas between them, got '{text}'"
        ) from None


def missing_way(text: str) -> Literal["refuse", "skip"]:
    """What --missing says."""
    from sottovoce.errors import UnknownNameError

    if text == "refuse":
        return "refuse"
    if text == "skip":
        return "skip"
    raise UnknownNameError.among("--missing", text, ["refuse", "skip"])
