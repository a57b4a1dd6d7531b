"""What the commands of `sottovoce estimate` do with a file, once they know what is asked."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.options import Confidence, Decimal, Missing, missing_way, word_list
from sottovoce.cli.output import Json, print_json, print_table, progress_bars, say

if TYPE_CHECKING:
    from sottovoce.analytics.question import Question
    from sottovoce.analytics.result import Estimate
    from sottovoce.core.csv_columns import CsvColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEstimate:
    """The options of every such command: how the file is read, who is charged, what is said."""

    confidence: Confidence = 0.95
    header: Annotated[
        bool, typer.Option("--header/--no-header", help="Whether the first row names.")
    ] = True
    delimiter: Annotated[
        str | None, typer.Option(help="Between cells [found in the first line].")
    ] = None
    encoding: Annotated[str, typer.Option(help="Of the file, such as latin-1.")] = "utf-8"
    decimal: Decimal = "."
    missing: Missing = "refuse"
    missing_words: Annotated[
        list[str] | None,
        typer.Option(help="What else stands for nothing, such as 99,unknown; repeatable."),
    ] = None
    ledger: Annotated[
        Path | None, typer.Option(help="Charge the people's account in this file.")
    ] = None
    budget: Annotated[
        float | None, typer.Option(help="The account's budget: epsilon over all questions.")
    ] = None
    account: Annotated[
        str | None,
        typer.Option(
            help="Whose data it is, with --ledger: all that is asked by this name adds up."
        ),
    ] = None
    seed: Annotated[
        int | None, typer.Option(help="Repeatable noise, for simulation [the system's randomness].")
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
        """Ask everybody in the file `data`, and print what was found; draw it into `plot`."""
        from sottovoce.analytics import intervals
        from sottovoce.analytics.estimates import question_for, takes_people
        from sottovoce.analytics.truth import true_label

        intervals.check_confidence(self.confidence)
        columns = self._columns(data, column if isinstance(column, tuple) else (column,))
        if takes_people(statistic):
            options["people"] = columns.count_lines()
        with progress_bars() as bars:
            bars.update("preparing", 0, 1, "tables")
            asked = question_for(statistic, public_seed=self.seed, **options)
            bars.update("preparing", 1, 1, "done")

            def read(what: str) -> Iterator[Any]:
                def on_bytes(done: int, total: int) -> None:
                    bars.update(what, done, total, "bytes")

                words = options.get("categories") is not None
                return columns.words(on_bytes) if words else columns.numbers(on_bytes)

            charged = self._charge(asked, read)
            found = self._ask(asked, read("privatising")).noted(charged)
            true = self._true(asked, read("reading again")) if self.show_true else None
        self._draw(asked, found, plot)
        self._say(found, true, true_label(asked), plot)

    def _columns(self, data: Path, columns: tuple[str | None, ...]) -> "CsvColumns":
        from sottovoce.core.csv_columns import CsvColumns

        return CsvColumns(
            path=data,
            columns=columns,
            header=self.header,
            delimiter=self.delimiter,
            encoding=self.encoding,
            missing=missing_way(self.missing),
            missing_words=tuple(word_list("--missing-words", self.missing_words or [])),
            decimal=self.decimal,
        )

    def _charge(self, asked: "Question", read: Any) -> str:
        """Charge the people before anything is encoded; what the result says about it."""
        from sottovoce.analytics.charging import charge, check_budget
        from sottovoce.analytics.result import NO_LEDGER
        from sottovoce.core.errors import ParameterError

        check_budget(self.budget)
        if self.ledger is None:
            for option, value in (("budget", self.budget), ("account", self.account)):
                if value is not None:
                    raise ParameterError(f"--{option} is an account's in a ledger; give --ledger")
            return NO_LEDGER
        if not self.account:
            raise ParameterError(
                f"--ledger {self.ledger} needs --account, a name for the people whose data this "
                "is. What is asked about them adds up by that name: give the same one with every "
                "file that holds their data"
            )
        for _ in read("checking"):  # a file with a mistake in it must not cost anybody anything
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
            from sottovoce.reporting.density_map import draw

            side_km = asked.side_km  # type: ignore[attr-defined]
            title = f"{found.people} people, epsilon {found.epsilon:g} per kilometre"
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
