"""From a spec to the parts of a run: data, model, algorithm, calibrated mechanisms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import torch

from sottovoce.algorithms.fedavg import (
    FedAvg,
    LocalSgd,
    LocalWork,
    SampleClippedGradient,
    budget_penalties,
)
from sottovoce.algorithms.nbafl import NbAfl
from sottovoce.channels.channel import Channel, Direct, SecureSum, Shuffler
from sottovoce.config.spec import (
    AUTO,
    DirectSpec,
    DirichletSpec,
    EveryoneSpec,
    FedAvgSpec,
    FixedSizeSpec,
    IidSpec,
    LinearSpec,
    MlpSpec,
    NbAflSpec,
    PoissonSpec,
    RunSpec,
    SecureSumSpec,
    ShufflerSpec,
)
from sottovoce.domains import L2Ball
from sottovoce.errors import ConfigError
from sottovoce.experiments import nbafl
from sottovoce.experiments.choice import chosen, in_one_sentence
from sottovoce.experiments.groups import (
    Group,
    budget,
    check_private,
    groups_of,
    resolve,
    written_into,
)
from sottovoce.learning import datasets, models, partitioners
from sottovoce.learning.partitioners import DirichletByLabel, Iid, Partition
from sottovoce.learning.task import ClientData, Task
from sottovoce.ledger.records import Budget
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import LevelCodes, Mechanism
from sottovoce.privacy.events import NonPrivate, PrivacyEvent
from sottovoce.randomness import Randomness, SeededRandomness, SystemRandomness
from sottovoce.rounds.plan import ClientPlan
from sottovoce.simulation.cohorts import ClientSampling, Everyone, FixedSize, Poisson


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """Everything that a spec says, as objects; `spec` is the resolved one."""

    spec: RunSpec
    task: Task
    clients: tuple[ClientData, ...]
    parts: tuple[ClientPlan, ...]
    algorithm: FedAvg | NbAfl
    sampling: ClientSampling
    channel: Channel
    groups: tuple[Group, ...]
    budgets: Mapping[str, Budget]
    mechanism_choice: str | None  # why this mechanism, if the spec left it open


def assemble(spec: RunSpec) -> Assembly:
    """Build a run. Nothing is written and nothing is charged."""
    schedule = SeededRandomness(spec.seed)
    data = datasets.load(spec.data.dataset, schedule.generator("test split"))
    shares = partitioners.split(
        _partition(spec), data.train_labels, spec.data.clients, schedule.generator("partition")
    )
    clients = tuple(
        ClientData(
            name=f"client-{number:04d}",
            features=torch.from_numpy(data.train_features[share]),
            labels=torch.from_numpy(data.train_labels[share]),
        )
        for number, share in enumerate(shares)
    )
    model = _model(spec)
    module = models.build(model, data.train_features.shape[1], data.num_classes)
    models.initialise(model, module, schedule.generator("initial model"))
    task = Task(module, torch.from_numpy(data.test_features), torch.from_numpy(data.test_labels))
    if isinstance(spec.algorithm, NbAflSpec):
        if spec.privacy.groups:
            raise ConfigError(
                "'privacy.groups' have budgets, and NbAFL's epsilon is none; use the algorithm "
                "'fedavg'"
            )
        spec = nbafl.with_published_noise(spec, clients)
    groups = groups_of(spec, [client.name for client in clients])
    _check_minimum(spec)
    algorithm = _algorithm(spec, clients, groups)
    channel = _channel(spec)
    groups, choice = _resolved(groups, spec, algorithm, task.dimension, clients, channel)
    group_of = {name: group for group in groups for name in group.clients}
    parts = _parts(group_of, algorithm, task.dimension, clients)
    channel.check((part.mechanism, part.weight) for part in parts)
    first = {group_of[part.client].number: part.mechanism for part in reversed(parts)}
    for mechanism in first.values():
        channel.event(mechanism, spec.privacy.adjacency)  # refused here, before any round
    check_private(
        groups,
        [
            group
            for group in groups
            if isinstance(first[group.number].privacy(spec.privacy.adjacency), NonPrivate)
        ],
    )
    resolved = written_into(spec, groups)
    rotated = _is_rotated(resolved, [part.mechanism for part in parts])
    resolved = resolved.model_copy(update={"rotation": "on" if rotated else "off"})
    return Assembly(
        spec=resolved,
        task=task,
        clients=clients,
        parts=parts,
        algorithm=algorithm,
        sampling=_sampling(spec),
        channel=channel,
        groups=groups,
        budgets=_budgets(groups, spec, algorithm),
        mechanism_choice=choice,
    )


def _budgets(
    groups: Sequence[Group], spec: RunSpec, algorithm: FedAvg | NbAfl
) -> dict[str, Budget]:
    if isinstance(algorithm, NbAfl):
        return {}  # its epsilon is a published figure, below what a client really spends
    allowed = {group.number: budget(group, spec, algorithm.unit) for group in groups}
    return {
        name: own for group in groups for name in group.clients if (own := allowed[group.number])
    }


def randomness_of(spec: RunSpec) -> Randomness:
    """What feeds the mechanisms, the shuffler and the server's own noise."""
    return SeededRandomness(spec.seed) if spec.randomness == "seeded" else SystemRandomness()


