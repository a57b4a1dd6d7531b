"""Per-sample gradients of a chain of layers from one ordinary backward pass.

Let g_i be the gradient of sample i's loss with respect to a layer's output, and x_i the layer's
input. The gradient of the layer's parameters follows from these two:

    linear        g_i x [x_i, 1], which is kept as the two factors (g_i x x_i without biases);
    convolution   g_i u_i^T, u_i the patches of x_i; it is small, like the filters;
    group norm    sums of g_i and of g_i times the normalized x_i over the positions of a channel.

So norms and clipped sums need neither the full gradients of large layers nor one backward pass for
each sample.

Only chains of known layers qualify, because in these no sample influences another. Any other module
may mix samples, and is differentiated one sample at a time.

Several models with the same chain are computed at once: parameters have a leading dimension for the
model, and samples have the shape (models, samples, ...). A layer of all models is one batched
matrix product. Convolutions are products with patches, which are stored position after position, so
that the values that one filter reads are contiguous.

References: Goodfellow 2015, "Efficient per-example gradient computations"; Rochette, Manoel and
Tramel 2019, section 3 (convolutions).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import group_norm, pad, unfold

from sottovoce.learning.clients import DenseRows, LayeredRows, OuterRows, norm_divisors
from sottovoce.learning.models.modules import FlatLinear, trainable_parameters
from sottovoce.learning.precision import computing_in

# Layers without parameters in which no sample influences another.
_SAMPLEWISE = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Tanh,
    nn.Identity,
    nn.Dropout,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of a chain, with the prefix of its parameters' names in the module."""

    prefix: str
    module: nn.Module

    @property
    def has_parameters(self) -> bool:
        """Whether the layer is trained: a linear layer, convolution or group norm, not frozen."""
        is_one = isinstance(self.module, nn.Linear | nn.Conv2d | nn.GroupNorm)
        return is_one and any(one.requires_grad for one in self.module.parameters())

    @property
    def names(self) -> list[str]:
        """The names of the layer's parameters in the whole module."""
        return [self.prefix + name for name, _ in self.module.named_parameters()]

    def outputs(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the layer's outputs for a batch of inputs, with its parameters replaced.

        Args:
            parameters: The parameters of the whole module by name.
            inputs: One row for each sample.
        """
        names = self.names if self.has_parameters else []
        own = {n.removeprefix(self.prefix): parameters[n] for n in names}
        outputs: Tensor = functional_call(self.module, own, (inputs,))
        return outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Layers in sequence, and how many numbers a sample needs in memory on its way through them."""

    layers: tuple[Layer, ...]
    elements_per_sample: int

    @property
    def is_random(self) -> bool:
        """Whether a layer draws random numbers in training."""
        return any(
            isinstance(layer.module, nn.Dropout) and layer.module.training and layer.module.p > 0.0
            for layer in self.layers
        )


def chain_of(module: nn.Module, sample_shape: Sequence[int]) -> Chain | None:
    """Return a module as a chain, or None unless every layer is known to keep samples apart.

    None also if a layer with parameters or a parameter is used twice, the input of a linear layer
    is not flat, or only a part of a layer is frozen. `sample_shape` is the shape of one sample.
    """
    layers = tuple(_layers(module, ""))
    if not all(_is_known(layer.module) for layer in layers):
        return None
    trained = [layer.module for layer in layers if layer.has_parameters]
    # A layer or tensor that is used twice has the sum of two gradients, which is not handled here.
    names = sum(1 for one in trained for _ in one.parameters())
    if len(set(trained)) < len(trained) or names != len(trainable_parameters(module)):
        return None
    elements = _elements(layers, torch.zeros(1, *sample_shape))
    return None if elements is None else Chain(layers=layers, elements_per_sample=elements)


def _layers(module: nn.Module, prefix: str) -> list[Layer]:
    if type(module) is not nn.Sequential:
        return [Layer(prefix=prefix, module=module)]
    # named_children would skip a layer that occurs a second time.
    children = zip(module._modules, module, strict=True)
    return [layer for name, child in children for layer in _layers(child, f"{prefix}{name}.")]


def _elements(layers: Sequence[Layer], sample: Tensor) -> int | None:
    """Count the outputs, their gradients, patches and filters of one sample.

    Return None if the input of a linear layer is not flat.
    """
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
    """Return whether the layer has exactly a known type; a subclass may do anything."""
    if type(layer) in (nn.Linear, FlatLinear):
        return True
    if type(layer) is nn.GroupNorm:
        return layer.affine
    if type(layer) is nn.Conv2d:
        plain = layer.groups == 1 and layer.padding_mode == "zeros"
        return plain and not isinstance(layer.padding, str) and layer.bias is not None
    if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):  # In eval mode, as `check_module` says.
        return not trainable_parameters(layer)
    if type(layer) is nn.Flatten:
        return bool(layer.start_dim == 1 and layer.end_dim == -1)
    return type(layer) in _SAMPLEWISE and not getattr(layer, "inplace", False)


