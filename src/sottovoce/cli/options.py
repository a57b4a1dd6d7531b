"""Options and arguments that several commands take, and functions that read their values."""

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
    from sottovoce.planning.release import PlannedRelease

FinishedRun = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder that 'sottovoce run' wrote.")
]
FederationFolder = Annotated[
    Path, typer.Argument(metavar="DIR", help="The folder of a federation.")
]
ServerFolder = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="The folder of a federation, or that of a collector."),
]
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
    typer.Option("--log", help="Log each round's figures to tensorboard or mlflow; repeatable."),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"] | None,
    typer.Option(help="The device that trains models [as the spec says]."),
]

# Options of a question about people's values, in a local file or at the sites of a federation.
Lower = Annotated[
    float,
    typer.Option(help="The smallest value, chosen in advance; smaller values are raised to it."),
]
Upper = Annotated[
    float,
    typer.Option(help="The largest value, chosen in advance; larger values are lowered to it."),
]
LowerIfAny = Annotated[
    float | None,
    typer.Option(help="The smallest value, chosen in advance; smaller values are raised to it."),
]
UpperIfAny = Annotated[
    float | None,
    typer.Option(help="The largest value, chosen in advance; larger values are lowered to it."),
]
PersonEpsilon = Annotated[
    float, typer.Option(help="Epsilon of each person's answer: pure, local DP.")
]
PersonBits = Annotated[
    int | None, typer.Option(help="The most bits a person sends [the default of the statistic].")
]
AnswerMechanism = Annotated[
    str, typer.Option(help="The mechanism that privatizes answers [least variance].")
]
AnswerMechanismIfAny = Annotated[
    str | None, typer.Option(help="The mechanism that privatizes answers [least variance].")
]
Confidence = Annotated[float, typer.Option(help="The confidence level of intervals, such as 0.95.")]
Bins = Annotated[int | None, typer.Option(help="The number of equal bins of a histogram [10].")]
Categories = Annotated[
    list[str] | None,
    typer.Option(
        help="Instead of bins: a public list of words, a,b,c or '\"New York, NY\",Boston'; "
        "repeatable; other words are counted as 'other'."
    ),
]
Decimal = Annotated[str, typer.Option(help="The decimal sign of a csv file: a point or a comma.")]
Missing = Annotated[
    str, typer.Option(help="What to do with rows that have a missing cell: refuse or skip.")
]

# Options that say what a round releases, apart from the mechanism's own parameters.
Delta = Annotated[float, typer.Option(help="The failure probability, such as 1e-5.")]
Rounds = Annotated[int, typer.Option(help="The number of rounds in which a client takes part.")]
TotalEpsilon = Annotated[float, typer.Option(help="The privacy budget over all rounds.")]
ClipGeometry = Annotated[
    str | None,
    typer.Option(help="The norm that is clipped: l2, l1 or linf [as the mechanism needs]."),
]
Records = Annotated[
    int,
    typer.Option(
        help="Number of records that a message averages: 1 at client level, the client's samples "
        "at sample level."
    ),
]
AdjacencyName = Annotated[
    str, typer.Option(help="Which data sets are neighbors: zero-out or replace-one.")
]
SamplingRate = Annotated[
    float | None,
    typer.Option(
        help="Each round uses a secret sample of records (see --records); this is the probability "
        "of each."
    ),
]
Sampling = Annotated[
    str, typer.Option(help="How the sample of --sampling-rate is drawn: poisson or fixed-size.")
]
SamplingHiddenBy = Annotated[
    str,
    typer.Option(
        help="What keeps the sample secret: own-records (a client samples its own records), "
        "central-noise, secure-sum, or nothing (the server sees who sends; refused)."
    ),
]


@dataclass(frozen=True, kw_only=True)
class ReleaseOptions:
    """The options that say what a round releases."""

    mechanism: Annotated[
        str, typer.Option("--mechanism", help="A name from 'sottovoce mechanism list'.")
    ]
    dimension: Annotated[
        int | None,
        typer.Option(help="Coordinates of an update; needed where epsilon depends on them."),
    ] = None
    clip_norm: Annotated[float, typer.Option(help="The clipping norm of a record.")] = 1.0
    clip_geometry: ClipGeometry = None
    records: Records = 1
    adjacency: AdjacencyName = "zero-out"
    sampling_rate: SamplingRate = None
    sampling: Sampling = "poisson"
    sampling_hidden_by: SamplingHiddenBy = "own-records"
    shuffled_clients: Annotated[
        int | None,
        typer.Option(
            help="Number of messages that a shuffler mixes in each round, or a secret order in "
            "each epoch; needs --records 1 and --adjacency replace-one."
        ),
    ] = None
    secure_sum_clients: Annotated[
        int | None,
        typer.Option(
            help="The least number of clients in a secure sum, which reveals only the sum."
        ),
    ] = None

    def release(self) -> "PlannedRelease":
        """Return the release that these options describe.

        Raises:
            ParameterError: If an option is wrong; the message names it as it is typed.
        """
        from sottovoce.planning.release import release_of

        return release_of(**vars(self), format_name=option)


