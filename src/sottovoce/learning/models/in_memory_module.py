"""A module that a function of this process makes, which no other process can call."""

from dataclasses import dataclass

from torch import nn

from sottovoce.core.errors import ParameterError
from sottovoce.learning import in_memory
from sottovoce.learning.models import user_module
from sottovoce.learning.models.shapes import InputShape


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemoryModule:
    """What is lent as a model under `label`: a function of (input_shape, num_outputs)."""

    label: str


def build(model: InMemoryModule, input_shape: InputShape, num_outputs: int) -> nn.Module:
    """What the function makes, tried on two blank samples."""
    part = in_memory.find("model", model.label)
    if part is None:
        raise ParameterError(
            f"the model '{model.label}' is a function of the Python program that made the run, and "
            "this one does not have it; give it to sottovoce.simulate(..., model=...) again, or "
            "put it into a module and set model.kind = 'module' with a factory"
        )
    arguments = {"input_shape": input_shape, "num_outputs": num_outputs}
    return user_module.tried(model.label, part.value, arguments)
