"""Learning experiments as TOML files: a run's spec, the axes of a grid, and a reduced version.

    [experiment]         title, claim, seeds, fast_seeds, favourite, reference, data
    [figure]             x = "epsilon", x_log, y_label, panels = "an axis", curves = true,
                         target_accuracy: what is drawn, see `Look`
    [base]               a run's spec
    [[axes.mechanism]]   value = "one bit", set = {path = ...}, remove = ["path"]
    [axes.epsilon]       path = "privacy.epsilon", values = [...]
    [axes.learning_rate] likewise; the rate is then tuned, as [tuning] says
    [axes.anything]      likewise, or [[axes.anything]] with names: a further axis of the grid
    [tuning]             seeds, set = {path = ...}: what holds out part of the training data
    [fast]               set = {path = ...}, axes = {epsilon = [...]}: the reduced version;
                         tuning = {path = ...} stands in place of what [tuning] sets
    [[paper]]            mechanism, epsilon, accuracy: a printed value, for the picture;
                         panel = ... if there are several

`grids/NAME.toml` is the experiment NAME. Paths are dotted, as in `--set`.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files as package_files
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import sottovoce_papers
from sottovoce.core.errors import ConfigError, UnknownNameError
from sottovoce.runs.loading import override, parse_text
from sottovoce_papers.experiment import MAX_SEEDS
from sottovoce_papers.sweep import Choice

MECHANISM, EPSILON, RATE, SEED = "mechanism", "epsilon", "learning_rate", "seed"

Value = str | int | float
Seeds = Annotated[int, Field(ge=2, le=MAX_SEEDS)]
Overrides = dict[str, Any]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class About(_Section):
    """What is claimed, and which mechanism is compared with which; `data` has to be fetched."""

    title: str
    claim: str
    seeds: Seeds
    fast_seeds: Seeds = 3
    favourite: str
    reference: str
    data: str = ""


class Look(_Section):
    """What is drawn.

    x                the axis below the main picture; all others but the panels' tell lines apart.
    panels           the axis each value of which has pictures of its own.
    curves           whether there is a second picture, accuracy by round: of every mechanism at the
                     largest budget, or of the favourite where x is not epsilon.
    target_accuracy  how many rounds it takes to get there is then in the table and the verdict.
    """

    x: str = EPSILON
    x_log: bool = True
    y_label: str = "test accuracy"
    panels: str | None = None
    curves: bool = True
    target_accuracy: Annotated[float, Field(gt=0, lt=1)] | None = None


class NamedChoice(_Section):
    value: Value
    set: Overrides = {}
    remove: list[str] = []


class PathAxis(_Section):
    path: str
    values: list[Value]


class Tuning(_Section):
    seeds: Annotated[int, Field(ge=1, le=MAX_SEEDS)]
    set: Overrides


class Fast(_Section):
    set: Overrides = {}
    tuning: Overrides = {}
    axes: dict[str, list[Value]] = {}


class Printed(_Section):
    mechanism: str
    epsilon: float
    accuracy: float
    panel: Value | None = None


class Catalogue(_Section):
    """One file, checked but for its specs: those are read when the experiment runs."""

    name: str
    experiment: About
    figure: Look = Look()
    base: dict[str, Any]
    axes: dict[str, PathAxis | list[NamedChoice]]
    tuning: Tuning | None = None
    fast: Fast = Fast()
    paper: list[Printed] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What to train: a base, the axes over it but for seeds, and what was `reduced`, in words.

    `held_out` are the overrides with which rates are tuned.
    """

    base: Mapping[str, Any]
    axes: Mapping[str, Sequence[Choice]]
    held_out: Mapping[str, Any]
    reduced: str


def catalogues() -> Iterator[Catalogue]:
    """Every experiment in the package's catalogue; bare specs lie there too and are passed over."""
    folder = package_files(sottovoce_papers) / "grids"
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".toml"):
            table = parse_text(entry.read_text(encoding="utf-8"), entry.name)
            if "experiment" in table:
                yield catalogue_of(entry.name.removesuffix(".toml"), table)


