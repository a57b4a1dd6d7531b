"""Target models for attacks: UDP-FL's mechanisms at a budget, each at its own learning rate."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Domain, Vector
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.training import Halted
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.task import Task
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.release import ReleaseTerms
from sottovoce.planning.calibrate import CalibrationTarget, calibrate_cached
from sottovoce.runs.build import build
from sottovoce.runs.inputs import load_data, load_inputs, task_and_data
from sottovoce.runs.loading import override, parse
from sottovoce.runs.resolve import resolve
from sottovoce.runs.spec import RunSpec
from sottovoce_papers.udp_mechanisms import DELTA, MECHANISMS, NO_PRIVACY, MechanismAtBudget

_TUNING_SEED, _VALIDATION_FRACTION = 101, 0.1


def for_one_release(compared: MechanismAtBudget, domain: Domain) -> Mechanism:
    """Return the mechanism that spends the whole budget on one release (zero-out, delta = 1e-5)."""
    given = dict(MECHANISMS[compared.mechanism])
    registration = registry.find(given.pop("kind"))
    if compared.epsilon is None:
        return registration.build(domain, given)
    target = CalibrationTarget(rounds=1, epsilon=compared.epsilon, delta=DELTA)
    terms = ReleaseTerms(adjacency=Adjacency.ZERO_OUT)
    return registration.build(
        domain, calibrate_cached(registration, [domain], given, target, terms)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetModel:
    """A trained model, the data on which it was trained and tested, and its accuracy."""

    model: Vector
    task: Task
    data: Dataset
    accuracy: float
    learning_rate: float


def target_model(
    base: Mapping[str, Any], compared: MechanismAtBudget, rates: Sequence[float], *, seed: int
) -> TargetModel:
    """Train the base spec with one mechanism at the learning rate that is best on held-out rows.

    The privacy cost of choosing the rate on held-out rows is not charged, as in the other studies.
    """
    rate = rates[0] if len(rates) == 1 else _best_rate(base, compared, rates)
    spec = _spec(base, compared, rate, seed=seed)
    task, model = _train(spec)
    return TargetModel(
        model=model,
        task=task,
        data=load_data(spec, SeededRandomness(spec.seed)),
        accuracy=task.evaluate(model).score,
        learning_rate=rate,
    )


def untrained(base: Mapping[str, Any]) -> tuple[Task, Dataset]:
    """Return the task of the base spec, with the initial model, and its data."""
    spec = _spec(base, MechanismAtBudget(mechanism=NO_PRIVACY, epsilon=None), 1.0, seed=1)
    schedule = SeededRandomness(spec.seed)
    data = load_data(spec, schedule)
    return task_and_data(spec, data, schedule)


def untrained_target(base: Mapping[str, Any]) -> TargetModel:
    """Return the initial model as a target for comparison."""
    task, data = untrained(base)
    model = task.initial_model()
    return TargetModel(
        model=model,
        task=task,
        data=data,
        accuracy=task.evaluate(model).score,
        learning_rate=0.0,
    )


def _best_rate(
    base: Mapping[str, Any], compared: MechanismAtBudget, rates: Sequence[float]
) -> float:
    held_out = copy.deepcopy(dict(base))
    override(held_out, "data.validation_fraction", _VALIDATION_FRACTION, source="tuning")
    accuracies = []
    for rate in rates:
        task, model = _train(_spec(held_out, compared, rate, seed=_TUNING_SEED))
        accuracies.append(task.evaluate(model).score)
    return rates[max(range(len(rates)), key=accuracies.__getitem__)]


def _spec(
    base: Mapping[str, Any], compared: MechanismAtBudget, rate: float, *, seed: int
) -> RunSpec:
    table = copy.deepcopy(dict(base))
    table["mechanism"] = dict(MECHANISMS[compared.mechanism])
    override(table, "seed", seed, source="the study")
    override(table, "algorithm.server_learning_rate", rate, source="the study")
    if compared.epsilon is not None:
        override(table, "privacy.epsilon", compared.epsilon, source="the study")
    return parse(table, "the study's spec")


def _train(spec: RunSpec) -> tuple[Task, Vector]:
    resolved = resolve(load_inputs(spec))
    training = build(resolved)
    progress = training.start()
    while progress.rounds_done < spec.rounds:
        outcome = training.step(progress)
        assert not isinstance(outcome, Halted), "the noise is calibrated to all rounds"
        progress, _ = outcome
    return resolved.task, progress.model
