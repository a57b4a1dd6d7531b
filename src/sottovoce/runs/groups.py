"""Groups of clients with their own budgets and mechanisms, and the mechanism 'auto' of a group."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import Domain
from sottovoce.core.errors import ConfigError, ParameterError, UnknownNameError
from sottovoce.ledger.records import Budget
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.release import OnlySums, ReleaseTerms
from sottovoce.planning.calibrate import CalibrationTarget, calibrate_cached
from sottovoce.planning.candidates import PlanSetting
from sottovoce.planning.plan import rank
from sottovoce.runs.spec import AUTO, GroupSpec, MechanismSpec, RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Clients with the same budget and mechanism.

    Attributes:
        number: The number of the group's table in `privacy.groups`, from 1; 0 for the clients that
            no table names.
        clients: The names of its clients.
        mechanism: The mechanism with its parameters.
        epsilon: The budget of each client; None without a budget.
        delta: The failure probability of that budget.
    """

    number: int
    clients: tuple[str, ...]
    mechanism: MechanismSpec
    epsilon: float | None
    delta: float

    @property
    def where(self) -> str:
        """The spec's table of the group, for messages: "privacy" or "privacy.groups[0]", ..."""
        return f"privacy.groups[{self.number - 1}]" if self.number else "privacy"


def groups_of(spec: RunSpec, clients: Sequence[str]) -> tuple[Group, ...]:
    """Return the groups of clients that a spec describes; each client is in exactly one.

    Args:
        spec: The spec, whose tables `privacy.groups` describe groups.
        clients: The names of all clients of the run.

    Returns:
        First the clients that no table names, as group 0 (unless there are none), then a group for
        each table. Mechanisms are not yet calibrated.

    Raises:
        ConfigError: A table names an unknown client, one that another names, more clients than
            there are, or another adjacency than the run's.
    """
    tables = spec.privacy.groups
    members = _members(tables, clients)
    taken = {name for names in members for name in names}
    rest = tuple(name for name in clients if name not in taken)
    groups = []
    if rest:
        groups.append(
            Group(
                number=0,
                clients=rest,
                mechanism=spec.mechanism,
                epsilon=spec.privacy.epsilon,
                delta=spec.privacy.delta,
            )
        )
    for number, (table, names) in enumerate(zip(tables, members, strict=True), start=1):
        group = Group(
            number=number,
            clients=names,
            mechanism=table.mechanism or spec.mechanism,
            epsilon=spec.privacy.epsilon if table.epsilon is None else table.epsilon,
            delta=spec.privacy.delta if table.delta is None else table.delta,
        )
        if table.adjacency not in (None, spec.privacy.adjacency):
            raise ConfigError(
                f"'{group.where}.adjacency' must be that of the run, '{spec.privacy.adjacency}', "
                f"got '{table.adjacency}'; remove it, or make two runs"
            )
        groups.append(group)
    return tuple(groups)


def calibrate_group(
    group: Group, domains: Sequence[Domain], *, rounds: int, terms: ReleaseTerms
) -> Group:
    """Return the group with the calibrated and automatic parameters of its mechanism filled in.

    Args:
        group: The group.
        domains: The input domains of its clients; the noise keeps the budget on each of them.
        rounds: The number of messages that a client sends, over which the budget must last.
        terms: What an observer sees of a message, and the adjacency.

    Raises:
        ConfigError: A noise parameter is missing and there is no budget to calibrate it to; or, in
            a group other than 0, no noise keeps the budget.
        ParameterError: A parameter is out of range, or in group 0 no noise keeps the budget.
    """
    kind, given = group.mechanism.kind, group.mechanism.parameters
    registration = registry.find(kind)
    registration.check_names(given)
    if (
        registration.calibrated_parameter
        and registration.calibrated_parameter.parameter not in given
    ):
        if group.epsilon is None:
            raise ConfigError(
                f"mechanism '{kind}' needs '{registration.calibrated_parameter.parameter}'; set "
                f"it, or set '{group.where}.epsilon' to calibrate it"
            )
        try:
            target = CalibrationTarget(rounds=rounds, epsilon=group.epsilon, delta=group.delta)
            found = calibrate_cached(registration, domains, given, target, terms)
        except ParameterError as error:
            if not group.number:
                raise
            raise ConfigError(f"'{group.where}': {error}") from None
    else:
        found = registration.resolve(domains[0], given)
    mechanism = MechanismSpec.model_validate({"kind": kind, **found})
    return Group(
        number=group.number,
        clients=group.clients,
        mechanism=mechanism,
        epsilon=group.epsilon,
        delta=group.delta,
    )


def check_private(groups: Sequence[Group], open_groups: Sequence[Group]) -> None:
    """Refuse a mechanism without privacy where there is a budget or more than one group.

    Args:
        groups: All groups of the run.
        open_groups: Those whose mechanism gives no privacy.

    Raises:
        ConfigError: There is such a group, and it has a budget or is not the only group.
    """
    for group in open_groups:
        kind = group.mechanism.kind
        if len(groups) > 1 or group.number:
            raise ConfigError(
                f"mechanism '{kind}' of '{group.where}' gives no privacy, but a run with groups "
                "must protect all of its clients; choose another mechanism"
            )
        if group.epsilon is not None:
            raise ConfigError(
                f"mechanism '{kind}' gives no privacy, so it cannot keep the budget "
                f"'{group.where}.epsilon' = {group.epsilon:g}; remove the budget, or choose "
                "another mechanism"
            )