def catalogue_of(name: str, table: Mapping[str, Any]) -> Catalogue:
    """The catalogue that plain data describes."""
    source = f"{name}.toml"
    try:
        found = Catalogue.model_validate({**table, "name": name})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{source}: '{where}': {first['msg'].lower()}") from None
    for axis in (MECHANISM, EPSILON):
        if axis not in found.axes:
            raise ConfigError(f"{source}: [axes.{axis}] is missing; one value is enough")
    if SEED in found.axes:
        raise ConfigError(f"{source}: [axes.{SEED}] is the command's; give [experiment] seeds")
    if RATE in found.axes and found.tuning is None:
        raise ConfigError(f"{source}: [axes.{RATE}] needs [tuning], which says what is held out")
    _check_figure(found)
    for axis in dict.fromkeys((EPSILON, RATE, found.figure.x)):
        for choice in choices_of(found.axes.get(axis, [])):
            if isinstance(choice.value, str):
                raise ConfigError(f"{source}: [axes.{axis}] holds numbers, got '{choice.value}'")
    _check_names(found)
    return found


def _check_figure(found: Catalogue) -> None:
    drawn = [axis for axis in found.axes if axis not in (MECHANISM, RATE)]
    look = found.figure
    for axis in (look.x, *([look.panels] if look.panels else [])):
        if axis not in drawn:
            raise UnknownNameError.among(f"axis in [figure] of {found.name}.toml", axis, drawn)
    if look.panels in (look.x, EPSILON):
        raise ConfigError(f"{found.name}.toml: [figure] panels cannot be x or epsilon")


def _check_names(found: Catalogue) -> None:
    mechanisms = [str(choice.value) for choice in choices_of(found.axes[MECHANISM])]
    about = found.experiment
    for name in (about.favourite, about.reference, *(point.mechanism for point in found.paper)):
        if name not in mechanisms:
            raise UnknownNameError.among(f"mechanism of {found.name}.toml", name, mechanisms)
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
    """An axis's values with what each of them changes."""
    if isinstance(axis, PathAxis):
        return [Choice(value=value, overrides={axis.path: value}) for value in axis.values]
    return [Choice(value=c.value, overrides=c.set, removed=c.remove) for c in axis]


def full_grid(catalogue: Catalogue) -> Grid:
    """The experiment as it is described."""
    axes = {name: choices_of(axis) for name, axis in catalogue.axes.items()}
    held_out = catalogue.tuning.set if catalogue.tuning else {}
    return Grid(base=catalogue.base, axes=axes, held_out=held_out, reduced="")


def fast_grid(catalogue: Catalogue) -> Grid:
    """The reduced version, and in words what it leaves out."""
    full, fast = full_grid(catalogue), catalogue.fast
    base = copy.deepcopy(dict(full.base))
    said = []
    for path, value in fast.set.items():
        said.append(f"{path} is {value}, not {_at(base, path)}")
        override(base, path, value, source=f"{catalogue.name}.toml: [fast] {path}")
    axes = dict(full.axes)
    for name, kept in fast.axes.items():
        axes[name] = [choice for choice in full.axes[name] if choice.value in kept]
        every = ", ".join(str(choice.value) for choice in full.axes[name])
        said.append(f"{name.replace('_', ' ')} {', '.join(map(str, kept))} only, of {every}")
    held_out = {**full.held_out, **fast.tuning}
    return Grid(base=base, axes=axes, held_out=held_out, reduced="; ".join(said))


def _at(table: Any, path: str) -> object:
    for step in path.split("."):
        if isinstance(table, list):
            table = table[int(step)]
        else:
            table = table.get(step, {}) if isinstance(table, dict) else {}
    return "the default" if table == {} else table
