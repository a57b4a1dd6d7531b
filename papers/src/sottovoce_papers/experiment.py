"""The definition of an experiment, and the decorator that registers one.

    @experiment("foo", title="...", claim="...", seeds=10)
    def foo(settings: Settings) -> Findings: ...

Put the file into `sottovoce_papers/studies/` (or into a folder there, whose module `study`
registers it), or name its module under the entry point group `sottovoce.experiments` (see
`sottovoce.core.registry`); nothing else changes. Experiments that train models over a grid are TOML
files in `sottovoce_papers/grids/`, or a user's own in any folder (see `grid_files.py`).
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files as package_files
from pathlib import Path

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.core.registry import Register
from sottovoce.runs.loading import parse_assignments
from sottovoce_papers.added_mechanisms import AddedMechanism, parse_added
from sottovoce_papers.page import Chart

Cell = str | int | float | bool | None
Row = Mapping[str, Cell]
# Called with the task, the number of finished steps, the number of all steps, and a note.
OnStep = Callable[[str, int, int, str], None]

MAX_SEEDS = 1000
GRID_SUFFIX = ".toml"


def number(row: Row, key: str) -> float:
    """Return a cell that must hold a number."""
    value = row[key]
    assert isinstance(value, int | float)
    return float(value)


def _ignore(_what: str, _completed: int, _total: int, _note: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How an experiment is to be run.

    Attributes:
        seeds: Number of random repetitions; 0 if the experiment samples nothing.
        fast: Whether to run a reduced version, in seconds or minutes.
        on_step: Called with progress.
        jobs: Number of models trained at the same time.
        data_dir: Folder of the data sets; None for the default one.
        device: Device that trains; None for the one in the spec.
        folder: Folder of the results, where finished trials are kept; None to keep nothing.
        only: The values to train of some axes of a grid; all values of axes that are not here.
        changes: The values that replace those of a grid's base spec, by path, as `--set` took them.
        added: Further mechanisms to compare.
        allow_code: Whether to import and run code that the spec of a grid names.
    """

    seeds: int
    fast: bool
    on_step: OnStep = _ignore
    jobs: int = 1
    data_dir: Path | None = None
    device: str | None = None
    folder: Path | None = None
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)
    changes: Sequence[str] = ()
    added: Sequence[AddedMechanism] = ()
    allow_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A picture with its caption; `name` becomes the name of its file."""

    name: str
    caption: str
    chart: Chart


# What `Findings.tuning` says of studies with nothing to choose.
NOTHING_TUNED = "Nothing was trained or tuned on data, so there is no choice to charge."
UNVERIFIED = "(not verified)"  # How the assumption ends that a plug-in's claim is true.
HELD_OUT = (
    "The epsilon of a row covers its own training alone: trying rates, and choosing one by the "
    "held-out data, is not charged."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What an experiment measured.

    Attributes:
        rows: Flat rows with the same keys: data.csv, and the first table of the page.
        figures: The pictures.
        verdict: Conclusions computed from the rows alone; each line is a paragraph.
        method: What is exact, what was sampled and how often, and under which adjacency.
        tuning: How learning rates and other settings were chosen, and whether the choice was
            charged, made on public data, or neither.
        reduced: What a fast version left out.
        failures: Trials that gave no number, each with its error.
        warnings: What a reader should know before trusting the rows.
        trials: One row per trained model, with the hash of its spec: trials.csv.
    """

    rows: Sequence[Row]
    figures: Sequence[Figure]
    verdict: str
    method: str
    tuning: str
    reduced: str = ""
    failures: Sequence[str] = ()
    warnings: Sequence[str] = ()
    trials: Sequence[Row] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A registered experiment.

    Attributes:
        name: The name on the command line.
        title: One line that says what is measured.
        claim: What the paper says.
        default_seeds: Seeds unless others are given; 0 if nothing is sampled.
        run: The function that measures.
        fast_seeds: Seeds of the reduced version.
        data: Data sets that must be downloaded, separated by commas; empty if none.
        trains: Whether it trains models and so accepts jobs, a data folder and a device.
        has_axes: Whether it is a grid, of which a part can be trained.
        takes_mechanisms: Whether further mechanisms can be added.
    """

    name: str
    title: str
    claim: str
    default_seeds: int
    run: Callable[[Settings], Findings]
    fast_seeds: int = 3
    data: str = ""
    trains: bool = False
    has_axes: bool = False
    takes_mechanisms: bool = False

    @property
    def folder_name(self) -> str:
        """The name of its folder of results: that of a user's grid file has no `.toml`."""
        return self.name.removesuffix(GRID_SUFFIX)

    def settings(
        self,
        *,
        seeds: int | None = None,
        fast: bool = False,
        on_step: OnStep = _ignore,
        jobs: int | None = None,
        data_dir: Path | None = None,
        device: str | None = None,
        only: Sequence[str] = (),
        changes: Sequence[str] = (),
        added: Sequence[str] = (),
        allow_code: bool = False,
    ) -> Settings:
        """Return checked settings; by default a fast run uses few seeds.

        Args:
            seeds: Number of seeds; None for the default.
            fast: Whether to run the reduced version.
            on_step: Called with progress.
            jobs: Number of models trained at the same time; None for one.
            data_dir: Folder of the data sets.
            device: Device that trains.
            only: Values of axes to train, as AXIS=VALUE; an axis may occur several times.
            changes: Values in the base spec, as PATH=VALUE.
            added: Further mechanisms, as mechanism=KIND or mechanism={kind = "KIND", ...}.
            allow_code: Whether to import and run code that the spec of a grid names.

        Returns:
            The settings with which to call `run`.

        Raises:
            ConfigError: A text has another form.
            ParameterError: An option does not apply to this experiment, or is out of range.
            UnknownNameError: There is no mechanism or parameter of a name in `added`.
        """
        given = {"--jobs": jobs, "--data-dir": data_dir, "--device": device}
        needless = [option for option, value in given.items() if value is not None]
        if needless and not self.trains:
            raise ParameterError(f"'{self.name}' trains no model; leave out {needless[0]}")
        for option, values in {"--only": only, "--set": changes}.items():
            if values and not self.has_axes:
                raise ParameterError(
                    f"'{self.name}' is no grid of training runs; leave out {option}"
                )
        if added and not self.takes_mechanisms:
            raise ParameterError(
                f"'{self.name}' does not compare mechanisms at a common budget, so it has no place "
                "for another one; leave out --add"
            )
        parse_assignments(changes, "--set")  # Refuses what is not PATH=VALUE.
        return Settings(
            seeds=self._seeds(seeds, self.fast_seeds if fast else self.default_seeds),
            fast=fast,
            on_step=on_step,
            jobs=1 if jobs is None else jobs,
            data_dir=data_dir,
            device=device,
            only=_by_axis(only),
            changes=tuple(changes),
            added=parse_added(added),
            allow_code=allow_code,
        )

    def _seeds(self, given: int | None, default: int) -> int:
        if self.default_seeds == 0:
            if given is not None:
                raise ParameterError(f"'{self.name}' samples nothing; leave out --seeds")
            return 0
        number = min(default, self.default_seeds) if given is None else given
        remedy = "give two or more seeds, since one has no standard deviation"
        return parameter_rules.integer("seeds", number, low=2, high=MAX_SEEDS, remedy=remedy)


