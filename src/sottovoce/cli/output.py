"""How commands speak: a table or JSON on stdout, progress on stderr, quiet when nobody watches."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from sottovoce.core.display import show as show
from sottovoce.core.display import text_fields
from sottovoce.core.files import PUBLIC, write_atomic
from sottovoce.core.printable_text import printable, printable_data, printable_lines
from sottovoce.runs.site_counts import round_note as round_note

_PROSE_WIDTH = 24
# Of a federation, where sites have ledgers of their own.
_BY_SERVER = {
    "epsilon": "server-counted epsilon",
    "local_epsilon": "server-counted local_epsilon",
    "clients_out_of_budget": "clients out of budget by the server's count",
}
_SITES_SHOWN = 20

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def say(text: str, *, err: bool = False) -> None:
    """Print lines in which nothing that others wrote moves the cursor or changes a colour."""
    typer.echo(printable_lines(text), err=err)


def print_json(value: Any) -> None:
    say(json.dumps(value, indent=2, allow_nan=False))


def print_warning(text: str) -> None:
    say(f"warning: {printable(text)}", err=True)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, prose_width: int | None = None
) -> None:
    """A table; numbers stand right, words left. Prose wraps on a narrow terminal, and only prose.

    Where even that does not fit, lines are longer than the terminal: nothing is cut. With a
    `prose_width` prose wraps in files and pipes, too.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    columns, rows = printable_data(columns), printable_data(rows)
    console = Console(markup=False, emoji=False)  # a client may be called '[red]'
    table = Table(box=box.SIMPLE_HEAD)
    narrowest, least_width = 2, prose_width or _PROSE_WIDTH
    wraps = console.is_terminal or prose_width is not None
    for column, *cells in zip(columns, *rows, strict=True):
        width = max(map(len, (column, *cells)))
        prose = wraps and any(len(cell) > least_width and " " in cell for cell in cells)
        numeric = bool(cells) and all(cell[:1] in "0123456789-+.<" for cell in cells)
        table.add_column(
            column,
            justify="right" if numeric else "left",
            no_wrap=not prose,
            min_width=least_width if prose else width,
            overflow="fold",
        )
        narrowest += (least_width if prose else width) + 3
    for row in rows:
        table.add_row(*row)
    if narrowest > console.width:
        console = Console(width=narrowest, markup=False, emoji=False)
    console.print(table, soft_wrap=False)


def print_fields(fields: Mapping[str, object]) -> None:
    """Names and values, one a line."""
    say(text_fields(printable_data(fields)))


class Drawable(Protocol):
    """A chart."""

    def svg(self) -> str: ...


def draw(path: Path, chart: Drawable, *, mode: int = PUBLIC) -> None:
    """Write a chart as an SVG file of its own."""
    from sottovoce.core.charts.style import standalone

    write_atomic(path, standalone(chart.svg()).encode(), mode=mode)


def print_result(result: dict[str, Any], folder: Path, *, as_json: bool) -> None:
    """What a run has come to."""
    for warning in result["warnings"]:
        print_warning(warning)
    if as_json:
        print_json({**result, "folder": str(folder)})
        return
    is_federation = any("answered" in row for row in result["clients"])
    shown = {**result, "epsilon": result["epsilon"] if result["private"] else float("inf")}
    for name in ("warnings", "groups", "clients"):
        del shown[name]
    if is_federation:
        shown = {_BY_SERVER.get(name, name): value for name, value in shown.items()}
    score = shown.pop("score", "accuracy")
    shown = {score if name == "accuracy" else name: value for name, value in shown.items()}
    print_fields({**shown, "folder": folder})
    if len(result["groups"]) > 1:
        _print_groups(result["groups"])
    if is_federation:
        _print_sites(result["clients"])


def _print_sites(clients: list[dict[str, Any]]) -> None:
    """What the server counted, what sites answered and what they say."""
    from sottovoce.runs.site_counts import HEADINGS, counted_rows

    rows, more = counted_rows({row["client"]: row for row in clients}, _SITES_SHOWN)
    print_table(["site", *HEADINGS.values()], rows)
    if more:
        say(f"{more}: see result.json, or result-clients.json.gz beside it")


def _print_groups(groups: list[dict[str, Any]]) -> None:
    columns = list(groups[0])
    print_table(columns, [[show(row[column], column) for column in columns] for row in groups])


class Bars:
    """Progress bars on stderr, one a task; does nothing where stderr is no terminal."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._tasks: dict[str, Any] = {}
        if progress is not None:
            self._waiting = progress.add_task("preparing", total=None, note="")

    def update(self, name: str, completed: int, total: int, note: str) -> None:
        if self._progress is None:
            return
        self._progress.update(self._waiting, visible=False)
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(printable(name), total=total, note="")
        self._progress.update(self._tasks[name], completed=completed, note=printable(note))


@contextlib.contextmanager
def progress_bars() -> Iterator[Bars]:
    """Bars that disappear into a plain last state when the work is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield Bars(None)
        return
    columns = (
        TextColumn("{task.description:<20}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        yield Bars(progress)
