"""The one study behind every learning experiment: expand, tune, train, summarise."""

import contextlib
import copy
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.core.errors import ConfigError
from sottovoce.runs.loading import override
from sottovoce_papers.catalogue import (
    EPSILON,
    RATE,
    SEED,
    Catalogue,
    Grid,
    catalogues,
    fast_grid,
    full_grid,
)
from sottovoce_papers.experiment import Experiment, Findings, Row, Settings, enter
from sottovoce_papers.learning.figures import figures
from sottovoce_papers.learning.rows import summaries, table, verdict
from sottovoce_papers.learning.tuning import FIRST_TUNING_SEED, Group, TunedRate, chosen, group_of
from sottovoce_papers.sweep import Choice, Trial, TrialResult, expand, label, opened, run_in
from sottovoce_papers.workers import Train

# Runs trials; the word says to whoever watches what they are for.
Run = Callable[[Sequence[Trial], str], list[TrialResult]]

DATA_VARIABLE = "SOTTOVOCE_DATA"  # where data sets are looked for, also by worker processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Both stages: what was tuned with, which rates that gave, and the final trials."""

    tuning: Sequence[TrialResult]
    rates: Mapping[Group, TunedRate]
    final: Sequence[TrialResult]

    @property
    def failures(self) -> list[str]:
        stages = (("tuning, ", self.tuning), ("", self.final))
        return [f"{s}{label(r.key)}: {r.error}" for s, found in stages for r in found if r.error]


def enter_catalogue() -> None:
    """Enter every experiment of the catalogue into the register."""
    for catalogue in catalogues():
        about = catalogue.experiment
        enter(
            Experiment(
                name=catalogue.name,
                title=about.title,
                claim=about.claim,
                default_seeds=about.seeds,
                run=functools.partial(study, catalogue),
                fast_seeds=about.fast_seeds,
                data=about.data,
                trains=True,
            ),
            module=f"sottovoce_papers.grids.{catalogue.name}",
        )


def default_train() -> Train:
    """How models are trained; imported late, since torch takes a while to load."""
    from sottovoce_papers.trial import trial

    return trial


def study(catalogue: Catalogue, settings: Settings, train: Train | None = None) -> Findings:
    """Train the grid with every seed and compare the mechanisms at each budget."""
    grid = fast_grid(catalogue) if settings.fast else full_grid(catalogue)
    if settings.device is not None:
        grid = _on_device(grid, settings.device)
    assert settings.folder is not None, "whoever runs a study says where trials are kept"
    with data_in(settings.data_dir), opened(settings.folder) as store:

        def run(trials: Sequence[Trial], what: str) -> list[TrialResult]:
            return run_in(
                store,
                trials,
                jobs=settings.jobs,
                on_step=settings.on_step,
                train=train or default_train(),
                what=what,
            )

        trained = _trained(catalogue, grid, settings.seeds, run)
    if not any(result.result for result in trained.final):
        raise ConfigError(f"every trial failed; the first: {trained.failures[0]}")
    rows = summaries(trained.final, trained.rates, seeds=settings.seeds)
    return Findings(
        rows=table(rows, catalogue.figure.target_accuracy),
        figures=figures(catalogue, rows),
        verdict=verdict(catalogue, rows, trained.failures),
        method=_method(catalogue, grid, settings),
        reduced=_reduced(catalogue, grid, settings),
        failures=trained.failures,
        warnings=_warnings(trained.final),
        trials=_trial_rows(trained),
    )


def _on_device(grid: Grid, device: str) -> Grid:
    base = copy.deepcopy(dict(grid.base))
    override(base, "runtime.device", device, source=f"--device {device}")
    return dataclasses.replace(grid, base=base)


@contextlib.contextmanager
def data_in(folder: Path | None) -> Iterator[None]:
    """Data sets are looked for in `folder` while this lasts; no spec says where they lie."""
    if folder is None:
        yield
        return
    before = os.environ.get(DATA_VARIABLE)
    os.environ[DATA_VARIABLE] = str(folder.absolute())
    try:
        yield
    finally:
        os.environ.pop(DATA_VARIABLE)
        if before is not None:
            os.environ[DATA_VARIABLE] = before


