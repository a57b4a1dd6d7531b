"""The residual block of ResNet-18."""

from torch import Tensor, nn
from torch.nn.functional import relu


class ResidualBlock(nn.Module):
    """relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)); projected if x changes its size."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, groups: int) -> None:
        super().__init__()
        self.first = convolution(inputs, outputs, stride=stride)
        self.first_norm = nn.GroupNorm(groups, outputs)
        self.second = convolution(outputs, outputs, stride=1)
        self.second_norm = nn.GroupNorm(groups, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.GroupNorm(groups, outputs))

    def forward(self, features: Tensor) -> Tensor:
        """Return the output of the block."""
        inner = relu(self.first_norm(self.first(features)))
        return relu(self.second_norm(self.second(inner)) + self.shortcut(features))


def convolution(inputs: int, outputs: int, *, stride: int) -> nn.Conv2d:
    """Return a 3x3 convolution without bias, which the normalization that follows would remove."""
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
