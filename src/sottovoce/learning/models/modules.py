"""A fully connected layer that flattens its samples.

Initial weights by layer, drawn from a numpy generator.

Uniform draws only: they follow from the generator's bits by one multiplication, so that every
machine gets the same weights to the last bit. Biases start at 0, normalisations at the identity.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from sottovoce.core.errors import ParameterError

Limit = Callable[[torch.Tensor], float]


def zero(module: nn.Module) -> None:
    """Every parameter at 0."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()


def for_tanh(module: nn.Module, generator: np.random.Generator) -> None:
    """Every weight by Glorot's rule: the activations are symmetric around 0."""
    _draw(module, generator, convolution_limit=glorot_limit)


def for_relu(module: nn.Module, generator: np.random.Generator) -> None:
    """Convolutions by He's rule, as a rectifier follows them; fully connected by Glorot's."""
    _draw(module, generator, convolution_limit=he_limit)


def glorot_limit(weight: torch.Tensor) -> float:
    """U(-l, l) with l = sqrt(6/(fan_in + fan_out)). Reference: Glorot and Bengio 2010, eq. 16."""
    outputs, inputs, taps = weight.shape[0], weight.shape[1], math.prod(weight.shape[2:])
    return math.sqrt(6.0 / ((inputs + outputs) * taps))


def he_limit(weight: torch.Tensor) -> float:
    """U(-l, l) with l = sqrt(6/fan_in): variance 2/fan_in. Reference: He et al. 2015, eq. 10."""
    return math.sqrt(6.0 / math.prod(weight.shape[1:]))


def _draw(module: nn.Module, generator: np.random.Generator, *, convolution_limit: Limit) -> None:
    with torch.no_grad():
        for name, layer in module.named_modules():
            own = list(layer.parameters(recurse=False))
            match layer:
                case nn.Linear():
                    _uniform(layer.weight, glorot_limit(layer.weight), generator)
                case nn.Conv1d() | nn.Conv2d() | nn.Conv3d():
                    _uniform(layer.weight, convolution_limit(layer.weight), generator)
                case nn.GroupNorm():
                    layer.weight.fill_(1.0)
                case _ if own:
                    raise ParameterError(
                        f"there is no rule for the initial weights of layer '{name}' "
                        f"({type(layer).__name__}); build it as a UserModule, which keeps its own"
                    )
            if isinstance(bias := getattr(layer, "bias", None), nn.Parameter):
                bias.zero_()


def _uniform(weight: torch.Tensor, limit: float, generator: np.random.Generator) -> None:
    draw = generator.uniform(-limit, limit, size=tuple(weight.shape))
    weight.copy_(torch.as_tensor(draw))


class FlatLinear(nn.Linear):
    """A fully connected layer on whatever shape a sample has, flattened."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features.flatten(start_dim=1))
