"""The commands `sottovoce estimate`, private statistics of a csv file; each row is a person."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
    check_plot,
    parse_missing,
    parse_numbers,
    parse_words,
    spread_dataclasses,
)
from sottovoce.cli.output import Json, print_json, print_table, report_progress, say

if TYPE_CHECKING:
    from sottovoce.analytics.question import Question
    from sottovoce.analytics.result import Estimate
    from sottovoce.core.table_files import CsvColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEstimate:
    """The options that all commands share: how to read the file, whom to charge, what to print."""

    confidence: Confidence = 0.95
    header: Annotated[
        bool, typer.Option("--header/--no-header", help="Whether the first row has names.")
    ] = True
    delimiter: Annotated[
        str | None, typer.Option(help="The sign between cells [found in the first line].")
    ] = None
    encoding: Annotated[str, typer.Option(help="The file's encoding, such as latin-1.")] = "utf-8"
    decimal: Decimal = "."
    missing: Missing = "refuse"
    missing_words: Annotated[
        list[str] | None,
        typer.Option(help="Words that mean a missing value, such as 99,unknown; repeatable."),
    ] = None
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="The ledger file in which to charge the people's account; it is created if there "
            "is none [nothing is charged]."
        ),
    ] = None
    budget: Annotated[
        float | None, typer.Option(help="The account's budget: total epsilon over all questions.")
    ] = None
    account: Annotated[
        str | None,
        typer.Option(
            help="With --ledger, the name of the people's account; all questions add up there."
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of repeatable noise, for simulation [the system's randomness]."),
    ] = None
    show_true: Annotated[
        bool,
        typer.Option(
            "--show-true",
            help="Also print the true value (of clipped values), which is not private.",
        ),
    ] = False
    as_json: Json = False

    def print(
        self,
        statistic: str,
        data: Path,
        column: str | tuple[str, ...] | None = None,
        plot: Path | None = None,
        **options: Any,
    ) -> None:
        """Estimate a statistic of the people in a file and print it.

        With --ledger, the people's account is charged before any value is privatized.

        Args:
            statistic: The name of the statistic: mean, variance, histogram, quantiles or location.
            data: The csv file, with one person in each row.
            column: The column, or several; None for the only one.
            plot: The file into which to draw the map of locations; None draws none.
            options: The options of the question, such as its epsilon and bounds.

        Raises:
            ParameterError: An option is wrong, or --ledger and --account are not given together.
            DataError: The file cannot be read; nothing is charged.
            BudgetExhaustedError: The account's budget does not allow the question.
        """
        from sottovoce.analytics import intervals
        from sottovoce.analytics.estimates import question_for, takes_people
        from sottovoce.analytics.truth import true_label

        intervals.check_confidence(self.confidence)
        columns = self._columns(data, column if isinstance(column, tuple) else (column,))
        if takes_people(statistic):
            options["people"] = columns.count_lines()
        with report_progress() as bars:
            bars.update("preparing", 0, 1, "tables")
            asked = question_for(statistic, public_seed=self.seed, **options)
            bars.update("preparing", 1, 1, "done")

            def read(what: str) -> Iterator[Any]:
                def on_bytes(done: int, total: int) -> None:
                    bars.update(what, done, total, "bytes")

                words = options.get("categories") is not None
                return columns.words(on_bytes) if words else columns.numbers(on_bytes)

            charged = self._charge(asked, read)
            found = self._ask(asked, read("privatizing")).noted(charged)
            true = self._true(asked, read("reading again")) if self.show_true else None
        self._draw(asked, found, plot)
        self._say(found, true, true_label(asked), plot)

    def _columns(self, data: Path, columns: tuple[str | None, ...]) -> "CsvColumns":
        from sottovoce.core.table_files import CsvColumns

        return CsvColumns(
            path=data,
            columns=columns,
            header=self.header,
            delimiter=self.delimiter,
            encoding=self.encoding,
            missing=parse_missing(self.missing),
            missing_words=tuple(parse_words("--missing-words", self.missing_words or [])),
            decimal=self.decimal,
        )

    def _charge(self, asked: "Question", read: Any) -> str:
        """Charge the people before any value is encoded; return a note for the result."""
        from sottovoce.analytics.charging import charge, check_budget
        from sottovoce.analytics.result import NO_LEDGER
        from sottovoce.core.errors import ParameterError

        check_budget(self.budget)
        if self.ledger is None:
            for option, value in (("budget", self.budget), ("account", self.account)):
                if value is not None:
                    raise ParameterError(f"--{option} needs a ledger; give --ledger")
            return NO_LEDGER
        if not self.account:
            raise ParameterError(
                f"--ledger {self.ledger} needs --account, a name for the people whose data this "
                "is. Questions add up by that name: give the same name with every file that has "
                "their data"
            )
        for _ in read("checking"):  # an error in the file must be found before charging
            pass
        return charge(self.ledger, self.account, asked, budget=self.budget)

    def _ask(self, asked: "Question", batches: Iterable[Any]) -> "Estimate":
        from sottovoce.analytics.estimates import ask
        from sottovoce.core.randomness import SeededRandomness, SystemRandomness

        randomness = SystemRandomness() if self.seed is None else SeededRandomness(self.seed)
        return ask(asked, batches, randomness, confidence=self.confidence)

    def _true(self, asked: "Question", batches: Iterable[Any]) -> list[float]:
        from sottovoce.analytics.truth import true_numbers

        return true_numbers(asked, batches)

    def _draw(self, asked: "Question", found: "Estimate", plot: Path | None) -> None:
        if plot is not None:
            from sottovoce.reporting.design_matrix import draw

            side_km = asked.side_km  # type: ignore[attr-defined]
            title = f"{found.people} people, epsilon {found.epsilon:g} per km"
            draw(plot, found.details["density"], side_km=side_km, title=title)

    def _say(
        self, found: "Estimate", true: list[float] | None, true_is: str, plot: Path | None
    ) -> None:
        if self.as_json:
            result = found.to_dict()
            if true is not None:
                result["true_not_private"] = true[0] if found.is_single else true
                result["true_is"] = true_is
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
        told = [] if true is None else [f"true (not private): {true_is}"]
        for note in (*told, *found.notes, *found.caveats()):
            say(f"note: {note}")


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


app = typer.Typer(
    help="Estimate statistics of a csv file from a few private bits per person, with intervals.",
    no_args_is_help=True,
)

Data = Annotated[Path, typer.Argument(metavar="DATA.csv", help="A csv file; each row is a person.")]


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The options of a question about values between two bounds."""

    lower: Lower
    upper: Upper
    epsilon: PersonEpsilon


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The options that name the column and the mechanism of the answers."""

    column: Annotated[
        str | None,
        typer.Option(
            help="The column: its name, or with --no-header its number from 0 [the only one]."
        ),
    ] = None
    bits: PersonBits = None
    mechanism: AnswerMechanism = "auto"


@app.command()
@spread_dataclasses
def mean(*, data: Data, bounds: Bounds, answer: Answer, file: FileEstimate) -> None:
    """Estimate the mean of a column."""
    file.print("mean", data, **vars(bounds), **vars(answer))


@app.command()
@spread_dataclasses
def variance(*, data: Data, bounds: Bounds, answer: Answer, file: FileEstimate) -> None:
    """Estimate the variance of a column; half of the people send their value, half its square."""
    file.print("variance", data, **vars(bounds), **vars(answer))


@app.command()
@spread_dataclasses
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
    """Estimate the share of people in each bin or category."""
    words = parse_words("--categories", categories) if categories else None
    bounds: dict[str, Any] = {"lower": lower, "upper": upper, "bins": bins, "categories": words}
    file.print("histogram", data, **bounds, epsilon=epsilon, **vars(answer))


@app.command()
@spread_dataclasses
def quantiles(
    *,
    data: Data,
    bounds: Bounds,
    quantiles: Annotated[
        str, typer.Option(help="Levels of the quantiles, between 0 and 1.")
    ] = "0.25,0.5,0.75",
    answer: Answer,
    file: FileEstimate,
) -> None:
    """Estimate quantiles of a column, such as its median."""
    levels = parse_numbers("--quantiles", quantiles)
    file.print("quantiles", data, **vars(bounds), **vars(answer), quantiles=levels)


@app.command()
@spread_dataclasses
def location(
    *,
    data: Data,
    latitude: Annotated[str, typer.Option(help="The column of latitudes, in degrees.")],
    longitude: Annotated[str, typer.Option(help="The column of longitudes, in degrees.")],
    center: Annotated[
        str,
        typer.Option("--center", "--centre", help="The map's center: LATITUDE,LONGITUDE."),
    ],
    side_km: Annotated[float, typer.Option(help="The map's side, in km.")],
    epsilon: Annotated[float, typer.Option(help="Epsilon per km between two places.")],
    bits: Annotated[
        int | None, typer.Option(help="Bits of each of the two coordinates [3].")
    ] = None,
    cells: Annotated[int, typer.Option(help="Cells on each side of the density map.")] = 16,
    plot: Annotated[Path | None, typer.Option(help="Draw the density map: .svg or .png.")] = None,
    file: FileEstimate,
) -> None:
    """Estimate the mean place and a density map, under geo-indistinguishability."""
    check_plot(plot, ".png")
    file.print(
        "location",
        data,
        (latitude, longitude),
        plot,
        center=tuple(parse_numbers("--center", center)),
        side_km=side_km,
        epsilon=epsilon,
        bits=bits,
        cells=cells,
    )
