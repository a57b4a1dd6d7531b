"""Many specs, trained side by side; each result is kept at once, so that a sweep can go on.

FOLDER/trials/<spec hash>.json holds the axes' values, the whole spec with its hash, and the result
or the error. What is there, whole and of this version, is not trained again; what failed is.
"""

import contextlib
import copy
import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.core import files, parameter_rules
from sottovoce.core.errors import ConfigError, OutputError
from sottovoce.runs.loading import override, parse
from sottovoce.runs.spec import RunSpec
from sottovoce.version import __version__
from sottovoce_papers.experiment import Cell, OnStep
from sottovoce_papers.workers import NEEDED, Attempt, Round, Train, attempts

TRIALS, LOCK = "trials", "lock"
RESULTS_VERSION = 1  # to be raised when the same spec gives other numbers
MAX_JOBS = 256

Key = Mapping[str, Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One value of an axis: what the key says, which dotted paths it sets, and which it removes."""

    value: Cell
    overrides: Mapping[str, Any]
    removed: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One cell of the grid: the axes' values and the spec that they make."""

    key: Key
    spec: RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What a trial gave: `result` as training returned it, or the `error` in its place."""

    key: Key
    spec_hash: str
    result: Mapping[str, Any] | None
    error: str | None
    seconds: float


def expand(base: Mapping[str, Any], axes: Mapping[str, Sequence[Choice]]) -> list[Trial]:
    """Every combination of the axes' choices, the last axis fastest, as a checked spec.

    The name of a spec stays the base's: equal specs have equal hashes and are trained once.
    """
    for name, choices in axes.items():
        if not choices:
            raise ConfigError(f"axis '{name}' has no values; give one or more, or leave it out")
        if len({choice.value for choice in choices}) < len(choices):
            raise ConfigError(f"axis '{name}' has a value twice; give each once")
    return [
        Trial(
            key={name: choice.value for name, choice in zip(axes, combination, strict=True)},
            spec=_spec(base, combination),
        )
        for combination in itertools.product(*axes.values())
    ]


def _spec(base: Mapping[str, Any], combination: Sequence[Choice]) -> RunSpec:
    table = copy.deepcopy(dict(base))
    source = ", ".join(str(choice.value) for choice in combination) or "the base"
    for choice in combination:
        for path, value in choice.overrides.items():
            override(table, path, copy.deepcopy(value), source=f"{source}: {path}")
    # Last: a mechanism without privacy takes away the budget that another axis has set.
    for path in (path for choice in combination for path in choice.removed):
        _remove(table, path)
    return parse(table, source)


def _remove(table: dict[str, Any], path: str) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        table = table.get(parent, {})
    table.pop(last, None)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Path]:
    """The place of `folder`'s trials, to which no other process has access while this lasts."""
    store = folder / TRIALS
    with files.explain_os_errors("create", store):
        store.mkdir(parents=True, exist_ok=True)
        (store / LOCK).touch()
    with files.locked(store / LOCK):
        for leftover in store.glob(".*.json.*"):  # half written when a process was killed
            leftover.unlink()
        yield store


def run_trials(
    trials: Sequence[Trial],
    folder: Path,
    *,
    jobs: int,
    on_step: OnStep,
    train: Train,
    what: str = "trials",
) -> list[TrialResult]:
    """The result of every trial, in order; trains what `folder` does not hold, `jobs` at a time.

    A trial that fails is recorded with its error and the others go on. `on_step` hears of `what`.
    """
    with opened(folder) as store:
        return run_in(store, trials, jobs=jobs, on_step=on_step, train=train, what=what)


def run_in(
    store: Path, trials: Sequence[Trial], *, jobs: int, on_step: OnStep, train: Train, what: str
) -> list[TrialResult]:
    """As `run_trials`, in a store that is open: several sweeps in a row, and nobody between."""
    parameter_rules.integer("jobs", jobs, low=1, high=MAX_JOBS)
    unique = {trial.spec.hash: trial for trial in trials}
    found = {h: r for h, trial in unique.items() if (r := stored(store, trial)) and r.result}
    missing = [trial for h, trial in unique.items() if h not in found]
    found |= _trained(missing, store, _Watch(on_step, what, len(unique)), jobs, train)
    return [dataclasses.replace(found[trial.spec.hash], key=trial.key) for trial in trials]


@dataclass(frozen=True, slots=True)
class _Watch:
    on_step: OnStep
    what: str
    total: int

    def say(self, completed: int, note: str) -> None:
        self.on_step(self.what, completed, self.total, note)


def _trained(
    missing: Sequence[Trial], store: Path, watch: _Watch, jobs: int, train: Train
) -> dict[str, TrialResult]:
    done: dict[str, TrialResult] = {}
    kept = watch.total - len(missing)
    watch.say(kept, f"{kept} kept from before" if kept else "")

    def on_round(number: int, row: Round) -> None:
        watch.say(kept + len(done), f"{label(missing[number].key)}: round {row.get('round')}")

    specs = [trial.spec for trial in missing]
    with contextlib.closing(attempts(specs, jobs=jobs, train=train, on_round=on_round)) as finished:
        for number, attempt in finished:
            trial = missing[number]
            done[trial.spec.hash] = _write(store, trial, attempt)
            failed = ": failed" if attempt.error else ""
            watch.say(kept + len(done), f"{label(trial.key)}{failed}")
    return done


def label(key: Key) -> str:
    """A key in one line: words as they are, numbers with their names."""
    parts = (
        v if isinstance(v, str) else f"{name.replace('_', ' ')} {v}" for name, v in key.items()
    )
    return ", ".join(parts)


def _write(store: Path, trial: Trial, attempt: Attempt) -> TrialResult:
    record = {
        "results_version": RESULTS_VERSION,
        "sottovoce": __version__,
        "key": dict(trial.key),
        "spec": trial.spec.plain(),
        "spec_hash": trial.spec.hash,
        "result": attempt.result,
        "error": attempt.error,
        "seconds": attempt.seconds,
    }
    files.write_json(store / f"{trial.spec.hash}.json", record)
    return TrialResult(
        key=trial.key,
        spec_hash=trial.spec.hash,
        result=attempt.result,
        error=attempt.error,
        seconds=attempt.seconds,
    )


def stored(store: Path, trial: Trial) -> TrialResult | None:
    """What an earlier sweep kept of this trial; None unless it is whole, ours and of this spec."""
    path = store / f"{trial.spec.hash}.json"
    if not path.is_file():
        return None
    try:
        record = files.read_json(path)
    except OutputError:
        return None
    if not isinstance(record, dict) or record.get("results_version") != RESULTS_VERSION:
        return None
    # The spec that the hash stands for, whole: a file that was renamed or edited is no result.
    spec = json.loads(json.dumps(trial.spec.plain()))
    if record.get("spec_hash") != trial.spec.hash or record.get("spec") != spec:
        return None
    result, error, seconds = (record.get(name) for name in ("result", "error", "seconds"))
    whole = isinstance(result, dict) and set(result) >= NEEDED
    if not isinstance(seconds, int | float) or not (whole or isinstance(error, str)):
        return None
    return TrialResult(
        key=trial.key, spec_hash=trial.spec.hash, result=result, error=error, seconds=seconds
    )
