"""How commands speak: a table or JSON on stdout, progress on stderr, quiet when nobody watches."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from sottovoce.core.printable_text import printable, printable_data, printable_lines
from sottovoce.core.shown import show as show
from sottovoce.core.shown import text_fields

_PROSE_WIDTH = 24

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
