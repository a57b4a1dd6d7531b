"""`sottovoce estimate`: private statistics of a csv file, each row a person."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
)
from sottovoce.cli.output import Json, print_json, print_table, progress_bars, say

if TYPE_CHECKING:
    from sottovoce.analytics.csv_columns import CsvColumns
    from sottovoce.analytics.question import Question
    from sottovoce.analytics.result import Estimate

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
    str | None, typer.Option(help="What else stands for nothing, such as 99,unknown.")
]
Seed = Annotated[
    int | None, typer.Option(help="Repeatable noise, for simulation [the system's randomness].")
]
ShowTrue = Annotated[
    bool, typer.Option("--show-true", help="Also print the true value, which is not private.")
]
LedgerFile = Annotated[Path | None, typer.Option(help="Charge the people's account in this file.")]
BudgetLimit = Annotated[
    float | None, typer.Option(help="The account's budget: epsilon over all questions.")
]
Account = Annotated[str | None, typer.Option(help="The people's account [the file's name].")]


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
    run = _Run(locals())
    run.print("mean", lower=lower, upper=upper, epsilon=epsilon, bits=bits, mechanism=mechanism)


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
    run = _Run(locals())
    run.print("variance", lower=lower, upper=upper, epsilon=epsilon, bits=bits, mechanism=mechanism)


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
    run = _Run(locals())
    names = None if categories is None else [name.strip() for name in categories.split(",")]
    run.print(
        "histogram",
        lower=lower,
        upper=upper,
        bins=bins,
        categories=names,
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
    run = _Run(locals())
    run.print(
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
    run = _Run({**locals(), "columns": (latitude, longitude)})
    run.print(
        "location",
        centre=tuple(number_list("--centre", centre)),
        side_km=side_km,
        epsilon=epsilon,
        bits=bits,
        cells=cells,
    )


class _Run:
    """One command: the file, the account, and how to say what was found."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given

    def print(self, statistic: str, **options: Any) -> None:
        from sottovoce.analytics import intervals
        from sottovoce.analytics.estimates import question_for, takes_people

        given = self._given
        intervals.check_confidence(given["confidence"])
        columns, seed = self._columns(), given["seed"]
        if takes_people(statistic):
            options["people"] = columns.count_lines()
        with progress_bars() as bars:
            bars.update("preparing", 0, 1, "tables")
            asked = question_for(statistic, public_seed=seed, **options)
            bars.update("preparing", 1, 1, "done")

            def read(what: str) -> Iterator[Any]:
                def on_bytes(done: int, total: int) -> None:
                    bars.update(what, done, total, "bytes")

                words = options.get("categories") is not None
                return columns.words(on_bytes) if words else columns.numbers(on_bytes)

            charged = self._charge(asked, read)
            found = self._ask(asked, read("privatising")).noted(charged)
            true = self._true(asked, read("reading again")) if given["show_true"] else None
        self._draw(asked, found)
        self._say(found, true)

    def _columns(self) -> "CsvColumns":
        from sottovoce.analytics.csv_columns import CsvColumns

        given = self._given
        return CsvColumns(
            path=given["data"],
            columns=given.get("columns", (given.get("column"),)),
            header=given["header"],
            delimiter=given["delimiter"],
            encoding=given["encoding"],
            missing=given["missing"],
            missing_words=tuple(w.strip() for w in (given["missing_words"] or "").split(",") if w),
            decimal=given["decimal"],
        )

    def _charge(self, asked: "Question", read: Any) -> str:
        """Charge the people before anything is encoded; what the result says about it."""
        from sottovoce.analytics.charging import charge, check_budget
        from sottovoce.analytics.result import NO_LEDGER
        from sottovoce.errors import ParameterError

        given = self._given
        check_budget(given["budget"])
        if given["ledger"] is None:
            for option in ("budget", "account"):
                if given[option] is not None:
                    raise ParameterError(f"--{option} is an account's in a ledger; give --ledger")
            return NO_LEDGER
        for _ in read("checking"):  # a file with a mistake in it must not cost anybody anything
            pass
        account = given["account"] or given["data"].name
        return charge(given["ledger"], account, asked, budget=given["budget"])

    def _ask(self, asked: "Question", batches: Iterable[Any]) -> "Estimate":
        from sottovoce.analytics.estimates import ask
        from sottovoce.randomness import SeededRandomness, SystemRandomness

        seed = self._given["seed"]
        randomness = SystemRandomness() if seed is None else SeededRandomness(seed)
        return ask(asked, batches, randomness, confidence=self._given["confidence"])

    def _true(self, asked: "Question", batches: Iterable[Any]) -> list[float]:
        from sottovoce.analytics.truth import true_numbers

        return true_numbers(asked, batches)

    def _draw(self, asked: "Question", found: "Estimate") -> None:
        plot = self._given.get("plot")
        if plot is not None:
            from sottovoce.reporting.density_map import draw

            side_km = asked.side_km  # type: ignore[attr-defined]
            title = f"{found.people} people, epsilon {found.epsilon:g} per kilometre"
            draw(plot, found.details["density"], side_km=side_km, title=title)

    def _say(self, found: "Estimate", true: list[float] | None) -> None:
        plot = self._given.get("plot")
        if self._given["as_json"]:
            result = found.to_dict()
            if true is not None:
                result["true_not_private"] = true[0] if found.is_single else true
            if plot is not None:
                result["plot"] = str(plot)
            print_json(result)
            return
        rows = []
        for number, row in enumerate(found.rows()):
            ends = [_shown(row["low"]), _shown(row["high"])]
            truth = [] if true is None else [_shown(true[number])]
            share = [_shown(found.details["share"][number])] if "share" in found.details else []
            rows.append([row["label"], _shown(row["estimate"]), *ends, *share, *truth])
        extra = ["share"] if "share" in found.details else []
        extra += [] if true is None else ["true (not private)"]
        print_table([found.statistic, "estimate", "low", "high", *extra], rows)
        facts = found.facts() | ({"map": str(plot)} if plot is not None else {})
        width = max(map(len, facts))
        for name, value in facts.items():
            say(f"{name:<{width}}  {value}")
        for note in (*found.notes, *found.caveats()):
            say(f"note: {note}")


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def number_list(option: str, text: str) -> list[float]:
    """Numbers with commas between them."""
    from sottovoce.errors import ParameterError

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError(
            f"{option} takes numbers with commas between them, got '{text}'"
        ) from None


def _check_picture(plot: Path | None) -> None:
    from sottovoce.errors import OutputError, ParameterError

    if plot is None:
        return
    if plot.suffix not in (".svg", ".png"):
        raise ParameterError(f"--plot draws a file that ends in .svg or .png, got '{plot}'")
    if not plot.parent.is_dir():
        raise OutputError(f"there is no folder '{plot.parent}' for --plot; make it first")
