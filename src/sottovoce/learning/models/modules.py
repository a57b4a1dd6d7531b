"""Torch code that models share: a flattening layer, initial weights, and checks of modules.

Initial weights are uniform draws only: they follow from the generator's bits by one multiplication,
so that every machine gets the same weights to the last bit. Biases start at 0, normalization layers
at the identity.

Only parameters are clipped, get noise, and are sent. Statistics over a batch mix samples, so that
one sample changes another's gradient, and running statistics are learned without any noise. Both
are therefore refused, for sample-level and for client-level privacy. Other buffers are constants,
and allowed. Parameters must be float32, in which tasks compute: other types would silently lose or
gain digits. All parameters are trained and sent, so a frozen one (requires_grad=False) is refused.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from sottovoce.core.errors import ParameterError

_FROZEN_TOLD = 8
RANDOM_LAYERS = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def check_module(module: nn.Module) -> None:
    """Refuse batch statistics, random layers, and parameters that cannot be trained as they are.

    Such parameters have no size yet, are not float32, or are frozen. A module without parameters is
    refused too. The module is not changed.

    Raises:
        ParameterError: The module is refused; the message names the layer or the parameter.
    """
    for path, layer in module.named_modules():
        where = f"layer '{path or 'the module itself'}' ({type(layer).__name__})"
        _check_statistics(where, layer)
        _check_randomness(where, layer)
        if any(is_lazy(parameter) for parameter in layer.parameters(recurse=False)):
            raise ParameterError(
                f"{where} has no size yet; replace the lazy layer by one with a number of inputs"
            )
        _check_precision(where, layer)
    if not any(True for _ in module.parameters()):
        raise ParameterError("the module has no parameters to train; add a layer that has some")
    _check_none_frozen(module)


def _check_none_frozen(module: nn.Module) -> None:
    frozen = [name for name, one in module.named_parameters() if not one.requires_grad]
    if not frozen:
        return
    told = ", ".join(f"'{name}'" for name in frozen[:_FROZEN_TOLD])
    more = f" and {len(frozen) - _FROZEN_TOLD} more" if len(frozen) > _FROZEN_TOLD else ""
    raise ParameterError(
        f"the module has frozen parameters (requires_grad=False): {told}{more}; every parameter is "
        "trained, noised and sent, so set requires_grad=True, or compute the output of the frozen "
        "part beforehand, give it as the data's features, and train the rest"
    )


def _check_precision(where: str, layer: nn.Module) -> None:
    for name, parameter in layer.named_parameters(recurse=False):
        if parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ParameterError(
                f"{where} has its {name} in {kind}, but training computes in float32; convert the "
                "module with module.float()"
            )


def _check_statistics(where: str, layer: nn.Module) -> None:
    if isinstance(layer, _BatchNorm):
        raise ParameterError(
            f"{where} mixes the samples of a batch and keeps running statistics of them, to which "
            "no noise is added; use torch.nn.GroupNorm (group normalization) instead"
        )
    if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
        raise ParameterError(
            f"{where} keeps running statistics of the samples, to which no noise is added; set "
            "track_running_stats=False, or use torch.nn.GroupNorm (group normalization)"
        )


def _check_randomness(where: str, layer: nn.Module) -> None:
    """Refuse random layers: they use torch's global generator, so no run could be repeated."""
    dropout = layer.p if isinstance(layer, _DropoutNd) else getattr(layer, "dropout", 0.0)
    # In recurrent and attention layers `dropout` is a number, in others it is a layer.
    drops = isinstance(dropout, float | int) and dropout > 0.0
    if drops or isinstance(layer, RANDOM_LAYERS):
        raise ParameterError(
            f"{where} is random in training, which per-sample gradients do not support; set its "
            "dropout to 0 or remove it (the noise for privacy already regularizes)"
        )


Limit = Callable[[torch.Tensor], float]


def zero(module: nn.Module) -> None:
    """Set every parameter of a module to 0, in place."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()


def for_tanh(module: nn.Module, generator: np.random.Generator) -> None:
    """Draw every weight of a module by Glorot's rule, for activations that are symmetric around 0.

    The module is changed in place. Biases become 0 and the weights of group norms 1. ParameterError
    is raised for a layer with parameters that is neither linear, a convolution nor a group norm.
    """
    _draw(module, generator, convolution_limit=glorot_limit)


def for_relu(module: nn.Module, generator: np.random.Generator) -> None:
    """Draw weights of convolutions, which rectifiers follow, by He's rule, of others by Glorot's.

    The module is changed in place. Biases become 0 and the weights of group norms 1. ParameterError
    is raised for a layer with parameters that is neither linear, a convolution nor a group norm.
    """
    _draw(module, generator, convolution_limit=he_limit)


def glorot_limit(weight: torch.Tensor) -> float:
    """Return l = sqrt(6/(fan_in + fan_out)) of Glorot's rule, weights uniform in (-l, l).

    `weight` has the shape (outputs, inputs, *kernel); its values are not used.

    Reference: Glorot and Bengio 2010, eq. 16.
    """
    outputs, inputs, taps = weight.shape[0], weight.shape[1], math.prod(weight.shape[2:])
    return math.sqrt(6.0 / ((inputs + outputs) * taps))


def he_limit(weight: torch.Tensor) -> float:
    """Return l = sqrt(6/fan_in) of He's rule, weights uniform in (-l, l) of variance 2/fan_in.

    `weight` has the shape (outputs, inputs, *kernel); its values are not used.

    Reference: He et al. 2015, eq. 10.
    """
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
                        f"({type(layer).__name__}); use a UserModule, which keeps its own weights"
                    )
            if isinstance(bias := getattr(layer, "bias", None), nn.Parameter):
                bias.zero_()


def _uniform(weight: torch.Tensor, limit: float, generator: np.random.Generator) -> None:
    draw = generator.uniform(-limit, limit, size=tuple(weight.shape))
    weight.copy_(torch.as_tensor(draw))


class FlatLinear(nn.Linear):
    """A fully connected layer that flattens samples of any shape."""

    def forward(self, features: Tensor) -> Tensor:
        """Return the outputs (n, outputs) for a batch (n, ...), whose samples are flattened."""
        return super().forward(features.flatten(start_dim=1))
