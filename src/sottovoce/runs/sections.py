"""Tables of specs, files and messages: their base classes, and messages for invalid ones."""

import typing
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from sottovoce.core import sections
from sottovoce.core.errors import SottovoceError, UnknownNameError
from sottovoce.core.registry import Register

Model = type[BaseModel] | None  # Without a model there are no keys to propose.
# Types of errors with messages for the user: a whole sentence, and the text after the quoted key.
UNKNOWN_KEY, WRONG_VALUE = "unknown_key", "wrong_value"
_LONGEST_VALUE = 200  # Characters of a refused value that a message shows.


class Section(BaseModel):
    """A table of a spec, file or message: frozen, without unknown keys or conversions of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def problem_in(error: ValidationError, model: Model = None) -> str:
    """Return the first problem of a validation as one line: the key, the rule and the value.

    Args:
        error: What pydantic raised.
        model: The class that was validated, to name keys as they are written and to propose the
            nearest; None proposes none.
    """
    return problems_in(error, model)[0]


def problems_in(error: ValidationError, model: Model = None) -> list[str]:
    """Return all problems of a validation, one line each; missing keys are reported together.

    Args:
        error: What pydantic raised.
        model: The class that was validated, to name keys as they are written and to propose the
            nearest; None proposes none.
    """
    # A misspelled key is often why another is missing, so it is named first.
    misspelled = ("extra_forbidden", UNKNOWN_KEY)
    causes = sorted(error.errors(), key=lambda detail: detail["type"] not in misspelled)
    missing = [f"'{_where(cause, model)}'" for cause in causes if cause["type"] == "missing"]
    missed = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    told = (missed if one["type"] == "missing" else _sentence(one, model) for one in causes)
    return list(dict.fromkeys(told))


def _sentence(error: ErrorDetails, model: Model) -> str:
    """Return one validation error as one line: the key, the rule and the value."""
    where, value = _where(error, model), _shown(error["input"])
    if error["type"] == "extra_forbidden":
        *parents, key = error["loc"]
        unknown = UnknownNameError.among("key", str(key), _keys_at(parents, model))
        table = where.rpartition(".")[0]
        return f"{unknown} (in [{table}])" if table else str(unknown)
    if error["type"] == UNKNOWN_KEY:
        return f"{error['msg']} (in [{where.rpartition('.')[0]}])"
    if error["type"] == WRONG_VALUE:
        return f"'{where}'{error['msg']}"
    if error["type"] == "union_tag_invalid":
        context = error["ctx"]
        return f"'{where}.kind' must be one of {context['expected_tags']}, got '{context['tag']}'"
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        name = f"'{where}'" if where else "it"
        return f"{name} must be a table, got {value}"
    if error["type"] in ("tuple_type", "list_type"):
        return f"'{where}' must be a list, got {value}"
    if error["type"] == "string_pattern_mismatch":
        return f"'{where}' must be usable as the name of a folder, got {value}"
    if error["type"] == "value_error":
        return f"'{where}': {error['ctx']['error']}" if where else str(error["ctx"]["error"])
    rule = error["msg"].lower().replace("input should", "must", 1)
    return f"'{where}'{' ' if rule.startswith('must') else ': '}{rule}, got {value}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _where(error: ErrorDetails, model: Model) -> str:
    """Return the key as its author wrote it."""
    written, _ = _walk(error["loc"], model)
    return ".".join(written)


def _keys_at(location: Sequence[str | int], model: Model) -> list[str]:
    """Return the keys that are allowed at `location`."""
    _, sections = _walk(location, model)
    return [key for section in sections for key in section.model_fields]


def _walk(location: Sequence[str | int], model: Model) -> tuple[list[str], list[type[BaseModel]]]:
    """Return the written steps of a location, and the sections that are allowed there.

    Where a value may be one of several classes, pydantic adds the tag or class to the location. It
    is not in the file, so it only narrows the choice.
    """
    written: list[str] = []
    sections, is_free = [model] if model else [], False
    for step in location:
        if isinstance(step, int):  # An index into a list of tables; the key '0' would be a text.
            written[-1] += f"[{step}]"
            continue
        if is_free:  # A name that the author chose, in a table of tables.
            written.append(step)
            is_free = False
            continue
        chosen = [s for s in sections if step in (*_tags(s), s.__name__)]
        named = [s.model_fields[step].annotation for s in sections if step in s.model_fields]
        if chosen and not named:
            sections = chosen
            continue
        written.append(step)
        is_free = any(typing.get_origin(annotation) is dict for annotation in named)
        sections = [section for annotation in named for section in _sections_in(annotation)]
    return written, sections


def _tags(section: type[BaseModel]) -> tuple[str, ...]:
    kind = section.model_fields.get("kind")
    return typing.get_args(kind.annotation) if kind else ()


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections that an annotation names, inside lists and unions too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for inner in typing.get_args(annotation) for found in _sections_in(inner)]


class OpenSection(Section):
    """A table whose keys are defined by the class that is registered under its `kind`.

    The tables of Sottovoce's own kinds are checked, and completed with defaults, when a spec is
    read. A plug-in's table stays as written until the run is built (`runs.inputs`): reading a spec
    runs no third-party code, and works where the plug-in is not installed.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    register: ClassVar[Register[Any]]  # Its entries have a dataclass, their `section`.
    kind: str

    def check_kind(self) -> None:
        """Raise UnknownNameError if the table's `kind` is not registered; import no plug-in."""
        if self.kind not in self.register.names():
            raise self.register.unknown(self.kind)

    @property
    def parameters(self) -> dict[str, Any]:
        """All keys except `kind`, with their values."""
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        value = as_toml_data(value)
        if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
            return value
        found = cls.register.find_ours(value["kind"])
        if found is None:
            return value
        common = [key for key in cls.model_fields if key != "kind"]
        return _completed(found.section, value, common)

    def completed(self, section: object) -> Self:
        """Return the table with every key of its section, the object that it describes."""
        given = {key: getattr(self, key) for key in type(self).model_fields}
        common = {key: value for key, value in given.items() if value is not None}
        return type(self).model_validate({**common, **sections.as_table(section)})


