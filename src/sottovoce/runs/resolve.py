"""Resolve the inputs of a run: check everything, choose and calibrate the mechanisms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import ConfigError
from sottovoce.federated.algorithms.algorithm import (
    ALGORITHMS,
    Algorithm,
    AlgorithmSection,
    check_memory,
    message_mechanism,
)
from sottovoce.federated.cohorts import SAMPLINGS, ClientSampling, facts_of
from sottovoce.federated.simulation.draws import law_of
from sottovoce.learning.clients import Clients
from sottovoce.learning.task import Task
from sottovoce.ledger.records import Budget
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism, has_finite_codes
from sottovoce.mechanisms.release import ReleaseTerms, local_event
from sottovoce.privacy.events import NonPrivate
from sottovoce.protocol.channels.channel import (
    CHANNELS,
    Channel,
    ChannelContext,
    RuntimeFacts,
    check_channel,
    terms_of,
)
from sottovoce.protocol.plan import ClientPlan
from sottovoce.runs.backends import BACKENDS
from sottovoce.runs.groups import (
    Group,
    budget,
    calibrate_group,
    check_private,
    choose_mechanism,
    join_reasons,
    write_groups_into,
)
from sottovoce.runs.inputs import Inputs, section_of, traits_of
from sottovoce.runs.spec import AUTO, RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Everything that a spec describes, as objects.

    Attributes:
        spec: The resolved spec, with every key filled in.
        run: The name of the run in ledgers: the spec's hash, to which `runner.run` adds a random
            part if `randomness` is "system", since another run may have the same spec.
        task: The model, the loss and the test data.
        num_classes: The number of classes; None for regression.
        clients: The clients and their data; with `data.sites` only their names and sizes.
        parts: The mechanism and the weight of each client.
        section: The keys of the spec's [algorithm] table.
        algorithm: The algorithm.
        sampling: The rule that chooses the clients of each round.
        channel: The channel, which determines what the server sees of the messages.
        groups: The groups of clients that share a budget, with calibrated mechanisms.
        budgets: The budget of each client that has one.
        mechanism_choice: Why the mechanism was chosen, if the spec says "auto"; otherwise None.
        note: The data set's license, citation and known bias, for reports.
    """

    spec: RunSpec
    run: str
    task: Task
    num_classes: int | None
    clients: Clients
    parts: tuple[ClientPlan, ...]
    section: AlgorithmSection
    algorithm: Algorithm
    sampling: ClientSampling
    channel: Channel
    groups: tuple[Group, ...]
    budgets: Mapping[str, Budget]
    mechanism_choice: str | None
    note: str

    @property
    def terms(self) -> ReleaseTerms:
        """The terms under which a message is charged.

        They are what an observer sees of it, the secret sample of records (None if all are used),
        and the adjacency. Called with a mechanism, they return the event that is charged.
        """
        return _terms(self.spec, self.channel, self.algorithm)


def _terms(spec: RunSpec, channel: Channel, algorithm: Algorithm) -> ReleaseTerms:
    return terms_of(
        channel, spec.privacy.adjacency, record_sampling_rate=algorithm.record_sampling_rate
    )


