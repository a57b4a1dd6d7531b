"""The network of the UDP-FL paper for medical images."""

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

FILTERS = (16, 32, 64, 64)
HIDDEN_UNITS = 64


@register_model("udp_medical_cnn", summary="the UDP-FL paper's network for medical images")
@dataclass(frozen=True, slots=True, kw_only=True)
class UdpMedicalCnn:
    """Four convolutions with ReLU and max pooling, two fully connected layers; 1 or 3 channels.

    The reference gives no sizes. Here: 16, 32, 64 and 64 filters of 3x3 that keep the size, 64
    hidden units. The log-softmax is part of the loss.

    Reference: Feng et al. (UDP-FL), section 5.1.
    """

    initial_weights: ClassVar[InitialWeights] = "relu"

    def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module":
        from torch import nn

        channels = check_image("UdpMedicalCnn", input_shape, smallest_side=16)
        body = nn.Sequential()
        for inputs, outputs in zip((channels, *FILTERS), FILTERS, strict=False):
            body.extend([nn.Conv2d(inputs, outputs, kernel_size=3, padding=1), nn.ReLU()])
            body.append(nn.MaxPool2d(2))
        body.append(nn.Flatten())
        features = flat_size(body, input_shape)
        head = [nn.Linear(features, HIDDEN_UNITS), nn.ReLU(), nn.Linear(HIDDEN_UNITS, num_outputs)]
        return nn.Sequential(*body, *head)