def budget(group: Group, spec: RunSpec, unit: Unit) -> Budget | None:
    """Return the budget to which the ledger holds each client of a group; None without one."""
    if group.epsilon is None:
        return None
    return Budget(
        epsilon=group.epsilon, delta=group.delta, adjacency=spec.privacy.adjacency, unit=unit
    )


def write_groups_into(spec: RunSpec, groups: Sequence[Group]) -> RunSpec:
    """Return a copy of the spec with the mechanism, epsilon and delta of every group filled in."""
    tables = list(spec.privacy.groups)
    for group in groups:
        if group.number == 0:
            spec = spec.model_copy(update={"mechanism": group.mechanism})
            continue
        update = {"mechanism": group.mechanism, "epsilon": group.epsilon, "delta": group.delta}
        tables[group.number - 1] = tables[group.number - 1].model_copy(update=update)
    privacy = spec.privacy.model_copy(update={"groups": tuple(tables)})
    return spec.model_copy(update={"privacy": privacy})


def _members(tables: Sequence[GroupSpec], clients: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the clients of each table of `privacy.groups`.

    They are those that the table names, or as many as it asks for of the clients that none names.
    """
    owner: dict[str, int] = {}
    for number, table in enumerate(tables):
        for name in () if isinstance(table.clients, int) else table.clients:
            if name not in clients:
                near = UnknownNameError.among("client", name, clients)
                raise ConfigError(
                    f"'privacy.groups[{number}].clients' must name clients of the run: {near}"
                )
            if name in owner:
                raise ConfigError(
                    f"client '{name}' is named twice, in 'privacy.groups[{owner[name]}]' and "
                    f"'privacy.groups[{number}]'; name it once, since a client has one budget"
                )
            owner[name] = number
    free = [name for name in clients if name not in owner]
    asked = sum(table.clients for table in tables if isinstance(table.clients, int))
    if asked > len(free):
        raise ConfigError(
            f"'privacy.groups' need {asked + len(owner)} clients, but the run has {len(clients)}; "
            "lower their 'clients', or raise data.clients"
        )
    members = []
    for table in tables:
        if isinstance(table.clients, int):
            members.append(tuple(free[: table.clients]))
            free = free[table.clients :]
        else:
            members.append(table.clients)
    return members


def choose_mechanism(
    group: Group, spec: RunSpec, domain: Domain, terms: ReleaseTerms, *, rounds: int, cohort: int
) -> tuple[Group, str]:
    """Choose the mechanism of a group that says "auto": that of least error at its budget.

    Args:
        group: The group, with a budget.
        spec: The spec; with `randomness = "system"` exactly sampled mechanisms are preferred.
        domain: The input domain of the group's client with the most records.
        terms: What an observer sees of a message, and the adjacency.
        rounds: The number of messages that a client sends, over which the budget must last.
        cohort: The largest number of clients in a round.

    Returns:
        The group with the chosen mechanism, whose noise is not yet calibrated, and a text that says
        why it was chosen.

    Raises:
        ConfigError: The group has no budget.
        UnknownNameError: The mechanism has a parameter other than `bits`.
    """
    given = group.mechanism.parameters
    for name in given.keys() - {"bits"}:
        raise UnknownNameError.among("parameter of mechanism 'auto'", name, ["bits"])
    if group.epsilon is None:
        raise ConfigError(
            f"mechanism 'auto' needs a budget to choose a mechanism; set '{group.where}.epsilon', "
            "or name a mechanism"
        )
    setting = PlanSetting(
        domain=domain,
        epsilon=group.epsilon,
        delta=group.delta,
        terms=terms,
        rounds=rounds,
        bits=given.get("bits"),
        exact=spec.randomness == "system",
        summed_clients=cohort if isinstance(terms.visibility, OnlySums) else None,
    )
    ranking = rank(setting).best_of_each()
    best = ranking.choice
    # What "auto" stands for in a sum follows from the number of clients, which only the plan knows.
    given = {
        name: best.parameters[name] if value == AUTO and setting.summed_clients else value
        for name, value in best.setting.items()
    }
    mechanism = MechanismSpec.model_validate({"kind": best.kind, **given})
    return dataclasses.replace(group, mechanism=mechanism), ranking.explanation


def join_reasons(reasons: Mapping[str, str]) -> str | None:
    """Return in one text why each group's mechanism was chosen; None if no group had 'auto'.

    Args:
        reasons: The reason for each group with 'auto', by the name of its table in the spec.
    """
    if len(reasons) <= 1:
        return next(iter(reasons.values()), None)
    return "; ".join(f"in {where}: {reason}" for where, reason in reasons.items())
