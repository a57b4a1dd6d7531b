"""The outputs of several models with the same chain of layers, on a CUDA device with Triton.

They are those of `layer_gradients.stacked_outputs` up to the rounding of float32. Images have the
channels last, and a group norm is computed together with a rectifier and a max pooling after it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm

from sottovoce.learning.cuda_layers import Convolution, Normalization, PatchWindow
from sottovoce.learning.layer_gradients import Chain, Layer

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
                weights, biases = (places[step.layer.prefix + n] for n in ("weight", "bias"))
                if isinstance(step.layer.module, nn.Conv2d):
                    weights = weights.permute(2, 3, 1, 0)
                orders.append(torch.cat([weights.flatten(), biases.flatten()]))
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


def _linear(module: nn.Linear, own: Tensor, values: Tensor) -> Tensor:
    weights, biases = torch.split(own, [module.weight.numel(), module.out_features], dim=1)
    flat = values.reshape(len(own), -1, module.in_features)
    columns = weights.reshape(len(own), *module.weight.shape).transpose(1, 2)
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
