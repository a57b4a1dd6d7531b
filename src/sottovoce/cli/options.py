"""Options and arguments that several commands take: one name, one meaning, one place."""

import csv
import io
import shlex
from collections.abc import Sequence
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
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Import and run the code that the spec names (model.kind = 'module').",
    ),
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
    list[str] | None,
    typer.Option(
        help="In place of bins: a public list, a,b,c or '\"New York, NY\",Boston'; repeatable; all "
        "else counts as other."
    ),
]
Decimal = Annotated[str, typer.Option(help="The decimal sign of a csv file: a point or a comma.")]
Missing = Annotated[str, typer.Option(help="Rows with a missing cell: refuse or skip.")]


def number_list(option: str, text: str) -> list[float]:
    """Numbers with commas between them."""
    from sottovoce.core.errors import ParameterError

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError(
            f"{option} takes numbers with commas between them, got '{text}'"
        ) from None


def word_list(option: str, texts: Sequence[str]) -> list[str]:
    """Words with commas between them, as one line of csv; or one word each if several are given.

    A blank beside a comma is refused: 'New York, NY' may be one word or two, and which is never
    decided by a look at the data.
    """
    from sottovoce.core.errors import ParameterError

    words: list[str] = []
    for text in texts:
        try:
            parts = next(csv.reader([text], strict=True)) or [""]
        except csv.Error as error:
            raise ParameterError(
                f"{option} cannot be read: {error} in {text!r}; quotes stand around a whole "
                f"word, as in {option} '\"New York, NY\",Boston'"
            ) from None
        stripped = [part.strip() for part in parts]
        if len(parts) > 1 and (len(texts) > 1 or parts != stripped):
            apart = [[word] for word in stripped] if len(texts) > 1 else [stripped]
            raise ParameterError(
                f"{option} {shlex.quote(text)} can be read in two ways. For {len(parts)} words "
                f"write {' '.join(_written(option, line) for line in apart)}; for one word write "
                f"{_written(option, [text])}"
            )
        words += stripped
    return words


def _written(option: str, words: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(words)
    return f"{option} {shlex.quote(line.getvalue())}"


def missing_way(text: str) -> Literal["refuse", "skip"]:
    """What --missing says."""
    from sottovoce.core.errors import UnknownNameError

    if text == "refuse":
        return "refuse"
    if text == "skip":
        return "skip"
    raise UnknownNameError.among("--missing", text, ["refuse", "skip"])