def resolve(inputs: Inputs) -> Resolved:
    """Check a run, choose and calibrate its mechanisms, and fill in every key of its spec.

    Nothing is written to a file and nothing is charged.

    Args:
        inputs: Data, clients, model and algorithm.

    Returns:
        The run, ready to be built.

    Raises:
        UnknownNameError: There is no such backend, mechanism or parameter of it.
        ConfigError: Parts of the spec do not fit together.
        ParameterError: A parameter is out of range, or no noise keeps the budget.
        PrivacyError: No bound is proved for this combination.
    """
    spec, task, clients, algorithm = inputs.spec, inputs.task, inputs.clients, inputs.algorithm
    check_runtime(spec)
    check_minimum(spec, len(clients))
    check_gathering(spec, algorithm, task.dimension, len(clients))
    channel = channel_of(spec, len(clients))
    terms = _terms(spec, channel, algorithm)
    groups, choice = _calibrated(inputs.groups, spec, algorithm, task.dimension, clients, terms)
    group_of = {name: group for group in groups for name in group.clients}
    parts = _parts(group_of, algorithm, task.dimension, clients)
    channel.check_cohort((part.mechanism, part.weight) for part in parts)
    first = {group_of[part.client].number: part.mechanism for part in reversed(parts)}
    for mechanism in first.values():  # Refuse unsupported mechanisms before any round.
        terms(mechanism)
        if spec.runtime.messages == "none":
            law_of(mechanism)
    check_private(
        groups,
        [
            group
            for group in groups
            if isinstance(local_event(first[group.number], adjacency=terms.adjacency), NonPrivate)
        ],
    )
    written = write_groups_into(spec, groups)
    distinct = list({id(part.mechanism): part.mechanism for part in parts}.values())
    rotated = _is_rotated(written, distinct)
    written = written.model_copy(update={"rotation": "on" if rotated else "off"})
    return Resolved(
        spec=written,
        run=written.hash,
        task=task,
        num_classes=inputs.num_classes,
        clients=clients,
        parts=parts,
        section=inputs.section,
        algorithm=algorithm,
        sampling=_sampling(spec, len(clients)),
        channel=channel,
        groups=groups,
        budgets=_budgets(groups, spec, algorithm) if inputs.section.enforces_budget else {},
        mechanism_choice=choice,
        note=inputs.note,
    )


def _budgets(groups: Sequence[Group], spec: RunSpec, algorithm: Algorithm) -> dict[str, Budget]:
    allowed = {group.number: budget(group, spec, algorithm.unit) for group in groups}
    return {
        name: own for group in groups for name in group.clients if (own := allowed[group.number])
    }


def _calibrated(
    groups: tuple[Group, ...],
    spec: RunSpec,
    algorithm: Algorithm,
    dimension: int,
    clients: Clients,
    terms: ReleaseTerms,
) -> tuple[tuple[Group, ...], str | None]:
    """Return the groups with mechanisms chosen and calibrated, and why these were chosen.

    The client with the most records has the least noise relative to its clipping norm, so 'auto'
    looks at that client.
    """
    size_of = dict(zip(clients.names, clients.sizes, strict=True))
    times = rounds_per_client(spec, len(clients))
    found, reasons = [], {}
    for group in groups:
        sizes = sorted({size_of[name] for name in group.clients}, reverse=True)
        domains = dict.fromkeys(algorithm.domain(dimension, size) for size in sizes)
        if group.mechanism.kind == AUTO:
            group, reasons[group.where] = choose_mechanism(
                group,
                spec,
                next(iter(domains)),
                terms,
                rounds=times * algorithm.uplinks,
                cohort=facts_of(spec.sampling.build(), len(clients)).largest_cohort,
            )
        found.append(
            calibrate_group(group, list(domains), rounds=times * algorithm.uplinks, terms=terms)
        )
    return tuple(found), join_reasons(reasons)


def _parts(
    group_of: Mapping[str, Group],
    algorithm: Algorithm,
    dimension: int,
    clients: Clients,
) -> tuple[ClientPlan, ...]:
    """Return each client's mechanism and weight; clients of one group and domain share one."""
    built: dict[tuple[int, int], Mechanism] = {}
    parts = []
    for name, size in zip(clients.names, clients.sizes, strict=True):
        group = group_of[name]
        key = group.number, size
        if key not in built:
            registration = registry.find(group.mechanism.kind)
            domain = algorithm.domain(dimension, size)
            built[key] = message_mechanism(
                algorithm, registration.build(domain, group.mechanism.parameters)
            )
        weight = algorithm.weight(size)
        parts.append(ClientPlan(client=name, mechanism=built[key], weight=weight))
    return tuple(parts)


