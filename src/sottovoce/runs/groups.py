"""Groups of clients with budgets and mechanisms of their own, from a spec.

A mechanism in the place of "auto": the one that errs least at a group's budget.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import Domain, L2Ball
from sottovoce.core.errors import ConfigError, ParameterError, UnknownNameError
from sottovoce.ledger.records import Budget
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.release import ReleaseTerms
from sottovoce.planning.calibrate import Target, calibrated
from sottovoce.planning.candidates import Setting
from sottovoce.planning.plan import rank
from sottovoce.runs.spec import GroupSpec, MechanismSpec, RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Clients with the same budget and mechanism; `where` is the table of the spec that says so.

    `number` counts the tables of the spec from 1; 0 are those whom no table names.
    """

    number: int
    clients: tuple[str, ...]
    mechanism: MechanismSpec
    epsilon: float | None
    delta: float

    @property
    def where(self) -> str:
        return f"privacy.groups[{self.number - 1}]" if self.number else "privacy"


def groups_of(spec: RunSpec, clients: Sequence[str]) -> tuple[Group, ...]:
    """Every client in exactly one group, those that no table of the spec names first."""
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
                f"'{group.where}.adjacency' is {table.adjacency}, but the run is "
                f"{spec.privacy.adjacency}: a run has one adjacency; make two runs"
            )
        groups.append(group)
    return tuple(groups)


def calibrate(
    group: Group, domains: Sequence[Domain], *, rounds: int, terms: ReleaseTerms
) -> Group:
    """The group with the calibrated and automatic parameters of its mechanism filled in."""
    kind, given = group.mechanism.kind, group.mechanism.parameters
    registration = registry.find(kind)
    registration.check_names(given)
    if registration.knob and registration.knob.parameter not in given:
        if group.epsilon is None:
            raise ConfigError(
                f"mechanism '{kind}' needs '{registration.knob.parameter}', or "
                f"'{group.where}.epsilon' to calibrate it"
            )
        try:
            target = Target(rounds=rounds, epsilon=group.epsilon, delta=group.delta)
            found = calibrated(registration, domains, given, target, terms)
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
    """A budget needs a mechanism that keeps it, and so does everyone where there are groups.

    `open_groups` are those whose mechanism gives no privacy.
    """
    for group in open_groups:
        kind = group.mechanism.kind
        if len(groups) > 1 or group.number:
            raise ConfigError(
                f"mechanism '{kind}', which '{group.where}' uses, gives no privacy, but a run with "
                "groups protects all of its clients; choose another mechanism"
            )
        if group.epsilon is not None:
            raise ConfigError(
                f"mechanism '{kind}' gives no privacy, so it cannot keep "
                f"'{group.where}.epsilon' = {group.epsilon:g}; remove one of the two"
            )


def budget(group: Group, spec: RunSpec, unit: Unit) -> Budget | None:
    """What the ledger holds each client of a group to."""
    if group.epsilon is None:
        return None
    return Budget(
        epsilon=group.epsilon, delta=group.delta, adjacency=spec.privacy.adjacency, unit=unit
    )


def written_into(spec: RunSpec, groups: Sequence[Group]) -> RunSpec:
    """The spec with every group's own mechanism, epsilon and delta written out."""
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
    """The clients of each table: those it names, or the next so many that no table names."""
    owner: dict[str, int] = {}
    for number, table in enumerate(tables):
        for name in () if isinstance(table.clients, int) else table.clients:
            if name not in clients:
                near = UnknownNameError.among("client", name, clients)
                raise ConfigError(f"'privacy.groups[{number}].clients': {near}")
            if name in owner:
                raise ConfigError(
                    f"client '{name}' is named twice, in 'privacy.groups[{owner[name]}]' and "
                    f"'privacy.groups[{number}]'; a client has one budget"
                )
            owner[name] = number
    free = [name for name in clients if name not in owner]
    asked = sum(table.clients for table in tables if isinstance(table.clients, int))
    if asked > len(free):
        raise ConfigError(
            f"'privacy.groups' want {asked + len(owner)} clients, but data.clients is "
            f"{len(clients)}; ask for fewer"
        )
    members = []
    for table in tables:
        if isinstance(table.clients, int):
            members.append(tuple(free[: table.clients]))
            free = free[table.clients :]
        else:
            members.append(table.clients)
    return members


def chosen(
    group: Group, spec: RunSpec, domain: L2Ball, terms: ReleaseTerms, *, rounds: int
) -> tuple[Group, str]:
    """The group with a mechanism, still to be calibrated, and why it is that one."""
    given = group.mechanism.parameters
    for name in given.keys() - {"bits"}:
        raise UnknownNameError.among("parameter of mechanism 'auto'", name, ["bits"])
    if group.epsilon is None:
        raise ConfigError(
            f"mechanism 'auto' is chosen at a budget: set '{group.where}.epsilon', or name a "
            "mechanism"
        )
    setting = Setting(
        domain=domain,
        epsilon=group.epsilon,
        delta=group.delta,
        terms=terms,
        rounds=rounds,
        bits=given.get("bits"),
        exact=spec.randomness == "system",
    )
    ranking = rank(setting).best_of_each()
    best = ranking.choice
    mechanism = MechanismSpec.model_validate({"kind": best.kind, **best.setting})
    return dataclasses.replace(group, mechanism=mechanism), ranking.explanation


def in_one_sentence(reasons: Mapping[str, str]) -> str | None:
    """The reasons of all groups; None where nothing was left open."""
    if len(reasons) <= 1:
        return next(iter(reasons.values()), None)
    return "; ".join(f"in {where}: {reason}" for where, reason in reasons.items())
