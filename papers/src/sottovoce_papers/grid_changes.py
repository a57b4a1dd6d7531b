"""Changes of a grid from the command line: other values in its base spec, further mechanisms."""

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sottovoce.core.errors import ConfigError
from sottovoce.runs.loading import override
from sottovoce_papers.added_mechanisms import AddedMechanism
from sottovoce_papers.grid_files import (
    MECHANISM,
    SEED,
    TrainingGrid,
    check_held_out,
    value_at,
)
from sottovoce_papers.sweep import Choice

_EPSILON = "privacy.epsilon"


def change_base(grid: TrainingGrid, changes: Mapping[str, Any]) -> TrainingGrid:
    """Return a grid with other values in the base spec, and a text that says what was changed.

    The values also hold where rates are tuned.

    Raises:
        ConfigError: An axis or the seeds set what lies at one of the paths, or the final
            accuracies would not be those on test data.
    """
    if not changes:
        return grid
    base, told = copy.deepcopy(dict(grid.base)), []
    for path, value in changes.items():
        _check_free(grid, path)
        told.append(f"{path} is {value}, not {value_at(grid.base, path)}")
        override(base, path, copy.deepcopy(value), source=f"--set {path}")
    check_held_out(base, "--set")
    reduced = "; ".join(part for part in (grid.reduced, f"changed: {', '.join(told)}") if part)
    held_out = {path: value for path, value in grid.held_out.items() if path not in changes}
    return dataclasses.replace(grid, base=base, held_out=held_out, reduced=reduced)


def _check_free(grid: TrainingGrid, path: str) -> None:
    if path == SEED:
        raise ConfigError(
            "--set seed: every trial has a seed of its own; give their number with --seeds"
        )

    # An axis with more of such values first: it is the one that the path is about.
    def others(axis: str) -> int:
        return sum(not _touches(c.overrides, path) for c in grid.axes[axis])

    for axis in sorted(grid.axes, key=others):
        choices = grid.axes[axis]
        setting = [c for c in choices if _touches([*c.overrides, *c.removed], path)]
        if setting:
            raise ConfigError(
                f"--set {path}: the axis '{axis}' determines it (for '{setting[0].value}'), so it "
                f"cannot be the same in all trials; choose among the values of the axis with "
                f"--only {axis}=..., or change the axis in a grid file of your own"
            )


def add_mechanisms(
    grid: TrainingGrid, added: Sequence[AddedMechanism], favorite: Choice
) -> TrainingGrid:
    """Return a grid with further mechanisms; all else is for them as for the favorite.

    Raises:
        ConfigError: The favorite is trained without a budget, or another axis sets parameters of
            the mechanism.
    """
    if not added:
        return grid
    if _EPSILON in favorite.removed:
        raise ConfigError(
            f"{grid.source}: '{favorite.value}', whose settings an added mechanism takes, has no "
            "budget; leave out --add, or add it to a grid with budgets"
        )
    for axis, choices in grid.axes.items():
        if axis != MECHANISM and any(_touches(choice.overrides, MECHANISM) for choice in choices):
            raise ConfigError(
                f"{grid.source}: the axis '{axis}' sets parameters of the grid's own mechanisms, "
                "so no other can be added; leave out --add"
            )
    own = {p: v for p, v in favorite.overrides.items() if not _touches([p], MECHANISM)}
    further = [
        Choice(value=one.name, overrides={MECHANISM: one.table, **own}, removed=favorite.removed)
        for one in added
    ]
    return dataclasses.replace(
        grid, axes={**grid.axes, MECHANISM: [*grid.axes[MECHANISM], *further]}
    )


def _touches(paths: Iterable[str], path: str) -> bool:
    """Return whether one of the paths is this path, lies below it or leads to it."""
    return any(
        f"{path}.".startswith(f"{one}.") or f"{one}.".startswith(f"{path}.") for one in paths
    )
