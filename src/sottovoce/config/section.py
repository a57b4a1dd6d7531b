"""What every table of a spec has in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of the spec: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
