"""Training of one spec in memory, for sweeps; nothing is written and no messages are sent."""

import math
import time
from collections.abc import Callable
from typing import Any

from sottovoce.core.errors import ConfigError
from sottovoce.federated.training import Halted
from sottovoce.learning.task import Task
from sottovoce.runs.build import build
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.outcome import Metrics, metrics_row, result_of, stop_if_diverged
from sottovoce.runs.resolve import resolve
from sottovoce.runs.spec import RunSpec

OnRound = Callable[[Metrics], None]
MOST_EVALUATIONS = 20  # Of a curve: for small models, tests take longer than rounds.


def trial(spec: RunSpec, *, on_round: OnRound | None = None) -> dict[str, Any]:
    """Train `spec` and return its result, its learning curve and how long it took."""
    if spec.runtime.messages == "stored":
        raise ConfigError(
            "a trial stores no messages; set runtime.messages = 'packed' or 'none', or use run()"
        )
    begun = time.perf_counter()
    resolved = resolve(load_inputs(spec))
    training = build(resolved)
    progress, rows, halted = training.start(), [], None
    started = time.perf_counter()
    stops = _evaluated_rounds(spec.rounds)
    while progress.rounds_done < spec.rounds:
        outcome = training.step(progress)
        if isinstance(outcome, Halted):
            halted = outcome.reason
            break
        progress, record = outcome
        evaluated = progress.rounds_done in stops
        rows.append(metrics_row(resolved, training.record, progress, record, evaluated=evaluated))
        stop_if_diverged(rows[-1])
        if on_round:
            on_round(rows[-1])
    seconds = time.perf_counter() - started
    result = _with_published_score(result_of(resolved, training, rows, progress, halted))
    asked = sum(row["clients_asked"] for row in rows)
    return {
        **{key: value for key, value in result.items() if key != "clients"},
        "seconds": time.perf_counter() - begun,
        "training_seconds": seconds,
        "clients_per_second": asked / seconds if seconds else math.nan,
        "trivial_score": _trivial_score(resolved.task),
        "test_samples": resolved.task.num_test_samples,
        "curve": [
            {key: row[key] for key in ("round", "accuracy", "loss", "epsilon")}
            for row in map(_with_published_score, rows)
            if row["accuracy"] is not None
        ],
    }


def _with_published_score(row: dict[str, Any]) -> dict[str, Any]:
    """Return figures in which a regression has 1 - mean absolute error, as papers print it."""
    error = row.get("metrics", {}).get("mean absolute error")
    return row if error is None else {**row, "accuracy": 1.0 - error}


def _trivial_score(task: Task) -> float | None:
    """Return the score of the best constant answer on the test data, in the figure of the trials.

    It is the share of the most frequent class. For a regression it is 1 - mean absolute error of
    the median, as the figure of the trials is; the R-squared of a constant is at most 0.
    """
    if task.objective != "regression":
        return task.trivial_score()
    _, targets = task.test_pairs(task.num_test_samples)
    return 1.0 - float((targets - targets.quantile(0.5, dim=0)).abs().mean())


def _evaluated_rounds(rounds: int) -> frozenset[int]:
    """Return the rounds after which the model is tested; the last round is one of them."""
    count = min(rounds, MOST_EVALUATIONS)
    return frozenset(math.ceil((i + 1) * rounds / count) for i in range(count))
