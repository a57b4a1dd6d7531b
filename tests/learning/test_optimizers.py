"""Optimizers that move many clients' models at once equal those of torch for each client alone."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sottovoce.core.errors import ConfigError, UnknownNameError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.learning.clients import Clients
from sottovoce.learning.minibatches import LocalSchedule, Minibatches
from sottovoce.learning.optimizers import OptimizerSettings
from sottovoce.learning.task import Task

SIZES = [1, 3, 4, 11, 7]
RATE, CLIP = 0.02, 0.8
UNEQUAL = LocalSchedule(epochs=2, batch_size=3)  # 2 to 8 steps.
TABLES: list[dict[str, Any]] = [
    {"kind": "SGD", "momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
    {"kind": "adamw", "betas": [0.8, 0.95], "weight_decay": 0.2},
    {"kind": "rmsprop", "momentum": 0.5, "centered": True},
    {"kind": "adagrad", "lr_decay": 0.1, "initial_accumulator_value": 0.1},
    {"kind": "nadam"},
]


def make_module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def clients(sizes: list[int] = SIZES) -> Clients:
    generator, count = np.random.default_rng(0), sum(sizes)
    features = generator.normal(size=(count, 4)).astype(np.float32)
    rows = np.split(np.arange(count), np.cumsum(sizes)[:-1])
    return Clients(features, generator.integers(0, 3, size=count), rows)


def make_task(*, one_by_one: bool = False) -> Task:
    features, labels = clients().samples()
    return Task(make_module(), features[:4], labels[:4], one_by_one=one_by_one)


def plain_loop(table: dict[str, Any], group: Clients, steps: Minibatches, pull: float) -> Tensor:
    """Train each client with an optimizer of torch of its own."""
    classes = {name.lower(): found for name, found in vars(torch.optim).items()}
    given = {name: value for name, value in table.items() if name != "kind"}
    found = []
    for place, client in enumerate(group):
        module = make_module()
        parameters: list[nn.Parameter] = list(module.parameters())
        start = [parameter.detach().clone() for parameter in parameters]
        optimizer = classes[table["kind"].lower()](parameters, lr=RATE, **given)
        for rows in steps.of_client(place):
            optimizer.zero_grad()
            loss = cross_entropy(module(client.features[rows]), client.labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, CLIP)
            for parameter, origin in zip(parameters, start, strict=True):
                assert parameter.grad is not None
                parameter.grad += pull * (parameter.detach() - origin)
            optimizer.step()
        found.append(nn.utils.parameters_to_vector(parameters).detach())
    return torch.stack(found)


def trained(table: dict[str, Any], steps: Minibatches, *, one_by_one: bool, pull: float) -> Tensor:
    task, group = make_task(one_by_one=one_by_one), clients()
    found = task.local_models(
        task.initial_model(),
        group,
        steps=steps,
        learning_rate=RATE,
        optimizer=OptimizerSettings.of(table),
        gradient_clip=CLIP,
        proximal_weights=[pull] * len(SIZES),
    )
    return torch.cat([rows for _, rows in found])


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table["kind"])
def test_clients_with_unequal_numbers_of_steps_move_as_with_optimizers_of_their_own(
    table: dict[str, Any],
) -> None:
    group = clients()
    steps = UNEQUAL.draw(SeededRandomness(2), "run", 1, group.names, group.sizes)
    assert len({len(steps.of_client(place)) for place in range(len(SIZES))}) > 2
    expected = plain_loop(table, group, steps, pull=0.5)
    for one_by_one in (False, True):
        found = trained(table, steps, one_by_one=one_by_one, pull=0.5)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_steps_that_are_repeated_have_the_right_step_counts() -> None:
    records = np.array([[[0, 1], [1, -1]], [[0, -1], [-1, -1]]])
    group, steps = clients([2, 2]), Minibatches(records=records, repeats=2)
    task = make_task()
    adam = OptimizerSettings.of({"kind": "adam"})
    given: dict[str, Any] = {"learning_rate": RATE, "optimizer": adam}
    together = task.local_models(task.initial_model(), group, steps=steps, **given)
    alone = task.local_models(task.initial_model(), group[1:], steps=steps[1:], **given)
    torch.testing.assert_close(next(together)[1][1:], next(alone)[1])


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"kind": "adamx"}, "did you mean 'adamax'"),
        ({"kind": "LBFGS"}, "use one of adadelta, adagrad, adam"),
        ({"kind": "sparseadam"}, "use one of adadelta, adagrad, adam"),
        ({"kind": "adam", "beta": 0.9}, "did you mean 'betas'"),
        ({"kind": "adam", "foreach": True}, "unknown option of adam 'foreach'"),
        ({"kind": "adam", "lr": 0.1}, "set the learning rate of the table"),
        ({"kind": "adam", "betas": [1.5, 0.9]}, "Invalid beta parameter"),
        ({"kind": "sgd", "momentum": "much"}, "momentum' must be a number, got 'much'"),
        ({"kind": "sgd", "momentum": True}, "momentum' must be a number, got True"),
        ({"kind": "sgd", "nesterov": 1}, "nesterov' must be true or false, got 1"),
        ({"kind": "adam", "betas": 0.9}, r"list of 2 numbers, such as \[0.9, 0.999\], got 0.9"),
        ({"kind": "adam", "betas": [0.9]}, r"list of 2 numbers, .* got \[0.9\]"),
        ({"kind": "sgd", "nesterov": True}, "refuses the options of sgd"),
    ],
    ids=str,
)
def test_an_optimizer_that_cannot_be_used_is_refused(table: dict[str, Any], told: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=told):
        OptimizerSettings.of(table, "algorithm.local_optimizer")
