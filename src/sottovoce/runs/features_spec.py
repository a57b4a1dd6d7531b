"""What a spec may say about features: [[features]] tables, applied in the order given."""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.learning import public_images, views
from sottovoce.learning.synthetic import MAX_IMAGES, MAX_VARIANTS
from sottovoce.learning.views import View
from sottovoce.runs.section import Section


class ScatteringSpec(Section):
    """Scattering coefficients, each sample's normalised in `groups` groups of channels.

    Each of the `views` brings its own channels: "plain", "log" (logarithms), "opponent" (colours).
    """

    kind: Literal["scattering"]
    scales: Annotated[int, Field(ge=1, le=8)] = 2
    angles: Annotated[int, Field(ge=1, le=64)] = 8
    groups: Annotated[int, Field(ge=1, le=2**20)] = 27
    views: Annotated[tuple[View, ...], Field(strict=False)] = views.ONLY_PLAIN

    @field_validator("views")
    @classmethod
    def _distinct(cls, value: tuple[View, ...]) -> tuple[View, ...]:
        try:
            views.check(value)
        except ParameterError as error:
            raise ValueError(str(error)) from None
        return value

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without `views` where they are the default: specs keep the hashes of their results."""
        found: dict[str, Any] = handler(self)
        if self.views == views.ONLY_PLAIN:
            found.pop("views", None)
        return found


class PreconditionSpec(Section):
    """Few coordinates, learned from public `images`: "strokes", "dead_leaves" or PATH.npz.

    With `variants` of 2 or more, each synthetic thing is shown so many times, and coordinates are
    those along which things differ most beside their variants.
    """

    kind: Literal["precondition"]
    images: str
    count: Annotated[int, Field(ge=2, le=MAX_IMAGES)]
    components: Annotated[int, Field(ge=1)]
    variants: Annotated[int, Field(ge=1, le=MAX_VARIANTS)] = 1
    exponent: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 0.5
    bias: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = 0.1
    seed: Annotated[int, Field(ge=0, lt=2**128)] = 0

    @field_validator("images")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            public_images.check_source(value)
        except UnknownNameError as error:
            raise ValueError(str(error)) from None
        return value


class FlattenSpec(Section):
    """One row of values a sample."""

    kind: Literal["flatten"]


FeatureSpec = Annotated[
    ScatteringSpec | PreconditionSpec | FlattenSpec, Field(discriminator="kind")
]
