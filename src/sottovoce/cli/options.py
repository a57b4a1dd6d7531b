"""Options and arguments that several commands take: one name, one meaning, one place."""

import csv
import inspect
import io
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from sottovoce.planning.release import Release

FinishedRun = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
FederationFolder = Annotated[Path, typer.Argument(metavar="DIR", help="A federation's folder.")]
MechanismKind = Annotated[
    str, typer.Argument(metavar="KIND", help="A name from 'sottovoce mechanism list'.")
]
SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="A TOML file; see examples/.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a key, as privacy.epsilon=2; repeatable."),
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

# Of what a round releases, apart from the mechanism's own parameters.
Delta = Annotated[float, typer.Option(help="The failure probability, such as 1e-5.")]
Rounds = Annotated[int, typer.Option(help="How often a client takes part.")]
TotalEpsilon = Annotated[float, typer.Option(help="The budget over all rounds.")]
ClipGeometry = Annotated[
    str | None, typer.Option(help="l2, l1 or linf [what the mechanism is made for].")
]
Records = Annotated[
    int,
    typer.Option(
        help="Contributions whose mean a message is: 1 at client level, a client's samples at "
        "sample level."
    ),
]
AdjacencyName = Annotated[str, typer.Option(help="zero-out or replace-one.")]
SamplingRate = Annotated[
    float | None,
    typer.Option(
        help="Each round works on a secret sample of contributions (see --records), each taken "
        "with this probability."
    ),
]
Sampling = Annotated[str, typer.Option(help="poisson or fixed-size.")]
SamplingHiddenBy = Annotated[
    str,
    typer.Option(
        help="What keeps the sample secret: own-records (a client samples its own records), "
        "central-noise, secure-sum, or nothing (the server sees who sends: refused)."
    ),
]


@dataclass(frozen=True, kw_only=True)
class ReleaseOptions:
    """Options that say what a round releases."""

    mechanism: Annotated[
        str, typer.Option("--mechanism", help="A name from 'sottovoce mechanism list'.")
    ]
    dimension: Annotated[
        int | None,
        typer.Option(help="Coordinates of an update; needed where the cost depends on them."),
    ] = None
    clip_norm: Annotated[float, typer.Option(help="The largest norm of a contribution.")] = 1.0
    clip_geometry: ClipGeometry = None
    records: Records = 1
    adjacency: AdjacencyName = "zero-out"
    sampling_rate: SamplingRate = None
    sampling: Sampling = "poisson"
    sampling_hidden_by: SamplingHiddenBy = "own-records"
    shuffled_clients: Annotated[
        int | None,
        typer.Option(
            help="Messages that a shuffler mixes in each round, or a secret order in each epoch; "
            "each of a whole client (--records 1), under --adjacency replace-one."
        ),
    ] = None
    secure_sum_clients: Annotated[
        int | None,
        typer.Option(help="Clients of whom a secure sum reveals nothing but the sum, at least."),
    ] = None

    def release(self) -> "Release":
        from sottovoce.planning.release import release_of

        return release_of(**vars(self), named=option)


def option(name: str) -> str:
    """Return an argument's name as it is typed: --sampling-rate."""
    return f"--{name.replace('_', '-')}"


def takes(
    parameters: Iterable[inspect.Parameter], like: Callable[..., Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator: the command is called as `like` is, and takes these parameters."""
    named = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]

    def decorated(call: Callable[..., None]) -> Callable[..., None]:
        call.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in named}
        call.__name__, call.__doc__ = like.__name__, like.__doc__
        return call

    return decorated


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes the fields of each parameter that is a dataclass as options.

    So several commands can have the same options, in the order of the fields.
    """
    own = inspect.signature(command).parameters
    groups: dict[str, Any] = {
        name: one.annotation for name, one in own.items() if is_dataclass(one.annotation)
    }
    spread_out: list[inspect.Parameter] = []
    for name, one in own.items():
        inner = inspect.signature(groups[name]).parameters.values() if name in groups else [one]
        spread_out.extend(inner)

    @takes(spread_out, like=command)
    def call(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    return call


def check_plot(plot: Path | None, *others: str) -> None:
    """Check, before anything is computed, that --plot names a file that can be drawn."""
    from sottovoce.core.errors import OutputError, ParameterError

    if plot is None:
        return
    if plot.suffix not in (".svg", *others):
        what = "a file that" if others else "SVG: name a file that"
        ends = " or ".join((".svg", *others))
        raise ParameterError(f"--plot draws {what} ends in {ends}, got '{plot}'")
    if not plot.parent.is_dir():
        raise OutputError(f"there is no folder '{plot.parent}' for --plot; make it first")


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
