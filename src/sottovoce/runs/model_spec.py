"""The section `[model]` of a spec: a table with the `kind` of a registered model."""

from typing import TYPE_CHECKING, Any, ClassVar

from sottovoce.core.registry import Register
from sottovoce.learning.models.register import MODELS, model_of
from sottovoce.runs.section import OpenSection

if TYPE_CHECKING:  # a spec can be read where torch is not installed
    from sottovoce.learning.models import Model


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
