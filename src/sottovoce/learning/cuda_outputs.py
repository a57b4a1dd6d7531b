"""Outputs and gradients of several models with the same chain of layers, on CUDA with Triton.

They are those of `layer_gradients.stacked_outputs` and `stacked_gradients` up to the rounding of
float32. Images have the channels last, and a group norm is computed together with a rectifier and a
max pooling after it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm

from sottovoce.learning.cuda_layers import (
    Convolution,
    Normalization,
    PatchWindow,
    SampleConvolution,
)
from sottovoce.learning.layer_gradients import (
    Chain,
    DenseStack,
    GradientStack,
    Layer,
    LayerStack,
    OuterStack,
    PatchStack,
)

_MOST_CHANNELS = 1024
_MOST_POOLED = 4
_ELEMENTWISE = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Tanh,
    nn.Identity,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fused:
    """A layer, and what is computed together with it.

    Attributes:
        layer: The layer.
        relu: Whether a rectifier follows a group norm.
        pool: The side of the squares whose maximum is taken then; 1 for none.
    """

    layer: Layer
    relu: bool = False
    pool: int = 1


class ChannelsLast:
    """The order in which a filter is a column of a matrix, with its bias below it.

    A step of many models then needs no copies of their filters.

    Args:
        chain: The layers.
        shapes: The shape of each parameter of the module, in the order of the flat model.
        device: Where the models are.
    """

    def __init__(self, chain: Chain, shapes: Mapping[str, Sequence[int]], device: torch.device):
        self._layers = list(_fuse(chain.layers))
        places, stop = {}, 0
        for name, shape in shapes.items():
            start, stop = stop, stop + math.prod(shape)
            places[name] = torch.arange(start, stop).reshape(tuple(shape))
        orders = []
        for step in self._layers:
            if step.layer.has_parameters:
                own = [places[n] for n in step.layer.names]
                if isinstance(step.layer.module, nn.Conv2d):
                    own[0] = own[0].permute(2, 3, 1, 0)
                orders.append(torch.cat([one.flatten() for one in own]))
        self._sizes = [len(order) for order in orders]
        order = torch.cat(orders)
        self._order, self._inverse = order.to(device), torch.argsort(order).to(device)

    def enter(self, rows: Tensor) -> Tensor:
        return rows[:, self._order]

    def leave(self, rows: Tensor) -> Tensor:
        return rows[:, self._inverse]

    def outputs(self, rows: Tensor, features: Tensor) -> Tensor:
        samples = features.shape[1]
        values = _channels_last(features.flatten(0, 1))
        pieces = iter(torch.split(rows, self._sizes, dim=1))
        for step in self._layers:
            module = step.layer.module
            if not step.layer.has_parameters:
                values = _samplewise(module, values)
            elif isinstance(module, nn.Linear):
                values = _linear(module, next(pieces), _channels_first(values))
            elif isinstance(module, nn.Conv2d):
                window = PatchWindow(module, *values.shape[1:3])
                filters = next(pieces).reshape(len(rows), window.entries + 1, -1)
                values = _apply(Convolution, values, filters, window)
            else:
                assert isinstance(module, nn.GroupNorm)
                values = _normalized(step, module, values, *next(pieces).chunk(2, dim=1))
        outputs = _channels_first(values)
        return outputs.reshape(len(rows), samples, *outputs.shape[1:])

    def sample_gradients(
        self, rows: Tensor, features: Tensor, losses: Callable[[Tensor], Tensor]
    ) -> GradientStack:
        """Return the gradient of each sample's own loss, in the order of the module's parameters.

        Args:
            rows: Flat models as rows, in this order of the parameters.
            features: Features of each model's samples, (models, samples, ...).
            losses: A function from the outputs (models, samples, outputs) to one loss for each
                sample.

        Returns:
            The unclipped gradients.
        """
        models, samples = features.shape[:2]
        values = _channels_last(features.flatten(0, 1))
        pieces = iter(torch.split(rows, self._sizes, dim=1))
        # What the losses are differentiated by, and how a layer's gradients follow from that.
        by: list[Tensor] = []
        made: list[Callable[[Iterator[Tensor]], LayerStack]] = []
        with torch.enable_grad():
            for step in self._layers:
                module = step.layer.module
                if not step.layer.has_parameters:
                    values = _samplewise(module, values)
                    continue
                own = next(pieces)
                if isinstance(module, nn.Linear):
                    given = _channels_first(values).reshape(models, samples, -1)
                    values = _linear(module, own, given)
                    values = values if values.requires_grad else values.requires_grad_()
                    by.append(values)
                    made.append(_OuterGradients(given.detach(), module.bias is not None))
                elif isinstance(module, nn.Conv2d):
                    window = PatchWindow(module, *values.shape[1:3])
                    filters = own.reshape(models, window.entries + 1, -1)
                    # It takes no memory, and its gradient is that of each sample's filters.
                    probe = filters.new_zeros(()).expand(
                        len(values), window.length, len(filters[0, 0])
                    )
                    by.append(probe.requires_grad_())
                    values = _apply(SampleConvolution, values, filters, probe, window)
                    made.append(_FilterGradients(models, window.entries, module.kernel_size))
                else:
                    assert isinstance(module, nn.GroupNorm)
                    each = own.repeat_interleave(samples, dim=0).chunk(2, dim=1)
                    by.extend(one.requires_grad_() for one in each)
                    values = _normalized(step, module, values, *each)
                    made.append(_NormGradients(models))
            outputs = _channels_first(values)
            outputs = outputs.reshape(models, samples, *outputs.shape[1:])
            found = iter(torch.autograd.grad(losses(outputs).sum(), by))
        return GradientStack(tuple(one(found) for one in made))


@dataclass(frozen=True, slots=True)
class _OuterGradients:
    inputs: Tensor
    has_bias: bool

    def __call__(self, found: Iterator[Tensor]) -> LayerStack:
        left = next(found).reshape(*self.inputs.shape[:2], -1)
        return OuterStack(left, self.inputs, self.has_bias)


@dataclass(frozen=True, slots=True)
class _FilterGradients:
    models: int
    entries: int
    size: tuple[int, ...]

    def __call__(self, found: Iterator[Tensor]) -> LayerStack:
        values = next(found)
        return PatchStack(
            values.reshape(self.models, -1, *values.shape[1:]), self.entries, self.size
        )


@dataclass(frozen=True, slots=True)
class _NormGradients:
    models: int

    def __call__(self, found: Iterator[Tensor]) -> LayerStack:
        both = torch.cat([next(found), next(found)], dim=1)
        return DenseStack(both.reshape(self.models, -1, both.shape[1]))


def _linear(module: nn.Linear, own: Tensor, values: Tensor) -> Tensor:
    """Return the outputs, (models * samples, outputs)."""
    weights, biases = own[:, : module.weight.numel()], own[:, module.weight.numel() :]
    flat = values.reshape(len(own), -1, module.in_features)
    columns = weights.reshape(len(own), *module.weight.shape).transpose(1, 2)
    if not biases.numel():
        return torch.bmm(flat, columns).flatten(0, 1)
    return torch.baddbmm(biases[:, None], flat, columns).flatten(0, 1)


def _apply(function: type[torch.autograd.Function], *given: object) -> Tensor:
    found: Tensor = function.apply(*given)  # type: ignore[no-untyped-call]
    return found


def _fuse(layers: Sequence[Layer]) -> Iterator[_Fused]:
    """Yield the layers, those after a group norm together with it where that is possible."""
    rest = list(layers)
    while rest:
        layer, relu, pool = rest.pop(0), False, 1
        if isinstance(layer.module, nn.GroupNorm) and _fits(layer.module):
            if rest and isinstance(rest[0].module, nn.ReLU):
                rest.pop(0)
                relu = True
            if rest and (side := _pooled_side(rest[0].module)):
                rest.pop(0)
                pool = side
        yield _Fused(layer=layer, relu=relu, pool=pool)


def _fits(module: nn.GroupNorm) -> bool:
    """Return whether the kernel takes so many channels."""
    channels = module.num_channels
    return channels & (channels - 1) == 0 and channels <= _MOST_CHANNELS


def _pooled_side(module: nn.Module) -> int:
    """Return the side of the squares of a max pooling that do not overlap; 0 for anything else."""
    if not isinstance(module, nn.MaxPool2d) or module.return_indices or module.ceil_mode:
        return 0
    side = module.kernel_size
    plain = module.stride == side and module.padding == 0 and module.dilation == 1
    return side if isinstance(side, int) and plain and side <= _MOST_POOLED else 0


def _normalized(
    step: _Fused, module: nn.GroupNorm, values: Tensor, weights: Tensor, biases: Tensor
) -> Tensor:
    groups, eps, images = module.num_groups, module.eps, values.ndim == 4
    if images and _fits(module) and step.pool <= min(values.shape[1:3]):
        return _apply(Normalization, values, weights, biases, groups, eps, step.relu, step.pool)
    normal = _channels_last(group_norm(_channels_first(values), groups, eps=eps))
    each = normal.reshape(len(weights), -1, *normal.shape[1:])
    shape = (len(weights), *[1] * (each.ndim - 2), -1)
    values = (each * weights.reshape(shape) + biases.reshape(shape)).flatten(0, 1)
    values = torch.relu(values) if step.relu else values
    return _samplewise(nn.MaxPool2d(step.pool), values) if step.pool > 1 else values


def _samplewise(module: nn.Module, values: Tensor) -> Tensor:
    if isinstance(module, _ELEMENTWISE):
        found: Tensor = module(values)
        return found
    return _channels_last(module(_channels_first(values)))


def _channels_last(values: Tensor) -> Tensor:
    return values.permute(0, 2, 3, 1).contiguous() if values.ndim == 4 else values


def _channels_first(values: Tensor) -> Tensor:
    return values.permute(0, 3, 1, 2) if values.ndim == 4 else values
