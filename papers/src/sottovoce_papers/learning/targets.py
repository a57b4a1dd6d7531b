"""What a study is asked to reach, and baselines that need no federation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sottovoce_papers.experiment import Cell, Row
from sottovoce_papers.grid_files import Baseline, GridFile, Target
from sottovoce_papers.learning.rows import Summary, interval_of

if TYPE_CHECKING:
    from sottovoce.runs.spec import RunSpec
    from sottovoce_papers.sweep import Key, Trial

_RIDGE = 1e-3  # Times the number of rows; features have a variance of 1.


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of a baseline on the test data."""

    baseline: Baseline
    accuracy: float
    r_squared: float

    @property
    def name(self) -> str:
        return "ridge regression"


def matches(where: Mapping[str, Cell], key: "Key") -> bool:
    """Return whether a row has all these values of axes."""
    return all(key.get(name) == value for name, value in where.items())


def baseline_scores(grid_file: GridFile, trials: Sequence["Trial"]) -> list[Score]:
    """Compute each baseline on the rows of the first trial that it is for."""
    found = []
    for baseline in grid_file.baselines:
        own = [trial.spec for trial in trials if matches(baseline.where, trial.key)]
        if own:
            found.append(_ridge(baseline, own[0]))
    return found


def _ridge(baseline: Baseline, spec: "RunSpec") -> Score:
    """Fit ridge regression to all training rows; cut its answers to the range of the targets."""
    from sottovoce.runs.inputs import load_inputs

    inputs = load_inputs(spec)
    x, y = (part.double().flatten(start_dim=1).numpy() for part in inputs.clients.samples())
    pairs = inputs.task.test_pairs(inputs.task.num_test_samples)
    tested, wanted = (part.cpu().double().flatten(start_dim=1).numpy() for part in pairs)
    center, scale = x.mean(axis=0), x.std(axis=0)
    scale[scale == 0.0] = 1.0
    z, mean = (x - center) / scale, y.mean(axis=0)
    weights = np.linalg.solve(z.T @ z + _RIDGE * len(z) * np.eye(z.shape[1]), z.T @ (y - mean))
    told = np.clip((tested - center) / scale @ weights + mean, y.min(axis=0), y.max(axis=0))
    spread = ((wanted - wanted.mean(axis=0)) ** 2).sum(axis=0)
    return Score(
        baseline=baseline,
        accuracy=1.0 - float(np.abs(told - wanted).mean()),
        r_squared=1.0 - float((((told - wanted) ** 2).sum(axis=0) / spread).mean()),
    )


def with_targets(
    grid_file: GridFile, rows: Sequence[Summary], cells: Sequence[Row], scores: Sequence[Score]
) -> list[Row]:
    """Return the page's table with the columns of targets and baselines, if there are any."""
    if not grid_file.targets and not scores:
        return list(cells)
    return [
        {**own, **_of_target(grid_file.targets, row), **_of_baseline(scores, row)}
        for row, own in zip(rows, cells, strict=True)
    ]


def _of_target(targets: Sequence[Target], row: Summary) -> dict[str, Cell]:
    if not targets:
        return {}
    asked = next((one for one in targets if matches(one.where, row.key)), None)
    found: dict[str, Cell] = {
        "target": asked.accuracy if asked else None,
        "target_reached": reached(row.accuracies, asked.accuracy) if asked else None,
    }
    if any(one.r_squared is not None for one in targets):
        least = asked.r_squared if asked else None
        found["target_r_squared"] = least
        found["r_squared_reached"] = None if least is None else reached(row.r_squared, least)
    return found


def _of_baseline(scores: Sequence[Score], row: Summary) -> dict[str, Cell]:
    if not scores:
        return {}
    own = next((one for one in scores if matches(one.baseline.where, row.key)), None)
    return {
        "ridge": own.accuracy if own else None,
        "ridge_r_squared": own.r_squared if own else None,
    }


def reached(scores: Mapping[int, float], target: float) -> str:
    """Return whether the mean over seeds is above a target: "yes", "no" or "by the mean only".

    It is "yes" if the whole interval is above it.
    """
    if not scores:
        return "no result"
    mean, low, _ = interval_of(scores)
    if mean < target:
        return "no"
    return "yes" if low is not None and low >= target else "by the mean only"


def sentences(grid_file: GridFile, rows: Sequence[Summary], scores: Sequence[Score]) -> list[str]:
    """Return what the page says about targets and baselines."""
    lines = []
    for asked in grid_file.targets:
        for row in rows:
            if not matches(asked.where, row.key) or row.mean is None:
                continue
            text = f"{row.full_name}: asked {asked.accuracy:.2%}, reached {row.mean:.2%}"
            text += f" ({reached(row.accuracies, asked.accuracy)})"
            if asked.r_squared is not None and row.r_squared:
                mean, _, _ = interval_of(row.r_squared)
                told = reached(row.r_squared, asked.r_squared)
                text += f"; R-squared asked {asked.r_squared:g}, reached {mean:.4f} ({told})"
            lines.append(f"{text}.")
    for score in scores:
        where = ", ".join(map(str, score.baseline.where.values()))
        lines.append(
            f"Ridge regression on all training rows together{f' ({where})' if where else ''}: "
            f"{score.accuracy:.2%}, R-squared {score.r_squared:.4f} (answers are cut to the range "
            "of the targets)."
        )
    return lines
