"""Sums of clipped gradients without single gradients, beside those that torch.func makes."""

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from sottovoce.learning import task as task_module
from sottovoce.learning.task import Task


class Block(nn.Module):
    """A residual block, so that the module is no chain."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input plus a function of it."""
        return x + torch.relu(self.norm(self.first(x)))


class Sequences(nn.Module):
    """Embeddings, a normalization and a linear layer over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 6)
        self.norm = nn.LayerNorm(6)
        self.mixed = nn.Linear(6, 5)
        self.last = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one row for each sample."""
        mixed = torch.tanh(self.mixed(self.norm(self.words(x)))).mean(dim=1)
        found: torch.Tensor = self.last(mixed)
        return found


def images() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(1)
    layers = (nn.Conv2d(3, 4, 3, stride=2), Block(4), nn.Flatten(), nn.Linear(4 * 9, 3))
    return nn.Sequential(*layers), torch.randn(6, 3, 8, 8)


def sequences() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(1)
    return Sequences(), torch.randint(7, (6, 9))


@pytest.mark.parametrize("made", [images, sequences])
def test_sums_are_those_of_single_gradients(made: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "_LARGE_NETWORK", 1)
    module, features = made()  # type: ignore[operator]
    labels = torch.arange(6) % 3
    task = Task(module, features, labels)
    ghost = task.ghost_sums
    assert ghost is not None
    model = task.tensor(task.initial_model())

    def loss(flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return task.loss(flat, x[None], y[None])

    rows = vmap(grad(loss), in_dims=(None, 0, 0))(model, features, labels)
    norms = rows.norm(dim=1)
    limit, shares = float(norms.median()), torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    expected = (rows * (limit / norms.clamp(min=limit) * shares)[:, None]).sum(dim=0)
    found = ghost.clipped_total(model, features, labels, shares, limit)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_modules_to_which_it_does_not_apply_are_computed_in_other_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_module, "_LARGE_NETWORK", 1)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.layer(torch.relu(self.layer(x)))
            return found

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    features, labels = torch.randn(5, 4), torch.zeros(5, dtype=torch.int64)
    for module in (Twice(), Own()):
        assert Task(module, features, labels).ghost_sums is None
    assert Task(nn.Linear(4, 2), features, labels).ghost_sums is None  # A chain has a faster way.


class Centered(nn.Module):
    """A network that subtracts the mean of a batch, so that each sample influences all others.

    With `last` = 0 it does so in a residual branch that has no effect before the first step.
    """

    def __init__(self, last: float) -> None:
        super().__init__()
        self.first, self.inner, self.outer, self.last = (nn.Linear(4, 4) for _ in range(4))
        for layer in (self.inner, self.outer):
            nn.init.constant_(layer.weight, last)
            nn.init.constant_(layer.bias, last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one row for each sample."""
        hidden = torch.tanh(self.first(x))
        mixed = hidden - hidden.mean(dim=0, keepdim=True)
        found: torch.Tensor = self.last(hidden + self.outer(self.inner(mixed)))
        return found


@pytest.mark.parametrize(("last", "tests"), [(1.0, 3), (0.0, 3), (1.0, 1), (0.0, 1)])
def test_modules_that_mix_samples_are_recognized(
    last: float, tests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of these, sums over a batch would not bound what a single sample changes."""
    monkeypatch.setattr(task_module, "_LARGE_NETWORK", 1)
    torch.manual_seed(2)
    features, labels = torch.randn(tests, 4), torch.zeros(tests, dtype=torch.int64)
    assert Task(Centered(last), features, labels).ghost_sums is None
    alike = features[:1].expand(3, -1)
    assert Task(Centered(last), alike, torch.zeros(3, dtype=torch.int64)).ghost_sums is None


def test_an_infinite_sample_counts_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "_LARGE_NETWORK", 1)
    module, features = images()
    labels, others = torch.arange(6) % 3, torch.tensor([0, 2, 3, 4, 5])
    task = Task(module, features.clone(), labels)
    ghost, model = task.ghost_sums, task.tensor(task.initial_model())
    assert ghost is not None
    broken = features.clone()
    broken[1] = torch.inf
    found = ghost.clipped_total(model, broken, labels, torch.ones(6), 1.0)
    expected = ghost.clipped_total(model, features[others], labels[others], torch.ones(5), 1.0)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_frozen_parameters_of_a_layer_count_neither_for_norms_nor_for_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_module, "_LARGE_NETWORK", 1)
    module, features = images()
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    labels = torch.arange(6) % 3
    task = Task(module, features, labels)
    ghost, model = task.ghost_sums, task.tensor(task.initial_model())
    assert ghost is not None
    one = ghost.clipped_total(model, features[:1], labels[:1], torch.ones(1), 1e-3)
    assert len(one) == task.dimension < 20
    assert float(one.norm()) == pytest.approx(1e-3, rel=1e-5)
