"""The study behind every learning experiment: expand the grid, tune, train and summarize."""

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
from sottovoce.runs.loading import (
    check_code_allowed,
    locate_data,
    override,
    parse_assignments,
)
from sottovoce_papers.experiment import (
    GRID_SUFFIX,
    HELD_OUT,
    UNVERIFIED,
    Cell,
    Experiment,
    Findings,
    Row,
    Settings,
    find,
    register_experiment,
)
from sottovoce_papers.grid_changes import add_mechanisms, change_base
from sottovoce_papers.grid_files import (
    EPSILON,
    MECHANISM,
    RATE,
    SEED,
    GridFile,
    TrainingGrid,
    fast_grid,
    full_grid,
    keep_values,
    read_grid_file,
    read_grid_files,
)
from sottovoce_papers.learning.figures import figures
from sottovoce_papers.learning.learned import Floors
from sottovoce_papers.learning.rows import summaries, table, verdict
from sottovoce_papers.learning.targets import baseline_scores, sentences, with_targets
from sottovoce_papers.learning.tuning import (
    FIRST_TUNING_SEED,
    Group,
    TunedRate,
    choose_rates,
    group_of,
    promising_rates,
)
from sottovoce_papers.sweep import (
    Choice,
    Trial,
    TrialResult,
    expand,
    label,
    open_store,
    run_in_store,
)
from sottovoce_papers.workers import Train

# Runs trials; the text names them in progress reports.
Run = Callable[[Sequence[Trial], str], list[TrialResult]]

DATA_VARIABLE = "SOTTOVOCE_DATA"  # The folder of data sets, also for worker processes.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The results of both stages: the tuning trials, the chosen rates, and the final trials."""

    tuning: Sequence[TrialResult]
    rates: Mapping[Group, TunedRate]
    final: Sequence[TrialResult]

    @property
    def failures(self) -> list[str]:
        stages = (("tuning, ", self.tuning), ("", self.final))
        return [f"{s}{label(r.key)}: {r.error}" for s, found in stages for r in found if r.error]


def register_grid_experiments() -> None:
    """Register every experiment of the folder `grids`."""
    for grid_file in read_grid_files():
        register_experiment(
            _experiment(grid_file, grid_file.name),
            module=f"sottovoce_papers.grids.{grid_file.name}",
        )


def find_experiment(name: str) -> Experiment:
    """Return the experiment of this name, or the grid in a file whose name ends in `.toml`."""
    if not name.endswith(GRID_SUFFIX):
        return find(name)
    path = Path(name)
    return _experiment(read_grid_file(path), path.name)


def _experiment(grid_file: GridFile, name: str) -> Experiment:
    about = grid_file.experiment
    return Experiment(
        name=name,
        title=about.title,
        claim=about.claim,
        default_seeds=about.seeds,
        run=functools.partial(study, grid_file),
        fast_seeds=about.fast_seeds,
        data=about.data,
        trains=True,
        has_axes=True,
        takes_mechanisms=True,
    )


def default_train() -> Train:
    """Return the function that trains; it is imported late because torch is slow to load."""
    from sottovoce_papers.trial import trial

    return trial


def study(grid_file: GridFile, settings: Settings, train: Train | None = None) -> Findings:
    """Train the grid with every seed and compare the mechanisms at each budget."""
    grid = _chosen_grid(grid_file, settings)
    assert settings.folder is not None, "a study needs a folder for its trials"
    with use_data_dir(settings.data_dir), open_store(settings.folder) as store:

        def run(trials: Sequence[Trial], what: str) -> list[TrialResult]:
            return run_in_store(
                store,
                _prepared(trials, grid_file, settings),
                jobs=settings.jobs,
                on_step=settings.on_step,
                train=train or default_train(),
                what=what,
            )

        trained = _tune_and_train(grid_file, grid, settings.seeds, run)
        if not any(result.result for result in trained.final):
            raise ConfigError(f"every trial failed; the first: {trained.failures[0]}")
        cells = _prepared(_expand(grid, grid.axes), grid_file, settings)
        scores = baseline_scores(grid_file, cells)
    rows = summaries(trained.final, trained.rates, seeds=settings.seeds)
    floors = Floors(options=grid_file.figure, rows=rows)
    told = verdict(grid_file, rows, trained.failures, floors.has_learned)
    lines = [told, *sentences(grid_file, rows, scores), *floors.sentences()]
    shown = floors.with_floors(table(rows, grid_file.figure.target_accuracy))
    return Findings(
        rows=with_targets(grid_file, rows, shown, scores),
        figures=figures(grid_file, rows, scores),
        verdict="\n".join(line for line in lines if line),
        method="\n".join([*_method(grid_file, grid, settings), *_claims(trained.final)]),
        tuning=_tuning(grid_file, grid, trained),
        reduced=_reduced(grid_file, grid, settings),
        failures=trained.failures,
        warnings=_warnings(trained.final),
        trials=_trial_rows(trained),
    )


