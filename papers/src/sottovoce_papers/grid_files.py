"""Learning experiments as TOML files: the spec of a run, the axes of a grid, and a reduced version.

    [experiment]         title, claim, seeds, fast_seeds, favorite, reference, data;
                         other_seeds, margin, population, tuned: see `About`
    [figure]             x = "epsilon", x_log, y_label, panels = "an axis", curves = true,
                         target_accuracy, learned_from: what is drawn, see `FigureOptions`
    [base]               the spec of a run
    [[axes.mechanism]]   value = "one bit", set = {path = ...}, remove = ["path"]
    [axes.epsilon]       path = "privacy.epsilon", values = [...]
    [axes.learning_rate] in the same form; the rate is then tuned as [tuning] says
    [axes.anything]      in the same form, or [[axes.anything]] with names: a further axis
    [tuning]             seeds, set = {path = ...}: how to hold out part of the training data
    [fast]               set = {path = ...}, axes = {epsilon = [...]}: the reduced version;
                         tuning = {path = ...} replaces what [tuning] sets
    [[paper]]            mechanism, epsilon, accuracy: a printed value, for the picture;
                         panel = ... if there are several
    [[targets]]          where = {axis = value}, accuracy, r_squared: what these rows should reach
    [[baselines]]        where = {axis = value}, kind = "ridge": computed on the same data

`grids/NAME.toml` is the experiment NAME; `sottovoce experiment run FILE.toml` runs a grid of your
own from any folder, and `sottovoce experiment init FILE.toml` writes one to start from. Paths are
dotted, as in `--set`. The key `favorite` may also be spelled `favourite`, as in earlier versions.
"""

import copy
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
)

import sottovoce_papers
from sottovoce.core.errors import ConfigError, UnknownNameError
from sottovoce.runs.loading import override, parse_text, read_table
from sottovoce.runs.sections import problem_in
from sottovoce_papers.experiment import MAX_SEEDS
from sottovoce_papers.sweep import Choice

_DEFAULT = "the default"
MECHANISM, EPSILON, RATE, SEED = "mechanism", "epsilon", "learning_rate", "seed"

Value = str | int | float
Share = Annotated[float, Field(gt=0, lt=1)]
Seeds = Annotated[int, Field(ge=2, le=MAX_SEEDS)]
Overrides = dict[str, Any]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class About(_Section):
    """The claim, and the two mechanisms that are compared; `data` is the data set to download.

    other_seeds  Seeds of all other mechanisms, if they need fewer.
    margin       If given, the verdict says whether favorite and reference differ by at most this
                 accuracy.
    population   If given, the users for whom epsilon holds, such as "539 writers".
    tuned        How settings other than the rates of [tuning] were chosen, and whether the choice
                 is charged.
    """

    title: str
    claim: str
    seeds: Seeds
    fast_seeds: Seeds = 3
    favorite: str = Field(validation_alias=AliasChoices("favorite", "favourite"))
    reference: str
    data: str = ""
    other_seeds: Seeds | None = None
    margin: Share | None = None
    population: str = ""
    tuned: str = ""

    def seeds_of(self, mechanism: object, seeds: int) -> int:
        """Return how many of `seeds` a mechanism is trained with."""
        if self.other_seeds is None or mechanism in (self.favorite, self.reference):
            return seeds
        return min(self.other_seeds, seeds)


class FigureOptions(_Section):
    """What is drawn.

    x                The horizontal axis of the main picture; the other axes distinguish lines.
    panels           The axis whose values have separate pictures.
    curves           Whether to draw accuracy by round as well: of every mechanism at the largest
                     budget, or of the favorite if x is not epsilon.
    target_accuracy  If given, the table and the verdict state the number of rounds to reach it.
    learned_from     What training without noise must reach, or this number by panel. Where it is
                     below, the page says "not learned" and gives no verdict.
    """

    x: str = EPSILON
    x_log: bool = True
    y_label: str = "test accuracy"
    panels: str | None = None
    curves: bool = True
    target_accuracy: Share | None = None
    learned_from: Share | dict[str, Share] | None = None


class NamedChoice(_Section):
    """A named value of an axis, with the paths that it sets and removes."""

    value: Value
    set: Overrides = {}
    remove: list[str] = []


class PathAxis(_Section):
    """An axis whose values are all set at one path."""

    path: str
    values: list[Value]


def _axis_form(axis: object) -> str:
    """Return which form an axis has, so that messages name the keys of that form alone."""
    return NamedChoice.__name__ if isinstance(axis, list | tuple) else PathAxis.__name__


Axis = Annotated[
    Annotated[PathAxis, Tag(PathAxis.__name__)]
    | Annotated[list[NamedChoice], Tag(NamedChoice.__name__)],
    Discriminator(_axis_form),
]


class Tuning(_Section):
    """The number of tuning seeds, and the overrides that hold out part of the training data."""

    seeds: Annotated[int, Field(ge=1, le=MAX_SEEDS)]
    set: Overrides