def _resolved(
    groups: tuple[Group, ...],
    spec: RunSpec,
    algorithm: FedAvg | NbAfl,
    dimension: int,
    clients: tuple[ClientData, ...],
    channel: Channel,
) -> tuple[tuple[Group, ...], str | None]:
    """The groups with mechanisms chosen, calibrated and automatic parameters filled in; and why.

    The client with the most records has the least noise beside its clip, so 'auto' looks at it.
    """
    by_size = sorted(clients, key=lambda client: client.num_samples, reverse=True)
    found, reasons = [], {}
    for group in groups:
        members = set(group.clients)
        domains = dict.fromkeys(
            algorithm.domain(dimension, client) for client in by_size if client.name in members
        )

        def event_of(mechanism: Mechanism) -> PrivacyEvent:
            return channel.event(mechanism, spec.privacy.adjacency)

        if group.mechanism.kind == AUTO:
            group, reasons[group.where] = chosen(group, spec, next(iter(domains)), event_of)
        found.append(resolve(group, list(domains), rounds=spec.rounds, event_of=event_of))
    return tuple(found), in_one_sentence(reasons)


def _parts(
    group_of: Mapping[str, Group],
    algorithm: FedAvg | NbAfl,
    dimension: int,
    clients: tuple[ClientData, ...],
) -> tuple[ClientPlan, ...]:
    """Everyone's part; clients of one group and domain share a mechanism."""
    built: dict[tuple[int, L2Ball], Mechanism] = {}
    parts = []
    for client in clients:
        group, domain = group_of[client.name], algorithm.domain(dimension, client)
        key = group.number, domain
        if key not in built:
            registration = registry.find(group.mechanism.kind)
            built[key] = registration.build(domain, group.mechanism.parameters)
        weight = algorithm.weight(client)
        parts.append(ClientPlan(client=client.name, mechanism=built[key], weight=weight))
    return tuple(parts)


def _is_rotated(spec: RunSpec, mechanisms: Sequence[Mechanism]) -> bool:
    """Whether updates are rotated: where one would gain by it, unless the spec says."""
    boxed = [one for one in mechanisms if not isinstance(one.input_domain, L2Ball)]
    if spec.rotation != "auto":
        if spec.rotation == "on" and boxed:
            raise ConfigError(
                "'rotation' can only be 'on' with Euclidean clipping (an L2 ball), but mechanism "
                f"'{registry.kind_of(boxed[0])}' has {boxed[0].input_domain}; set it to 'off'"
            )
        return spec.rotation == "on"
    return not boxed and any(_has_a_range(one) for one in mechanisms)


