"""The network of the UDP-FL paper for MNIST."""

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


@register_model("udp_mnist_cnn", summary="the UDP-FL paper's network for MNIST")
@dataclass(frozen=True, slots=True, kw_only=True)
class UdpMnistCnn:
    """Two convolutions with ReLU and max pooling, two fully connected layers.

    The reference gives no sizes. Here: 10 and 20 filters of 5x5, 50 hidden units; 21,840 parameters
    for 28x28 pixels and 10 classes. The log-softmax is part of the loss.

    Reference: Feng et al. (UDP-FL), section 5.1.
    """

    initial_weights: ClassVar[InitialWeights] = "relu"

    def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module":
        from torch import nn

        channels = check_image("UdpMnistCnn", input_shape, smallest_side=16)
        body = nn.Sequential(
            nn.Conv2d(channels, 10, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(10, 20, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        head = [nn.Linear(flat_size(body, input_shape), 50), nn.ReLU(), nn.Linear(50, num_outputs)]
        return nn.Sequential(*body, *head)
