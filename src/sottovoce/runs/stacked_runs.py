"""Train several specs that differ only in seed and records, at the same time where possible.

What cannot be stacked (client level, other algorithms and channels, modules that `torch.func`
refuses) is trained one run after another by the ordinary engine, with the same result up to
rounding.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ConfigError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.cohorts import facts_of
from sottovoce.federated.simulation.stacked import Pool, StackedRun, can_stack, train_stacked
from sottovoce.federated.training import Halted
from sottovoce.learning.clients import as_inputs
from sottovoce.learning.datasets import Dataset, with_training_rows
from sottovoce.learning.task import Task
from sottovoce.runs.build import temporary_training
from sottovoce.runs.inputs import load_inputs, section_of, traits_of
from sottovoce.runs.resolve import Resolved, resolve
from sottovoce.runs.spec import RunSpec

Rows = NDArray[np.int64]
OnRound = Callable[[int, int], None]  # The number of models, and of their finished rounds.


def as_simulation(spec: RunSpec, seed: int) -> RunSpec:
    """Return a resolved spec as a seeded simulation from another seed, without budgets.

    It runs in this process and draws decoded values instead of encoding messages, unless the
    channel reveals only sums or hides senders.

    The noise that budgets asked for is already in the spec. A client with other records might spend
    a little more with it and stop before the others. An epsilon that is not a budget, but from
    which an algorithm derives its noise, stays.
    """
    channel = spec.channel.build()
    hidden = channel.only_sums or channel.hides_sender
    messages = spec.runtime.messages if hidden else "none"  # Such channels need real messages.
    runtime = spec.runtime.model_copy(update={"messages": messages, "backend": "fast"})
    changes: dict[str, Any] = {"seed": seed, "randomness": "seeded", "runtime": runtime}
    if section_of(spec).enforces_budget:
        groups = tuple(g.model_copy(update={"epsilon": None}) for g in spec.privacy.groups)
        unbound = {"epsilon": None, "groups": groups}
        changes["privacy"] = spec.privacy.model_copy(update=unbound)
    return spec.model_copy(update=changes)


def train_many(
    spec: RunSpec, data: Dataset, runs: Sequence[tuple[int, Rows]], on_round: OnRound | None = None
) -> Vector:
    """Train several runs as simulations (see `as_simulation`) and return their last models.

    Args:
        spec: The resolved spec of all runs.
        data: The data from which they take their records.
        runs: For each run its seed and the indices of the training rows of `data` that it uses; at
            least one run.
        on_round: Called after each round with the number of models that are trained together and
            the number of rounds that they have finished.

    Returns:
        The parameters of each model as a row, in the order of `runs`.

    Raises:
        ConfigError: The spec needs the owners of rows, or public samples, which are not known here.
    """
    _check_rows_alone(spec)
    first = _resolved(spec, data, *runs[0])
    if _stacks(first, data):
        return _side_by_side(spec, data, runs, first, on_round)
    return np.stack([_alone(spec, data, seed, rows, on_round) for seed, rows in runs])


def _check_rows_alone(spec: RunSpec) -> None:
    if spec.data.partition.build().needs_owners:
        raise ConfigError(
            f"data.partition '{spec.data.partition.kind}' splits rows by their owners, who are not "
            "known for the rows of shadow models; choose a run with another partition to attack"
        )
    traits = traits_of(spec)
    if traits.holds_out:
        what = traits.named or f"algorithm '{spec.algorithm.kind}'"
        raise ConfigError(
            f"the {what} holds out public samples, and shadow models would hold out others, "
            "including candidates; choose a run with another aggregation or algorithm to attack"
        )


def _resolved(spec: RunSpec, data: Dataset, seed: int, rows: Rows) -> Resolved:
    wanted = as_simulation(spec, seed)
    given = with_training_rows(data, rows)
    try:
        return resolve(load_inputs(wanted, given))
    except ConfigError:
        # Coordinates of some mechanisms cannot be drawn one by one, but their codes can.
        runtime = wanted.runtime.model_copy(update={"messages": "packed"})
        return resolve(load_inputs(wanted.model_copy(update={"runtime": runtime}), given))


def _stacks(resolved: Resolved, data: Dataset) -> bool:
    if not (
        resolved.channel.shows_each
        and facts_of(resolved.sampling, 1).independent_rate == 1.0  # All clients in every round.
        and resolved.spec.runtime.downlink == "float32"
        and not resolved.task.is_random  # Every run seeds its own dropout.
        and can_stack(resolved.algorithm, resolved.parts, resolved.task.dimension)
    ):
        return False
    return _vmap_takes(resolved.task, data)


def _vmap_takes(task: Task, data: Dataset) -> bool:
    """Return whether gradients of several models can be computed at once; some modules fail."""
    models = task.tensor(task.initial_model()).expand(2, -1)
    features = as_inputs(data.train_features[:2])
    labels = torch.from_numpy(np.array(data.train_labels[:2]))
    pair = features.to(task.device).expand(2, *features.shape)
    try:
        task.stacked_gradients(models, pair, labels.to(task.device).expand(2, *labels.shape))
    except (RuntimeError, ValueError):
        return False
    return True


def _side_by_side(
    spec: RunSpec,
    data: Dataset,
    runs: Sequence[tuple[int, Rows]],
    first: Resolved,
    on_round: OnRound | None,
) -> Vector:
    algorithm, device = first.algorithm, first.task.device
    stacked = [_stacked(_resolved(spec, data, seed, rows), rows) for seed, rows in runs]

    def report(number: int) -> None:
        if on_round:
            on_round(len(runs), number)

    return train_stacked(
        first.task,
        algorithm,
        pool_of(data, device),
        stacked,
        rounds=spec.rounds,
        rotated=first.spec.rotation == "on",
        on_round=report,
    )


def pool_of(data: Dataset, device: torch.device) -> Pool:
    """Return the training data as tensors on the device."""
    features = as_inputs(data.train_features)
    labels = torch.from_numpy(np.array(data.train_labels))
    return Pool(features=features.to(device), labels=labels.to(device))


def _stacked(resolved: Resolved, rows: Rows) -> StackedRun:
    own = rows[resolved.clients.rows]
    return StackedRun(
        run=resolved.run,
        randomness=SeededRandomness(resolved.spec.seed),
        model=resolved.task.initial_model(),
        parts=resolved.parts,
        shares=np.split(own, np.cumsum(resolved.clients.sizes)[:-1]),
    )


def _alone(spec: RunSpec, data: Dataset, seed: int, rows: Rows, on_round: OnRound | None) -> Vector:
    resolved = _resolved(spec, data, seed, rows)
    with temporary_training(resolved) as training:
        progress = training.start()
        while progress.rounds_done < spec.rounds:
            outcome = training.step(progress)
            if isinstance(outcome, Halted):
                break
            progress = outcome[0]
            if on_round:
                on_round(1, progress.rounds_done)
    return progress.model