def _chosen_grid(grid_file: GridFile, settings: Settings) -> TrainingGrid:
    changes = parse_assignments(settings.changes, "--set")
    full = full_grid(grid_file)
    grid = fast_grid(grid_file, without=changes) if settings.fast else full
    about, chosen = grid_file.experiment, settings.only.get(MECHANISM)
    if chosen is not None and not {about.favorite, about.reference} <= set(chosen):
        raise ConfigError(
            f"'{about.favorite}' and '{about.reference}' are compared with each other; name both "
            f"with --only {MECHANISM}=..., or leave it out"
        )
    grid = keep_values(grid, settings.only)
    if settings.device is not None:
        grid = _on_device(grid, settings.device)
    named = {choice.value: choice for choice in full.axes[MECHANISM]}
    return add_mechanisms(change_base(grid, changes), settings.added, named[about.favorite])


def _on_device(grid: TrainingGrid, device: str) -> TrainingGrid:
    base = copy.deepcopy(dict(grid.base))
    override(base, "runtime.device", device, source=f"--device {device}")
    return dataclasses.replace(grid, base=base)


def _expand(grid: TrainingGrid, axes: Mapping[str, Sequence[Choice]]) -> list[Trial]:
    return expand(grid.base, axes, source=grid.source)


def _prepared(trials: Sequence[Trial], grid_file: GridFile, settings: Settings) -> Sequence[Trial]:
    """Return the trials of a user's own grid with data that can be opened from this folder.

    Code that a spec names is refused unless it is allowed.
    """
    for trial in trials:
        check_code_allowed(trial.spec, allow_code=settings.allow_code)
    if grid_file.folder is None:
        return trials
    folders = [grid_file.folder, Path()]
    return [dataclasses.replace(t, spec=locate_data(t.spec, folders)) for t in trials]


@contextlib.contextmanager
def use_data_dir(folder: Path | None) -> Iterator[None]:
    """Look for data sets in `folder` within the context; specs do not say where they are."""
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


def _tune_and_train(grid_file: GridFile, grid: TrainingGrid, seeds: int, run: Run) -> Trained:
    """Tune where there are several rates, then train with the chosen ones."""
    about = grid_file.experiment
    final = [
        trial
        for trial in _expand(grid, {**grid.axes, SEED: _seeds(1, seeds)})
        if int(trial.key[SEED] or 0) <= about.seeds_of(trial.key[MECHANISM], seeds)
    ]
    tried: list[TrialResult] = []
    rates: Mapping[Group, TunedRate] = {}
    if RATE in grid.axes:
        # Expanded before anything is trained, so that a wrong spec of either stage fails early.
        held_out = [] if len(grid.axes[RATE]) == 1 else _held_out(grid)

        tried = _tune(held_out, run) if held_out else []
        rates = choose_rates(tried) if held_out else _only_rate(final)
        final = [trial for trial in final if rates[group_of(trial.key)].rate == trial.key[RATE]]
    return Trained(tuning=tried, rates=rates, final=run(final, "trials"))


def _tune(held_out: Sequence[Trial], run: Run) -> list[TrialResult]:
    """Try every rate with one seed, then the best ones with the others.

    Rates far from the best would take most of the time and could not win.
    """
    tried = run([t for t in held_out if t.key[SEED] == FIRST_TUNING_SEED], "tuning")
    promising = promising_rates(tried)
    others = [
        trial
        for trial in held_out
        if trial.key[SEED] != FIRST_TUNING_SEED
        and trial.key[RATE] in promising[group_of(trial.key)]
    ]
    return tried + (run(others, "tuning") if others else [])


def _seeds(first: int, count: int) -> list[Choice]:
    return [Choice(value=n, overrides={"seed": n}) for n in range(first, first + count)]


def _held_out(grid: TrainingGrid) -> list[Trial]:
    stage = [Choice(value="held-out data", overrides=grid.held_out)]
    seeds = _seeds(FIRST_TUNING_SEED, grid.tuning_seeds)
    # The overrides of the stage come last, and its name is not part of the keys.
    trials = _expand(grid, {**grid.axes, SEED: seeds, "stage": stage})
    return [
        Trial(key={k: v for k, v in t.key.items() if k != "stage"}, spec=t.spec) for t in trials
    ]


