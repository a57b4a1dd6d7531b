"""A four-layer convolutional network for handwritten characters."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sottovoce.learning.models.register import (
    InitialWeights,
    InputShape,
    check_image,
    flat_size,
    register_model,
)

if TYPE_CHECKING:
    from torch import nn


@register_model("femnist_convnet", summary="four layers, for handwritten characters")
@dataclass(frozen=True, slots=True, kw_only=True)
class FemnistConvnet:
    """32 and 64 filters of 5x5 that keep the size, each with 2x2 max pooling; 128 hidden units.

    461,630 parameters for 28x28 pixels and 62 classes. The reference only says that there are four
    layers.

    Reference: Guo, Chaudhuri, Stock and Rabbat 2023, section 4.2.
    """

    initial_weights: ClassVar[InitialWeights] = "relu"

    def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module":
        from torch import nn

        channels = check_image("FemnistConvnet", input_shape, smallest_side=4)
        body = nn.Sequential(
            nn.Conv2d(channels, 32, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        head = [
            nn.Linear(flat_size(body, input_shape), 128),
            nn.ReLU(),
            nn.Linear(128, num_outputs),
        ]
        return nn.Sequential(*body, *head)
