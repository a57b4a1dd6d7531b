"""Multinomial logistic regression, or linear regression.

A network with one hidden layer.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sottovoce.core import parameter_rules
from sottovoce.learning.models.register import (
    InitialWeights,
    InputShape,
    num_features,
    register_model,
)

if TYPE_CHECKING:
    from torch import nn


@register_model("mlp", summary="one hidden layer with tanh")
@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """One hidden layer with tanh, Glorot-initialised."""

    initial_weights: ClassVar[InitialWeights] = "tanh"
    hidden_units: int

    def __post_init__(self) -> None:
        parameter_rules.integer("hidden_units", self.hidden_units, low=1, high=2**20)

    def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module":
        from torch import nn

        from sottovoce.learning.models.modules import FlatLinear

        return nn.Sequential(
            FlatLinear(num_features(input_shape), self.hidden_units),
            nn.Tanh(),
            nn.Linear(self.hidden_units, num_outputs),
        )


@register_model("linear", summary="logistic or linear regression, starting at zero")
@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Multinomial logistic regression, starting at zero.

    Without `bias` where features have a small constant of their own: the gradient of a bias, whose
    input is 1, would leave little room for others inside a small clip norm.
    """

    initial_weights: ClassVar[InitialWeights] = "zero"
    bias: bool = True

    def __post_init__(self) -> None:
        parameter_rules.boolean("bias", self.bias)

    def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module":
        from sottovoce.learning.models.modules import FlatLinear

        return FlatLinear(num_features(input_shape), num_outputs, bias=self.bias)