def layer_gradients(
    chain: Chain,
    parameters: Mapping[str, Tensor],
    features: Tensor,
    losses: Callable[[Tensor], Tensor],
) -> LayeredRows:
    """Return the gradient of each sample's own loss, from one backward pass for all samples.

    Args:
        chain: The layers of the module.
        parameters: The parameters of the module by name.
        features: One row for each sample.
        losses: A function from the outputs to one loss for each sample.

    Returns:
        One row for each sample, unclipped, in the order of the module's parameters.
    """
    inputs, outputs = [], []
    with torch.enable_grad():
        values = features
        for layer in chain.layers:
            given, values = values, layer.outputs(parameters, values)
            if layer.has_parameters:
                inputs.append(given.detach())
                # No gradient is needed before the first such layer, nor for the parameters.
                outputs.append(values if values.requires_grad else values.requires_grad_())
        found = torch.autograd.grad(losses(values).sum(), outputs)
    modules = [layer.module for layer in chain.layers if layer.has_parameters]
    return LayeredRows(
        tuple(_rows(m, x, g) for m, x, g in zip(modules, inputs, found, strict=True))
    )


def _rows(layer: nn.Module, inputs: Tensor, gradients: Tensor) -> DenseRows | OuterRows:
    if isinstance(layer, nn.Linear):
        return OuterRows(gradients, inputs.flatten(start_dim=1), layer.bias is not None)
    channels = (len(gradients), gradients.shape[1], -1)  # A flat row has one position per channel.
    by_place = gradients.reshape(channels)
    if isinstance(layer, nn.GroupNorm):
        normal = group_norm(inputs, layer.num_groups, eps=layer.eps).reshape(channels)
        return DenseRows(torch.cat([(by_place * normal).sum(dim=2), by_place.sum(dim=2)], dim=1))
    assert isinstance(layer, nn.Conv2d)
    weights = torch.bmm(by_place, _patches(layer, inputs).transpose(1, 2))
    return DenseRows(torch.cat([weights.flatten(start_dim=1), by_place.sum(dim=2)], dim=1))


def _patches(layer: nn.Conv2d, inputs: Tensor) -> Tensor:
    """Return the inputs of the filters, (samples, inputs of a filter, positions)."""
    assert not isinstance(layer.padding, str)
    return unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)


@dataclass(frozen=True, slots=True)
class DenseStack:
    """The per-sample gradients of a layer for several models, (models, samples, parameters)."""

    values: Tensor

    def squared_norms(self) -> Tensor:
        """Return the squared Euclidean norm of each sample's gradient, (models, samples)."""
        return _squares(self.values)

    def l1_norms(self) -> Tensor:
        """Return the sum of magnitudes of each sample's gradient, (models, samples)."""
        return self.values.abs().sum(dim=2)

    def totals(self, weights: Tensor) -> Tensor:
        """Return each client's weighted sum of gradients, (models, clients, parameters).

        `weights` are (models, clients, samples).
        """
        return torch.bmm(weights, self.values)

    def where(self, finite: Tensor) -> "DenseStack":
        """Return the gradients, with zero for samples where `finite` (models, samples) is False."""
        return DenseStack(torch.where(finite[:, :, None], self.values, 0.0))


