"""ResNet-18 for small images, with group instead of batch normalisation."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import relu

from sottovoce.learning.models.shapes import InputShape, check_groups, image

STAGE_WIDTHS = (64, 128, 256, 512)
BLOCKS_PER_STAGE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Resnet18:
    """Four stages of two residual blocks; a 3x3 stem and no pooling at the start, for 32x32 pixels.

    11,173,962 parameters for 3 channels and 10 classes. `groups` must divide 64.

    Reference: He et al. 2016, sections 3.3 and 4.2; Wu and He 2018 (group normalisation).
    """

    groups: int = 32

    def __post_init__(self) -> None:
        check_groups(self.groups, STAGE_WIDTHS[0])


class ResidualBlock(nn.Module):
    """relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)), the shortcut projected if x changes."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, groups: int) -> None:
        super().__init__()
        self.first = _convolution(inputs, outputs, stride=stride)
        self.first_norm = nn.GroupNorm(groups, outputs)
        self.second = _convolution(outputs, outputs, stride=1)
        self.second_norm = nn.GroupNorm(groups, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.GroupNorm(groups, outputs))

    def forward(self, features: Tensor) -> Tensor:
        inner = relu(self.first_norm(self.first(features)))
        return relu(self.second_norm(self.second(inner)) + self.shortcut(features))


def build(model: Resnet18, input_shape: InputShape, num_outputs: int) -> nn.Module:
    channels = image("Resnet18", input_shape, smallest_side=8)
    width = STAGE_WIDTHS[0]
    layers = nn.Sequential(
        _convolution(channels, width, stride=1), nn.GroupNorm(model.groups, width), nn.ReLU()
    )
    for stage, outputs in enumerate(STAGE_WIDTHS):
        for block in range(BLOCKS_PER_STAGE):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(ResidualBlock(width, outputs, stride=stride, groups=model.groups))
            width = outputs
    layers.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_outputs)])
    return layers


def _convolution(inputs: int, outputs: int, *, stride: int) -> nn.Conv2d:
    # No bias: the normalisation that follows would take it out again.
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
