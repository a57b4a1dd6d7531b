"""The algorithm that a spec names, from its tables."""

import dataclasses
from collections.abc import Sequence
from typing import Any, assert_never

from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import ConfigError
from sottovoce.core.randomness import Randomness, SeededRandomness
from sottovoce.federated.algorithms.algorithm import Algorithm
from sottovoce.federated.algorithms.connected import ConnectedAverage
from sottovoce.federated.algorithms.controls import BYTES_PER_COORDINATE
from sottovoce.federated.algorithms.fedavg import (
    FedAvg,
    LocalSgd,
    LocalWork,
    RobustMean,
    SampleClippedGradient,
    budget_penalties,
)
from sottovoce.federated.algorithms.recipe import RECIPES, Setting, recipe_of
from sottovoce.federated.algorithms.scaffold import SampleScaffold, Scaffold
from sottovoce.federated.median import CoordinateMedian
from sottovoce.federated.mode_connectivity import ModeConnectivity, ProxySet
from sottovoce.federated.trimmed_mean import TrimmedMean
from sottovoce.learning.clients import Clients
from sottovoce.learning.task import Task
from sottovoce.runs import nbafl
from sottovoce.runs.groups import Group
from sottovoce.runs.spec import (
    AlgorithmSpec,
    DirectSpec,
    EpochsSpec,
    FedAvgSpec,
    FixedSizeSpec,
    MeanSpec,
    MedianSpec,
    ModeConnectivitySpec,
    NbAflSpec,
    RunSpec,
    ScaffoldSpec,
    TrimmedMeanSpec,
)

MOST_BYTES = 2 << 30  # that rows of all clients may take


def algorithm_of(
    spec: RunSpec,
    task: Task,
    clients: Clients,
    groups: Sequence[Group],
    *,
    randomness: Randomness,
    proxy: ProxySet | None,
) -> Algorithm:
    RECIPES.find(spec.algorithm.kind)  # a name that is unknown, or that two claim, is refused
    match spec.algorithm:
        case FedAvgSpec(aggregation=ModeConnectivitySpec() as joining) as given:
            return _connected(spec, given, joining, task, groups, proxy)
        case FedAvgSpec() as given:
            return _fedavg(spec, given, groups)
        case ScaffoldSpec() as given:
            return _scaffold(spec, given, task, clients)
        case NbAflSpec():
            _check_all_records(spec)
            return nbafl.algorithm(spec, clients, randomness)
        case AlgorithmSpec() as given:
            return _registered(spec, given, task, clients, randomness)
        case _:
            assert_never(spec.algorithm)


def _registered(
    spec: RunSpec, given: AlgorithmSpec, task: Task, clients: Clients, randomness: Randomness
) -> Algorithm:
    """What a recipe in a file of its own makes of its keys."""
    setting = Setting(
        unit=Unit(spec.privacy.level),
        clip_norm=spec.privacy.clip_norm,
        record_sampling_rate=spec.privacy.record_sampling_rate,
        exact_sums=spec.runtime.messages != "none",
        rounds=spec.rounds,
        task=task,
        clients=clients,
        randomness=randomness,
    )
    algorithm = recipe_of(given.kind, given.parameters).build(setting)
    if algorithm.unit is not setting.unit:
        raise ConfigError(
            f"algorithm '{given.kind}' protects each {algorithm.unit}; set privacy.level = "
            f"'{algorithm.unit}', or use another algorithm"
        )
    if algorithm.record_sampling_rate != setting.record_sampling_rate:
        raise ConfigError(
            f"algorithm '{given.kind}' does not sample records; drop "
            "'privacy.record_sampling_rate', or use another algorithm"
        )
    return algorithm


def with_every_key(spec: RunSpec) -> RunSpec:
    """The spec with the defaults of a registered algorithm written out, for its hash holds them."""
    given = spec.algorithm
    if not isinstance(given, AlgorithmSpec):
        return spec
    recipe: Any = recipe_of(given.kind, given.parameters)
    every = {"kind": given.kind, **dataclasses.asdict(recipe)}
    return spec.model_copy(update={"algorithm": AlgorithmSpec.model_validate(every)})


