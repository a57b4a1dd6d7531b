"""A network with one hidden layer."""

from dataclasses import dataclass

from torch import nn

from sottovoce.core import parameter_rules
from sottovoce.learning.models.linear import FlatLinear
from sottovoce.learning.models.shapes import InputShape, num_features


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """One hidden layer with tanh, Glorot-initialised."""

    hidden_units: int

    def __post_init__(self) -> None:
        parameter_rules.integer("hidden_units", self.hidden_units, low=1, high=2**20)


def build(model: Mlp, input_shape: InputShape, num_outputs: int) -> nn.Module:
    return nn.Sequential(
        FlatLinear(num_features(input_shape), model.hidden_units),
        nn.Tanh(),
        nn.Linear(model.hidden_units, num_outputs),
    )