@dataclass(frozen=True, slots=True)
class OuterStack:
    """Gradients (left x right, left) of a linear layer for several models, as their two factors.

    Without biases a gradient is only left x right.
    """

    left: Tensor
    right: Tensor
    has_bias: bool

    def squared_norms(self) -> Tensor:
        """Return the squared Euclidean norm of each sample's gradient, (models, samples)."""
        return _squares(self.left) * (float(self.has_bias) + _squares(self.right))

    def l1_norms(self) -> Tensor:
        """Return the sum of magnitudes of each sample's gradient, (models, samples)."""
        inputs = float(self.has_bias) + self.right.abs().sum(dim=2)
        return self.left.abs().sum(dim=2) * inputs

    def totals(self, weights: Tensor) -> Tensor:
        """Return each client's weighted sum of gradients, (models, clients, parameters).

        `weights` are (models, clients, samples).
        """
        models, clients, samples = weights.shape
        left = self.left[:, None] * weights[:, :, :, None]  # (models, clients, samples, outputs)
        factors = left.transpose(2, 3).reshape(models, -1, samples)
        products = torch.bmm(factors, self.right).reshape(models, clients, -1)
        return torch.cat([products, left.sum(dim=2)], dim=2) if self.has_bias else products

    def where(self, finite: Tensor) -> "OuterStack":
        """Return the gradients, with zero for samples where `finite` (models, samples) is False."""
        keep = finite[:, :, None]
        left, right = (torch.where(keep, factor, 0.0) for factor in (self.left, self.right))
        return OuterStack(left, right, self.has_bias)


@dataclass(frozen=True, slots=True)
class FilterStack:
    """Gradients of a convolution for several models.

    Filters are (models, samples, filters, height, width, channels), biases (models, samples,
    filters).
    """

    filters: Tensor
    biases: Tensor

    def squared_norms(self) -> Tensor:
        """Return the squared Euclidean norm of each sample's gradient, (models, samples)."""
        return _squares(self.filters.flatten(2)) + _squares(self.biases)

    def l1_norms(self) -> Tensor:
        """Return the sum of magnitudes of each sample's gradient, (models, samples)."""
        return self.filters.flatten(2).abs().sum(dim=2) + self.biases.abs().sum(dim=2)

    def totals(self, weights: Tensor) -> Tensor:
        """Return each client's weighted sum of gradients, (models, clients, parameters).

        `weights` are (models, clients, samples).
        """
        models, clients, _ = weights.shape
        shape = (models, clients, *self.filters.shape[2:])
        totals = torch.bmm(weights, self.filters.flatten(2)).reshape(shape)
        # Return to the order of the module's parameters.
        in_order = totals.permute(0, 1, 2, 5, 3, 4).reshape(models, clients, -1)
        return torch.cat([in_order, torch.bmm(weights, self.biases)], dim=2)

    def where(self, finite: Tensor) -> "FilterStack":
        """Return the gradients, with zero for samples where `finite` (models, samples) is False."""
        keep = finite[:, :, None]
        filters = torch.where(keep[..., None, None, None], self.filters, 0.0)
        return FilterStack(filters, torch.where(keep, self.biases, 0.0))


@dataclass(frozen=True, slots=True)
class PatchStack:
    """Gradients of a convolution for several models, as sums over its patches.

    Attributes:
        values: (models, samples, entries + 1 or more, filters): for each entry of a patch (a place
            in the window, then a channel), for the bias, and then zeros.
        entries: The number of entries of a patch.
        size: Height and width of the window.
    """

    values: Tensor
    entries: int
    size: tuple[int, ...]

    def squared_norms(self) -> Tensor:
        """Return the squared Euclidean norm of each sample's gradient, (models, samples)."""
        return _squares(self.values.flatten(2))

    def l1_norms(self) -> Tensor:
        """Return the sum of magnitudes of each sample's gradient, (models, samples)."""
        return self.values.flatten(2).abs().sum(dim=2)

    def totals(self, weights: Tensor) -> Tensor:
        """Return each client's weighted sum of gradients, (models, clients, parameters).

        `weights` are (models, clients, samples).
        """
        models, clients, _ = weights.shape
        totals = torch.bmm(weights, self.values.flatten(2))
        totals = totals.reshape(models, clients, *self.values.shape[2:])
        filters = totals[:, :, : self.entries]
        filters = filters.reshape(models, clients, *self.size, -1, filters.shape[3])
        # Return to the order of the module's parameters.
        in_order = filters.permute(0, 1, 5, 4, 2, 3).reshape(models, clients, -1)
        return torch.cat([in_order, totals[:, :, self.entries]], dim=2)

    def where(self, finite: Tensor) -> "PatchStack":
        """Return the gradients, with zero for samples where `finite` (models, samples) is False."""
        values = torch.where(finite[:, :, None, None], self.values, 0.0)
        return PatchStack(values, self.entries, self.size)


def _squares(values: Tensor) -> Tensor:
    """Return sums of squares, (models, samples), without a tensor of squares."""
    norms: Tensor = torch.linalg.vector_norm(values, dim=2)
    return norms.square()