def algorithm_word(spec: RunSpec) -> str | None:
    """The plug-in whose word a run's privacy rests on beside its mechanisms'; None for our own.

    Messages are projected onto its domain here, but what a sample changes of them it says itself.
    """
    if not isinstance(spec.algorithm, AlgorithmSpec):
        return None
    return RECIPES.plug_in(spec.algorithm.kind)


def check_gathering(spec: RunSpec, algorithm: Algorithm, dimension: int, num_clients: int) -> None:
    """Whoever needs each message must be able to see and to hold all of a round."""
    if not algorithm.gathers:
        return
    if not isinstance(spec.channel, DirectSpec):
        raise ConfigError(
            f"{_what_gathers(spec)} needs each message, and the channel '{spec.channel.kind}' lets "
            "nobody see it; set channel.kind = 'direct', or use the algorithm 'fedavg' with "
            "aggregation 'mean'"
        )
    fixed = spec.sampling.size if isinstance(spec.sampling, FixedSizeSpec | EpochsSpec) else None
    count = fixed or num_clients
    _check_memory(f"{_what_gathers(spec)} holds each message of a round", count, dimension, 8)


def _what_gathers(spec: RunSpec) -> str:
    if isinstance(spec.algorithm, FedAvgSpec):
        return f"aggregation '{spec.algorithm.aggregation.kind}'"
    return f"algorithm '{spec.algorithm.kind}' at {spec.privacy.level} level"


def _check_memory(what: str, rows: int, dimension: int, bytes_each: int) -> None:
    needed = rows * dimension * bytes_each
    if needed > MOST_BYTES:
        raise ConfigError(
            f"{what}: {rows} clients times {dimension} coordinates take {needed / 2**30:.1f} GiB, "
            f"more than {MOST_BYTES / 2**30:g} GiB; use fewer clients (sampling.kind = "
            "'fixed_size' asks some of them), a smaller model, or the algorithm 'fedavg' with "
            "aggregation 'mean'"
        )


def _fedavg(spec: RunSpec, given: FedAvgSpec, groups: Sequence[Group]) -> FedAvg:
    return FedAvg(
        local_work=_local_work(spec, given, groups),
        server_learning_rate=given.server_learning_rate,
        server_momentum=given.server_momentum,
        robust_mean=_robust_mean(given),
    )


def _robust_mean(given: FedAvgSpec) -> RobustMean | None:
    match given.aggregation:
        case MedianSpec():
            return CoordinateMedian()
        case TrimmedMeanSpec(fraction=fraction):
            return TrimmedMean(fraction=fraction)
        case MeanSpec() | ModeConnectivitySpec():
            return None
        case _:
            assert_never(given.aggregation)


def _connected(
    spec: RunSpec,
    given: FedAvgSpec,
    joining: ModeConnectivitySpec,
    task: Task,
    groups: Sequence[Group],
    proxy: ProxySet | None,
) -> ConnectedAverage:
    if given.server_momentum:
        raise ConfigError(
            "aggregation 'mode_connectivity' joins models, and has no use for a momentum of "
            "updates; drop 'algorithm.server_momentum'"
        )
    assert proxy is not None  # taken from the training data by the same spec
    return ConnectedAverage(
        averaging=_fedavg(spec, given, groups),
        joining=ModeConnectivity(
            kind=joining.curve,
            steps=joining.steps,
            learning_rate=joining.learning_rate,
            proxy=ProxySet(
                features=proxy.features.to(task.device), labels=proxy.labels.to(task.device)
            ),
        ),
        task=task,
        follow=joining.follow,
        schedule=SeededRandomness(spec.seed),
    )


