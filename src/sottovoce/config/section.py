"""What all tables of a spec have in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of the spec: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
