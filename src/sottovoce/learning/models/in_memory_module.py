"""A module that a function of this process makes, which no other process can call."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.learning import in_memory
from sottovoce.learning.models import user_module
from sottovoce.learning.models.register import InitialWeights, register_model
from sottovoce.learning.models.shapes import InputShape

if TYPE_CHECKING:
    from torch import nn


@register_model("in_memory", summary="a module that a Python program gave to sottovoce.simulate")
@dataclass(frozen=True, slots=True, kw_only=True)
class InMemoryModule:
    """What is lent as a model under `label`: a function of (input_shape, num_outputs)."""

    initial_weights: ClassVar[InitialWeights] = "own"
    label: str

    def __post_init__(self) -> None:
        parameter_rules.text("label", self.label)

    def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module":
        """What the function makes, tried on two blank samples."""
        part = in_memory.find("model", self.label)
        if part is None:
            raise ParameterError(
                f"the model '{self.label}' is a function of the Python program that made the run, "
                "and this one does not have it; give it to sottovoce.simulate(..., model=...) "
                "again, or put it into a module and set model.kind = 'module' with a factory"
            )
        arguments = {"input_shape": input_shape, "num_outputs": num_outputs}
        return user_module.tried(self.label, part.value, arguments)
