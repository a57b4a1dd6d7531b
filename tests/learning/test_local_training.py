"""Clients that train together get the models that a plain loop gives each of them."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sottovoce.core.randomness import SeededRandomness
from sottovoce.learning import local_training, models
from sottovoce.learning.clients import Clients
from sottovoce.learning.minibatches import LocalSchedule, Minibatches
from sottovoce.learning.task import Task
from sottovoce_papers.models.small_cifar_cnn import SmallCifarCnn

SIZES = [1, 3, 4, 11, 7]
RATE = 0.05


class Plain(nn.Module):
    """A module that is no chain of known layers, so that torch.func.vmap computes it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 6, bias=False)
        self.outer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.outer(torch.tanh(self.inner(x.flatten(1)))) * self.factor(x)
        return out

    def factor(self, x: Tensor) -> Any:
        return 1.0


class Branching(Plain):
    def factor(self, x: Tensor) -> Any:
        return 2.0 if x.sum() > 0 else 1.0


class Writing(Plain):
    def factor(self, x: Tensor) -> Any:
        kept = torch.zeros(len(x), 1)
        kept += x.flatten(1)[:, :1]
        return 1.0 + 0.0 * kept


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        cubes: Tensor = x**3
        return cubes

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        found: Tensor = 3.0 * x**2 * gradients[0]
        return found


class WithoutRule(Plain):
    def factor(self, x: Tensor) -> Any:
        found: Tensor = _Cube.apply(x.flatten(1).mean(dim=1, keepdim=True))  # type: ignore[no-untyped-call]
        return found


class Mixing(Plain):
    def factor(self, x: Tensor) -> Any:
        return 1.0 + x.mean()


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, kernel_size=3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3)),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3)),
    "cnn": cnn,
    "by vmap": Plain,
}
SCHEDULES = {
    "all records": LocalSchedule(steps=3),
    "one epoch": LocalSchedule(epochs=1, batch_size=4),
    "epochs": LocalSchedule(epochs=3, batch_size=3),
    "steps": LocalSchedule(steps=4, batch_size=5),
}


def clients(sizes: list[int] = SIZES) -> Clients:
    generator, count = np.random.default_rng(0), sum(sizes)
    features = generator.normal(size=(count, 1, 4, 4)).astype(np.float32)
    labels = generator.integers(0, 3, size=count)
    stops = np.cumsum(sizes)
    return Clients(
        features,
        labels,
        [np.arange(stop - size, stop) for stop, size in zip(stops, sizes, strict=True)],
    )


def make_task(build: Callable[[], nn.Module], *, one_by_one: bool = False) -> Task:
    torch.manual_seed(0)
    test = clients().samples()
    return Task(build(), test[0][:4], test[1][:4], one_by_one=one_by_one)


def batches(schedule: LocalSchedule, group: Clients) -> Minibatches:
    return schedule.draw(SeededRandomness(2), "run", 1, group.names, group.sizes)


def trained(task: Task, group: Clients, steps: int | Minibatches, **given: Any) -> Tensor:
    found = task.local_models(task.initial_model(), group, steps=steps, learning_rate=RATE, **given)
    return torch.cat([rows for _, rows in found])


def assert_same_updates(found: Tensor, expected: Tensor, start: Tensor) -> None:
    moved = torch.linalg.vector_norm(expected - start, dim=1)
    apart = torch.linalg.vector_norm(found - expected, dim=1)
    assert (apart <= 1e-5 * moved + 1e-7).all(), (apart / moved).tolist()


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("build", MODULES.values(), ids=MODULES)
def test_clients_trained_together_get_the_models_of_plain_steps(
    build: Callable[[], nn.Module], schedule: LocalSchedule
) -> None:
    task, group = make_task(build), clients()
    steps = batches(schedule, group)
    start = task.tensor(task.initial_model())
    pulls = [0.0, 0.5, 0.0, 1.0, 0.25]
    shifts = 0.1 * torch.randn(len(SIZES), task.dimension)
    torch.manual_seed(0)
    module = build()
    expected = []
    for place, client in enumerate(group):
        flat = start
        for _ in range(steps.repeats):
            for rows in steps.of_client(place):
                torch.nn.utils.vector_to_parameters(flat, module.parameters())
                module.zero_grad()
                loss = cross_entropy(module(client.features[rows]), client.labels[rows])
                loss.backward()  # type: ignore[no-untyped-call]
                gradient = torch.cat(
                    [p.grad.reshape(-1) for p in module.parameters() if p.grad is not None]
                )
                flat = flat - RATE * (gradient + shifts[place] + pulls[place] * (flat - start))
        expected.append(flat.detach())
    found = trained(task, group, steps, proximal_weights=pulls, corrections=shifts)
    assert_same_updates(found, torch.stack(expected), start)
    alone = make_task(build, one_by_one=True)
    one_by_one = trained(alone, group, steps, proximal_weights=pulls, corrections=shifts)
    assert_same_updates(found, one_by_one, start)


