"""ResNet-18 for small images, with group instead of batch normalization."""

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

STAGE_WIDTHS = (64, 128, 256, 512)
BLOCKS_PER_STAGE = 2


@register_model("resnet18", summary="ResNet-18 for small images, with group norm")
@dataclass(frozen=True, slots=True, kw_only=True)
class Resnet18:
    """Four stages of two residual blocks; a 3x3 stem without pooling, for 32x32 pixels.

    11,173,962 parameters for 3 channels and 10 classes. `groups` must divide 64.

    Reference: He et al. 2016, sections 3.3 and 4.2; Wu and He 2018 (group normalization).
    """

    initial_weights: ClassVar[InitialWeights] = "relu"
    groups: int = 32

    def __post_init__(self) -> None:
        check_groups(self.groups, STAGE_WIDTHS[0])

    def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module":
        from torch import nn

        from sottovoce_papers.models.residual_block import ResidualBlock, convolution

        channels = check_image("Resnet18", input_shape, smallest_side=8)
        width = STAGE_WIDTHS[0]
        layers = nn.Sequential(
            convolution(channels, width, stride=1), nn.GroupNorm(self.groups, width), nn.ReLU()
        )
        for stage, outputs in enumerate(STAGE_WIDTHS):
            for block in range(BLOCKS_PER_STAGE):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(ResidualBlock(width, outputs, stride=stride, groups=self.groups))
                width = outputs
        layers.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_outputs)])
        return layers
