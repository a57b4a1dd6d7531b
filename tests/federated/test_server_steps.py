"""Server optimizers, schedules and averages of models compute what their papers say."""

from typing import Any

import numpy as np
import pytest
import torch

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ConfigError, SottovoceError, UnknownNameError
from sottovoce.federated.algorithms.algorithm import AggregatedUplink, State
from sottovoce.federated.algorithms.fedavg import FedAvg, SampleClippedGradient
from sottovoce.federated.algorithms.model_average import average_of
from sottovoce.federated.algorithms.server_steps import server_optimizer
from sottovoce.federated.schedules import RateSchedule, check_table

RATE, ROUNDS = 0.3, 6
UPDATES = np.random.default_rng(0).normal(size=(ROUNDS, 4)) * [1e-3, 0.1, 1.0, 10.0]


def fedavg(**given: Any) -> FedAvg:
    return FedAvg(
        local_work=SampleClippedGradient(clip_norm=1.0),
        server_learning_rate=RATE,
        server_momentum=0.0,
        **given,
    )


def models(algorithm: FedAvg) -> list[Vector]:
    """Return the model after each round; the state passes through a copy, as in a checkpoint."""
    model, found = np.zeros(4), []
    state: State = algorithm.initialize(model)
    for update in UPDATES:
        state = {name: np.array(array) for name, array in state.items()}
        model, state = algorithm.server_step(model, [AggregatedUplink(mean=update)], state)
        found.append(model)
    return found


def reddi(kind: str, beta1: float, beta2: float, tau: float) -> list[Vector]:
    """Return the models of algorithm 2 of Reddi et al. 2021, line by line."""
    x, m, v, found = np.zeros(4), np.zeros(4), np.full(4, tau**2), []
    for delta in UPDATES:
        m = beta1 * m + (1 - beta1) * delta
        if kind == "fedadagrad":
            v = v + delta**2
        elif kind == "fedyogi":
            v = v - (1 - beta2) * delta**2 * np.sign(v - delta**2)
        else:
            v = beta2 * v + (1 - beta2) * delta**2
        x = x + RATE * m / (np.sqrt(v) + tau)
        found.append(x)
    return found


@pytest.mark.parametrize(
    ("table", "beta1", "beta2", "tau"),
    [
        ({"kind": "fedadam"}, 0.9, 0.99, 1e-3),
        ({"kind": "FedYogi", "beta2": 0.9, "tau": 0.1}, 0.9, 0.9, 0.1),
        ({"kind": "fedadagrad"}, 0.0, 0.0, 1e-3),
        ({"kind": "fedadagrad", "beta1": 0.5}, 0.5, 0.0, 1e-3),
    ],
    ids=str,
)
def test_adaptive_servers_follow_the_paper(
    table: dict[str, Any], beta1: float, beta2: float, tau: float
) -> None:
    found = models(fedavg(server_optimizer=server_optimizer(table, "server_optimizer")))
    np.testing.assert_allclose(found, reddi(table["kind"].lower(), beta1, beta2, tau), rtol=1e-12)


@pytest.mark.parametrize("kind", ["Adam", "SGD", "NAdam"])
def test_an_optimizer_of_torch_gets_the_negative_mean_update_as_its_gradient(kind: str) -> None:
    options = {"momentum": 0.9} if kind == "SGD" else {}
    chosen = server_optimizer({"kind": kind, **options}, "server_optimizer")
    parameter = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = getattr(torch.optim, kind)([parameter], lr=RATE, **options)
    expected = []
    for update in UPDATES:
        parameter.grad = -torch.from_numpy(update)
        optimizer.step()
        expected.append(parameter.detach().numpy().copy())
    np.testing.assert_allclose(models(fedavg(server_optimizer=chosen)), expected, rtol=1e-12)


