"""Sums of clipped gradients of large networks, mostly without the gradient of any single sample.

The gradients of a layer's parameters follow from the layer's inputs and the gradients of its
outputs, which one backward pass gives for all samples. So do their norms and, once all norms are
known, their weighted sum: there is no second backward pass, and what is summed is what was
measured. Gradients of single samples are made only where a layer has few weights and many places.

Layers: linear, convolutions without groups, group and layer normalization, embeddings; each is
used once, and no layer works in place. `GhostSums.of` compares sums of a few samples with those of
single gradients, and returns None for modules to which this does not apply.

References: Goodfellow 2015; Lee and Kifer 2021; Li, Tramèr, Liang and Hashimoto 2022; Bu, Wang, Zha
and Karypis 2023 (one backward pass).
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm, layer_norm, pad
from torch.nn.grad import conv2d_weight
from torch.utils.hooks import RemovableHandle

from sottovoce.learning.precision import Precision, computing_in

if TYPE_CHECKING:  # Tasks use this module.
    from sottovoce.learning.task import Task

_LAYERS = (nn.Linear, nn.Conv2d, nn.GroupNorm, nn.LayerNorm, nn.Embedding)
_SAMPLES_TRIED = 3
_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class _Call:
    """A layer by its name, what it was given, and what it returned."""

    name: str
    layer: nn.Module
    given: Tensor
    found: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GhostSums:
    """The clipped sums of one task's module.

    Attributes:
        task: The module and its loss.
        layers: Its layers with trained parameters, by name.
        elements_per_sample: How many numbers a sample takes while a sum is computed.
    """

    task: "Task"
    layers: Mapping[str, nn.Module]
    elements_per_sample: int

    @classmethod
    def of(
        cls, task: "Task", module: nn.Module, trained: Mapping[str, object]
    ) -> "GhostSums | None":
        """Return the clipped sums of a module, or None if they cannot be computed so.

        Args:
            task: The module and its loss.
            module: The module.
            trained: The names of its trained parameters.

        Returns:
            The sums, after a trial on a few samples of the test data.
        """
        owners = sorted({name.rpartition(".")[0] for name in trained})
        layers = {name: module.get_submodule(name) for name in owners}
        plain = all(map(_is_known, layers.values())) and not any(
            getattr(layer, "inplace", False) for layer in module.modules()
        )
        if not plain:
            return None
        found = cls(task=task, layers=layers, elements_per_sample=1)
        try:
            elements = found._tried()
        except Exception:  # The user's module may raise anything.
            return None
        return (
            None
            if elements is None
            else cls(task=task, layers=layers, elements_per_sample=elements)
        )

    def clipped_total(
        self, model: Tensor, features: Tensor, labels: Tensor, shares: Tensor, limit: float
    ) -> Tensor:
        """Return the sum of the clipped gradients of one model.

        Args:
            model: The flat model.
            features: The features of the samples.
            labels: Their labels.
            shares: 1 for each sample that counts, else 0.
            limit: The norm that gradients are clipped to; one whose norm is not finite counts as
                zero.

        Returns:
            A flat tensor.
        """
        return self._clipped_total(model, features, labels, shares, limit, self.task.precision)

    def _clipped_total(
        self,
        model: Tensor,
        features: Tensor,
        labels: Tensor,
        shares: Tensor,
        limit: float,
        precision: Precision,
    ) -> Tensor:
        parameters, device = self.task.parameters_of(model), model.device
        with torch.enable_grad(), self._watched() as calls, computing_in(precision, device):
            losses = self.task.losses_of(parameters, features, labels)
            outputs = [call.found for call in calls]
            gradients = torch.autograd.grad(losses.sum(), outputs)
        with computing_in("float32", device):  # What is summed has the norm that was found.
            parts: dict[str, _Part] = {}
            for call, gradient in zip(calls, gradients, strict=True):
                own = _parts(call, gradient)
                parts |= {f"{call.name}.{n}".removeprefix("."): part for n, part in own.items()}
            trained = {name: parts[name] for name in parameters}
            squares = [part.squares() for part in trained.values()]
            norms = torch.stack(squares).sum(dim=0).clamp(min=0.0).sqrt()
            finite = torch.isfinite(norms)
            factors = torch.where(finite, limit / norms.clamp(min=limit), 0.0) * shares
            totals = [part.total(factors) for part in trained.values()]
        return torch.cat([total.reshape(-1) for total in totals])

    def _tried(self) -> int | None:
        """Return the numbers that a sample takes, or None if the sums are wrong."""
        task = self.task
        features, labels = task.test_pairs(_SAMPLES_TRIED)
        count = len(labels)
        if count < 2 or bool((features[1:] == features[0]).all()):
            return None  # They would not show whether one sample influences another.
        model = task.tensor(task.initial_model())
        model = model + _perturbation(task.layout.values()).to(model.device)
        with torch.no_grad(), self._watched() as calls:
            task.outputs(model, features)
            elements = sum(call.found.numel() + _further_elements(call) for call in calls)
        if sorted(call.name for call in calls) != list(self.layers):
            return None
        ones, limit = torch.ones(count, device=model.device), 1.0
        own = self._clipped_total(model, features, labels, ones, limit, "float32")
        expected = torch.zeros_like(own)
        with computing_in("float32", model.device):
            for x, y in zip(features, labels, strict=True):
                gradient = task.gradient(model, x[None], y[None])
                expected += gradient * (limit / gradient.norm().clamp(min=limit))
        right = (own - expected).norm() <= _TOLERANCE * expected.norm()
        return max(1, 2 * elements // count) if bool(right) else None

    @contextmanager
    def _watched(self) -> Iterator[list[_Call]]:
        calls: list[_Call] = []

        def watch(name: str, layer: nn.Module) -> RemovableHandle:
            def keep(layer: nn.Module, given: tuple[Tensor, ...], found: Tensor) -> None:
                calls.append(_Call(name, layer, given[0].detach(), found))

            return layer.register_forward_hook(keep)

        hooks = [watch(name, layer) for name, layer in self.layers.items()]
        try:
            yield calls
        finally:
            for hook in hooks:
                hook.remove()


def _perturbation(shapes: Iterable[tuple[int, ...]]) -> Tensor:
    """Return random numbers that move parameters about as far as an initialization does.

    Where parameters begin at 0, as in adapters and residual branches, a layer that mixes samples
    may have no effect at first, and one on every later gradient.
    """
    generator = torch.Generator().manual_seed(0)
    return torch.cat(
        [
            torch.randn(math.prod(shape), generator=generator)
            / math.sqrt(max(4, math.prod(shape[1:])))
            for shape in shapes
        ]
    )


def _is_known(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        plain = layer.groups == 1 and layer.padding_mode == "zeros"
        return plain and not isinstance(layer.padding, str)
    if type(layer) is nn.Embedding:
        return layer.max_norm is None and not layer.scale_grad_by_freq and layer.padding_idx is None
    return type(layer) in _LAYERS


def _further_elements(call: _Call) -> int:
    """Return how many numbers a layer's patches take, or else its input."""
    if isinstance(call.layer, nn.Conv2d):
        height, width = call.layer.kernel_size
        return call.given.shape[1] * height * width * call.found[:, 0].numel()
    return call.given.numel()


