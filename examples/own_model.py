"""A model of one's own for examples/own_model.toml: any torch.nn.Module without batch normalisation."""

from torch import nn


def network(input_shape: tuple[int, ...], num_outputs: int, hidden: int) -> nn.Module:
    """Called with the data's shape, the number of outputs, and the spec's `arguments`."""
    (features,) = input_shape
    return nn.Sequential(
        nn.Linear(features, hidden),
        nn.GroupNorm(4, hidden),
        nn.SiLU(),
        nn.Linear(hidden, num_outputs),
    )