class Fast(_Section):
    """The reduced version: overrides of base and tuning, and the values kept on each axis."""

    set: Overrides = {}
    tuning: Overrides = {}
    axes: dict[str, list[Value]] = {}


class Printed(_Section):
    """An accuracy that the paper prints."""

    mechanism: str
    epsilon: float
    accuracy: float
    panel: Value | None = None


class Target(_Section):
    """The score that the rows with these values of axes should reach, and R-squared if given."""

    where: dict[str, Value] = {}
    accuracy: Share
    r_squared: Share | None = None


class Baseline(_Section):
    """A score to compare with that needs no federation: ridge regression on all training rows."""

    where: dict[str, Value] = {}
    kind: Literal["ridge"]


class GridTables(_Section):
    """The tables of one file; its specs are only checked when the experiment runs."""

    experiment: About
    figure: FigureOptions = FigureOptions()
    base: dict[str, Any]
    axes: dict[str, Axis]
    tuning: Tuning | None = None
    fast: Fast = Fast()
    paper: list[Printed] = []
    targets: list[Target] = []
    baselines: list[Baseline] = []


class GridFile(GridTables):
    """The tables of one file, its name without `.toml`, and its folder if it is a user's own.

    A relative path to the data is looked up in that folder first.
    """

    name: str
    folder: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingGrid:
    """What to train: the base spec and its axes without seeds.

    `held_out` are the overrides for tuning rates, which take `tuning_seeds`; `reduced` says what a
    fast version leaves out; `source` names the file in messages.
    """

    base: Mapping[str, Any]
    axes: Mapping[str, Sequence[Choice]]
    held_out: Mapping[str, Any]
    reduced: str
    source: str
    tuning_seeds: int = 0


def read_grid_files() -> Iterator[GridFile]:
    """Yield every experiment of the folder `grids`; skip files that are only specs of runs."""
    folder = package_files(sottovoce_papers) / "grids"
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".toml"):
            table = parse_text(entry.read_text(encoding="utf-8"), entry.name)
            if "experiment" in table:
                yield parse_grid_file(entry.name.removesuffix(".toml"), table)


def read_grid_file(path: Path) -> GridFile:
    """Return the experiment that a user's own TOML file describes, after checking it."""
    table = read_table(path)
    if "experiment" not in table:
        raise ConfigError(
            f"{path} has no table [experiment], so it is no grid; 'sottovoce experiment init "
            "FILE.toml' writes a grid to start from, and 'sottovoce run' takes the spec of one run"
        )
    return parse_grid_file(path.stem, table, folder=path.parent)


def parse_grid_file(name: str, table: Mapping[str, Any], *, folder: Path | None = None) -> GridFile:
    """Return the experiment that a parsed TOML file describes, after checking it."""
    source = f"{name}.toml"
    try:
        tables = GridTables.model_validate(table)
    except ValidationError as error:
        raise ConfigError(f"{source}: {problem_in(error, GridTables)}") from None
    found = GridFile(name=name, folder=folder, **dict(tables))
    check_held_out(found.base, source)
    for axis in (MECHANISM, EPSILON):
        if axis not in found.axes:
            raise ConfigError(f"{source}: [axes.{axis}] is missing; add it, one value is enough")
    if SEED in found.axes:
        raise ConfigError(
            f"{source}: [axes.{SEED}] is not allowed, the command sets seeds; remove it and give "
            "[experiment] seeds"
        )
    if RATE in found.axes and found.tuning is None:
        raise ConfigError(
            f"{source}: [axes.{RATE}] needs [tuning]; add it to say what data is held out"
        )
    _check_figure(found)
    for axis in dict.fromkeys((EPSILON, RATE, found.figure.x)):
        for choice in choices_of(found.axes.get(axis, [])):
            if isinstance(choice.value, str):
                raise ConfigError(
                    f"{source}: the values of [axes.{axis}] must be numbers, got '{choice.value}'"
                )
    _check_names(found)
    return found


def _check_figure(found: GridFile) -> None:
    drawn = [axis for axis in found.axes if axis not in (MECHANISM, RATE)]
    options = found.figure
    for axis in (options.x, *([options.panels] if options.panels else [])):
        if axis not in drawn:
            raise UnknownNameError.among(f"axis in [figure] of {found.name}.toml", axis, drawn)
    if options.panels in (options.x, EPSILON):
        raise ConfigError(
            f"{found.name}.toml: [figure] panels must not be x or epsilon; choose another axis"
        )
    floors = options.learned_from
    if isinstance(floors, dict):
        panels = choices_of(found.axes[options.panels]) if options.panels else []
        for name in floors:
            if name not in (known := [str(choice.value) for choice in panels]):
                raise UnknownNameError.among(f"panel of {found.name}.toml", name, known)


