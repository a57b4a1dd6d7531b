"""Models as torch modules, each registered by its own file (see `register`).

    models.create(models.Mlp(hidden_units=32), (64,), 10, generator)

A module takes batches of shape (n, *input_shape) and flattens them itself where it needs to. A
user's own module joins by `UserModule`, or `InMemoryModule`; a plug-in's by its name in a spec.
"""

from typing import TYPE_CHECKING, get_args

import numpy as np

from sottovoce.core.errors import ParameterError, PluginError
from sottovoce.learning.models.linear import Linear
from sottovoce.learning.models.mlp import Mlp
from sottovoce.learning.models.register import (
    MODELS,
    InitialWeights,
    InputShape,
    Model,
    checked,
    model_of,
)
from sottovoce.learning.models.user_module import InMemoryModule, UserModule

if TYPE_CHECKING:  # tables of models are read where torch is not installed
    from torch import nn

__all__ = [
    "MODELS",
    "InMemoryModule",
    "InitialWeights",
    "InputShape",
    "Linear",
    "Mlp",
    "Model",
    "UserModule",
    "build",
    "create",
    "initialise",
    "model_of",
]


def create(
    model: Model, input_shape: InputShape, num_outputs: int, generator: np.random.Generator
) -> "nn.Module":
    """The module with initial weights that follow from `generator` alone."""
    if _rule(model) == "own":
        seed = int(generator.integers(2**63))
        return _built(model, input_shape, num_outputs, torch_seed=seed)
    module = build(model, input_shape, num_outputs)
    initialise(model, module, generator)
    return module


def build(model: Model, input_shape: InputShape, num_outputs: int) -> "nn.Module":
    """The module; its initial weights are set by `initialise`, or by `create` in one go."""
    return _built(model, input_shape, num_outputs, torch_seed=0)


def initialise(model: Model, module: "nn.Module", generator: np.random.Generator) -> None:
    """Initial weights from a generator of ours, so that a run can be repeated anywhere."""
    from sottovoce.learning.models import initialization

    match _rule(model):
        case "zero":
            initialization.zero(module)
        case "tanh":
            initialization.for_tanh(module, generator)
        case "relu":
            initialization.for_relu(module, generator)
        case _:
            name = getattr(model, "factory", getattr(model, "label", type(model).__name__))
            raise ParameterError(
                f"the module of '{name}' draws its own weights while it is built; "
                "use models.create, which builds it under a seed from the generator"
            )


def _rule(model: Model) -> InitialWeights:
    rule: InitialWeights = getattr(model, "initial_weights", "own")
    if rule not in get_args(InitialWeights):
        raise PluginError(
            f"the model '{type(model).__name__}' has initial_weights = {rule!r}, and it must be "
            f"one of {', '.join(get_args(InitialWeights))}"
        )
    return rule


def _built(
    model: Model, input_shape: InputShape, num_outputs: int, *, torch_seed: int
) -> "nn.Module":
    import torch

    input_shape = checked(input_shape, num_outputs)
    # Torch's layers draw from its global generator, which is nobody's here: left as it was found.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed)
        return model.build(input_shape, num_outputs)