def _only_rate(final: Sequence[Trial]) -> dict[Group, TunedRate]:
    return {
        group_of(trial.key): TunedRate(rate=trial.key[RATE], accuracy=None, at_edge=False)
        for trial in final
    }


def _reduced(grid_file: GridFile, grid: TrainingGrid, settings: Settings) -> str:
    """Return what the run leaves out of the study, seeds included; empty for the full study."""
    planned = grid_file.experiment.seeds
    fewer = f"{settings.seeds} seeds, not {planned}" if settings.seeds < planned else ""
    told = "; ".join(part for part in (grid.reduced, fewer) if part)
    return f"{told}." if told else ""


def _method(grid_file: GridFile, grid: TrainingGrid, settings: Settings) -> Iterator[str]:
    privacy, about = grid.base.get("privacy", {}), grid_file.experiment
    fewer = about.seeds_of(None, settings.seeds)
    others = (
        ""
        if fewer == settings.seeds
        else (f" ({about.favorite}; {about.reference}) or 1 to {fewer} (all others)")
    )
    yield (
        f"Every mechanism is trained with the seeds 1 to {settings.seeds}{others}; accuracies are "
        "means over them with Student's 95% interval, on test data, after the last round. Noise is "
        "calibrated to the asked epsilon; epsilon spent is the largest that the accountant finds "
        f"over seeds, at delta = {privacy.get('delta')}, adjacency "
        f"{privacy.get('adjacency', 'zero-out')}, {privacy.get('level')} level."
    )
    if about.population:
        # Changes can alter who takes part, so the number in the file may be wrong then.
        who = "users" if settings.changes else about.population
        yield (
            f"Epsilon holds for the {who} of this study, who may be known to take "
            "part in every round. It assumes no larger population from which users were sampled in "
            "secret, as in studies with a population of a million."
        )
    if settings.added:
        names = ", ".join(one.name for one in settings.added)
        yield f"Added to the grid: {names}, with all other settings as for {about.favorite}."
    yield "Every trial is listed in trials.csv with the hash of its spec."


def _claims(results: Sequence[TrialResult]) -> list[str]:
    """Return what the epsilon of a mechanism assumes about plug-ins that nothing has verified."""
    found: dict[str, list[Cell]] = {}
    for one in results:
        for clause in ((one.result or {}).get("assumes") or "").split("; "):
            if clause.endswith(UNVERIFIED):
                found.setdefault(clause, []).append(one.key[MECHANISM])
    return [
        f"The epsilon of {', '.join(map(str, dict.fromkeys(names)))} assumes that {clause}."
        for clause, names in found.items()
    ]


def _other_seeds(count: int) -> str:
    if count == 1:
        return "one other seed"
    return (
        f"{count} other seeds (all rates with the first of these, then the best and those next to "
        "it with all)"
    )


def _tuning(grid_file: GridFile, grid: TrainingGrid, trained: Trained) -> str:
    """Return how the settings were chosen, and whether a ledger counts the choice."""
    told, tuning = [], grid_file.tuning
    if RATE in grid.axes and tuning is not None and len(grid.axes[RATE]) > 1:
        rates = ", ".join(f"{choice.value:g}" for choice in grid.axes[RATE])
        held = ", ".join(f"{path} = {value}" for path, value in grid.held_out.items())
        told.append(
            f"Learning rates ({rates}) are chosen for each mechanism and epsilon on held-out "
            f"training data ({held}{_held_out_rows(trained)}) by the mean accuracy of "
            f"{_other_seeds(grid.tuning_seeds)}; the chosen one is then trained on all training "
            f"data. {HELD_OUT} `rate at edge` marks a rate at an end of its grid."
        )
    if grid_file.experiment.tuned:
        told.append(grid_file.experiment.tuned)
    return " ".join(told) or "The settings are constants that were not tuned."


def _held_out_rows(trained: Trained) -> str:
    """Return the number of held-out rows, if the trials know it."""
    known = [(one.result or {}).get("test_samples") for one in trained.tuning]
    counts = sorted({int(count) for count in known if count})
    return f": {' or '.join(f'{count:,}' for count in counts)} rows" if counts else ""


def _warnings(results: Sequence[TrialResult]) -> list[str]:
    """Return each warning of the trials once, with the number of trials that gave it."""
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
