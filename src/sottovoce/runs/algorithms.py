"""The algorithm that a spec names, from its section and the rest of the spec."""

from collections.abc import Sequence

from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import ConfigError
from sottovoce.core.randomness import Randomness, SeededRandomness
from sottovoce.core.sections import section_from
from sottovoce.federated.algorithms.algorithm import (
    RECIPES,
    Algorithm,
    AlgorithmSection,
    AlgorithmTraits,
    Facts,
    PublicRows,
    Setting,
    check_memory,
)
from sottovoce.learning.clients import Clients
from sottovoce.learning.task import Task
from sottovoce.runs.groups import Group
from sottovoce.runs.spec import AlgorithmSpec, MechanismSpec, RunSpec


def section_of(spec: RunSpec) -> AlgorithmSection:
    """Return the algorithm's own reading of its table; imports a plug-in that has the name."""
    return section_from(RECIPES, "algorithm", spec.algorithm.kind, spec.algorithm.parameters)


def traits_of(spec: RunSpec) -> AlgorithmTraits:
    """Return what channels and backends may ask of the algorithm."""
    return section_of(spec).traits(Unit(spec.privacy.level))


def facts_of(spec: RunSpec, clients: Clients) -> Facts:
    """Return the public numbers that an algorithm may make its noise from."""
    return Facts(
        unit=Unit(spec.privacy.level),
        clip_norm=spec.privacy.clip_norm,
        epsilon=spec.privacy.epsilon,
        delta=spec.privacy.delta,
        grouped=bool(spec.privacy.groups),
        rounds=spec.rounds,
        clients=len(clients),
        smallest_dataset=min(clients.sizes),
    )


def adjusted(spec: RunSpec, section: AlgorithmSection, clients: Clients) -> RunSpec:
    """Return the spec with the mechanism's parameters that the algorithm prescribes."""
    kind, given = spec.mechanism.kind, spec.mechanism.parameters
    wanted = section.adjust(kind, given, facts_of(spec, clients))
    if wanted == given:
        return spec
    mechanism = MechanismSpec.model_validate({"kind": kind, **wanted})
    return spec.model_copy(update={"mechanism": mechanism})


def algorithm_of(
    spec: RunSpec,
    section: AlgorithmSection,
    task: Task,
    clients: Clients,
    groups: Sequence[Group],
    *,
    randomness: Randomness,
    public: PublicRows | None,
) -> Algorithm:
    """Return what a section makes of its keys and of the rest of the spec."""
    setting = Setting(
        facts=facts_of(spec, clients),
        record_sampling_rate=spec.privacy.record_sampling_rate,
        exact_sums=spec.runtime.messages != "none",
        mechanism=spec.mechanism.parameters,
        groups=groups,
        task=task,
        clients=clients,
        randomness=randomness,
        schedule=SeededRandomness(spec.seed),
        public=public,
    )
    algorithm, kind = section.build(setting), spec.algorithm.kind
    if algorithm.unit is not setting.unit:
        raise ConfigError(
            f"algorithm '{kind}' protects each {algorithm.unit}; set privacy.level = "
            f"'{algorithm.unit}', or use another algorithm"
        )
    if algorithm.record_sampling_rate != setting.record_sampling_rate:
        raise ConfigError(
            f"algorithm '{kind}' does not sample records; drop 'privacy.record_sampling_rate', or "
            "use another algorithm"
        )
    return algorithm


def with_section(spec: RunSpec, section: AlgorithmSection) -> RunSpec:
    """Return the spec with every key of a section written out, for its hash holds them."""
    every = {"kind": spec.algorithm.kind, **section.written()}
    return spec.model_copy(update={"algorithm": AlgorithmSpec.model_validate(every)})


def algorithm_words(spec: RunSpec, section: AlgorithmSection) -> list[str]:
    """Return the plug-ins on whose word a run's privacy rests beside its mechanisms'.

    Messages are projected onto the algorithm's domain here, but what a sample changes of them it
    says itself.
    """
    own = RECIPES.plug_in(spec.algorithm.kind)
    return [*([own] if own else []), *section.plug_ins()]


def check_gathering(spec: RunSpec, algorithm: Algorithm, dimension: int, num_clients: int) -> None:
    """Whoever needs each message must be able to see and to hold all of a round."""
    if not algorithm.gathers:
        return
    own = f"algorithm '{spec.algorithm.kind}' at {spec.privacy.level} level"
    what = traits_of(spec).named or own
    if not spec.channel.opened().shows_each:
        raise ConfigError(
            f"{what} needs each message, and the channel '{spec.channel.kind}' lets nobody see it; "
            "set channel.kind = 'direct', or use the algorithm 'fedavg' with aggregation 'mean'"
        )
    largest = spec.sampling.opened().facts(num_clients).largest_cohort
    check_memory(f"{what} holds each message of a round", largest, dimension, 8)
