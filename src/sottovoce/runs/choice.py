"""A mechanism in the place of "auto": the one that errs least at a group's budget."""

import dataclasses
from collections.abc import Mapping

from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import ConfigError, UnknownNameError
from sottovoce.mechanisms.release import ReleaseTerms
from sottovoce.planning.ranking import rank
from sottovoce.planning.setting import Setting
from sottovoce.runs.groups import Group
from sottovoce.runs.spec import MechanismSpec, RunSpec


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
