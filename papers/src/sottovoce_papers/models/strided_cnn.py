"""A convolutional network of about 34,000 parameters, small enough to train hundreds of times."""

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

FILTERS = (16, 32, 64)


@register_model("strided_cnn", summary="three strided convolutions with tanh, 34,000 parameters")
@dataclass(frozen=True, slots=True, kw_only=True)
class StridedCnn:
    """Three 3x3 convolutions that halve the sides, tanh after each; then one linear layer.

    16, 32 and 64 filters; 33,834 parameters for 32x32 images of 3 channels and 10 classes. It has
    strides instead of pooling and no normalization: every operation is smooth, which is the best
    case for inverting gradients, and cheap, which suits the training of shadow models.
    """

    initial_weights: ClassVar[InitialWeights] = "tanh"

    def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module":
        from torch import nn

        channels = check_image("StridedCnn", input_shape, smallest_side=8)
        layers = nn.Sequential()
        for inputs, outputs in zip((channels, *FILTERS), FILTERS, strict=False):
            layers.extend(
                [nn.Conv2d(inputs, outputs, kernel_size=3, stride=2, padding=1), nn.Tanh()]
            )
        layers.append(nn.Flatten())
        layers.append(nn.Linear(flat_size(layers, input_shape), num_outputs))
        return layers
