"""What every table of a spec has in common."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of the spec: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


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
