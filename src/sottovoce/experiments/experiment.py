"""What an experiment is, and the register of experiments: one decorator, one file each.

    @experiment("foo", title="...", claim="...", seeds=10)
    def foo(settings: Settings) -> Findings: ...

Drop the file into `experiments/studies/`; nothing else changes.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from sottovoce import parameters
from sottovoce.errors import ParameterError, UnknownNameError
from sottovoce.reporting.figures import LineChart
from sottovoce.reporting.heatmap import HeatMap

Cell = str | int | float | bool | None
Row = Mapping[str, Cell]
# Called with what is being done, how many of its steps are done, how many there are, and a note.
OnStep = Callable[[str, int, int, str], None]

MAX_SEEDS = 1000


def _ignore(_what: str, _completed: int, _total: int, _note: str) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a run was asked for; `seeds` is 0 where nothing is sampled."""

    seeds: int
    quick: bool
    on_step: OnStep = _ignore


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A picture: `name` becomes its file's, `caption` stands below it."""

    name: str
    caption: str
    chart: LineChart | HeatMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What was measured.

    rows      flat, all with the same keys: data.csv, and the page's first table.
    verdict   computed from the rows, whoever wins; a line is a paragraph.
    method    what is exact, what was sampled and how often, which adjacency.
    """

    rows: Sequence[Row]
    figures: Sequence[Figure]
    verdict: str
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One registered experiment; `claim` is what the paper says; no seeds if nothing is sampled."""

    name: str
    title: str
    claim: str
    default_seeds: int
    run: Callable[[Settings], Findings]

    def settings(
        self, *, seeds: int | None = None, quick: bool = False, on_step: OnStep = _ignore
    ) -> Settings:
        """Checked settings; quick runs take few seeds unless told otherwise."""
        if self.default_seeds == 0:
            if seeds is not None:
                raise ParameterError(f"'{self.name}' samples nothing; leave out --seeds")
            return Settings(seeds=0, quick=quick, on_step=on_step)
        default = min(self.default_seeds, 3) if quick else self.default_seeds
        number = default if seeds is None else seeds
        parameters.integer("seeds", number, low=2, high=MAX_SEEDS, remedy="one seed has no spread")
        return Settings(seeds=number, quick=quick, on_step=on_step)


_REGISTER: dict[str, Experiment] = {}


def experiment(
    name: str, *, title: str, claim: str, seeds: int = 10
) -> Callable[[Callable[[Settings], Findings]], Callable[[Settings], Findings]]:
    """Function decorator that enters an experiment into the register."""

    def enter(run: Callable[[Settings], Findings]) -> Callable[[Settings], Findings]:
        if name in _REGISTER and _REGISTER[name].run.__qualname__ != run.__qualname__:
            raise ParameterError(f"two experiments claim the name '{name}'; rename one")
        _REGISTER[name] = Experiment(
            name=name, title=title, claim=claim, default_seeds=seeds, run=run
        )
        return run

    return enter


@cache
def _discover() -> None:
    from sottovoce.experiments import studies

    for module in pkgutil.iter_modules(studies.__path__):
        importlib.import_module(f"{studies.__name__}.{module.name}")


def experiments() -> tuple[Experiment, ...]:
    """Every registered experiment, by name."""
    _discover()
    return tuple(_REGISTER[name] for name in sorted(_REGISTER))


def find(name: str) -> Experiment:
    """The experiment of that name."""
    _discover()
    if name not in _REGISTER:
        raise UnknownNameError.among("experiment", name, _REGISTER)
    return _REGISTER[name]
