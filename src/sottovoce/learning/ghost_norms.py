"""Sums of clipped gradients of large networks, without the gradient of any single sample.

The norm of a sample's gradient follows from the inputs of each layer and the gradients of its
outputs. One backward pass gives those for all samples; a second one, of the losses weighted with
the clipping factors, gives the sum. So memory does not grow with samples times parameters.

Layers: linear, convolutions without groups, group and layer normalization, embeddings; each is
used once, and no layer works in place. `GhostSums.of` compares sums of a few samples with those of
single gradients, and returns None for modules to which this does not apply.

References: Goodfellow 2015; Lee and Kifer 2021; Li, Tramèr, Liang and Hashimoto 2022.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm, layer_norm, unfold

if TYPE_CHECKING:  # Tasks use this module.
    from sottovoce.learning.task import Task

_LAYERS = (nn.Linear, nn.Conv2d, nn.GroupNorm, nn.LayerNorm, nn.Embedding)
_SAMPLES_TRIED = 3
_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class _Call:
    """A layer, what it was given, and what it returned."""

    layer: nn.Module
    given: Tensor
    found: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GhostSums:
    """The clipped sums of one task's module.

    Attributes:
        task: The module and its loss.
        layers: Its layers with trained parameters.
        elements_per_sample: How many numbers a sample takes while a sum is computed.
    """

    task: "Task"
    layers: tuple[nn.Module, ...]
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
        owners = {name.rpartition(".")[0] for name in trained}
        layers = tuple(module.get_submodule(name) for name in sorted(owners))
        plain = all(map(_is_known, layers)) and not any(
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
        parameters = self.task.parameters_of(model)
        with torch.enable_grad(), self._watched() as calls:
            losses = self.task.losses_of(parameters, features, labels)
            gradients = torch.autograd.grad(
                losses.sum(), [call.found for call in calls], retain_graph=True
            )
            squares = [_squares(call, g) for call, g in zip(calls, gradients, strict=True)]
            norms = torch.stack(squares).sum(dim=0).sqrt()
            finite = torch.isfinite(norms)
            factors = torch.where(finite, limit / norms.clamp(min=limit), 0.0) * shares
            total = torch.where(factors > 0, losses * factors, 0.0).sum()
            found = torch.autograd.grad(total, list(parameters.values()))
        return torch.cat([gradient.reshape(-1) for gradient in found])

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
            elements = sum(call.found.numel() + _input_elements(call) for call in calls)
        if len(calls) != len(self.layers):
            return None
        ones, limit = torch.ones(count, device=model.device), 1.0
        own = self.clipped_total(model, features, labels, ones, limit)
        expected = torch.zeros_like(own)
        for x, y in zip(features, labels, strict=True):
            gradient = task.gradient(model, x[None], y[None])
            expected += gradient * (limit / gradient.norm().clamp(min=limit))
        right = (own - expected).norm() <= _TOLERANCE * expected.norm()
        return max(1, 2 * elements // count) if bool(right) else None

    @contextmanager
    def _watched(self) -> Iterator[list[_Call]]:
        calls: list[_Call] = []

        def keep(layer: nn.Module, given: tuple[Tensor, ...], found: Tensor) -> None:
            calls.append(_Call(layer, given[0].detach(), found))

        hooks = [layer.register_forward_hook(keep) for layer in self.layers]
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


def _input_elements(call: _Call) -> int:
    if isinstance(call.layer, nn.Conv2d):
        height, width = call.layer.kernel_size
        return call.given.shape[1] * height * width * call.found[:, 0].numel()
    return call.given.numel()


def _squares(call: _Call, gradients: Tensor) -> Tensor:
    """Return the squared norm of each sample's gradient for the parameters of one layer."""
    layer, given = call.layer, call.given
    match layer:
        case nn.Linear():
            inputs = given.reshape(len(given), -1, given.shape[-1]).transpose(1, 2)
            outputs = gradients.reshape(len(given), -1, gradients.shape[-1]).transpose(1, 2)
            return _products(inputs, outputs) + _bias(layer.bias, outputs)
        case nn.Conv2d():
            assert not isinstance(layer.padding, str)
            inputs = unfold(given, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
            outputs = gradients.flatten(start_dim=2)
            return _products(inputs, outputs) + _bias(layer.bias, outputs)
        case nn.GroupNorm():
            normal = group_norm(given, layer.num_groups, eps=layer.eps)
            shape = (*gradients.shape[:2], -1)
            by_place = gradients.reshape(shape)
            scales = (by_place * normal.reshape(shape)).sum(dim=2)
            return scales.square().sum(dim=1) + _bias(layer.bias, by_place)
        case nn.LayerNorm():
            normal = layer_norm(given, layer.normalized_shape, eps=layer.eps)
            shape = (len(gradients), -1, math.prod(layer.normalized_shape))
            scales = (gradients * normal).reshape(shape).sum(dim=1)
            shifts = gradients.reshape(shape).sum(dim=1) if layer.bias is not None else scales * 0
            return scales.square().sum(dim=1) + shifts.square().sum(dim=1)
        case nn.Embedding():
            tokens = given.reshape(len(given), -1)
            rows = gradients.reshape(len(given), -1, gradients.shape[-1])
            same = (tokens[:, :, None] == tokens[:, None, :]).to(rows.dtype)
            return (same * (rows @ rows.transpose(1, 2))).sum(dim=(1, 2))
        case _:
            raise AssertionError("only known layers are watched")


def _products(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Return |sum over places of output x input|^2 of each sample; the cheaper of two ways."""
    places = inputs.shape[2]
    if 2 * places * places <= inputs.shape[1] * outputs.shape[1]:
        gram = (inputs.transpose(1, 2) @ inputs) * (outputs.transpose(1, 2) @ outputs)
        return gram.sum(dim=(1, 2)).clamp(min=0.0)
    return (outputs @ inputs.transpose(1, 2)).flatten(start_dim=1).square().sum(dim=1)


def _bias(bias: Tensor | None, outputs: Tensor) -> Tensor:
    found = outputs.sum(dim=2).square().sum(dim=1)
    return found if bias is not None else torch.zeros_like(found)