def _scaffold(
    spec: RunSpec, given: ScaffoldSpec, task: Task, clients: Clients
) -> Scaffold | SampleScaffold:
    _check_memory(
        "SCAFFOLD keeps a control variate for each client",
        len(clients),
        task.dimension,
        BYTES_PER_COORDINATE,
    )
    if spec.privacy.level == "sample":
        return _sample_scaffold(spec, given, clients)
    _check_all_records(spec)
    rate = given.local_learning_rate
    if rate is None:
        raise ConfigError("client-level privacy needs 'algorithm.local_learning_rate'")
    clip_norm = spec.privacy.clip_norm
    return Scaffold(
        clip_norm=clip_norm,
        control_clip_norm=given.control_clip_norm or clip_norm / (given.local_steps * rate),
        local_steps=given.local_steps,
        local_learning_rate=rate,
        server_learning_rate=given.server_learning_rate,
        clients=tuple(clients.names),
    )


def _sample_scaffold(spec: RunSpec, given: ScaffoldSpec, clients: Clients) -> SampleScaffold:
    if given.control_clip_norm is not None:
        raise ConfigError(
            "at sample level control variates are messages that were sent before, clipped already: "
            "drop 'algorithm.control_clip_norm', or set privacy.level = 'client'"
        )
    if given.local_steps != 1 or given.local_learning_rate is not None:
        raise ConfigError(_ONE_STEP)
    work = _clipped_gradient(spec)
    return SampleScaffold(
        local_work=work,
        server_learning_rate=given.server_learning_rate,
        clients=tuple(clients.names),
        total_weight=float(sum(work.records(size) for size in clients.sizes)),
    )


_ONE_STEP = (
    "sample-level privacy takes one clipped full-batch step a round: drop 'algorithm.local_steps' "
    "and 'algorithm.local_learning_rate', or set privacy.level = 'client'"
)


def _clipped_gradient(spec: RunSpec) -> SampleClippedGradient:
    return SampleClippedGradient(
        clip_norm=spec.privacy.clip_norm,
        sampling_rate=spec.privacy.record_sampling_rate,
        summation="float" if spec.runtime.messages == "none" else "exact",
    )


def _check_all_records(spec: RunSpec) -> None:
    if spec.privacy.record_sampling_rate < 1.0:
        raise ConfigError(
            "'privacy.record_sampling_rate' samples records, and client-level privacy protects all "
            "of them together; drop it, or set privacy.level = 'sample'"
        )


def _local_work(spec: RunSpec, algorithm: FedAvgSpec, groups: Sequence[Group]) -> LocalWork:
    if spec.privacy.level == "sample":
        if algorithm.budget_penalty:
            raise ConfigError(
                "'algorithm.budget_penalty' acts between local steps, and sample-level privacy "
                "takes one; drop it, or set privacy.level = 'client'"
            )
        if algorithm.proximal_weight:
            raise ConfigError(
                "'algorithm.proximal_weight' acts between local steps, and sample-level privacy "
                "takes one; drop it, or set privacy.level = 'client'"
            )
        if algorithm.local_steps != 1 or algorithm.local_learning_rate is not None:
            raise ConfigError(_ONE_STEP)
        return _clipped_gradient(spec)
    _check_all_records(spec)
    if algorithm.local_learning_rate is None:
        raise ConfigError("client-level privacy needs 'algorithm.local_learning_rate'")
    return LocalSgd(
        clip_norm=spec.privacy.clip_norm,
        steps=algorithm.local_steps,
        learning_rate=algorithm.local_learning_rate,
        proximal_weight=algorithm.proximal_weight,
        penalties=_penalties(groups) if algorithm.budget_penalty else {},
    )


def _penalties(groups: Sequence[Group]) -> dict[str, float]:
    epsilons: dict[str, float] = {}
    for group in groups:
        if group.epsilon is None:
            raise ConfigError(
                f"'algorithm.budget_penalty' compares budgets, but '{group.where}.epsilon' is not "
                "given; give it, or drop the penalty"
            )
        epsilons |= dict.fromkeys(group.clients, group.epsilon)
    return budget_penalties(epsilons)