def _check_names(found: GridFile) -> None:
    mechanisms = [str(choice.value) for choice in choices_of(found.axes[MECHANISM])]
    about = found.experiment
    for name in (about.favorite, about.reference, *(point.mechanism for point in found.paper)):
        if name not in mechanisms:
            raise UnknownNameError.among(f"mechanism of {found.name}.toml", name, mechanisms)
    for where in [one.where for one in found.targets] + [one.where for one in found.baselines]:
        for axis, value in where.items():
            if axis not in found.axes:
                raise UnknownNameError.among(f"axis of {found.name}.toml", axis, found.axes)
            values = [choice.value for choice in choices_of(found.axes[axis])]
            if value not in values:
                raise ConfigError(
                    f"{found.name}.toml: 'where' must name some of {values}, got '{value}'"
                )
    for axis, kept in found.fast.axes.items():
        if axis not in found.axes:
            raise UnknownNameError.among(f"axis of {found.name}.toml", axis, found.axes)
        values = [choice.value for choice in choices_of(found.axes[axis])]
        unknown = [value for value in kept if value not in values]
        if unknown or not kept:
            raise ConfigError(
                f"{found.name}.toml: [fast] axes.{axis} must be some of {values}, got {kept}"
            )


def choices_of(axis: PathAxis | Sequence[NamedChoice]) -> list[Choice]:
    """Return the values of an axis with the overrides of each."""
    if isinstance(axis, PathAxis):
        return [Choice(value=value, overrides={axis.path: value}) for value in axis.values]
    return [Choice(value=c.value, overrides=c.set, removed=c.remove) for c in axis]


def full_grid(grid_file: GridFile) -> TrainingGrid:
    """Return the grid of the full experiment."""
    axes = {name: choices_of(axis) for name, axis in grid_file.axes.items()}
    held_out = grid_file.tuning.set if grid_file.tuning else {}
    return TrainingGrid(
        base=grid_file.base,
        axes=axes,
        held_out=held_out,
        reduced="",
        source=f"{grid_file.name}.toml",
        tuning_seeds=grid_file.tuning.seeds if grid_file.tuning else 0,
    )


def fast_grid(grid_file: GridFile, *, without: Collection[str] = ()) -> TrainingGrid:
    """Return the grid of the reduced version, with a text that says what it leaves out.

    The paths in `without`, which the user sets, are not reduced, nor what lies below them.
    """
    full, fast = full_grid(grid_file), grid_file.fast
    base = copy.deepcopy(dict(full.base))
    omissions = []
    for path, value in fast.set.items():
        if any(f"{path}.".startswith(f"{own}.") for own in without):
            continue
        omissions.append(f"{path} is {value}, not {value_at(base, path)}")
        override(base, path, value, source=f"{grid_file.name}.toml: [fast] {path}")
    held_out = {**full.held_out, **fast.tuning}
    seeds = min(full.tuning_seeds, 1)
    if seeds < full.tuning_seeds and len(fast.axes.get(RATE, full.axes.get(RATE, ()))) > 1:
        omissions.append(f"rates are tuned with {seeds} seed, not {full.tuning_seeds}")
    reduced = "; ".join(omissions)
    changed = dataclasses.replace(
        full, base=base, held_out=held_out, reduced=reduced, tuning_seeds=seeds
    )
    return keep_values(changed, {name: [*map(str, kept)] for name, kept in fast.axes.items()})


def keep_values(grid: TrainingGrid, kept: Mapping[str, Sequence[str]]) -> TrainingGrid:
    """Return a part of a grid: of some axes the values with these names only.

    Raises:
        UnknownNameError: There is no such axis or value.
    """
    axes, omissions = dict(grid.axes), [grid.reduced] if grid.reduced else []
    for name, values in kept.items():
        if name not in axes:
            raise UnknownNameError.among("axis", name, axes)
        known = [str(choice.value) for choice in axes[name]]
        for value in values:
            if value not in known:
                raise UnknownNameError.among(f"value of the axis '{name}'", value, known)
        axes[name] = [choice for choice in axes[name] if str(choice.value) in values]
        omissions.append(
            f"{name.replace('_', ' ')} {', '.join(values)} only, of {', '.join(known)}"
        )
    return dataclasses.replace(grid, axes=axes, reduced="; ".join(omissions))


def check_held_out(base: Mapping[str, Any], source: str) -> None:
    """Refuse a base spec that tests on held-out training data: pages state test accuracies."""
    path = "data.validation_fraction"
    if value_at(base, path) != _DEFAULT:
        raise ConfigError(
            f"{source}: the base spec must not have '{path}', since final accuracies are those on "
            "test data; leave it out, or write it into [tuning]"
        )


def value_at(table: Any, path: str) -> object:
    """Return the value at a dotted path, or "the default" if it is not set."""
    for step in path.split("."):
        if isinstance(table, list):
            table = table[int(step)]
        else:
            table = table.get(step, {}) if isinstance(table, dict) else {}
    return _DEFAULT if table == {} else table