def _by_axis(only: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in only:
        axis, equals, value = one.partition("=")
        if not equals or not axis or not value:
            raise ParameterError(f"--only takes AXIS=VALUE, as in --only epsilon=1.0; got '{one}'")
        found.setdefault(axis, []).append(value)
    return found


@cache
def known_differences() -> Mapping[str, Sequence[str]]:
    """Return how each experiment differs from the figure or table that it is named after.

    Returns:
        Sentences by the name of the experiment.
    """
    text = package_files("sottovoce_papers").joinpath("differences.toml").read_text("utf-8")
    return tomllib.loads(text)


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
    takes_mechanisms: bool = False,
) -> Callable[[Callable[[Settings], Findings]], Callable[[Settings], Findings]]:
    """Return a decorator that registers a function as an experiment.

    Args:
        name: The name on the command line.
        title: One line that says what is measured.
        claim: What the paper says.
        seeds: Default number of random repetitions; 0 if nothing is sampled.
        fast_seeds: Seeds of the reduced version.
        data: Data sets that must be downloaded, separated by commas.
        trains: Whether it trains models.
        takes_mechanisms: Whether it compares the mechanisms in `Settings.added`, too.

    Returns:
        A decorator for a function from `Settings` to `Findings`, which it returns unchanged.
    """

    def register(run: Callable[[Settings], Findings]) -> Callable[[Settings], Findings]:
        found = Experiment(
            name=name,
            title=title,
            claim=claim,
            default_seeds=seeds,
            run=run,
            fast_seeds=fast_seeds,
            data=data,
            trains=trains,
            takes_mechanisms=takes_mechanisms,
        )
        register_experiment(found, module=run.__module__)
        return run

    return register


def register_experiment(found: Experiment, *, module: str) -> None:
    """Register an experiment that `module` defines."""
    EXPERIMENTS.enter(found.name, found, module=module)


def experiments() -> tuple[Experiment, ...]:
    """Return every registered experiment that can be imported, by name."""
    return tuple(EXPERIMENTS.all_working().values())


def find(name: str) -> Experiment:
    """Return the experiment of that name."""
    return EXPERIMENTS.find(name)