def _completed(section: type, table: dict[str, Any], common: Sequence[str]) -> dict[str, Any]:
    """Return a table with every key of its section; `common` are the keys of all kinds."""
    kept = {key: table[key] for key in ("kind", *common) if key in table}
    given = {key: value for key, value in table.items() if key not in kept}
    known = sections.keys_of(section)
    errors = [
        _error(
            UNKNOWN_KEY,
            str(UnknownNameError.among("key", key, ["kind", *common, *known])),
            table,
            key,
        )
        for key in given
        if key not in known
    ]
    errors += [
        InitErrorDetails(type="missing", loc=(key,), input=table)
        for key in sections.missing_keys(section, given)
    ]
    if not errors:
        try:
            return {**kept, **sections.as_table(sections.build(section, given))}
        except SottovoceError as error:
            # Messages of rules start with the key, as in 'hidden_units must be ...'.
            key, _, rule = str(error).partition(" ")
            if key in known:
                errors = [_error(WRONG_VALUE, f" {rule}", table, key)]
            else:
                errors = [_error(WRONG_VALUE, f": {error}", table)]
    raise ValidationError.from_exception_data(section.__name__, errors)


def _error(kind: Any, sentence: str, table: dict[str, Any], *location: str) -> InitErrorDetails:
    told = PydanticCustomError(kind, "{sentence}", {"sentence": sentence})
    return InitErrorDetails(type=told, loc=location, input=table)


def as_toml_data(value: Any) -> Any:
    """Return free data of a spec as a TOML file has them: a copy with lists for tuples.

    Raises:
        ValueError: A value, also a nested one, is None.
    """
    match value:
        case None:
            raise ValueError("null is not allowed here; leave the key out")
        case dict():
            return {key: as_toml_data(item) for key, item in value.items()}
        case list() | tuple():
            return [as_toml_data(item) for item in value]
        case _:
            return value