def _trained(catalogue: Catalogue, grid: Grid, seeds: int, run: Run) -> Trained:
    """Tune where there are rates to choose from, then train what was chosen."""
    final = expand(grid.base, {**grid.axes, SEED: _seeds(1, seeds)})
    tried: list[TrialResult] = []
    rates: Mapping[Group, TunedRate] = {}
    if RATE in grid.axes:
        # Made before anything is trained: a spec that is wrong in either stage stops here.
        held_out = [] if len(grid.axes[RATE]) == 1 else _held_out(catalogue, grid)

        tried = run(held_out, "tuning") if held_out else []
        rates = chosen(tried) if held_out else _only_rate(final)
        final = [trial for trial in final if rates[group_of(trial.key)].rate == trial.key[RATE]]
    return Trained(tuning=tried, rates=rates, final=run(final, "trials"))


def _seeds(first: int, count: int) -> list[Choice]:
    return [Choice(value=n, overrides={"seed": n}) for n in range(first, first + count)]


def _held_out(catalogue: Catalogue, grid: Grid) -> list[Trial]:
    assert catalogue.tuning is not None, "the catalogue has checked that"
    stage = [Choice(value="held-out data", overrides=grid.held_out)]
    seeds = _seeds(FIRST_TUNING_SEED, catalogue.tuning.seeds)
    # The stage's overrides come last, and its name stays out of the keys.
    trials = expand(grid.base, {**grid.axes, SEED: seeds, "stage": stage})
    return [
        Trial(key={k: v for k, v in t.key.items() if k != "stage"}, spec=t.spec) for t in trials
    ]


def _only_rate(final: Sequence[Trial]) -> dict[Group, TunedRate]:
    return {
        group_of(trial.key): TunedRate(rate=trial.key[RATE], accuracy=None, at_edge=False)
        for trial in final
    }


def _reduced(catalogue: Catalogue, grid: Grid, settings: Settings) -> str:
    if not settings.fast:
        return ""
    planned = catalogue.experiment.seeds
    fewer = f"{settings.seeds} seeds, not {planned}" if settings.seeds < planned else ""
    return "; ".join(part for part in (grid.reduced, fewer) if part) + "."


def _method(catalogue: Catalogue, grid: Grid, settings: Settings) -> str:
    privacy = grid.base.get("privacy", {})
    lines = [
        f"Every mechanism is trained with the seeds 1 to {settings.seeds}; accuracies are means "
        "over them with Student's 95% interval, on test data, after the last round. Noise is "
        "calibrated to the asked epsilon; epsilon spent is the largest that the accountant finds "
        f"over seeds, at delta = {privacy.get('delta')}, adjacency "
        f"{privacy.get('adjacency', 'zero-out')}, {privacy.get('level')} level.",
    ]
    tuning = catalogue.tuning
    if RATE in grid.axes and tuning is not None and len(grid.axes[RATE]) > 1:
        rates = ", ".join(f"{choice.value:g}" for choice in grid.axes[RATE])
        held = ", ".join(f"{path} = {value}" for path, value in grid.held_out.items())
        lines.append(
            f"Learning rates ({rates}) are chosen for each mechanism and epsilon on held-out "
            f"training data ({held}) by the mean accuracy of {tuning.seeds} other seeds; the "
            "chosen one is then trained on all training data. What the choice itself gives away "
            "of the held-out data is not charged."
        )
    lines.append("Every trial stands in trials.csv with the hash of its spec.")
    return "\n".join(lines)


def _warnings(results: Sequence[TrialResult]) -> list[str]:
    """What trials warned of, once each, with how often."""
    counts: dict[str, int] = {}
    for result in results:
        for warning in (result.result or {}).get("warnings", []):
            counts[warning] = counts.get(warning, 0) + 1
    return [f"{warning} ({count} of {len(results)} trials)" for warning, count in counts.items()]


def _trial_rows(trained: Trained) -> list[Row]:
    stages = (("tuning", trained.tuning), ("final", trained.final))
    return [_trial_row(stage, result) for stage, found in stages for result in found]


def _trial_row(stage: str, result: TrialResult) -> dict[str, Any]:
    found = result.result or {}
    return {
        "stage": stage,
        **{f"asked_{name}" if name == EPSILON else name: v for name, v in result.key.items()},
        **{name: found.get(name) for name in ("accuracy", "loss", "epsilon", "rounds")},
        "seconds": round(result.seconds, 3),
        "spec_hash": result.spec_hash,
        "error": result.error,
    }
