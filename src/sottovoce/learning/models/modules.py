"""Torch code that models share: a flattening layer, initial weights, and checks of modules.

Initial weights are uniform draws only: they follow from the generator's bits by one multiplication,
so that every machine gets the same weights to the last bit. Biases start at 0, normalization layers
at the identity.

Only parameters are clipped, get noise, and are sent, and of these only the trainable ones
(requires_grad=True). The frozen ones and all buffers are constants of the model. Statistics over a
batch mix samples, so that one sample changes another's gradient, and running statistics are learned
without any noise. Both are therefore refused, for sample-level and for client-level privacy. A
layer in eval mode only applies the statistics that it has, and is allowed. Parameters must be
float32, in which tasks compute: other types would silently lose or gain digits.
"""

import difflib
import fnmatch
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from sottovoce.core.errors import ParameterError, UnknownNameError

_NAMES_TOLD = 5


def check_module(module: nn.Module) -> None:
    """Refuse batch statistics, and parameters that cannot be trained as they are.

    Such parameters have no size yet or are not float32. A module without trainable parameters is
    refused too. The module is not changed.

    Raises:
        ParameterError: The module is refused; the message names the layer or the parameter.
    """
    check_layers(module)
    if not trainable_parameters(module):
        raise ParameterError(
            "every parameter of the module is frozen (requires_grad=False), so there is nothing to "
            "train; name some in model.trainable, in Python simulate(..., trainable=[...]), or set "
            "requires_grad=True"
        )


def trainable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained and sent, by name, in the order of the module."""
    return {name: one for name, one in module.named_parameters() if one.requires_grad}


def select_trainable(module: nn.Module, patterns: Sequence[str]) -> None:
    """Set requires_grad=False for all parameters whose name matches no pattern, else True.

    Without patterns the module stays unchanged.

    Args:
        module: The module; `requires_grad` of its parameters is changed in place.
        patterns: Names of parameters as the module names them, in which * stands for any text and
            ? for any character.

    Raises:
        UnknownNameError: A pattern matches no parameter; the message has the nearest names.
    """
    if not patterns:
        return
    parameters = dict(module.named_parameters())
    for pattern in patterns:
        if not fnmatch.filter(parameters, pattern):
            raise _no_match(pattern, list(parameters))
    for name, parameter in parameters.items():
        parameter.requires_grad_(any(fnmatch.fnmatchcase(name, one) for one in patterns))


def _no_match(pattern: str, names: list[str]) -> UnknownNameError:
    near = difflib.get_close_matches(pattern, names, n=_NAMES_TOLD, cutoff=0.0)
    more = f", ... ({len(names)} in all)" if len(names) > len(near) else ""
    return UnknownNameError(
        f"'{pattern}' in model.trainable matches no parameter of the model; give "
        f"names such as {', '.join(near)}{more}"
    )


def logits_of(outputs: Any) -> Tensor:
    """Return the outputs of a module; of a transformers model those under `logits`."""
    found: Tensor = outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", outputs)
    return found


def draws_random_numbers(module: nn.Module, samples: Tensor) -> bool:
    """Return whether the module, as it trains, draws random numbers for these samples (dropout).

    It is found by a trial, so that dropout inside a forward function is found as well. The state of
    torch's generator is restored.
    """
    on_gpu = samples.device.type == "cuda"

    def state() -> Tensor:
        return torch.cuda.get_rng_state(samples.device) if on_gpu else torch.get_rng_state()

    with torch.random.fork_rng(), torch.no_grad():
        before = state()
        module(samples)
        return not torch.equal(before, state())


def check_layers(module: nn.Module) -> None:
    """Refuse batch statistics, and parameters that have no size yet, or are not float32.

    A module without parameters is refused too. The module is not changed.

    Raises:
        ParameterError: The module is refused; the message names the layer or the parameter.
    """
    for path, layer in module.named_modules():
        where = f"layer '{path or 'the module itself'}' ({type(layer).__name__})"
        _check_statistics(where, layer)
        if any(is_lazy(parameter) for parameter in layer.parameters(recurse=False)):
            raise ParameterError(
                f"{where} has no size yet; replace the lazy layer by one with a number of inputs"
            )
        _check_precision(where, layer)
    if not any(True for _ in module.parameters()):
        raise ParameterError("the module has no parameters to train; add a layer that has some")


def _check_precision(where: str, layer: nn.Module) -> None:
    for name, parameter in layer.named_parameters(recurse=False):
        if parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ParameterError(
                f"{where} has its {name} in {kind}, but training computes in float32; convert the "
                "module with module.float()"
            )


def _check_statistics(where: str, layer: nn.Module) -> None:
    # In eval mode a layer applies its running statistics, which then do not change.
    if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
        raise ParameterError(
            f"{where} mixes the samples of a batch and keeps running statistics of them, to which "
            "no noise is added; use torch.nn.GroupNorm (group normalization) instead, or keep the "
            "statistics of a pretrained layer fixed with layer.eval()"
        )
    if isinstance(layer, _InstanceNorm) and layer.track_running_stats and layer.training:
        raise ParameterError(
            f"{where} keeps running statistics of the samples, to which no noise is added; set "
            "track_running_stats=False, keep them fixed with layer.eval(), or use "
            "torch.nn.GroupNorm (group normalization)"
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


def inputs_of_last_linear(module: nn.Module, compute: Callable[[], Tensor]) -> Tensor:
    """Return what the last linear layer of a module was given.

    Args:
        module: The module.
        compute: Computes its outputs.

    Returns:
        One row for each sample.

    Raises:
        ParameterError: The module has no linear layer, or its last one has another number of
            outputs than the module.
    """
    calls: list[tuple[nn.Linear, Tensor]] = []

    def keep(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, nn.Linear)
        calls.append((layer, inputs[0]))

    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_pre_hook(keep) for layer in linear]
    try:
        outputs = compute()
    finally:
        for hook in hooks:
            hook.remove()
    if not calls or calls[-1][0].out_features != outputs.shape[-1]:
        raise ParameterError(
            "the model has no penultimate layer: its last linear layer does not compute its "
            f"{outputs.shape[-1]} outputs; make torch.nn.Linear the last layer of the module"
        )
    return calls[-1][1].flatten(start_dim=1)