def option(name: str) -> str:
    """Return the option for an argument, such as --sampling-rate for sampling_rate."""
    return f"--{name.replace('_', '-')}"


def with_parameters(
    parameters: Iterable[inspect.Parameter], like: Callable[..., Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command these parameters and another one's name.

    Args:
        parameters: What typer reads as arguments and options; they become keyword-only.
        like: The function whose name and docstring the command takes.

    Returns:
        The decorator; the command is called with keyword arguments.
    """
    named = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]

    def decorated(call: Callable[..., None]) -> Callable[..., None]:
        call.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in named}
        call.__name__, call.__doc__ = like.__name__, like.__doc__
        return call

    return decorated


def spread_dataclasses(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose dataclass parameters are replaced by their fields as options.

    Several commands can so share options, which are listed in the order of the fields.

    Args:
        command: A function some of whose parameters are annotated with dataclasses. It is called
            with objects of these classes, made from the options.
    """
    own = inspect.signature(command).parameters
    groups: dict[str, Any] = {
        name: one.annotation for name, one in own.items() if is_dataclass(one.annotation)
    }
    spread_out: list[inspect.Parameter] = []
    for name, one in own.items():
        inner = inspect.signature(groups[name]).parameters.values() if name in groups else [one]
        spread_out.extend(inner)

    @with_parameters(spread_out, like=command)
    def call(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    return call


def check_plot(plot: Path | None, *others: str) -> None:
    """Check before the computation the ending and the folder of the file that --plot names.

    Args:
        plot: The file, or None.
        others: Endings that are allowed in addition to .svg.

    Raises:
        ParameterError: If the file has another ending.
        OutputError: If its folder does not exist.
    """
    from sottovoce.core.errors import OutputError, ParameterError

    if plot is None:
        return
    if plot.suffix not in (".svg", *others):
        ends = " or ".join((".svg", *others))
        raise ParameterError(f"--plot must name a file that ends in {ends}, got '{plot}'")
    if not plot.parent.is_dir():
        raise OutputError(f"there is no folder '{plot.parent}' for --plot; create it first")


def parse_numbers(option: str, text: str) -> list[float]:
    """Return the numbers of a comma-separated list.

    Args:
        option: The option's name, for the message.
        text: What was typed.

    Raises:
        ParameterError: If a part is no number.
    """
    from sottovoce.core.errors import ParameterError

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError(
            f"{option} must be numbers with commas between them, got '{text}'"
        ) from None


def parse_words(option: str, texts: Sequence[str]) -> list[str]:
    """Return the words of a comma-separated list, or one word of each of several texts.

    A space next to a comma is refused: 'New York, NY' may be one word or two, and looking at the
    data to decide would leak.

    Args:
        option: The option's name, for the message.
        texts: What was typed, once for each time the option was given; each is a line of csv.

    Raises:
        ParameterError: If a text cannot be read, or can be read in two ways.
    """
    from sottovoce.core.errors import ParameterError

    words: list[str] = []
    for text in texts:
        try:
            parts = next(csv.reader([text], strict=True)) or [""]
        except csv.Error as error:
            raise ParameterError(
                f"{option} cannot be read: {error} in {text!r}; put quotes around whole words, "
                f"as in {option} '\"New York, NY\",Boston'"
            ) from None
        stripped = [part.strip() for part in parts]
        if len(parts) > 1 and (len(texts) > 1 or parts != stripped):
            apart = [[word] for word in stripped] if len(texts) > 1 else [stripped]
            raise ParameterError(
                f"{option} {shlex.quote(text)} can be read in two ways; write "
                f"{' '.join(_written(option, line) for line in apart)} for {len(parts)} words, or "
                f"{_written(option, [text])} for one word"
            )
        words += stripped
    return words


def _written(option: str, words: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(words)
    return f"{option} {shlex.quote(line.getvalue())}"


def parse_missing(text: str) -> Literal["refuse", "skip"]:
    """Return the value of --missing if it is a known one.

    Raises:
        UnknownNameError: If it is not.
    """
    from sottovoce.core.errors import UnknownNameError

    if text == "refuse":
        return "refuse"
    if text == "skip":
        return "skip"
    raise UnknownNameError.among("--missing", text, ["refuse", "skip"])
