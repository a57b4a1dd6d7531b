"""Read a spec from TOML, with overrides, and say in one line what is wrong with it."""

import math
import tomllib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sottovoce.core.errors import ConfigError, UnknownNameError
from sottovoce.runs.spec import RunSpec

_LARGEST = 10**300  # below the largest float: any number may meet one
_MOST_NESTED = 32  # a spec has tables in tables in tables, and then it ends


class SpecError(ConfigError):
    """A spec with keys or values that cannot be; `problems` are all of them, the message one."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(problems[0])
        self.problems = tuple(problems)


def load(
    path: Path, overrides: Sequence[str] = (), *, values: Mapping[str, Any] | None = None
) -> RunSpec:
    """The spec in a TOML file, after `key.path=value` overrides, or values by key path."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the spec {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
    table = parse_text(text, str(path))
    for key, value in parse_assignments(overrides, "--set").items():
        override(table, key, value, source=f"--set {key}")
    for key, value in (values or {}).items():
        override(table, key, value, source="overrides")
    return parse(table, str(path))


def parse_text(text: str, source: str) -> dict[str, Any]:
    """The table that a TOML text holds."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(_too_deep(source)) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from None
    except ValueError:  # Python reads no number of thousands of digits
        raise ConfigError(
            f"{source} holds a number of thousands of digits; give a smaller one"
        ) from None


def _too_deep(source: str) -> str:
    return (
        f"{source} is nested more than {_MOST_NESTED} deep, as no spec is; remove lists and "
        "tables within others"
    )


def parse(table: Mapping[str, Any], source: str = "spec") -> RunSpec:
    """The spec that plain data describes."""
    _check_plain(table, source, ())
    try:
        return RunSpec.model_validate(dict(table))
    except ValidationError as error:
        # A misspelt key is the cause of a missing one, so it is named first.
        causes = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
        missing = [_where(cause) for cause in causes if cause["type"] == "missing"]
        names = ", ".join(f"'{name}'" for name in missing)
        missed = f"{names} {'is' if len(missing) == 1 else 'are'} missing"
        told = (missed if cause["type"] == "missing" else _sentence(cause) for cause in causes)
        raise SpecError([f"{source}: {one}" for one in dict.fromkeys(told)]) from None


def _check_plain(value: object, source: str, path: tuple[str, ...]) -> None:
    """Refuse what could not be written down and read again as it was: a spec is kept as JSON."""
    where = f"{source}: '{'.'.join(path)}'" if path else source
    if len(path) > _MOST_NESTED:
        raise ConfigError(_too_deep(f"{source}: '{path[0]}'"))
    match value:
        case None | bool():
            return
        case int():
            if abs(value) > _LARGEST:
                raise ConfigError(
                    f"{where} is a number of more than 300 digits; give a smaller one"
                )
        case float():
            if not math.isfinite(value):
                raise ConfigError(f"{where} must be a finite number, got {value!r}")
        case str():
            _check_text(value, where)
        case Mapping():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ConfigError(f"{where} has a key that is no text: {key!r}")
                _check_text(key, where)
                _check_plain(item, source, (*path, key))
        case list() | tuple():
            for place, item in enumerate(value):
                _check_plain(item, source, (*path, str(place)))
        case _:
            raise ConfigError(
                f"{where} must be a number, a text, true or false, a list or a table, got {value!r}"
            )


def _check_text(text: str, where: str) -> None:
    """Half of a surrogate pair is no character, and in no file."""
    if not text.isascii() and any("\ud800" <= one <= "\udfff" for one in text):
        raise ConfigError(f"{where} holds text that cannot be written as UTF-8: {text!r}")


def parse_value(text: str) -> Any:
    """A TOML value, or a number as people also write it (.5, 1e5); bare words are strings."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except RecursionError:
        raise ConfigError(_too_deep("the value")) from None
    except ValueError:  # a TOMLDecodeError, or a number of thousands of digits
        pass
    try:
        return float(text)
    except ValueError:
        return text