def _is_rotated(spec: RunSpec, mechanisms: Sequence[Mechanism]) -> bool:
    """Return whether updates are rotated.

    With 'auto' they are, if all mechanisms clip in L2 and some have finitely many codes.
    """
    boxed = [one for one in mechanisms if not isinstance(one.input_domain, L2Ball)]
    if spec.rotation != "auto":
        if spec.rotation == "on" and boxed:
            raise ConfigError(
                "'rotation' can only be 'on' with Euclidean clipping (an L2 ball), but mechanism "
                f"'{registry.kind_of(boxed[0])}' has {boxed[0].input_domain}; set rotation = 'off'"
            )
        return spec.rotation == "on"
    return not boxed and any(has_finite_codes(one) for one in mechanisms)


def check_minimum(spec: RunSpec, num_clients: int) -> None:
    """Raise ConfigError if `privacy.minimum_clients` exceeds the number of clients of the run."""
    if spec.privacy.minimum_clients > num_clients:
        raise ConfigError(
            f"privacy.minimum_clients {spec.privacy.minimum_clients} exceeds the {num_clients} "
            "clients, so that no round would ever be run; lower it"
        )


def check_runtime(spec: RunSpec) -> None:
    """Check that `[runtime]` fits the data, the channel and the randomness of the spec.

    A run whose messages are not stored has no ledger, so it must be seeded.

    Raises:
        UnknownNameError: There is no such backend.
        ConfigError: The backend or `runtime.messages` does not fit the rest of the spec.
    """
    if spec.runtime.backend not in BACKENDS.names():
        raise BACKENDS.unknown(spec.runtime.backend)
    if spec.runtime.backend != "fast":
        check_federation(spec)
    elif spec.data.sites:
        raise ConfigError(
            "'data.sites' keep their records on other machines; set 'data.clients' to simulate, or "
            "runtime.backend = 'flower' to deploy"
        )
    facts = RuntimeFacts(
        messages=spec.runtime.messages,
        seeded=spec.randomness == "seeded",
        rotation=spec.rotation,
    )
    channel = spec.channel.build()
    if channel.is_cryptographic and spec.runtime.backend == "fast":
        raise ConfigError(
            f"this process holds all data, so it cannot run a protocol between machines "
            f"({channel.describe()}); use 'sottovoce deploy run', or simulate the same sums with "
            "channel.protocol = 'simulated'"
        )
    channel.check_runtime(facts)
    if channel.noise_at_server and (facts.messages != "none" or not facts.seeded):
        raise ConfigError(
            f"the channel '{spec.channel.kind}' adds noise once, to the sum, so it is simulated "
            "without messages; set runtime.messages = 'none' and randomness = 'seeded'"
        )
    if facts.messages != "stored" and not facts.seeded:
        raise ConfigError(
            f"runtime.messages = '{facts.messages}' is for simulation only; set randomness = "
            "'seeded', or runtime.messages = 'stored'"
        )


def check_gathering(spec: RunSpec, algorithm: Algorithm, dimension: int, num_clients: int) -> None:
    """Check that an algorithm that needs each message of a round can see and hold all of them.

    Raises:
        ConfigError: The algorithm needs each message, but the channel hides single messages, or the
            messages of a round do not fit into memory.
    """
    if not algorithm.gathers:
        return
    own = f"algorithm '{spec.algorithm.kind}' at {spec.privacy.level} level"
    what = traits_of(spec).named or own
    if not spec.channel.build().shows_each:
        raise ConfigError(
            f"{what} needs each message, but the channel '{spec.channel.kind}' hides from the "
            "server what each client sent; set channel.kind = 'direct', where only the noise of "
            "each message protects it, or use the algorithm 'fedavg' with aggregation 'mean'"
        )
    largest = spec.sampling.build().facts(num_clients).largest_cohort
    check_memory(
        f"{what} holds each message of a round",
        largest,
        dimension,
        8,
        fewer="ask fewer clients in each round (sampling.kind = 'fixed_size')",
    )


def rounds_per_client(spec: RunSpec, num_clients: int) -> int:
    """Return the most rounds in which one client can be asked; noise is calibrated for them.

    Raises:
        ConfigError: The sampling asks more clients than there are.
    """
    return _sampling(spec, num_clients).most_participations(num_clients, spec.rounds)


