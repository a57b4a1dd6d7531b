"""Training of many specs in parallel; results are stored at once, so that a sweep can be resumed.

FOLDER/trials/<spec hash>.json holds the values of the axes, the complete spec with its hash, and
the result or the error. A trial with a complete result of this version is not trained again; a
failed trial is, and so is one whose mechanism is a plug-in that has changed since.
"""

import contextlib
import copy
import dataclasses
import hashlib
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.core import files, parameter_rules
from sottovoce.core.errors import ConfigError, OutputError, PluginError
from sottovoce.mechanisms.registry import MECHANISMS
from sottovoce.runs.loading import override, parse
from sottovoce.runs.spec import RunSpec
from sottovoce.version import __version__
from sottovoce_papers.experiment import Cell, OnStep
from sottovoce_papers.workers import NEEDED, Attempt, Round, Train, attempts

TRIALS, LOCK = "trials", "lock"
RESULTS_VERSION = 1  # Raise it when a change makes the same spec give other numbers.
MAX_JOBS = 256

Key = Mapping[str, Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One value of an axis: its name, and the dotted paths of the spec that it sets and removes."""

    value: Cell
    overrides: Mapping[str, Any]
    removed: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One cell of a grid: the values of the axes and the spec that they give."""

    key: Key
    spec: RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """The outcome of a trial: the result that training returned, or an error message."""

    key: Key
    spec_hash: str
    result: Mapping[str, Any] | None
    error: str | None
    seconds: float


def expand(
    base: Mapping[str, Any], axes: Mapping[str, Sequence[Choice]], *, source: str = ""
) -> list[Trial]:
    """Return every combination of choices as a checked spec; the last axis varies fastest.

    `source` is the file of the grid, which messages then name. Specs keep the name of the base, so
    that equal specs have equal hashes and are trained once.
    """
    for name, choices in axes.items():
        if not choices:
            raise ConfigError(f"axis '{name}' has no values; give one or more, or leave it out")
        if len({choice.value for choice in choices}) < len(choices):
            raise ConfigError(f"axis '{name}' has a value twice; give each value once")
    return [
        Trial(
            key={name: choice.value for name, choice in zip(axes, combination, strict=True)},
            spec=_spec(base, combination, source),
        )
        for combination in itertools.product(*axes.values())
    ]


def _spec(base: Mapping[str, Any], combination: Sequence[Choice], file: str) -> RunSpec:
    table = copy.deepcopy(dict(base))
    values = ", ".join(str(choice.value) for choice in combination) or "the base"
    source = f"{file}: {values}" if file else values
    for choice in combination:
        for path, value in choice.overrides.items():
            override(table, path, copy.deepcopy(value), source=f"{source}: {path}")
    # Done last: a mechanism without privacy removes the budget that another axis has set.
    for path in (path for choice in combination for path in choice.removed):
        _remove(table, path)
    return parse(table, source)


def _remove(table: dict[str, Any], path: str) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        table = table.get(parent, {})
    table.pop(last, None)


@contextlib.contextmanager
def open_store(folder: Path) -> Iterator[Path]:
    """Open the folder that stores trials, and lock it against other processes."""
    store = folder / TRIALS
    with files.explain_os_errors("create", store):
        store.mkdir(parents=True, exist_ok=True)
        (store / LOCK).touch()
    with files.locked(store / LOCK):
        # Delete files that a killed process left incomplete.
        for leftover in store.glob(".*.json.*"):
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
    """Return the result of every trial in order; train those that `folder` lacks, `jobs` at a time.

    A failed trial is stored with its error, and the others go on. `on_step` is called with `what`.
    """
    with open_store(folder) as store:
        return run_in_store(store, trials, jobs=jobs, on_step=on_step, train=train, what=what)


def run_in_store(
    store: Path, trials: Sequence[Trial], *, jobs: int, on_step: OnStep, train: Train, what: str
) -> list[TrialResult]:
    """Run trials as `run_trials` does, in an open store, whose lock covers several sweeps."""
    parameter_rules.integer("jobs", jobs, low=1, high=MAX_JOBS)
    unique = {trial.spec.hash: trial for trial in trials}
    found = {h: r for h, trial in unique.items() if (r := read_stored(store, trial)) and r.result}
    missing = [trial for h, trial in unique.items() if h not in found]
    found |= _train_missing(missing, store, _Progress(on_step, what, len(unique)), jobs, train)
    return [dataclasses.replace(found[trial.spec.hash], key=trial.key) for trial in trials]


@dataclass(frozen=True, slots=True)
class _Progress:
    on_step: OnStep
    what: str
    total: int

    def report(self, completed: int, note: str) -> None:
        self.on_step(self.what, completed, self.total, note)


def _train_missing(
    missing: Sequence[Trial], store: Path, progress: _Progress, jobs: int, train: Train
) -> dict[str, TrialResult]:
    done: dict[str, TrialResult] = {}
    kept = progress.total - len(missing)
    progress.report(kept, f"{kept} stored by earlier runs" if kept else "")

    def on_round(number: int, row: Round) -> None:
        progress.report(kept + len(done), f"{label(missing[number].key)}: round {row.get('round')}")

    specs = [trial.spec for trial in missing]
    with contextlib.closing(attempts(specs, jobs=jobs, train=train, on_round=on_round)) as finished:
        for number, attempt in finished:
            trial = missing[number]
            done[trial.spec.hash] = _write(store, trial, attempt)
            failed = ": failed" if attempt.error else ""
            progress.report(kept + len(done), f"{label(trial.key)}{failed}")
    return done


def label(key: Key) -> str:
    """Return a key as one line: strings as they are, numbers after the names of their axes."""
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
        "plug_in": plug_in_digest(trial.spec),
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


def read_stored(store: Path, trial: Trial) -> TrialResult | None:
    """Return the stored result of a trial, or None unless it is complete and of the same spec.

    A plug-in mechanism must be the same, too.
    """
    path = store / f"{trial.spec.hash}.json"
    if not path.is_file():
        return None
    try:
        record = files.read_json(path)
    except OutputError:
        return None
    if not isinstance(record, dict) or record.get("results_version") != RESULTS_VERSION:
        return None
    # Compare the complete spec, because the file may have been renamed or edited.
    spec = json.loads(json.dumps(trial.spec.plain()))
    if record.get("spec_hash") != trial.spec.hash or record.get("spec") != spec:
        return None
    if record.get("plug_in") != plug_in_digest(trial.spec):
        return None
    result, error, seconds = (record.get(name) for name in ("result", "error", "seconds"))
    whole = isinstance(result, dict) and set(result) >= NEEDED
    if not isinstance(seconds, int | float) or not (whole or isinstance(error, str)):
        return None
    return TrialResult(
        key=trial.key, spec_hash=trial.spec.hash, result=result, error=error, seconds=seconds
    )


def plug_in_digest(spec: RunSpec) -> str | None:
    """Return a digest of the file that defines the mechanism; None if it is Sottovoce's own."""
    kind = spec.mechanism.kind
    if kind not in MECHANISMS.names() or MECHANISMS.is_ours(kind):
        return None
    try:
        module = sys.modules[MECHANISMS.find(kind).factory.__module__]
        return hashlib.blake2b(Path(module.__file__ or "").read_bytes(), digest_size=16).hexdigest()
    except (PluginError, OSError, KeyError):  # The trial itself tells what is wrong.
        return None
