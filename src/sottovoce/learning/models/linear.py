"""Multinomial logistic regression, or linear regression."""

from dataclasses import dataclass

from torch import Tensor, nn

from sottovoce.learning.models.shapes import InputShape, num_features


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Multinomial logistic regression, starting at zero.

    Without `bias` where features have a small constant of their own: the gradient of a bias, whose
    input is 1, would leave little room for others inside a small clip norm.
    """

    bias: bool = True


class FlatLinear(nn.Linear):
    """A fully connected layer on whatever shape a sample has, flattened."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features.flatten(start_dim=1))


def build(model: Linear, input_shape: InputShape, num_outputs: int) -> nn.Module:
    return FlatLinear(num_features(input_shape), num_outputs, bias=model.bias)
