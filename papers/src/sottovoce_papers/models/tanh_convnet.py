"""The small convolutional network with tanh of the MVU paper."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sottovoce.core import parameter_rules
from sottovoce.learning.models.register import (
    InitialWeights,
    InputShape,
    check_image,
    flat_size,
    register_model,
)

if TYPE_CHECKING:
    from torch import nn


@register_model(
    "tanh_convnet", summary="the small convolutional network with tanh of the MVU paper"
)
@dataclass(frozen=True, slots=True, kw_only=True)
class TanhConvnet:
    """16 filters of 8x8 and 64 of 4x4, average pooling, 32 hidden units; tanh throughout.

    The table also has tanh on the outputs, so every logit lies in [-1, 1] and the loss cannot reach
    0. `bounded_outputs` = False leaves it out, as Papernot et al. 2020 do.

    Reference: Chaudhuri, Guo and Rabbat 2022, table 2.
    """

    initial_weights: ClassVar[InitialWeights] = "tanh"
    bounded_outputs: bool = True

    def __post_init__(self) -> None:
        parameter_rules.boolean("bounded_outputs", self.bounded_outputs)

    def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module":
        from torch import nn

        channels = check_image("TanhConvnet", input_shape, smallest_side=18)
        body = nn.Sequential(
            nn.Conv2d(channels, 16, kernel_size=8, stride=2, padding=2),
            nn.Tanh(),
            nn.AvgPool2d(2, stride=1),
            nn.Conv2d(16, 64, kernel_size=4, stride=2),
            nn.Tanh(),
            nn.AvgPool2d(2, stride=1),
            nn.Flatten(),
        )
        head = [nn.Linear(flat_size(body, input_shape), 32), nn.Tanh(), nn.Linear(32, num_outputs)]
        outputs = [nn.Tanh()] if self.bounded_outputs else []
        return nn.Sequential(*body, *head, *outputs)