def test_a_server_schedule_scales_each_step() -> None:
    table = {"kind": "linear", "final_factor": 0.5, "warmup_rounds": 1}
    schedule = RateSchedule.of(table, rounds=ROUNDS, where="server_schedule")
    factors = [0.5, 1.0, 0.875, 0.75, 0.625, 0.5]
    expected = np.cumsum(RATE * np.array(factors)[:, None] * UPDATES, axis=0)
    np.testing.assert_allclose(models(fedavg(server_schedule=schedule)), expected)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"kind": "constant", "warmup_rounds": 3}, [0.25, 0.5, 0.75, 1.0, 1.0]),
        ({"kind": "linear", "final_factor": 0.2}, [1.0, 0.8, 0.6, 0.4, 0.2]),
        ({"kind": "cosine", "final_factor": 0.2}, [1.0, 0.8828427, 0.6, 0.3171573, 0.2]),
        ({"kind": "exponential", "final_factor": 0.0625}, [1.0, 0.5, 0.25, 0.125, 0.0625]),
        ({"kind": "step", "every": 2, "factor": 0.5}, [1.0, 1.0, 0.5, 0.5, 0.25]),
        ({"kind": "linear", "warmup_rounds": 4}, [0.2, 0.4, 0.6, 0.8, 1.0]),
        ({"kind": "cosine"}, [1.0, 0.85502, 0.505, 0.15498, 0.01]),
    ],
    ids=str,
)
def test_a_schedule_has_the_documented_factors(
    table: dict[str, Any], expected: list[float]
) -> None:
    schedule = RateSchedule.of(check_table("s", table), rounds=5, where="s")
    assert schedule is not None
    assert [schedule.factor(number) for number in range(1, 6)] == pytest.approx(expected, rel=1e-4)


def averages(table: dict[str, Any]) -> list[Vector]:
    average, found = average_of(table, "averaging"), []
    state: State = {}
    for number, model in enumerate(UPDATES, start=1):
        state = average.after_round(model, state, number)
        found.append(state["averaged"])
    return found


def test_averages_weigh_the_models_as_documented() -> None:
    for number, found in enumerate(averages({"kind": "ema", "decay": 0.8}), start=1):
        weights = 0.8 ** np.arange(number)[::-1]
        np.testing.assert_allclose(found, weights @ UPDATES[:number] / weights.sum())
    for number, found in enumerate(averages({"kind": "mean", "rounds": 3}), start=1):
        np.testing.assert_allclose(found, UPDATES[max(0, number - 3) : number].mean(axis=0))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: server_optimizer({"kind": "yogi"}, "s"), "did you mean 'fedyogi'"),
        (lambda: server_optimizer({"kind": "fedadm"}, "s"), "did you mean 'fedadam'"),
        (lambda: server_optimizer({"kind": "adam", "bet": 1}, "s"), r"weight_decay \(in \[s\]\)$"),
        (lambda: server_optimizer({"kind": "fedavgm"}, "s"), "server_momentum"),
        (lambda: server_optimizer({"kind": "fedadagrad", "beta2": 0.9}, "s"), "beta1, tau"),
        (lambda: server_optimizer({"kind": "fedadam", "tau": 0.0}, "s"), "tau must be"),
        (lambda: server_optimizer({"kind": "lbfgs"}, "s"), "use one of adadelta"),
        (lambda: check_table("s", {"kind": "cosin"}), "did you mean 'cosine'"),
        (lambda: check_table("s", {"kind": "linear", "every": 2}), "valid names: final_factor"),
        (
            lambda: RateSchedule.of({"kind": "cosine", "warmup_rounds": 9}, rounds=9, where="s"),
            "leaves no round of 9",
        ),
        (
            lambda: RateSchedule.of({"kind": "linear", "final_factor": 0}, rounds=9, where="s"),
            "final_factor must be",
        ),
        (lambda: average_of({"kind": "ema"}, "s"), "'s.decay' is missing"),
        (lambda: average_of({"kind": "ema", "decay": 1.0}, "s"), "strictly between"),
        (lambda: average_of({"kind": "mean", "rounds": 1}, "s"), "rounds"),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Any, told: str) -> None:
    with pytest.raises(SottovoceError, match=told) as caught:
        make()
    assert isinstance(caught.value, ConfigError | UnknownNameError)
