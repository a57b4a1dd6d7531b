"""A tiny network as a function of its flat parameters, trained by plain gradient descent."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy

from sottovoce.learning import models


def hidden_layer(input_shape: tuple[int, ...], num_outputs: int) -> torch.nn.Module:
    """A user's own function that makes a module, for specs that name one."""
    return models.Mlp(hidden_units=3).build(input_shape, num_outputs)


class FlatNetwork:
    """An MLP with the shape of a task: `loss(flat, features, labels)`."""

    def __init__(self, num_features: int, num_classes: int, hidden_units: int) -> None:
        self._model = models.Mlp(hidden_units=hidden_units)
        self._shape, self._classes = (num_features,), num_classes
        self._module = models.build(self._model, self._shape, num_classes)

    def loss(self, flat: Tensor, features: Tensor, labels: Tensor) -> Tensor:
        shapes = {name: p.shape for name, p in self._module.named_parameters()}
        pieces = torch.split(flat, [shape.numel() for shape in shapes.values()])
        named = {
            name: piece.reshape(shape)
            for piece, (name, shape) in zip(pieces, shapes.items(), strict=True)
        }
        return cross_entropy(functional_call(self._module, named, (features,)), labels)

    def trained(self, seed: int, features: Tensor, labels: Tensor, *, steps: int) -> Tensor:
        """A flat model after full-batch steps from the initial weights of `seed`."""
        module = models.create(self._model, self._shape, self._classes, np.random.default_rng(seed))
        flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
        gradient = grad(self.loss)
        for _ in range(steps):
            flat = flat - 0.5 * gradient(flat, features, labels)
        return flat


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """300 of scikit-learn's digits as tensors."""

    features: Tensor
    labels: Tensor


def digits() -> Digits:
    from sklearn.datasets import load_digits

    bundle = load_digits()
    return Digits(
        features=torch.as_tensor(bundle.data[:300] / 16.0 - 0.5, dtype=torch.float32),
        labels=torch.as_tensor(bundle.target[:300]),
    )
