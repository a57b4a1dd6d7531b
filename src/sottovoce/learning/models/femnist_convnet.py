"""A four-layer convolutional network for handwritten characters."""

from dataclasses import dataclass

from torch import nn

from sottovoce.learning.models.shapes import InputShape, flat_size, image


@dataclass(frozen=True, slots=True, kw_only=True)
class FemnistConvnet:
    """32 and 64 filters of 5x5 that keep the size, each with 2x2 max pooling; 128 hidden units.

    461,630 parameters for 28x28 pixels and 62 classes. The reference says four layers, and no more.

    Reference: Guo, Chaudhuri, Stock and Rabbat 2023, section 4.2.
    """


def build(input_shape: InputShape, num_outputs: int) -> nn.Module:
    channels = image("FemnistConvnet", input_shape, smallest_side=4)
    body = nn.Sequential(
        nn.Conv2d(channels, 32, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    head = [nn.Linear(flat_size(body, input_shape), 128), nn.ReLU(), nn.Linear(128, num_outputs)]
    return nn.Sequential(*body, *head)