LayerStack = DenseStack | OuterStack | FilterStack | PatchStack


@dataclass(frozen=True, slots=True)
class GradientStack:
    """Every sample's gradient for several models, layer after layer, unclipped."""

    layers: tuple[LayerStack, ...]

    def norms(self) -> Tensor:
        """Return the Euclidean norm of each sample's whole gradient, (models, samples)."""
        return torch.stack([layer.squared_norms() for layer in self.layers]).sum(dim=0).sqrt()

    def l1_norms(self) -> Tensor:
        """Return the sum of magnitudes of each sample's whole gradient, (models, samples)."""
        return torch.stack([layer.l1_norms() for layer in self.layers]).sum(dim=0)

    def clipped_totals(
        self, limit: float, shares: Tensor, geometry: str = "l2", *, normalizes: bool = False
    ) -> Tensor:
        """Return each client's sum of clipped gradients, (models, clients, parameters).

        Gradients are clipped to norm `limit`, or normalized (`clients.norm_divisors`); one whose
        norm is not finite counts as zero. `shares` (models, clients, samples) is 1 where a sample
        belongs to a client, else 0. The `geometry` of the norm is "l2" or "l1".
        """
        with computing_in("float32", shares.device):
            norms = self.norms() if geometry == "l2" else self.l1_norms()
            finite = torch.isfinite(norms)
            factors = torch.where(
                finite, limit / norm_divisors(norms, limit, normalizes=normalizes), 0.0
            )
            layers = self.layers
            # Reading a result from a GPU takes longer than replacing rows that are mostly finite.
            if norms.is_cuda or not bool(finite.all()):
                layers = tuple(layer.where(finite) for layer in layers)
            weights = shares * factors[:, None]
            return torch.cat([layer.totals(weights) for layer in layers], dim=2)


