"""What an experiment is, and how one enters: one decorator, one file each.

    @experiment("foo", title="...", claim="...", seeds=10)
    def foo(settings: Settings) -> Findings: ...

Drop the file into `experiments/studies/` (or a folder, whose module `study` enters), or name its
module under the entry point group `experiments` (see `core.registry`); nothing else
changes. Experiments that train models over a grid are TOML files in `experiments/grids/` (see
`catalogue.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.core.registry import Register
from sottovoce_papers.page import Chart

Cell = str | int | float | bool | None
Row = Mapping[str, Cell]
# Called with what is being done, how many of its steps are done, how many there are, and a note.
OnStep = Callable[[str, int, int, str], None]

MAX_SEEDS = 1000


def number(row: Row, key: str) -> float:
    """A cell that holds a number."""
    value = row[key]
    assert isinstance(value, int | float)
    return float(value)


def _ignore(_what: str, _completed: int, _total: int, _note: str) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a run was asked for; `seeds` is 0 where nothing is sampled.

    fast       a reduced version, in seconds or minutes.
    jobs       how many models are trained at a time.
    data_dir   where data sets lie, if not where they usually do.
    device     what trains, if not what the spec says.
    folder     where results go; trials that are finished are kept there.
    """

    seeds: int
    fast: bool
    on_step: OnStep = _ignore
    jobs: int = 1
    data_dir: Path | None = None
    device: str | None = None
    folder: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A picture: `name` becomes its file's, `caption` stands below it."""

    name: str
    caption: str
    chart: Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What was measured.

    rows      flat, all with the same keys: data.csv, and the page's first table.
    verdict   computed from the rows, whoever wins; a line is a paragraph.
    method    what is exact, what was sampled and how often, which adjacency.
    reduced   what a fast version left out, if there is more to say than that it is one.
    failures  what was tried and gave no number, each with its error.
    warnings  what a person should know before believing the rows.
    trials    one row for each model that was trained, with the hash of its spec: trials.csv.
    """

    rows: Sequence[Row]
    figures: Sequence[Figure]
    verdict: str
    method: str
    reduced: str = ""
    failures: Sequence[str] = ()
    warnings: Sequence[str] = ()
    trials: Sequence[Row] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One registered experiment; `claim` is what the paper says; no seeds if nothing is sampled.

    `data` names a data set that has to be fetched; nothing is needed where it is empty. What
    `trains` takes jobs, data and a device.
    """

    name: str
    title: str
    claim: str
    default_seeds: int
    run: Callable[[Settings], Findings]
    fast_seeds: int = 3
    data: str = ""
    trains: bool = False

    def settings(
        self,
        *,
        seeds: int | None = None,
        fast: bool = False,
        on_step: OnStep = _ignore,
        jobs: int | None = None,
        data_dir: Path | None = None,
        device: str | None = None,
    ) -> Settings:
        """Checked settings; fast runs take few seeds unless told otherwise."""
        given = {"--jobs": jobs, "--data-dir": data_dir, "--device": device}
        needless = [option for option, value in given.items() if value is not None]
        if needless and not self.trains:
            raise ParameterError(f"'{self.name}' trains no model; leave out {needless[0]}")
        return Settings(
            seeds=self._seeds(seeds, self.fast_seeds if fast else self.default_seeds),
            fast=fast,
            on_step=on_step,
            jobs=1 if jobs is None else jobs,
            data_dir=data_dir,
            device=device,
        )

    def _seeds(self, given: int | None, default: int) -> int:
        if self.default_seeds == 0:
            if given is not None:
                raise ParameterError(f"'{self.name}' samples nothing; leave out --seeds")
            return 0
        number = min(default, self.default_seeds) if given is None else given
        remedy = "one seed has no spread"
        return parameter_rules.integer("seeds", number, low=2, high=MAX_SEEDS, remedy=remedy)


EXPERIMENTS: Register[Experiment] = Register(
    "experiment", package="sottovoce_papers.studies", inside="study"
)


def experiment(
    name: str,
    *,
    title: str,
    claim: str,
    seeds: int = 10,
    fast_seeds: int = 3,
    data: str = "",
    trains: bool = False,
) -> Callable[[Callable[[Settings], Findings]], Callable[[Settings], Findings]]:
    """Function decorator that enters an experiment into the register."""

    def enter_study(run: Callable[[Settings], Findings]) -> Callable[[Settings], Findings]:
        found = Experiment(
            name=name,
            title=title,
            claim=claim,
            default_seeds=seeds,
            run=run,
            fast_seeds=fast_seeds,
            data=data,
            trains=trains,
        )
        enter(found, module=run.__module__)
        return run

    return enter_study


def enter(found: Experiment, *, module: str) -> None:
    """Enter an experiment that `module` defines into the register."""
    EXPERIMENTS.enter(found.name, found, module=module)


def experiments() -> tuple[Experiment, ...]:
    """Every registered experiment that works, by name."""
    return tuple(EXPERIMENTS.all_working().values())


def find(name: str) -> Experiment:
    """The experiment of that name."""
    return EXPERIMENTS.find(name)
