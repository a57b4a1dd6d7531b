"""Several models at once must be each of them alone."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sottovoce.learning.clients import clip_rows
from sottovoce.learning.task import Task

SHAPE, CLASSES, MODELS, SAMPLES = (2, 9, 8), 5, 3, 7


class Doubled(nn.Module):
    """No chain of known layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(144, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.inner(2.0 * x.flatten(1))
        return outputs


def convnet(**options: Any) -> nn.Module:
    module = nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 4, (3, 2), **options), nn.GroupNorm(2, 4), nn.Tanh()),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 3, 2),
        nn.Flatten(),
        nn.LazyLinear(6),
        nn.ReLU(),
        nn.Linear(6, CLASSES),
    )
    module(torch.zeros(1, *SHAPE))
    return module


MODULES = {
    "plain": lambda: convnet(),
    "stride": lambda: convnet(stride=(1, 2)),
    "padding": lambda: convnet(padding=(2, 1)),
    "dilation": lambda: convnet(dilation=2),
    "no biases": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(144, 6, bias=False), nn.Tanh(), nn.Linear(6, CLASSES, bias=False)
    ),
    "no chain": Doubled,
}


def parts(name: str) -> tuple[Task, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    task = Task(MODULES[name](), torch.zeros(2, *SHAPE), torch.zeros(2, dtype=torch.int64))
    models = 0.5 * torch.randn(MODELS, task.dimension)
    features = torch.randn(MODELS, SAMPLES, *SHAPE)
    return task, models, features, torch.randint(0, CLASSES, (MODELS, SAMPLES))


@pytest.mark.parametrize("name", MODULES)
def test_gradients_are_those_of_each_model_alone(name: str) -> None:
    task, models, features, labels = parts(name)
    found = task.stacked_gradients(models, features, labels)
    owners = torch.tensor([0, 1, 0, 0, 1, -1, 0])  # the sixth sample is nobody's
    shares = (owners == torch.arange(2)[:, None]).float().expand(MODELS, -1, -1)
    limit = float(found.norms().median())  # some are shortened, some are not
    totals = found.clipped_totals(limit, shares)
    for i in range(MODELS):
        rows = task._gradients(models[i].numpy(), features[i], labels[i])
        torch.testing.assert_close(found.norms()[i], rows.norms())
        for client in range(2):
            expected = clip_rows(rows, limit).total(shares[i, client])
            torch.testing.assert_close(totals[i, client], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_outputs_are_those_of_each_model_alone(name: str) -> None:
    task, models, features, _ = parts(name)
    found = task.stacked_outputs(models, features)
    for i in range(MODELS):
        alone = task._outputs(task._flat.split(models[i]), features[i])
        torch.testing.assert_close(found[i], alone)


@pytest.mark.parametrize("name", MODULES)
def test_a_gradient_that_is_not_finite_counts_as_zero(name: str) -> None:
    task, models, features, labels = parts(name)
    shares = torch.ones(MODELS, 1, SAMPLES)
    features[1, 2] = torch.inf
    shares_without = shares.clone()
    shares_without[1, 0, 2] = 0.0
    calm = torch.where(torch.isfinite(features), features, 0.0)
    found = task.stacked_gradients(models, features, labels).clipped_totals(1.0, shares)
    expected = task.stacked_gradients(models, calm, labels).clipped_totals(1.0, shares_without)
    torch.testing.assert_close(found, expected)


def test_the_gradient_of_inputs_is_torchs() -> None:
    task, models, features, _ = parts("stride")
    features.requires_grad_()
    (found,) = torch.autograd.grad(task.stacked_outputs(models, features).square().sum(), features)
    alone = [task._outputs(task._flat.split(m), x) for m, x in zip(models, features, strict=True)]
    (expected,) = torch.autograd.grad(torch.stack(alone).square().sum(), features)
    torch.testing.assert_close(found, expected)
