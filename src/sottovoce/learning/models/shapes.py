"""Shapes of one sample, and what layers make of them."""

import math
from typing import TYPE_CHECKING

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError

if TYPE_CHECKING:
    from torch import nn

InputShape = tuple[int, ...]

MAX_SIDE = 2**24


def checked(input_shape: InputShape, num_outputs: int) -> InputShape:
    """A shape of one sample with at least one axis, none of them empty."""
    parameter_rules.integer("num_outputs", num_outputs, low=1, high=MAX_SIDE)
    if not isinstance(input_shape, tuple) or not input_shape:
        raise ParameterError(
            f"input_shape must be a tuple such as (64,) or (1, 28, 28), got {input_shape!r}; "
            "give the shape of one sample, features.shape[1:]"
        )
    for side in input_shape:
        parameter_rules.integer("each side of input_shape", side, low=1, high=MAX_SIDE)
    return input_shape


def num_features(input_shape: InputShape) -> int:
    return math.prod(input_shape)


def image(name: str, input_shape: InputShape, *, smallest_side: int) -> int:
    """The number of channels of an image that is large enough for the model called `name`."""
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest_side:
        raise ParameterError(
            f"{name} takes images (channels, height, width) of at least {smallest_side} pixels a "
            f"side, got samples of shape {input_shape}; reshape the data or use the model 'mlp'"
        )
    return input_shape[0]


def flat_size(layers: "nn.Module", input_shape: InputShape) -> int:
    """How many numbers `layers` make of one sample, found by sending one through."""
    import torch

    with torch.no_grad():
        made: torch.Tensor = layers(torch.zeros(1, *input_shape))
    return made.numel()


def check_groups(groups: int, channels: int) -> None:
    """Group normalisation needs groups of equal size in every layer."""
    parameter_rules.integer("groups", groups, low=1, high=channels)
    if channels % groups:
        raise ParameterError(
            f"groups must divide the {channels} channels of the first layer, got {groups}; "
            "use a power of two"
        )
