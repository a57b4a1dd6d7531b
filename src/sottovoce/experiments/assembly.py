"""From a spec to the parts of a run: data, model, algorithm, calibrated mechanisms."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import torch

from sottovoce.algorithms.fedavg import FedAvg, LocalSgd, LocalWork, SampleClippedGradient
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
    MechanismSpec,
    MlpSpec,
    NbAflSpec,
    PoissonSpec,
    RunSpec,
    SecureSumSpec,
    ShufflerSpec,
)
from sottovoce.domains import L2Ball
from sottovoce.errors import ConfigError, UnknownNameError
from sottovoce.experiments import nbafl
from sottovoce.harmonizer.ranking import rank
from sottovoce.harmonizer.setting import Setting
from sottovoce.learning import datasets, models, partitioners
from sottovoce.learning.partitioners import DirichletByLabel, Iid, Partition
from sottovoce.learning.task import ClientData, Task
from sottovoce.ledger.records import Budget
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import LevelCodes, Mechanism
from sottovoce.privacy.events import NonPrivate
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
    budget: Budget | None
    mechanism_choice: str | None = None  # why this mechanism, if the spec left it open


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
        spec = nbafl.with_published_noise(spec, clients)
    algorithm = _algorithm(spec, clients)
    channel = _channel(spec)
    domains = _domains(algorithm, task.dimension, clients)
    chosen, choice = _with_chosen_mechanism(spec, domains[0], channel)
    resolved = _with_resolved_mechanism(chosen, domains, channel)
    registration = registry.find(resolved.mechanism.kind)
    parts = tuple(
        ClientPlan(
            client=client.name,
            mechanism=registration.build(
                algorithm.domain(task.dimension, client), resolved.mechanism.parameters
            ),
            weight=algorithm.weight(client),
        )
        for client in clients
    )
    channel.check((part.mechanism, part.weight) for part in parts)
    channel.event(parts[0].mechanism, spec.privacy.adjacency)  # refused here, before any round
    rotated = _is_rotated(resolved, parts[0].mechanism)
    resolved = resolved.model_copy(update={"rotation": "on" if rotated else "off"})
    return Assembly(
        spec=resolved,
        task=task,
        clients=clients,
        parts=parts,
        algorithm=algorithm,
        sampling=_sampling(spec),
        channel=channel,
        budget=_budget(resolved, algorithm, parts[0]),
        mechanism_choice=choice,
    )


def randomness_of(spec: RunSpec) -> Randomness:
    """What feeds the mechanisms, the shuffler and the server's own noise."""
    return SeededRandomness(spec.seed) if spec.randomness == "seeded" else SystemRandomness()


def _domains(
    algorithm: FedAvg | NbAfl, dimension: int, clients: tuple[ClientData, ...]
) -> tuple[L2Ball, ...]:
    """Each client's domain, the most records first.

    That client has the least noise beside its clip, so whatever is automatic looks at it.
    """
    by_size = sorted(clients, key=lambda client: client.num_samples, reverse=True)
    return tuple(dict.fromkeys(algorithm.domain(dimension, client) for client in by_size))


def _with_chosen_mechanism(
    spec: RunSpec, domain: L2Ball, channel: Channel
) -> tuple[RunSpec, str | None]:
    """The spec with a mechanism in the place of "auto", and why it is that one."""
    if spec.mechanism.kind != AUTO:
        return spec, None
    given = spec.mechanism.parameters
    for name in given.keys() - {"bits"}:
        raise UnknownNameError.among("parameter of mechanism 'auto'", name, ["bits"])
    if spec.privacy.epsilon is None:
        raise ConfigError(
            "mechanism 'auto' is chosen at a budget: set 'privacy.epsilon', or name a mechanism"
        )
    setting = Setting(
        domain=domain,
        epsilon=spec.privacy.epsilon,
        delta=spec.privacy.delta,
        adjacency=spec.privacy.adjacency,
        rounds=spec.rounds,
        bits=given.get("bits"),
        exact=spec.randomness == "system",
    )
    ranking = rank(setting, lambda mechanism: channel.event(mechanism, spec.privacy.adjacency))
    ranking = ranking.best_of_each()
    choice = ranking.choice
    mechanism = MechanismSpec.model_validate({"kind": choice.kind, **choice.setting})
    return spec.model_copy(update={"mechanism": mechanism}), ranking.explanation


def _with_resolved_mechanism(spec: RunSpec, domains: Sequence[L2Ball], channel: Channel) -> RunSpec:
    """The spec with calibrated and automatic parameters filled in."""
    registration = registry.find(spec.mechanism.kind)
    given = spec.mechanism.parameters
    registration.check_names(given)
    if registration.knob and registration.knob.parameter not in given:
        if spec.privacy.epsilon is None:
            raise ConfigError(
                f"mechanism '{spec.mechanism.kind}' needs '{registration.knob.parameter}', or "
                "'privacy.epsilon' to calibrate it"
            )
        given = registration.calibrated_for_all(
            domains,
            given,
            rounds=spec.rounds,
            epsilon=spec.privacy.epsilon,
            delta=spec.privacy.delta,
            event_of=lambda mechanism: channel.event(mechanism, spec.privacy.adjacency),
        )
    else:
        given = registration.resolve(domains[0], given)
    mechanism = MechanismSpec.model_validate({"kind": spec.mechanism.kind, **given})
    return spec.model_copy(update={"mechanism": mechanism})


def _is_rotated(spec: RunSpec, mechanism: Mechanism) -> bool:
    """Whether updates are rotated: where one would gain by it, unless the spec says."""
    euclidean = isinstance(mechanism.input_domain, L2Ball)
    if spec.rotation != "auto":
        if spec.rotation == "on" and not euclidean:
            raise ConfigError(
                "'rotation' can only be 'on' with Euclidean clipping (an L2 ball), but mechanism "
                f"'{spec.mechanism.kind}' has {mechanism.input_domain}; set it to 'off'"
            )
        return spec.rotation == "on"
    code_format = mechanism.code_format()
    return euclidean and isinstance(code_format, LevelCodes) and code_format.count is None


def _budget(spec: RunSpec, algorithm: FedAvg | NbAfl, part: ClientPlan) -> Budget | None:
    if isinstance(part.mechanism.privacy(spec.privacy.adjacency), NonPrivate):
        if spec.privacy.epsilon is not None:
            raise ConfigError(
                f"mechanism '{spec.mechanism.kind}' gives no privacy, so it cannot keep "
                f"'privacy.epsilon' = {spec.privacy.epsilon:g}; remove one of the two"
            )
        return None
    if spec.privacy.epsilon is None or isinstance(algorithm, NbAfl):
        return None  # NbAFL's is a published figure, below what a client really spends
    return Budget(
        epsilon=spec.privacy.epsilon,
        delta=spec.privacy.delta,
        adjacency=spec.privacy.adjacency,
        unit=algorithm.unit,
    )


def _algorithm(spec: RunSpec, clients: tuple[ClientData, ...]) -> FedAvg | NbAfl:
    match spec.algorithm:
        case FedAvgSpec() as given:
            return FedAvg(
                local_work=_local_work(spec, given),
                server_learning_rate=given.server_learning_rate,
                server_momentum=given.server_momentum,
            )
        case NbAflSpec():
            return nbafl.algorithm(spec, clients, randomness_of(spec))
        case _:
            assert_never(spec.algorithm)


def _local_work(spec: RunSpec, algorithm: FedAvgSpec) -> LocalWork:
    clip_norm = spec.privacy.clip_norm
    if spec.privacy.level == "sample":
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
    )


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
