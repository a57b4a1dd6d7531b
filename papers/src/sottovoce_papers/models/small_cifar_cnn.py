"""A small convolutional network for color images, for grids of many runs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sottovoce.learning.models.register import (
    InitialWeights,
    InputShape,
    check_groups,
    check_image,
    register_model,
)

if TYPE_CHECKING:
    from torch import nn

FILTERS = (32, 64, 128)


@register_model("small_cifar_cnn", summary="three convolutions with group norm, for color images")
@dataclass(frozen=True, slots=True, kw_only=True)
class SmallCifarCnn:
    """Three blocks of 3x3 convolution, group norm, ReLU and pooling; then one average per filter.

    32, 64 and 128 filters; 94,986 parameters for 3 channels and 10 classes, for any size of images.
    `groups` must divide 32. Reference: Wu and He 2018 (group normalization).
    """

    initial_weights: ClassVar[InitialWeights] = "relu"
    groups: int = 8

    def __post_init__(self) -> None:
        check_groups(self.groups, FILTERS[0])

    def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module":
        from torch import nn

        channels = check_image("SmallCifarCnn", input_shape, smallest_side=8)
        layers = nn.Sequential()
        for inputs, outputs in zip((channels, *FILTERS), FILTERS, strict=False):
            layers.extend(
                [
                    nn.Conv2d(inputs, outputs, kernel_size=3, padding=1),
                    nn.GroupNorm(self.groups, outputs),
                    nn.ReLU(),
                    nn.MaxPool2d(2),
                ]
            )
        layers.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(FILTERS[-1], num_outputs)])
        return layers
