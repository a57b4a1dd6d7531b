"""What every table of a spec has in common.

What a spec may say about features: [[features]] tables, applied in the order given.

The section `[model]` of a spec: a table with the `kind` of a registered model.
"""

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from sottovoce.core import sections
from sottovoce.core.errors import SottovoceError, UnknownNameError
from sottovoce.core.registry import Register
from sottovoce.learning.features import FEATURES
from sottovoce.learning.models.register import MODELS, model_of
from sottovoce.runs.validation import UNKNOWN_KEY, WRONG_VALUE
from sottovoce.runs.validation import Section as Section

if TYPE_CHECKING:  # a spec can be read where torch is not installed
    from sottovoce.learning.models import Model


class OpenSection(Section):
    """A table whose keys are those of whatever is registered under its `kind`.

    Sottovoce's own are checked and completed with their defaults where a spec is read. A plug-in's
    table stays as it is written until the run is built (`assembly.sections`): reading a spec runs
    nobody else's code, and works where the plug-in is not installed.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    register: ClassVar[Register[Any]]  # of entries with a dataclass, their `section`
    kind: str

    def check_kind(self) -> None:
        """Refuse a kind that nobody has registered; imports no plug-in."""
        if self.kind not in self.register.names():
            raise self.register.unknown(self.kind)

    @property
    def parameters(self) -> dict[str, Any]:
        """All keys but `kind`, with their values."""
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        value = as_written(value)
        if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
            return value
        found = cls.register.find_ours(value["kind"])
        return value if found is None else _completed(found.section, value)


def _completed(section: type, table: dict[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in table.items() if key != "kind"}
    known = sections.keys_of(section)
    errors = [
        _error(UNKNOWN_KEY, str(UnknownNameError.among("key", key, ["kind", *known])), table, key)
        for key in given
        if key not in known
    ]
    errors += [
        InitErrorDetails(type="missing", loc=(key,), input=table)
        for key in sections.missing_keys(section, given)
    ]
    if not errors:
        try:
            return {"kind": table["kind"], **sections.as_table(sections.build(section, given))}
        except SottovoceError as error:
            # Rules name the key first, as in 'hidden_units must be ...'.
            key, _, rule = str(error).partition(" ")
            if key in known:
                errors = [_error(WRONG_VALUE, f" {rule}", table, key)]
            else:
                errors = [_error(WRONG_VALUE, f": {error}", table)]
    raise ValidationError.from_exception_data(section.__name__, errors)


def _error(kind: Any, sentence: str, table: dict[str, Any], *location: str) -> InitErrorDetails:
    told = PydanticCustomError(kind, "{sentence}", {"sentence": sentence})
    return InitErrorDetails(type=told, loc=location, input=table)


def as_written(value: Any) -> Any:
    """Free data of a spec as its file has it: lists, and nothing that is null, which TOML lacks."""
    match value:
        case None:
            raise ValueError("null says nothing here; leave the key out")
        case dict():
            return {key: as_written(item) for key, item in value.items()}
        case list() | tuple():
            return [as_written(item) for item in value]
        case _:
            return value


class FeatureSpec(OpenSection):
    """A registered step; its own keys stand beside `kind`."""

    register: ClassVar[Register[Any]] = FEATURES


class ModelSpec(OpenSection):
    """A registered model; its own keys stand beside `kind`.

    The kind "module" is a user's own: `factory` is "package.module:function", called with
    `arguments`. Warning: the module is imported and the function called, so that a spec with a
    factory can do whatever a program can. Commands refuse it without `--allow-code`, and `simulate`
    without `allow_code=True`; a site calls only what its own file lists under `factories`.

    The kind "in_memory" is a module that a Python program gave to `sottovoce.simulate`; no other
    program has it.
    """

    register: ClassVar[Register[Any]] = MODELS

    @property
    def user_factory(self) -> str | None:
        """The user's function that would be imported and called, or None."""
        return str(self.parameters.get("factory", "")) if self.kind == "module" else None


def to_model(spec: ModelSpec) -> "Model":
    """The model that a table describes; its parameters are checked by the model itself."""
    return model_of(spec.kind, spec.parameters)
