"""What commands print: tables, fields and JSON on stdout; warnings and progress on stderr."""

import contextlib
import json
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import typer

from sottovoce.core.display import is_numeric, text_fields
from sottovoce.core.display import show as show
from sottovoce.core.files import PUBLIC, write_atomic
from sottovoce.core.printable_text import printable, printable_data, printable_lines
from sottovoce.runs.site_counts import round_note as round_note

_TABLE_WIDTH = 100  # of tables and fields where stdout is no terminal
_LONGEST_WORD = 30  # columns; a longer word without spaces, such as a path, may be broken
_QUIET_SECONDS = 2.0  # shorter work prints no progress in pipes and files
_SECONDS_BETWEEN_LINES = 10.0

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def say(text: str, *, err: bool = False) -> None:
    r"""Print lines; control characters in text that others wrote are written as \uXXXX.

    Args:
        text: One line or several.
        err: Whether to print to stderr.
    """
    typer.echo(printable_lines(text), err=err)


def print_json(value: Any) -> None:
    """Print a value as indented JSON on stdout; raise ValueError for infinite numbers and NaN."""
    say(json.dumps(value, indent=2, allow_nan=False))


def print_warning(text: str) -> None:
    """Print one line on stderr that starts with 'warning: '."""
    say(f"warning: {printable(text)}", err=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table at most as wide as the terminal, or 100 columns where there is none.

    Numbers are aligned right, words left. Text is wrapped at spaces. Where wrapping is not enough,
    the table is printed in parts, one below the other, each with the first column: no cell is cut.

    Args:
        columns: The headings.
        rows: The cells of each row, in the order of `columns`.
    """
    from rich.console import Console

    columns, rows = printable_data(columns), printable_data(rows)
    terminal = Console()
    limit = terminal.width if terminal.is_terminal else _TABLE_WIDTH
    cells = [[column, *(row[at] for row in rows)] for at, column in enumerate(columns)]
    while cells:
        least = [_least_width(column) for column in cells]
        count = len(cells)
        while count > 2 and _total_width(least[:count]) > limit:
            count -= 1
        _print_columns(cells[:count], least[:count], limit)
        cells = [cells[0], *cells[count:]] if count < len(cells) else []


def _total_width(widths: Sequence[int]) -> int:
    """Return the width of a table with columns of these widths: borders and padding are 3 each."""
    return sum(widths) + 3 * len(widths) + 1


def _least_width(cells: Sequence[str]) -> int:
    """Return the width at which no word of a column is broken, except for very long ones."""
    from rich.cells import cell_len

    longest = max((cell_len(word) for cell in cells for word in cell.split()), default=1)
    return min(longest, _LONGEST_WORD)


def _print_columns(cells: Sequence[Sequence[str]], least: Sequence[int], limit: int) -> None:
    """Print columns, each a heading and its cells, after shrinking the widest to fit `limit`."""
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    widths = [max(map(cell_len, column)) for column in cells]
    while _total_width(widths) > limit and any(map(int.__gt__, widths, least)):
        shrinkable = [at for at, width in enumerate(widths) if width > least[at]]
        widths[max(shrinkable, key=lambda at: widths[at])] -= 1
    table = Table(box=box.SIMPLE_HEAD)
    for column, width in zip(cells, widths, strict=True):
        side: Literal["right", "left"] = "right" if is_numeric([*column[1:]]) else "left"
        table.add_column(column[0], justify=side, width=width, overflow="fold")
    for row in zip(*(column[1:] for column in cells), strict=True):
        table.add_row(*row)
    # Markup is off because a client may be called '[red]'.
    console = Console(width=max(limit, _total_width(widths)), markup=False, emoji=False)
    console.print(table, soft_wrap=False)


def print_fields(fields: Mapping[str, object]) -> None:
    """Print names and values, one a line; values that are too long are wrapped at spaces."""
    for line in text_fields(printable_data(fields)).split("\n"):
        say(_wrapped(line, indent=2 + max(map(len, printable_data(fields)))))


def print_wrapped(name: str, text: str, *, indent: int) -> None:
    """Print a name and, from column `indent` on, a text in lines of at most 100 columns."""
    say(_wrapped(f"{printable(name):<{indent}}{printable(text)}", indent=indent))


def _wrapped(line: str, *, indent: int) -> str:
    """Return a line in lines of at most 100 columns, all but the first of them indented."""
    if len(line) <= _TABLE_WIDTH:
        return line
    begin, text = line[:indent], line[indent:]
    lines = textwrap.wrap(
        text, _TABLE_WIDTH - indent, break_long_words=False, break_on_hyphens=False
    )
    return begin + f"\n{' ' * indent}".join(lines)


class Drawable(Protocol):
    """A chart that can be drawn as SVG."""

    def svg(self) -> str:
        """Return the drawing as an SVG element."""
        ...


def draw(path: Path, chart: Drawable, *, mode: int = PUBLIC) -> None:
    """Write a chart to an SVG file.

    Args:
        path: The file.
        chart: What to draw.
        mode: The file's permissions, such as 0o600.
    """
    from sottovoce.core.charts.style import standalone

    write_atomic(path, standalone(chart.svg()).encode(), mode=mode)


def show_seconds(seconds: float) -> str:
    """Return a time as a text in its two largest units, such as "2 h 05 min" or "40 s"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


class ProgressReporter:
    """The progress of some work, reported on stderr; this one reports nothing."""

    def update(self, name: str, completed: int, total: int, note: str) -> None:
        """Note how far a task has come.

        Args:
            name: The task; several may run at a time.
            completed: How much of it is done.
            total: How much there is to do.
            note: What else to show, such as the accuracy of the last round.
        """

    def announce(self, text: str) -> None:
        """Report what begins, where the first `update` is seconds away.

        Args:
            text: What is being done, such as loading data.
        """


class _TerminalBars(ProgressReporter):
    """Progress bars, one a task, drawn by rich."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._tasks: dict[str, Any] = {}
        self._waiting = progress.add_task("preparing", total=None, note="")

    def announce(self, text: str) -> None:
        self._progress.update(self._waiting, description=printable(text))

    def update(self, name: str, completed: int, total: int, note: str) -> None:
        self._progress.update(self._waiting, visible=False)
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(printable(name), total=total, note="")
        self._progress.update(self._tasks[name], completed=completed, note=printable(note))


class _ProgressLines(ProgressReporter):
    """A line every few seconds, for pipes and log files; none for work that is done at once."""

    def __init__(self) -> None:
        self._line, self._printed = "preparing", ""
        self._start = time.monotonic()
        self._first: dict[str, tuple[float, int]] = {}  # When a task was first reported.
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._report, name="progress", daemon=True)
        self._thread.start()

    def announce(self, text: str) -> None:
        self._line = printable(text)

    def update(self, name: str, completed: int, total: int, note: str) -> None:
        noted = f"  {printable(note)}" if note else ""
        left = self._seconds_left(name, completed, total)
        noted += "" if left is None else f"  {show_seconds(left)} left"
        self._line = f"{printable(name)}: {completed} of {total}{noted}"

    def _seconds_left(self, name: str, completed: int, total: int) -> float | None:
        """Return how long a task still takes at its speed so far; None if that is not known."""
        now = time.monotonic()
        began, done = self._first.setdefault(name, (now, completed))
        if not done < completed < total:
            return None
        return (now - began) / (completed - done) * (total - completed)

    def close(self) -> None:
        """End the thread, and print the last state if earlier ones were printed."""
        self._ended.set()
        self._thread.join()
        if self._printed not in ("", self._line):
            self._print()

    def _report(self) -> None:
        wait = _QUIET_SECONDS
        while not self._ended.wait(wait):
            self._print()
            wait = _SECONDS_BETWEEN_LINES

    def _print(self) -> None:
        self._printed = self._line
        # stderr may be closed, and progress is no reason to stop the work.
        with contextlib.suppress(OSError, ValueError):
            say(f"{self._line}  ({time.monotonic() - self._start:.0f} s)", err=True)


@contextlib.contextmanager
def report_progress(*, quiet: bool = False) -> Iterator[ProgressReporter]:
    """Report progress on stderr while the block runs: bars in a terminal, else some lines.

    Args:
        quiet: Report nothing.

    Yields:
        What to call with the state of each task. Work that never calls it is reported as well,
        as 'preparing' and the seconds since its start.
    """
    if quiet:
        yield ProgressReporter()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        lines = _ProgressLines()
        try:
            yield lines
        finally:
            lines.close()
        return
    columns = (
        TextColumn("{task.description:<20}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        yield _TerminalBars(progress)