def _sampling(spec: RunSpec, num_clients: int) -> ClientSampling:
    """Return the sampling of clients, which on remote backends is oversampled."""
    simulated = spec.runtime.backend == "fast"
    sampling = spec.sampling.build() if simulated else oversampled(spec)
    sampling.check(num_clients)
    return sampling


def channel_of(spec: RunSpec, num_clients: int) -> Channel:
    """Return the channel of a run with `num_clients` clients, checked against the rest of the spec.

    Raises:
        ConfigError: The channel cannot serve this run.
        PluginError: The channel is a plug-in, and no cost is proved for what it declares.
    """
    context = ChannelContext(
        clients=num_clients,
        rounds=spec.rounds,
        sampling=facts_of(spec.sampling.build(), num_clients),
        unit=Unit(spec.privacy.level),
        grouped=bool(spec.privacy.groups),
        minimum_clients=spec.privacy.minimum_clients,
        seeded=spec.randomness == "seeded",
        algorithm=spec.algorithm.kind,
        plain_mean=lambda: traits_of(spec).plain_mean,
    )
    return check_channel(spec.channel.build(), context)


def check_federation(spec: RunSpec) -> None:
    """Raise ConfigError if the spec asks for something that remote backends do not support."""
    backend = spec.runtime.backend
    if spec.data.dataset.startswith("memory:") or spec.model.kind == "in_memory":
        raise ConfigError(
            f"runtime.backend = '{backend}' trains in other processes, which cannot use data or "
            "models in the memory of this one; set runtime.backend = 'fast', or name a file "
            "('npz:PATH') and a factory (model.kind = 'module')"
        )
    if spec.runtime.messages != "stored":
        raise ConfigError(
            f"runtime.backend = '{backend}' sends real messages; set runtime.messages = 'stored'"
        )
    # Check this before any plug-in is imported.
    for register, kind in ((CHANNELS, spec.channel.kind), (SAMPLINGS, spec.sampling.kind)):
        if register.find_ours(kind) is None:
            raise ConfigError(
                f"runtime.backend = '{backend}' runs only channels and samplings that Sottovoce "
                f"provides, because sites cannot verify the {register.kind} '{kind}'; set "
                "runtime.backend = 'fast' to simulate"
            )
    spec.channel.build().check_federation(backend)
    if ALGORITHMS.find_ours(spec.algorithm.kind) is None or not section_of(spec).is_ours():
        raise ConfigError(
            f"runtime.backend = '{backend}' runs only algorithms and aggregations that Sottovoce "
            "provides, because sites cannot verify others, and algorithm "
            f"'{spec.algorithm.kind}' or its aggregation is a plug-in's; set runtime.backend = "
            "'fast' to simulate"
        )
    if section_of(spec).traits(Unit(spec.privacy.level)).keeps_client_state:
        raise ConfigError(
            f"runtime.backend = '{backend}' keeps no control variates at the sites; use the "
            "algorithm 'fedavg' (with algorithm.proximal_weight if clients differ), or "
            "privacy.level = 'sample'"
        )
    if spec.data.sites and backend == "flower-sim":
        raise ConfigError(
            "'data.sites' keep their records on other machines; set 'data.clients' to simulate, or "
            "runtime.backend = 'flower' to deploy"
        )
    if spec.deployment.oversampling > 1.0 and spec.sampling.build().oversampled(1.0, None) is None:
        raise ConfigError(
            "'deployment.oversampling' asks more clients than the sampling, which is not possible "
            f"with '{spec.sampling.kind}'; set sampling.kind to 'fixed_size' or 'poisson'"
        )


def oversampled(spec: RunSpec) -> ClientSampling:
    """Return the sampling that asks `deployment.oversampling` times as many clients a round.

    It asks no more clients than the spec names; if their number follows from the data only, it may.
    A sampling that cannot ask more is returned unchanged.
    """
    sampling = spec.sampling.build()
    most = spec.data.clients or len(spec.data.names) or len(spec.data.sites) or None
    return sampling.oversampled(spec.deployment.oversampling, most) or sampling
