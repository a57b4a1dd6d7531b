"""The tables of a spec whose keys are the fields of a class registered under their `kind`.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Mlp:
        hidden_units: int        # [model] kind = "mlp", hidden_units = 32

A section is a frozen dataclass whose fields are the keys that a table may have in addition to
`kind`. A field may have a rule in its metadata, `field(metadata=POSITIVE)`: a function of the key's
name and its value that returns the value to keep, or raises. `__post_init__` calls `check_keys`, or
makes its own checks.

A field with the metadata `DERIVED` is not a key: it follows from the rest of the spec. A
field that was added after specs had been hashed is named in the class variable
`LEFT_OUT_AS_DEFAULT`: it is written only if it differs from its default, so that the hashes of
older specs do not change.

Reading a spec must import neither torch nor a plug-in. So `complete_table` looks only at the
sections of Sottovoce and sottovoce-papers, which do not import torch; all other tables stay as
they are until a run is built.
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
class RegisteredSection(Generic[S]):
    """A registered section: its class, and a short description.

    Attributes:
        section: The class, or a function that returns the section.
        summary: A short description for listings.
    """

    section: Callable[..., S]
    summary: str


# -- rules -----------------------------------------------------------------------------------------

DERIVED: Mapping[str, Any] = {"derived": True}


def rule(check: Rule) -> Mapping[str, Rule]:
    """Return the metadata of a dataclass field whose values `check` must accept.

    `check` is a function of the key's name and its value that returns the value to store, or raises
    ParameterError.
    """
    return {"rule": check}


def whole(low: int, high: int, remedy: str = "") -> Mapping[str, Rule]:
    """Return the metadata of a dataclass field that holds an integer from `low` to `high`.

    `check_keys` raises ParameterError for any other value; `remedy` is appended to its message.
    """
    return rule(
        lambda name, value: parameter_rules.integer(name, value, low=low, high=high, remedy=remedy)
    )


def one_of(*words: str) -> Mapping[str, Rule]:
    """Return the metadata of a dataclass field that holds one of these words.

    `check_keys` raises ParameterError for any other value.
    """

    def check(name: str, value: Any) -> str:
        if value not in words:
            raise ParameterError(f"{name} must be one of {', '.join(words)}, got {value!r}")
        return str(value)

    return rule(check)


def below(limit: float) -> Mapping[str, Rule]:
    """Return the metadata of a dataclass field that holds a finite number in [0, limit).

    `check_keys` raises ParameterError for any other value.
    """

    def check(name: str, value: Any) -> float:
        number = _not_negative(name, value)
        if number >= limit:
            raise ParameterError(f"{name} must be less than {limit:g}, got {value!r}")
        return number

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


#: The rule of a spec key whose value must be a positive number.
POSITIVE = rule(parameter_rules.positive)
FRACTION = rule(parameter_rules.fraction)
NOT_NEGATIVE = rule(_not_negative)
BOOLEAN = rule(_truth)


def check_keys(section: Any, where: str = "") -> None:
    """Apply the rules of a section's fields, and store the values that they return in place.

    None is not checked where it is the default.

    Args:
        section: An instance of a dataclass, frozen or not.
        where: The table's name, for messages; without it they name only the key.

    Raises:
        ParameterError: A value breaks the rule of its field.
    """
    for field in dataclasses.fields(section):
        check, value = field.metadata.get("rule"), getattr(section, field.name)
        if check is not None and not (value is None and field.default is None):
            name = f"{where}.{field.name}" if where else field.name
            object.__setattr__(section, field.name, check(name, value))


# -- from a table to a section, and back -----------------------------------------------------------


def keys_of(section: Any) -> dict[str, "dataclasses.Field[Any]"]:
    """Return the keys that a table may have in addition to `kind`, with their dataclass fields.

    They are the fields of `section`, a dataclass or an instance of one, without those that have the
    metadata `DERIVED`.
    """
    fields = dataclasses.fields(section)
    return {field.name: field for field in fields if "derived" not in field.metadata}


def missing_keys(section: Any, given: Mapping[str, Any]) -> list[str]:
    """Return the keys of a section that have no default and are not in `given`; empty if none."""
    return [
        name
        for name, field in keys_of(section).items()
        if name not in given
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]


def build(section: Callable[..., S], given: Mapping[str, Any]) -> S:
    """Return section(**given), with values converted to the types of its fields.

    The caller has checked the keys. A spec is plain data: a list becomes a tuple where the field's
    default is a tuple, and a whole number becomes a float where the field is a float.
    """
    values = dict(given)
    for name, field in keys_of(section).items():
        value = values.get(name)
        if isinstance(value, list) and isinstance(field.default, tuple):
            values[name] = tuple(value)
        elif type(value) is int and field.type in (float, "float"):
            values[name] = float(value)
    return section(**values)


def section_from(
    register: Register[RegisteredSection[S]], where: str, kind: str, given: Mapping[str, Any]
) -> S:
    """Check the keys of a spec's table, and return the section that they describe.

    Args:
        register: The register in which the kinds of this table are found.
        where: The table's name in the spec, such as 'model', for messages.
        kind: The value of the key `kind`. If a plug-in registers it, the plug-in is imported.
        given: All other keys of the table, with their values.

    Returns:
        An instance of the section's class, whose fields are the keys.

    Raises:
        UnknownNameError: The kind is not registered, or `given` has a key that this kind lacks.
        ConfigError: A key without a default is missing, a value is null although null is not the
            key's default, or a nested table is invalid.
        ParameterError: A value breaks the rule of its key.
        PluginError: The kind is a plug-in's that does not work, or two sources claim it.
        ModuleNotFoundError: The kind is Sottovoce's own and needs a package that is not installed.
    """
    return _checked(register.find(kind).section, where, given)


def complete_table(
    register: Register[RegisteredSection[Any]], where: str, kind: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a copy of a spec's table, with the defaults of the keys that it leaves out.

    Only the sections of Sottovoce and sottovoce-papers are looked at. A table whose kind is a
    plug-in's, or unknown, or needs a package that is not installed, is copied without a check.

    Args:
        register: The register in which the kinds of this table are found.
        where: The table's name in the spec, such as 'model', for messages.
        kind: The value of the key `kind`.
        given: All other keys of the table, with their values.

    Returns:
        The table without `kind`. If it was checked, it has all fields of the section, derived ones
        too, as `complete` returns them.

    Raises:
        UnknownNameError: `given` has a key that this kind lacks.
        ConfigError: A key without a default is missing, a value is null although null is not the
            key's default, or a nested table is invalid.
        ParameterError: A value breaks the rule of its key.
    """
    try:
        found = register.find_ours(kind)
    except PluginError:  # Building a run raises it; a report of the run does not need the section.
        found = None
    if found is None:
        return dict(given)
    return complete(_checked(found.section, where, given))


