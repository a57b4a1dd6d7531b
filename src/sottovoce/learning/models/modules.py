"""A fully connected layer that flattens its samples."""

from torch import Tensor, nn


class FlatLinear(nn.Linear):
    """A fully connected layer on whatever shape a sample has, flattened."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features.flatten(start_dim=1))
