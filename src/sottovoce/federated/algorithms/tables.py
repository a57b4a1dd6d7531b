"""Tables of a spec that belong to whoever is registered under their `kind`.

A section is a frozen dataclass whose fields are the keys that may stand beside `kind`. A field may
carry a rule in its metadata, `field(metadata=POSITIVE)`: a function of the key's full name and its
value that returns the value to keep, or raises.

Reading a spec must import neither torch nor anybody's plug-in. So `completed` asks the owners that
belong to this project only, whose sections import no torch; the tables of all others stay as they
are until a run is built.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ConfigError, ParameterError, PluginError, UnknownNameError
from sottovoce.core.registry import Register

S = TypeVar("S")

Rule = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered(Generic[S]):
    """A section's class, and a few words on what it does."""

    section: Callable[..., S]
    summary: str


def rule(check: Rule) -> Mapping[str, Rule]:
    """Return the metadata of a field whose values `check` must accept."""
    return {"rule": check}


def whole(low: int, high: int) -> Mapping[str, Rule]:
    """Return the metadata of a field that holds an integer from `low` to `high`."""
    return rule(lambda name, value: parameter_rules.integer(name, value, low=low, high=high))


def one_of(*words: str) -> Mapping[str, Rule]:
    """Return the metadata of a field that holds one of some words."""

    def check(name: str, value: Any) -> str:
        if value not in words:
            raise ParameterError(f"{name} must be one of {', '.join(words)}, got {value!r}")
        return str(value)

    return rule(check)


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ParameterError(f"{name} must be true or false, got {value!r}")
    return value


def _not_negative(name: str, value: Any) -> float:
    number = parameter_rules.finite(name, value)
    if number < 0.0:
        raise ParameterError(f"{name} must be at least 0, got {value!r}")
    return number


POSITIVE = rule(parameter_rules.positive)
NOT_NEGATIVE = rule(_not_negative)
TRUTH = rule(_truth)


def below(limit: float) -> Mapping[str, Rule]:
    """Return the metadata of a field that holds a number from 0 to below `limit`."""

    def check(name: str, value: Any) -> float:
        number = _not_negative(name, value)
        if number >= limit:
            raise ParameterError(f"{name} must be less than {limit:g}, got {value!r}")
        return number

    return rule(check)


def check_keys(section: Any, where: str) -> None:
    """Apply the rules of a section's fields, and keep what they return."""
    for field in dataclasses.fields(section):
        check, value = field.metadata.get("rule"), getattr(section, field.name)
        if check is not None and not (value is None and field.default is None):
            object.__setattr__(section, field.name, check(f"{where}.{field.name}", value))


def section_from(
    register: Register[Registered[S]], where: str, kind: str, given: Mapping[str, Any]
) -> S:
    """Return the section of the table `where`; a key that is unknown or missing is named."""
    return _built(register.find(kind), where, given)


def completed(
    register: Register[Registered[Any]], where: str, kind: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a table with every key written out, or as it is if its owner is not one of ours."""
    try:
        found = register.find_ours(kind)
    except PluginError:  # said where a run is built; a report of the run can do without
        found = None
    if found is None:
        return dict(given)
    return dataclasses.asdict(_built(found, where, given))


def _built(registered: Registered[S], where: str, given: Mapping[str, Any]) -> S:
    fields = {field.name: field for field in dataclasses.fields(registered.section)}  # type: ignore[arg-type]
    for name, value in given.items():
        if name not in fields:
            unknown = UnknownNameError.among("key", name, fields)
            raise UnknownNameError(f"{unknown} (in [{where}])")
        if value is None and fields[name].default is not None:
            raise ConfigError(f"'{where}.{name}' is null, which says nothing; leave the key out")
    missing = [
        f"'{where}.{name}'"
        for name, field in fields.items()
        if name not in given
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ConfigError(f"{', '.join(missing)} {verb} missing")
    return registered.section(**given)
