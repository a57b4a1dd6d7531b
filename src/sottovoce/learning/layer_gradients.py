"""Per-sample gradients of a chain of layers from one ordinary backward pass.

What a layer put out has a gradient g_i for each sample i, and with its inputs x_i that is all there
is to know of the gradient of its parameters:

    linear        g_i x [x_i, 1], which is kept as the two factors;
    convolution   g_i u_i^T, u_i the patches of x_i, which has the few numbers of its filters;
    group norm    sums of g_i and of g_i times the normalised x_i over the places of each channel.

So norms and clipped sums need no gradient of the large layers, and no backward pass of their own.

Only chains of known layers qualify, for there each sample goes its own way. Whatever else a module
does may mix samples, and is differentiated one sample at a time.

References: Goodfellow 2015, "Efficient per-example gradient computations"; Rochette, Manoel and
Tramel 2019, section 3 (convolutions).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import group_norm, unfold

from sottovoce.learning.clients import DenseRows, LayeredRows, OuterRows
from sottovoce.learning.models.flat_linear import FlatLinear

# Layers without parameters in which no sample sees another.
_SAMPLEWISE = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Tanh,
    nn.Identity,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of a chain, and the prefix of its parameters' names in the module."""

    prefix: str
    module: nn.Module

    @property
    def has_parameters(self) -> bool:
        return isinstance(self.module, nn.Linear | nn.Conv2d | nn.GroupNorm)

    def outputs(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        own = {n: parameters[self.prefix + n] for n, _ in self.module.named_parameters()}
        outputs: Tensor = functional_call(self.module, own, (inputs,))
        return outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Layers one after the other, and how many numbers a sample needs on its way through them."""

    layers: tuple[Layer, ...]
    elements_per_sample: int


def chain_of(module: nn.Module, sample_shape: Sequence[int]) -> Chain | None:
    """The chain that a module is; None unless every layer has a closed form on such samples."""
    layers = tuple(_layers(module, ""))
    if not all(_is_known(layer.module) for layer in layers):
        return None
    trained = [layer.module for layer in layers if layer.has_parameters]
    # A layer or a tensor that comes twice has the sum of two gradients.
    names = sum(1 for one in trained for _ in one.parameters())
    if len(set(trained)) < len(trained) or names != len(list(module.parameters())):
        return None
    elements = _elements(layers, torch.zeros(1, *sample_shape))
    return None if elements is None else Chain(layers=layers, elements_per_sample=elements)


def _layers(module: nn.Module, prefix: str) -> list[Layer]:
    if type(module) is not nn.Sequential:
        return [Layer(prefix=prefix, module=module)]
    # Not named_children, which passes over a layer that comes again.
    children = zip(module._modules, module, strict=True)
    return [layer for name, child in children for layer in _layers(child, f"{prefix}{name}.")]


def _elements(layers: Sequence[Layer], sample: Tensor) -> int | None:
    """Outputs, their gradients, patches and filters; None if a linear layer gets no flat rows."""
    count, values = 0, sample
    with torch.no_grad():
        for layer in layers:
            device = next(layer.module.parameters(), values).device
            inputs, values = values, layer.module(values.to(device))
            count += 2 * values.numel()
            if type(layer.module) is nn.Linear and inputs.ndim != 2:
                return None
            if isinstance(layer.module, nn.Conv2d):
                filters, outputs = layer.module.weight.numel(), layer.module.out_channels
                count += filters + filters // outputs * values[0, 0].numel()
    return count


def _is_known(layer: nn.Module) -> bool:
    """Exactly these types: a subclass may do anything."""
    if type(layer) in (nn.Linear, FlatLinear):
        return layer.bias is not None
    if type(layer) is nn.GroupNorm:
        return layer.affine
    if type(layer) is nn.Conv2d:
        plain = layer.groups == 1 and layer.padding_mode == "zeros"
        return plain and not isinstance(layer.padding, str) and layer.bias is not None
    if type(layer) is nn.Flatten:
        return bool(layer.start_dim == 1 and layer.end_dim == -1)
    return type(layer) in _SAMPLEWISE and not getattr(layer, "inplace", False)


def layer_gradients(
    chain: Chain,
    parameters: Mapping[str, Tensor],
    features: Tensor,
    losses: Callable[[Tensor], Tensor],
) -> LayeredRows:
    """Each sample's gradient of its own loss; `losses` turns outputs into one loss a sample."""
    inputs, outputs = [], []
    with torch.enable_grad():
        values = features
        for layer in chain.layers:
            given, values = values, layer.outputs(parameters, values)
            if layer.has_parameters:
                inputs.append(given.detach())
                # Nothing before the first such layer needs a gradient, nor do the parameters.
                outputs.append(values if values.requires_grad else values.requires_grad_())
        found = torch.autograd.grad(losses(values).sum(), outputs)
    modules = [layer.module for layer in chain.layers if layer.has_parameters]
    return LayeredRows(
        tuple(_rows(m, x, g) for m, x, g in zip(modules, inputs, found, strict=True))
    )


def _rows(layer: nn.Module, inputs: Tensor, gradients: Tensor) -> DenseRows | OuterRows:
    if isinstance(layer, nn.Linear):
        return OuterRows(gradients, inputs.flatten(start_dim=1))
    channels = (len(gradients), gradients.shape[1], -1)  # a flat row has one place a channel
    by_place = gradients.reshape(channels)
    if isinstance(layer, nn.GroupNorm):
        normal = group_norm(inputs, layer.num_groups, eps=layer.eps).reshape(channels)
        return DenseRows(torch.cat([(by_place * normal).sum(dim=2), by_place.sum(dim=2)], dim=1))
    assert isinstance(layer, nn.Conv2d)
    weights = torch.bmm(by_place, _patches(layer, inputs).transpose(1, 2))
    return DenseRows(torch.cat([weights.flatten(start_dim=1), by_place.sum(dim=2)], dim=1))


def _patches(layer: nn.Conv2d, inputs: Tensor) -> Tensor:
    """(samples, a filter's inputs, places): what the filters see at each place."""
    assert not isinstance(layer.padding, str)
    return unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
