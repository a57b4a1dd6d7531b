"""The definition of a figure: a text, a bound, the source of its number and how to read it."""

import csv
import io
import json
import math
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures.kept import Page

_CLOCK = ("s", "ms", "minutes", "a second", "clients a second")  # others only make these worse
OUT = "{out}"  # in a command: a folder that is empty when it starts
ROOT = Path(__file__).resolve().parents[2]


class UnreadableError(Exception):
    """An error: the number is not where the reader looks for it. It never counts as reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The interval in which a number must lie, ends included."""

    low: float = -math.inf
    high: float = math.inf

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        if math.isinf(self.low):
            return f"at most {self.high:g}"
        if math.isinf(self.high):
            return f"at least {self.low:g}"
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"


def at_most(high: float) -> Bound:
    return Bound(high=high)


def at_least(low: float) -> Bound:
    return Bound(low=low)


def between(low: float, high: float) -> Bound:
    return Bound(low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A command that runs once, in its own process, for all figures that read it."""

    name: str
    command: str  # 'sottovoce', 'python' and 'pytest' are those of the interpreter that measures
    minutes: float  # about what it takes on two quiet cores
    exits: tuple[int, ...] = (0,)  # those after which the output may be read
    repeats: int = 1  # the least wall time of so many counts
    needs_data: bool = False  # SOTTOVOCE_DATA says where real data lie

    @property
    def words(self) -> list[str]:
        return shlex.split(self.command)

    @property
    def reduced(self) -> str:
        """What the run leaves out, in words; empty for a full run."""
        return "run with --fast" if "--fast" in self.words else ""

    @property
    def timeout_seconds(self) -> float:
        """A busy machine may take several times as long; a hanging one may not hold up the rest."""
        return 60.0 * max(5.0, 6.0 * self.minutes)


def tests(name: str, command: str, minutes: float) -> Source:
    """Return a source that runs tests; exit code 1 means that some failed, which is counted."""
    return Source(name=name, command=f"pytest {command}", minutes=minutes, exits=(0, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A file under results/ that took hours to compute, or another machine."""

    path: str

    @property
    def name(self) -> str:
        return self.path

    @property
    def page(self) -> Page:
        """The file, or the page in the same folder: it says how the file was made."""
        path = ROOT / self.path
        return Page(path=path if path.suffix == ".md" else path.with_name("README.md"))

    @property
    def command(self) -> str:
        """The command that made the file, as its page has it."""
        return self.page.command or "not recorded"

    @property
    def reduced(self) -> str:
        """What the run left out, in words; empty for a full run."""
        return self.page.reduced


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The output of a source: standard output or the text of a kept file, time, memory, folder."""

    text: str
    seconds: float = 0.0
    peak_bytes: int = 0
    folder: Path = Path()

    def json(self) -> Any:
        """All of the text, or its last line, as JSON."""
        for part in (self.text, self.text.strip().rpartition("\n")[2]):
            try:
                return json.loads(part)
            except json.JSONDecodeError:
                continue
        raise UnreadableError("the output is no JSON")

    def rows(self) -> list[dict[str, str]]:
        """Return the text as CSV."""
        found = list(csv.DictReader(io.StringIO(self.text)))
        if not found:
            raise UnreadableError("a table without rows")
        return found

    def numbers(self, pattern: str) -> list[float]:
        """All numbers that a pattern with one group finds; there is at least one."""
        found = re.findall(pattern, self.text, re.MULTILINE)
        if not found:
            raise UnreadableError(f"nothing like {pattern!r} in the output")
        return [float(one.replace(",", "")) for one in found]


Reader = Callable[[Output], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A trained model that a figure rests on, and what a constant prediction scores."""

    name: str
    accuracy_low: float  # the lower end of the 95% interval of its accuracy
    constant: float  # the accuracy of the best constant prediction: the majority class

    @property
    def at_chance(self) -> bool:
        return not self.accuracy_low > self.constant


Models = Callable[[Output], Iterable[Model]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number that was asked for."""

    name: str
    asked: str
    bound: Bound
    source: Source | Kept
    read: Reader
    unit: str = ""
    timed: bool = False  # a busy machine makes it worse, or says nothing about it
    known_reason: str = ""  # why it falls short, if it does
    models: Models | None = None  # those that must have learned something
    about_reduced: bool = False  # the reduced run itself is what was asked about

    def judged_though_busy(self, value: float) -> bool:
        """Whether others' work takes nothing from the verdict: seconds that suffice even so."""
        return not self.timed or (self.unit in _CLOCK and self.bound.holds(value))


def read(figure: Figure, output: Output) -> float:
    """Return the number of a figure; raise UnreadableError for any reason that prevents it."""
    try:
        value = float(figure.read(output))
    except UnreadableError:
        raise
    except (KeyError, IndexError, ValueError, TypeError, OSError, ArithmeticError) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from error
    if math.isnan(value):
        raise UnreadableError("not a number")
    return value


def models_at_chance(figure: Figure, output: Output) -> list[str]:
    """Return the models of a figure that are no better than a constant prediction."""
    if figure.models is None:
        return []
    try:
        found = list(figure.models(output))
    except (KeyError, IndexError, ValueError, TypeError, ArithmeticError) as error:
        raise UnreadableError(f"models: {type(error).__name__}: {error}") from error
    if not found:
        raise UnreadableError("no model of those that the figure rests on")
    return [model.name for model in found if model.at_chance]


def field(name: str) -> Reader:
    """Return a reader of a field of a JSON object; dots lead into nested objects."""

    def reader(output: Output) -> float:
        value = output.json()
        for part in name.split("."):
            value = value[part]
        return float(value)

    return reader


def wall_seconds(output: Output) -> float:
    """Return the command's time from start to end."""
    if output.seconds <= 0.0:
        raise UnreadableError("no time was taken")
    return output.seconds


def failed_tests(output: Output) -> float:
    """Return the number of failed tests; if all were skipped, that is an error."""
    summary = output.text.strip().rpartition("\n")[2]
    count = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", summary)}
    failed = sum(count.get(word, 0) for word in ("failed", "error", "errors"))
    if not failed and not count.get("passed"):
        raise UnreadableError(f"no test ran: {summary!r}")
    return failed


def percent(text: str) -> float:
    """Return a text such as '+0.05%' as a fraction."""
    return float(text.strip().removesuffix("%")) / 100.0