# -- the gradients of one parameter for all samples ------------------------------------------------


class _Part(Protocol):
    """The gradients of one parameter, one for each sample."""

    def squares(self) -> Tensor:
        """Return the squared norm of each."""
        ...

    def total(self, factors: Tensor) -> Tensor:
        """Return their sum, each times its factor; those with the factor 0 may be infinite."""
        ...


@dataclass(frozen=True, slots=True)
class _Single:
    """Gradients of single samples."""

    values: Tensor

    def squares(self) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(self.values.flatten(start_dim=1), dim=1)
        return norms.square()

    def total(self, factors: Tensor) -> Tensor:
        return factors @ _kept(self.values, factors).flatten(start_dim=1)


@dataclass(frozen=True, slots=True)
class _OfWeights:
    """Sums over places of output x input, for a linear layer or a convolution.

    Attributes:
        call: The layer and its input.
        gradients: Those of its outputs.
        inputs: What its weights are multiplied with, (samples, inputs, places).
        outputs: The gradients as (samples, outputs, places).
    """

    call: _Call
    gradients: Tensor
    inputs: Tensor
    outputs: Tensor

    def squares(self) -> Tensor:
        inputs, outputs = self.inputs, self.outputs
        gram = (inputs.transpose(1, 2) @ inputs) * (outputs.transpose(1, 2) @ outputs)
        return gram.sum(dim=(1, 2))

    def total(self, factors: Tensor) -> Tensor:
        layer = self.call.layer
        if not isinstance(layer, nn.Conv2d):
            inputs = _kept(self.inputs, factors).transpose(1, 2).flatten(end_dim=1)
            outputs = _kept(self.outputs, factors) * factors[:, None, None]
            return outputs.transpose(1, 2).flatten(end_dim=1).T @ inputs
        given = _kept(self.call.given, factors)
        weighted = _kept(self.gradients, factors) * factors[:, None, None, None]
        assert not isinstance(layer.padding, str)
        found: Tensor = conv2d_weight(  # type: ignore[no-untyped-call]
            given, layer.weight.shape, weighted, layer.stride, layer.padding, layer.dilation
        )
        return found