def _has_a_range(mechanism: Mechanism) -> bool:
    """Whether one of finitely many codes is sent for each coordinate."""
    code_format = mechanism.code_format()
    return isinstance(code_format, LevelCodes) and code_format.count is None


def _check_minimum(spec: RunSpec) -> None:
    if spec.privacy.minimum_clients > spec.data.clients:
        raise ConfigError(
            f"privacy.minimum_clients {spec.privacy.minimum_clients} exceeds data.clients "
            f"{spec.data.clients}: no round would ever be run"
        )


def _algorithm(
    spec: RunSpec, clients: tuple[ClientData, ...], groups: Sequence[Group]
) -> FedAvg | NbAfl:
    match spec.algorithm:
        case FedAvgSpec() as given:
            return FedAvg(
                local_work=_local_work(spec, given, groups),
                server_learning_rate=given.server_learning_rate,
                server_momentum=given.server_momentum,
            )
        case NbAflSpec():
            return nbafl.algorithm(spec, clients, randomness_of(spec))
        case _:
            assert_never(spec.algorithm)


def _local_work(spec: RunSpec, algorithm: FedAvgSpec, groups: Sequence[Group]) -> LocalWork:
    clip_norm = spec.privacy.clip_norm
    if spec.privacy.level == "sample":
        if algorithm.budget_penalty:
            raise ConfigError(
                "'algorithm.budget_penalty' acts between local steps, and sample-level privacy "
                "takes one; drop it, or set privacy.level = 'client'"
            )
        if algorithm.local_steps != 1 or algorithm.local_learning_rate is not None:
            raise ConfigError(
                "sample-level privacy takes one clipped full-batch step a round: drop "
                "'algorithm.local_steps' and 'algorithm.local_learning_rate', or set "
                "privacy.level = 'client'"
            )
        return SampleClippedGradient(clip_norm=clip_norm)
    if algorithm.local_learning_rate is None:
        raise ConfigError("client-level privacy needs 'algorithm.local_learning_rate'")
    return LocalSgd(
        clip_norm=clip_norm,
        steps=algorithm.local_steps,
        learning_rate=algorithm.local_learning_rate,
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


def _partition(spec: RunSpec) -> Partition:
    match spec.data.partition:
        case IidSpec():
            return Iid()
        case DirichletSpec(alpha=alpha):
            return DirichletByLabel(alpha=alpha)
        case _:
            assert_never(spec.data.partition)


def _model(spec: RunSpec) -> models.Model:
    match spec.model:
        case LinearSpec():
            return models.Linear()
        case MlpSpec(hidden_units=hidden_units):
            return models.Mlp(hidden_units=hidden_units)
        case _:
            assert_never(spec.model)


def _sampling(spec: RunSpec) -> ClientSampling:
    match spec.sampling:
        case EveryoneSpec():
            return Everyone()
        case PoissonSpec(rate=rate):
            return Poisson(rate=rate)
        case FixedSizeSpec(size=size):
            if size > spec.data.clients:
                raise ConfigError(f"sampling.size {size} exceeds data.clients {spec.data.clients}")
            return FixedSize(size=size)
        case _:
            assert_never(spec.sampling)


def _channel(spec: RunSpec) -> Channel:
    match spec.channel:
        case DirectSpec():
            return Direct()
        case SecureSumSpec(minimum_clients=minimum):
            _check_reachable(spec, minimum, "no sum")
            return SecureSum(minimum_clients=minimum)
        case ShufflerSpec(minimum_clients=minimum):
            _check_reachable(spec, minimum, "no message")
            return Shuffler(minimum_clients=minimum)
        case _:
            assert_never(spec.channel)


def _check_reachable(spec: RunSpec, minimum: int, nothing: str) -> None:
    fixed = spec.sampling.size if isinstance(spec.sampling, FixedSizeSpec) else None
    largest = fixed or spec.data.clients
    if minimum > largest:
        raise ConfigError(
            f"channel.minimum_clients {minimum} exceeds the {largest} clients that a round can "
            f"have: {nothing} would ever be released"
        )