def parse_assignment(text: str, option: str) -> tuple[str, Any]:
    """`key=value` as a pair."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise ConfigError(f"{option} wants key=value, got '{text}'")
    return key.strip(), parse_value(value.strip())


def parse_assignments(texts: Sequence[str], option: str) -> dict[str, Any]:
    """Several `key=value`, each key once."""
    found: dict[str, Any] = {}
    for text in texts:
        key, value = parse_assignment(text, option)
        if key in found:
            raise ConfigError(f"{option} gives '{key}' twice; give it once")
        found[key] = value
    return found


def override(table: dict[str, Any], key: str, value: Any, *, source: str) -> None:
    """Set the value at a dotted path; tables on the way are made, and lists counted from 0."""
    *parents, last = key.split(".")
    place: Any = table
    for parent in parents:
        place = _inside(place, parent, source)
        if not isinstance(place, dict | list):
            raise ConfigError(f"{source}: '{parent}' is a value, not a table")
    if isinstance(place, list):
        _inside(place, last, source)  # refuses what is no number, or too large
        place[int(last)] = value
    else:
        place[last] = value


def _inside(place: Any, part: str, source: str) -> Any:
    """What a table or a list holds under one part of a path."""
    if isinstance(place, dict):
        return place.setdefault(part, {})
    if not part.isdecimal() or int(part) >= len(place):
        raise ConfigError(f"{source}: '{part}' is none of the list's {len(place)} places (from 0)")
    return place[int(part)]


def _sentence(error: ErrorDetails) -> str:
    """One validation error as one line: where, what rule, what value."""
    where = _where(error)
    if error["type"] == "extra_forbidden":
        *parents, key = error["loc"]
        unknown = UnknownNameError.among("key", str(key), _keys_at(parents))
        table = where.rpartition(".")[0]
        return f"{unknown} (in [{table}])" if table else str(unknown)
    if error["type"] == "union_tag_invalid":
        context = error["ctx"]
        return (
            f"'{where}.kind' is '{context['tag']}', but must be one of {context['expected_tags']}"
        )
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return f"'{where}' must be a table, got {error['input']!r}"
    if error["type"] == "string_pattern_mismatch":
        return f"'{where}' must be able to name a folder, got {error['input']!r}"
    return f"'{where}': {error['msg'].lower()}, got {error['input']!r}"


def _where(error: ErrorDetails) -> str:
    """The key as its author wrote it."""
    written, _ = _walk(error["loc"])
    return ".".join(written)


def _keys_at(location: Sequence[str | int]) -> list[str]:
    """The keys that may stand at `location`."""
    _, sections = _walk(location)
    return [key for section in sections for key in section.model_fields]


def _walk(location: Sequence[str | int]) -> tuple[list[str], list[type[BaseModel]]]:
    """The steps of a location that somebody wrote, and the sections that may stand there.

    The tag of a discriminated choice is a step that nobody wrote: it only narrows the choice.
    """
    written: list[str] = []
    sections: list[type[BaseModel]] = [RunSpec]
    for step in location:
        if isinstance(step, int):  # a place in a list of tables; a key may be called '0' too
            written[-1] += f"[{step}]"
            continue
        chosen = [s for s in sections if step in _tags(s)]
        named = [s.model_fields[step].annotation for s in sections if step in s.model_fields]
        if chosen and not named:
            sections = chosen
            continue
        written.append(step)
        sections = [section for annotation in named for section in _sections_in(annotation)]
    return written, sections


def _tags(section: type[BaseModel]) -> tuple[str, ...]:
    kind = section.model_fields.get("kind")
    return typing.get_args(kind.annotation) if kind else ()


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    """The sections that an annotation names, in lists and choices too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for inner in typing.get_args(annotation) for found in _sections_in(inner)]
