"""Gradients from one backward pass must be those of every sample alone."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms.algorithm import ClientStepInput
from sottovoce.federated.algorithms.fedavg import SampleClippedGradient
from sottovoce.learning import models
from sottovoce.learning.clients import Clients, LayeredRows, OuterRows, Rows
from sottovoce.learning.layer_gradients import chain_of
from sottovoce.learning.task import Task

SHAPE, CLASSES = (2, 9, 8), 5


def convnet(*, stride: int = 1, padding: int = 0, dilation: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    filters = nn.Conv2d(2, 4, 3, stride=stride, padding=padding, dilation=dilation)
    return nn.Sequential(
        nn.Sequential(filters, nn.GroupNorm(2, 4), nn.Tanh(), nn.MaxPool2d(2)),
        nn.Flatten(),
        nn.LazyLinear(6),
        nn.GroupNorm(1, 6),
        nn.ReLU(),
        nn.Linear(6, CLASSES),
    )


def made(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    module(torch.zeros(1, *SHAPE))  # gives lazy layers their size
    return module


def task_of(module: nn.Module) -> Task:
    return Task(module, torch.zeros(2, *SHAPE), torch.zeros(2, dtype=torch.int64))


def clients_of(sizes: list[int], scale: float = 1.0) -> Clients:
    generator = np.random.default_rng(1)
    count = sum(sizes)
    features = (scale * generator.normal(size=(count, *SHAPE))).astype(np.float32)
    shares = np.split(np.arange(count), np.cumsum(sizes)[:-1])
    return Clients(features, generator.integers(0, CLASSES, count), shares)


def alone(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    module.zero_grad()
    cross_entropy(module(x[None]), y[None]).backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"padding": 2}, {"dilation": 2}])
def test_a_chain_of_layers_gives_each_sample_its_own_gradient(options: dict[str, int]) -> None:
    module = made(convnet(**options))
    task, clients = task_of(module), clients_of([3, 4])
    features, labels = clients.samples()
    ((owners, rows),) = task.sample_gradients(task.initial_model(), clients)
    assert isinstance(rows, LayeredRows)
    assert owners.tolist() == [0, 0, 0, 1, 1, 1, 1]
    (values,) = rows.blocks(7)
    for value, x, y in zip(values, features, labels, strict=True):
        torch.testing.assert_close(value, alone(module, x, y), rtol=1e-4, atol=1e-5)


def _without_biases() -> nn.Module:
    first = nn.Linear(int(np.prod(SHAPE)), 3, bias=False)
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), nn.Linear(3, CLASSES, bias=False))


@pytest.mark.parametrize(
    "module", [models.build(models.Mlp(hidden_units=3), SHAPE, CLASSES), _without_biases()]
)
def test_a_network_with_one_hidden_layer_takes_samples_of_any_shape(module: nn.Module) -> None:
    task, clients = task_of(module), clients_of([3])
    ((_, rows),) = task.sample_gradients(task.initial_model(), clients)
    (values,) = rows.blocks(3)
    assert isinstance(rows, LayeredRows)
    for value, x, y in zip(values, *clients.samples(), strict=True):
        torch.testing.assert_close(value, alone(module, x, y), rtol=1e-4, atol=1e-5)


def test_the_large_layers_are_kept_as_factors() -> None:
    task = task_of(made(convnet()))
    ((_, rows),) = task.sample_gradients(task.initial_model(), clients_of([2]))
    assert isinstance(rows, LayeredRows)
    assert [isinstance(layer, OuterRows) for layer in rows.layers] == [
        False,
        False,
        True,
        False,
        True,
    ]


class Centred(nn.Module):
    """Samples see each other: one alone would have another gradient."""

    def forward(self, values: Tensor) -> Tensor:
        return values - values.mean(dim=0)


class Doubled(nn.Linear):
    """Not what its base class is."""

    def forward(self, values: Tensor) -> Tensor:
        return 2.0 * super().forward(values)


def _tied() -> nn.Sequential:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, second)


def _twice() -> nn.Sequential:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Sequential(Centred(), nn.Linear(4, 4)), (4,)),
        (nn.Sequential(nn.Linear(4, 4), Doubled(4, 4)), (4,)),
        (_tied(), (4,)),
        (_twice(), (4,)),
        (nn.Sequential(nn.Linear(4, 4), nn.Flatten()), (3, 4)),  # a row for each of three places
        (nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten()), (2, 5, 5)),
        (nn.Sequential(nn.Conv2d(2, 2, 3, padding="same"), nn.Flatten()), (2, 5, 5)),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), (4,)),
        (nn.Sequential(nn.GroupNorm(2, 4, affine=False), nn.Flatten()), (4, 3)),
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), (4,)),
    ],
)
def test_whatever_has_no_closed_form_is_no_chain(module: nn.Module, shape: tuple[int, ...]) -> None:
    assert chain_of(module, shape) is None


def test_a_layer_without_parameters_may_come_twice() -> None:
    relu = nn.ReLU()
    module = nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu)
    chain = chain_of(module, (4,))
    assert chain is not None
    assert [layer.prefix for layer in chain.layers] == ["0.", "1.", "2.", "3."]
    assert chain.elements_per_sample == 2 * 4 * 4


def _updates(task: Task, clients: Clients, summation: str) -> Tensor:
    work = SampleClippedGradient(clip_norm=0.3, summation=summation)  # type: ignore[arg-type]
    step = ClientStepInput(
        run="r",
        round=1,
        model=task.initial_model(),
        state={},
        randomness=SeededRandomness(0),
    )
    found: list[tuple[int, Rows]] = list(work.updates(task, clients, step))
    return torch.cat([torch.cat(list(rows.blocks(len(rows)))).double() for _, rows in found])


@pytest.mark.parametrize("sizes", [[3, 1, 5], [1, 1, 1, 1]])
@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_float_sums_are_the_exact_ones_up_to_rounding(sizes: list[int], scale: float) -> None:
    task, clients = task_of(made(convnet())), clients_of(sizes, scale)
    exact = _updates(task, clients, "exact")
    torch.testing.assert_close(_updates(task, clients, "float"), exact, rtol=1e-4, atol=1e-6)
    assert float(exact.norm(dim=1).max()) <= 0.3


def test_a_sample_that_overflows_counts_as_zero_in_float_sums_too() -> None:
    task = task_of(made(convnet()))
    clients = clients_of([2, 1, 1], scale=1e38)
    assert not _updates(task, clients, "float")[1:].isnan().any()
    assert not _updates(task, clients_of([1, 1], scale=1e38), "float").isnan().any()


def test_clients_with_a_sample_each_start_where_their_rows_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sottovoce.learning.task.MAX_GRADIENT_ELEMENTS", 1)
    task, clients = task_of(made(convnet())), clients_of([1, 1, 1])
    work = SampleClippedGradient(clip_norm=0.3, summation="float")
    step = ClientStepInput(
        run="r", round=1, model=task.initial_model(), state={}, randomness=SeededRandomness(0)
    )
    assert [start for start, _ in work.updates(task, clients, step)] == [0, 1, 2]
