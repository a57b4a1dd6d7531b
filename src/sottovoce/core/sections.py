"""Tables of a spec that whoever is named by `kind` describes: frozen dataclasses, field by field.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Mlp:
        hidden_units: int        # [model] kind = "mlp", hidden_units = 32

The fields are the keys that may stand beside `kind`; `__post_init__` checks their values. A field
that came after specs were hashed is named in the class variable `LEFT_OUT_AS_DEFAULT`: it is
written only where it is not its default, so that the hashes of older specs stay as they are.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from sottovoce.core.errors import ConfigError, UnknownNameError

S = TypeVar("S")


def keys_of(section: type) -> list[str]:
    """Return the keys that may stand beside `kind`."""
    return [field.name for field in dataclasses.fields(section)]


def missing_keys(section: type, given: Mapping[str, Any]) -> list[str]:
    """Return the keys without a default that were not given."""
    return [
        field.name
        for field in dataclasses.fields(section)
        if field.name not in given
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]


def build(section: type[S], given: Mapping[str, Any]) -> S:
    """Return the section with these values, whose keys are checked already.

    A spec is plain data: its lists become tuples where the field's default is one, and whole
    numbers become floats where the field is a float.
    """
    values = dict(given)
    for field in dataclasses.fields(section):  # type: ignore[arg-type]
        value = values.get(field.name)
        if isinstance(value, list) and isinstance(field.default, tuple):
            values[field.name] = tuple(value)
        elif type(value) is int and field.type in (float, "float"):
            values[field.name] = float(value)
    return section(**values)


def of_table(what: str, kind: str, section: type[S], given: Mapping[str, Any]) -> S:
    """Return the section of a table; an unknown or missing key is an error that names it.

    Args:
        what: The table's name in the spec, such as 'model'.
        kind: Its kind.
        section: The dataclass that is registered under that kind.
        given: What stands beside `kind`.
    """
    for name in given:
        if name not in keys_of(section):
            raise UnknownNameError.among(f"key of {what} '{kind}'", name, keys_of(section))
    if missing := missing_keys(section, given):
        names = ", ".join(f"'{what}.{name}'" for name in missing)
        raise ConfigError(f"{what} '{kind}' needs {names}")
    return build(section, given)


def as_table(section: Any) -> dict[str, Any]:
    """Return every key with its value as a spec holds it: what is None is left out."""
    late = getattr(section, "LEFT_OUT_AS_DEFAULT", ())
    found = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if value is None or (field.name in late and value == field.default):
            continue
        found[field.name] = list(value) if isinstance(value, tuple) else value
    return found