def _checked(section: Callable[..., S], where: str, given: Mapping[str, Any]) -> S:
    fields = keys_of(section)
    for name, value in given.items():
        if name not in fields:
            unknown = UnknownNameError.among("key", name, fields)
            raise UnknownNameError(f"{unknown} (in [{where}])")
        if value is None and fields[name].default is not None:
            raise ConfigError(f"'{where}.{name}' is null; give it a value, or leave the key out")
    if missing := [f"'{where}.{name}'" for name in missing_keys(section, given)]:
        verb, what = ("is", "it") if len(missing) == 1 else ("are", "them")
        raise ConfigError(f"{', '.join(missing)} {verb} missing; add {what} to the spec")
    return build(section, given)


def complete(section: Any) -> dict[str, Any]:
    """Return all fields of a section with their values, derived ones and None too.

    Left out are keys that the section's class variable `LEFT_OUT_AS_DEFAULT` names, if they have
    their default.
    """
    late = _late_defaults(section)
    return {key: value for key, value in dataclasses.asdict(section).items() if key not in late}


def _late_defaults(section: Any) -> set[str]:
    """Return the fields that were added after specs had been hashed and have their default."""
    late = getattr(section, "LEFT_OUT_AS_DEFAULT", ())
    fields = [field for field in dataclasses.fields(section) if field.name in late]
    return {field.name for field in fields if getattr(section, field.name) == _default_of(field)}


def _default_of(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def as_table(section: Any) -> dict[str, Any]:
    """Return the keys of a section with their values, as a spec's table has them.

    Left out are `kind`, derived fields, keys whose value is None, and keys that the section's class
    variable `LEFT_OUT_AS_DEFAULT` names, if they have their default. A tuple becomes a list.
    """
    late = _late_defaults(section)
    found = {}
    for name in keys_of(section):
        value = getattr(section, name)
        if value is None or name in late:
            continue
        found[name] = list(value) if isinstance(value, tuple) else value
    return found
