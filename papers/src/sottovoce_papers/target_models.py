"""Models for attacks to aim at: UDP-FL's mechanisms at a budget, each at a rate that suits it."""

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
from sottovoce.runs.inputs import load_data, load_inputs, task_of
from sottovoce.runs.loading import override, parse
from sottovoce.runs.resolve import resolve
from sottovoce.runs.spec import RunSpec
from sottovoce_papers.udp_mechanisms import DELTA, MECHANISMS, NO_PRIVACY, Contender

_TUNING_SEED, _VALIDATION_FRACTION = 101, 0.1


def for_one_release(contender: Contender, domain: Domain) -> Mechanism:
    """The mechanism that spends the whole budget on one release (zero-out, delta = 1e-5)."""
    given = dict(MECHANISMS[contender.mechanism])
    registration = registry.find(given.pop("kind"))
    if contender.epsilon is None:
        return registration.build(domain, given)
    target = CalibrationTarget(rounds=1, epsilon=contender.epsilon, delta=DELTA)
    terms = ReleaseTerms(adjacency=Adjacency.ZERO_OUT)
    return registration.build(
        domain, calibrate_cached(registration, [domain], given, target, terms)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetModel:
    """A trained model, the data it saw (training) and did not see (test), and how good it is."""

    model: Vector
    task: Task
    data: Dataset
    accuracy: float
    learning_rate: float


def target_model(
    base: Mapping[str, Any], contender: Contender, rates: Sequence[float], *, seed: int
) -> TargetModel:
    """The base spec trained by a contender, at the rate that does best on held-out rows.

    What the choice of the rate gives away of those rows is not charged, as in our other studies.
    """
    rate = rates[0] if len(rates) == 1 else _best_rate(base, contender, rates)
    spec = _spec(base, contender, rate, seed=seed)
    task, model = _trained(spec)
    return TargetModel(
        model=model,
        task=task,
        data=load_data(spec, SeededRandomness(spec.seed)),
        accuracy=task.evaluate(model).accuracy,
        learning_rate=rate,
    )


def untrained(base: Mapping[str, Any]) -> tuple[Task, Dataset]:
    """The base spec's task, with the model that training starts from, and its data."""
    spec = _spec(base, Contender(mechanism=NO_PRIVACY, epsilon=None), 1.0, seed=1)
    schedule = SeededRandomness(spec.seed)
    data = load_data(spec, schedule)
    return task_of(spec, data, schedule), data


def untrained_target(base: Mapping[str, Any]) -> TargetModel:
    """The model that training starts from, as a target for comparison."""
    task, data = untrained(base)
    model = task.initial_model()
    return TargetModel(
        model=model,
        task=task,
        data=data,
        accuracy=task.evaluate(model).accuracy,
        learning_rate=0.0,
    )


def _best_rate(base: Mapping[str, Any], contender: Contender, rates: Sequence[float]) -> float:
    held_out = copy.deepcopy(dict(base))
    override(held_out, "data.validation_fraction", _VALIDATION_FRACTION, source="tuning")
    accuracies = []
    for rate in rates:
        task, model = _trained(_spec(held_out, contender, rate, seed=_TUNING_SEED))
        accuracies.append(task.evaluate(model).accuracy)
    return rates[max(range(len(rates)), key=accuracies.__getitem__)]


def _spec(base: Mapping[str, Any], contender: Contender, rate: float, *, seed: int) -> RunSpec:
    table = copy.deepcopy(dict(base))
    table["mechanism"] = dict(MECHANISMS[contender.mechanism])
    override(table, "seed", seed, source="the study")
    override(table, "algorithm.server_learning_rate", rate, source="the study")
    if contender.epsilon is not None:
        override(table, "privacy.epsilon", contender.epsilon, source="the study")
    return parse(table, "the study's spec")


def _trained(spec: RunSpec) -> tuple[Task, Vector]:
    resolved = resolve(load_inputs(spec))
    training = build(resolved)
    progress = training.start()
    while progress.rounds_done < spec.rounds:
        outcome = training.step(progress)
        assert not isinstance(outcome, Halted), "noise is calibrated to all rounds"
        progress, _ = outcome
    return resolved.task, progress.model