def stacked_outputs(chain: Chain, parameters: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """Return the outputs of several models with the same layers, each for its own samples.

    Args:
        chain: The layers.
        parameters: The models' parameters by name, each with a leading axis for the model.
        features: The features of each model's samples, (models, samples, ...).

    Returns:
        The outputs, (models, samples, outputs).
    """
    values = features
    for layer in chain.layers:
        values, _ = _outputs(layer, parameters, values)
    return values


def stacked_gradients(
    chain: Chain,
    parameters: Mapping[str, Tensor],
    features: Tensor,
    losses: Callable[[Tensor], Tensor],
) -> GradientStack:
    """Return the gradient of each sample's own loss, for several models with the same layers.

    Args:
        chain: The layers.
        parameters: The models' parameters by name, each with a leading axis for the model.
        features: The features of each model's samples, (models, samples, ...).
        losses: A function from the outputs (models, samples, outputs) to one loss for each sample.

    Returns:
        The unclipped gradients.
    """
    seen, outputs = [], []
    with torch.enable_grad():
        values = features
        for layer in chain.layers:
            given = values
            values, patches = _outputs(layer, parameters, given)
            if layer.has_parameters:
                seen.append((given if patches is None else patches).detach())
                outputs.append(values if values.requires_grad else values.requires_grad_())
        found = torch.autograd.grad(losses(values).sum(), outputs)
    modules = [layer.module for layer in chain.layers if layer.has_parameters]
    return GradientStack(
        tuple(_gradients(m, x, g) for m, x, g in zip(modules, seen, found, strict=True))
    )


def _gradients(layer: nn.Module, inputs: Tensor, gradients: Tensor) -> LayerStack:
    """Compute a layer's gradients from its inputs (or patches) and its output gradients."""
    models, samples, channels = gradients.shape[:3]
    if isinstance(layer, nn.Linear):
        return OuterStack(gradients, inputs.flatten(start_dim=2), layer.bias is not None)
    by_place = gradients.reshape(models, samples, channels, -1)
    if isinstance(layer, nn.GroupNorm):
        normal = group_norm(inputs.flatten(0, 1), layer.num_groups, eps=layer.eps)
        weights = (by_place * normal.reshape(by_place.shape)).sum(dim=3)
        return DenseStack(torch.cat([weights, by_place.sum(dim=3)], dim=2))
    assert isinstance(layer, nn.Conv2d)
    places = gradients.flatten(3).transpose(2, 3).reshape(models * samples, -1, channels)
    patches = inputs.reshape(models * samples, -1, inputs.shape[-1])
    filters = torch.bmm(places.transpose(1, 2), patches)
    shape = (models, samples, channels, *layer.kernel_size, layer.in_channels)
    return FilterStack(filters.reshape(shape), places.sum(dim=1).reshape(models, samples, -1))


def _outputs(
    layer: Layer, parameters: Mapping[str, Tensor], inputs: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return the layer's outputs for every model, and the patches if it is a convolution."""
    module = layer.module
    if not layer.has_parameters:
        # No sample influences another, so samples of all models form one batch.
        each: Tensor = module(inputs.flatten(0, 1))
        return each.reshape(*inputs.shape[:2], *each.shape[1:]), None
    weight = parameters[layer.prefix + "weight"]
    if isinstance(module, nn.Linear):
        flat, turned = inputs.flatten(start_dim=2), weight.transpose(1, 2)
        shifts = parameters.get(layer.prefix + "bias")
        if shifts is None:
            return torch.bmm(flat, turned), None
        return torch.baddbmm(shifts[:, None], flat, turned), None
    bias = parameters[layer.prefix + "bias"]
    if isinstance(module, nn.GroupNorm):
        each = group_norm(inputs.flatten(0, 1), module.num_groups, eps=module.eps)
        each = each.reshape(inputs.shape)
        shape = (len(weight), 1, -1, *[1] * (inputs.ndim - 3))
        return each * weight.reshape(shape) + bias.reshape(shape), None
    assert isinstance(module, nn.Conv2d)
    return _convolve(module, weight, bias, inputs)


def _convolve(
    layer: nn.Conv2d, weight: Tensor, bias: Tensor, inputs: Tensor
) -> tuple[Tensor, Tensor]:
    models, samples = inputs.shape[:2]
    patches: Tensor = _Patches.apply(inputs, layer)  # type: ignore[no-untyped-call]
    places = patches.shape[2:4]
    rows = patches.reshape(models, -1, patches[0, 0, 0, 0].numel())
    filters = weight.permute(0, 3, 4, 2, 1).reshape(models, -1, layer.out_channels)
    values = torch.baddbmm(bias[:, None], rows, filters)
    shaped = values.reshape(models, samples, *places, layer.out_channels)
    return shaped.permute(0, 1, 4, 2, 3), rows


class _Patches(torch.autograd.Function):
    """The windows that filters read: (models, samples, rows, columns, height, width, channels).

    It has its own backward pass, because torch's adds up views one element at a time.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, layer: nn.Conv2d) -> Tensor:
        """Return the windows of padded inputs."""
        ctx.layer, ctx.shape = layer, inputs.shape
        down, right = _padding(layer)
        padded = pad(inputs.permute(0, 1, 3, 4, 2), (0, 0, right, right, down, down))
        return _windows(layer, padded.contiguous()).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Add up the gradients of all windows that contain an input."""
        (gradient,), layer = gradients, cast(nn.Conv2d, ctx.layer)
        models, samples, channels, height, width = ctx.shape
        down, right = _padding(layer)
        shape = (models, samples, height + 2 * down, width + 2 * right, channels)
        total = gradient.new_zeros(shape)
        windows = _windows(layer, total)
        for i in range(layer.kernel_size[0]):
            for j in range(layer.kernel_size[1]):
                windows[:, :, :, :, i, j] += gradient[:, :, :, :, i, j]
        inner = total[:, :, down : down + height, right : right + width]
        return inner.permute(0, 1, 4, 2, 3), None


def _padding(layer: nn.Conv2d) -> tuple[int, int]:
    assert not isinstance(layer.padding, str)
    return layer.padding[0], layer.padding[1]


def _windows(layer: nn.Conv2d, padded: Tensor) -> Tensor:
    """Return a view of (models, samples, height, width, channels) with every position's window.

    Windows overlap, but the elements at one offset in all windows are distinct.
    """
    sizes, strides = [], []
    for axis in (0, 1):
        reach = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
        sizes.append((padded.shape[2 + axis] - reach - 1) // layer.stride[axis] + 1)
        strides.append(padded.stride(2 + axis))
    m, s, c = padded.shape[0], padded.shape[1], padded.shape[4]
    return padded.as_strided(
        (m, s, *sizes, *layer.kernel_size, c),
        (
            padded.stride(0),
            padded.stride(1),
            strides[0] * layer.stride[0],
            strides[1] * layer.stride[1],
            strides[0] * layer.dilation[0],
            strides[1] * layer.dilation[1],
            1,
        ),
    )