@dataclass(frozen=True, slots=True)
class _OfRows:
    """Gradients of embeddings: rows that are added to those of tokens."""

    tokens: Tensor
    rows: Tensor
    shape: torch.Size

    def squares(self) -> Tensor:
        same = (self.tokens[:, :, None] == self.tokens[:, None, :]).to(self.rows.dtype)
        return (same * (self.rows @ self.rows.transpose(1, 2))).sum(dim=(1, 2))

    def total(self, factors: Tensor) -> Tensor:
        rows = _kept(self.rows, factors) * factors[:, None, None]
        total = rows.new_zeros(self.shape)
        return total.index_add(0, self.tokens.flatten(), rows.flatten(end_dim=1))


def _kept(values: Tensor, factors: Tensor) -> Tensor:
    """Return values, with zero for samples whose factor is 0."""
    return torch.where(factors.reshape(-1, *[1] * (values.ndim - 1)) > 0, values, 0.0)


def _parts(call: _Call, gradients: Tensor) -> dict[str, _Part]:
    """Return the gradients of a layer's parameters by their names in the layer."""
    layer, given = call.layer, call.given
    match layer:
        case nn.Linear():
            inputs = given.reshape(len(given), -1, given.shape[-1]).transpose(1, 2)
            outputs = gradients.reshape(len(given), -1, gradients.shape[-1]).transpose(1, 2)
            return _of_products(call, gradients, inputs, outputs)
        case nn.Conv2d():
            inputs = _patches(layer, given, gradients.shape[2:])
            return _of_products(call, gradients, inputs, gradients.flatten(start_dim=2))
        case nn.GroupNorm():
            normal = group_norm(given, layer.num_groups, eps=layer.eps)
            shape = (*gradients.shape[:2], -1)
            by_place = gradients.reshape(shape)
            scales = (by_place * normal.reshape(shape)).sum(dim=2)
            return {"weight": _Single(scales), "bias": _Single(by_place.sum(dim=2))}
        case nn.LayerNorm():
            normal = layer_norm(given, layer.normalized_shape, eps=layer.eps)
            shape = (len(gradients), -1, math.prod(layer.normalized_shape))
            scales = (gradients * normal).reshape(shape).sum(dim=1)
            shifts = gradients.reshape(shape).sum(dim=1)
            return {"weight": _Single(scales), "bias": _Single(shifts)}
        case nn.Embedding():
            tokens = given.reshape(len(given), -1)
            rows = gradients.reshape(len(given), -1, gradients.shape[-1])
            return {"weight": _OfRows(tokens, rows, layer.weight.shape)}
        case _:
            raise AssertionError("only known layers are watched")


def _patches(layer: nn.Conv2d, given: Tensor, places: torch.Size) -> Tensor:
    """Return what the filters are multiplied with, (samples, entries, places), by one copy.

    On CUDA devices `torch.nn.functional.unfold` copies one sample after the other.
    """
    assert not isinstance(layer.padding, str)
    down, right = layer.padding
    padded = pad(given, (right, right, down, down)).contiguous()
    samples, channels, rows, columns = padded.stride()
    windows = padded.as_strided(
        (*given.shape[:2], *layer.kernel_size, *places),
        (
            samples,
            channels,
            rows * layer.dilation[0],
            columns * layer.dilation[1],
            rows * layer.stride[0],
            columns * layer.stride[1],
        ),
    )
    return windows.reshape(len(given), -1, math.prod(places))


def _of_products(
    call: _Call, gradients: Tensor, inputs: Tensor, outputs: Tensor
) -> dict[str, _Part]:
    """Return the gradients of weights and biases; those of weights in the cheaper of two ways."""
    (_, entries, places), filters = inputs.shape, outputs.shape[1]
    weights: _Part
    if places * (entries + filters) < entries * filters:
        weights = _OfWeights(call, gradients, inputs, outputs)
    else:  # These take no more memory than inputs and outputs.
        weights = _Single(outputs @ inputs.transpose(1, 2))
    return {"weight": weights, "bias": _Single(outputs.sum(dim=2))}
