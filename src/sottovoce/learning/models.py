"""Models as torch modules. Anything that is a torch.nn.Module will do; these two come along."""

from dataclasses import dataclass
from typing import assert_never

import numpy as np
import torch
from torch import nn

from sottovoce import parameters
from sottovoce.errors import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Multinomial logistic regression, starting at zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """One hidden layer with tanh, Glorot-initialised."""

    hidden_units: int

    def __post_init__(self) -> None:
        parameters.integer("hidden_units", self.hidden_units, low=1, high=2**20)


Model = Linear | Mlp


def build(model: Model, num_features: int, num_classes: int) -> nn.Module:
    """The module; its initial weights are set by `initialise`."""
    match model:
        case Linear():
            return nn.Linear(num_features, num_classes)
        case Mlp(hidden_units=hidden):
            return nn.Sequential(
                nn.Linear(num_features, hidden), nn.Tanh(), nn.Linear(hidden, num_classes)
            )
        case _:
            assert_never(model)


def initialise(model: Model, module: nn.Module, generator: np.random.Generator) -> None:
    """Initial weights from a generator of ours, so that a run can be repeated anywhere."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
            if isinstance(model, Mlp) and parameter.dim() > 1:
                limit = float(np.sqrt(6.0 / sum(parameter.shape)))
                draw = generator.uniform(-limit, limit, size=tuple(parameter.shape))
                parameter.copy_(torch.as_tensor(draw))


def check_module(module: nn.Module) -> None:
    """Placeholder until the models' package is in."""
    if any(True for _ in module.buffers()):
        raise ParameterError(
            "the model has buffers (batch normalisation?), which mix samples and leave the "
            "client unprivatised; use group normalisation"
        )