def test_a_client_gets_the_same_model_whoever_trains_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, group = make_task(MODULES["mlp"]), clients()
    steps = batches(SCHEDULES["epochs"], group)
    together = trained(task, group, steps)
    monkeypatch.setattr(Task, "clients_at_once", lambda self, width, **_: 2)
    assert_same_updates(trained(task, group, steps), together, task.tensor(task.initial_model()))


def test_large_steps_are_taken_one_client_after_the_other_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, group = make_task(cnn), clients()
    steps = batches(SCHEDULES["one epoch"], group)
    together = trained(task, group, steps)
    monkeypatch.setattr(local_training, "_LARGE_STEP", 1)
    monkeypatch.setattr(Task, "sample_losses", None)
    assert_same_updates(trained(task, group, steps), together, task.tensor(task.initial_model()))


def test_infinite_records_of_one_client_do_not_reach_another() -> None:
    task, group = make_task(MODULES["mlp"]), clients()
    broken = Clients(
        np.where(np.arange(sum(SIZES))[:, None, None, None] == 2, np.inf, group.samples()[0]),
        group.samples()[1].numpy(),
        [np.arange(sum(SIZES[:k]), sum(SIZES[: k + 1])) for k in range(len(SIZES))],
    )
    steps = batches(SCHEDULES["epochs"], group)
    finite = torch.isfinite(trained(task, broken, steps)).all(dim=1)
    assert finite.tolist() == [True, False, True, True, True]


def test_a_client_without_records_keeps_the_model() -> None:
    task, group = make_task(MODULES["mlp"]), clients([3, 0, 2])
    start = task.tensor(task.initial_model())
    for schedule in SCHEDULES.values():
        found = trained(task, group, batches(schedule, group))
        assert torch.equal(found[1], start)
        assert not torch.equal(found[2], start)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (Branching, "cannot compute the module"),
        (Writing, "cannot compute the module"),
        (WithoutRule, "cannot compute the module"),
        (Mixing, "mixes the samples"),
    ],
)
def test_a_module_that_cannot_be_stacked_is_trained_in_a_loop_with_one_warning(
    build: Callable[[], nn.Module], reason: str
) -> None:
    task, group = make_task(build), clients()
    steps = batches(SCHEDULES["one epoch"], group)
    with pytest.warns(UserWarning, match=reason) as told:
        found = trained(task, group, steps)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = trained(task, group, steps)
        alone = trained(make_task(build, one_by_one=True), group, steps)
    assert torch.equal(found, again)
    assert torch.equal(found, alone)


def test_a_model_of_the_package_trains_the_same_way_together_and_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_training, "_LARGE_STEP", 1 << 40)
    generator = np.random.default_rng(1)
    features = generator.normal(size=(12, 3, 8, 8)).astype(np.float32)
    group = Clients(features, generator.integers(0, 3, size=12), [np.arange(7), np.arange(7, 12)])
    steps = batches(LocalSchedule(epochs=1, batch_size=4), group)
    module = models.create(SmallCifarCnn(), (3, 8, 8), 3, np.random.default_rng(0))
    test = group.samples()
    tasks = [Task(module, test[0], test[1], one_by_one=alone) for alone in (False, True)]
    together, alone = (trained(task, group, steps) for task in tasks)
    assert_same_updates(together, alone, tasks[0].tensor(tasks[0].initial_model()))
