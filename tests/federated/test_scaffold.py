"""SCAFFOLD without noise: its formulas, what it is for, and what never leaves a client."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms.algorithm import (
    AggregatedUplink,
    Algorithm,
    ClientStepInput,
    ClientVectors,
    State,
)
from sottovoce.federated.algorithms.fedavg import FedAvg, LocalSgd, SampleClippedGradient
from sottovoce.federated.algorithms.scaffold import PendingControls, SampleScaffold, Scaffold
from sottovoce.federated.rounds import zero_nonfinite_rows
from sottovoce.learning import models
from sottovoce.learning.clients import ClientData
from sottovoce.learning.task import Task

NAMES = ("a", "b", "c", "d", "e")
STEPS, RATE = 10, 0.5


def digits_by_label() -> tuple[Task, list[ClientData]]:
    """Five clients with two labels each, and the whole of it as test data."""
    from sklearn.datasets import load_digits

    bundle = load_digits()
    features = torch.tensor(bundle.data / 16.0 - 0.5, dtype=torch.float32)[:600]
    labels = torch.tensor(bundle.target, dtype=torch.int64)[:600]
    module = models.build(models.Linear(), (64,), 10)
    models.initialize(models.Linear(), module, np.random.default_rng(0))
    clients = []
    for number, name in enumerate(NAMES):
        own = labels // 2 == number
        clients.append(ClientData(name=name, features=features[own], labels=labels[own]))
    return Task(module, features, labels), clients


def scaffold(**changes: Any) -> Scaffold:
    given: dict[str, Any] = {
        "clip_norm": 1e3,
        "control_clip_norm": 1e3,
        "local_steps": STEPS,
        "local_learning_rate": RATE,
        "server_learning_rate": 1.0,
        "clients": NAMES,
    }
    return Scaffold(**(given | changes))


def sample_scaffold(**changes: Any) -> SampleScaffold:
    given: dict[str, Any] = {
        "local_work": SampleClippedGradient(clip_norm=1.0),
        "server_learning_rate": 0.5,
        "clients": NAMES,
        "total_weight": 600.0,
    }
    return SampleScaffold(**(given | changes))


def a_round(
    algorithm: Algorithm,
    task: Task,
    clients: Sequence[ClientData],
    number: int,
    model: Vector,
    state: State,
) -> tuple[Vector, State]:
    """One round in which everything arrives as it was sent, clipped to the domain."""
    step = ClientStepInput(
        run="r", round=number, model=model, state=state, randomness=SeededRandomness(0)
    )
    rows: list[list[Vector]] = [[] for _ in range(algorithm.uplinks)]
    for block in algorithm.client_steps(task, clients, step):
        for uplink, sent in enumerate(block.uplinks):
            rows[uplink] += zero_nonfinite_rows(sent)
    domain = algorithm.domain(task.dimension, 1)
    weights = np.array([algorithm.weight(client.num_samples) for client in clients])
    combined = []
    for own in rows:
        arrived = np.array([domain.project(row) for row in own])
        each = ClientVectors(clients=tuple(c.name for c in clients), rows=arrived, weights=weights)
        combined.append(AggregatedUplink(mean=weights @ arrived / weights.sum(), each=each))
    return algorithm.server_step(model, combined, state)


def trained(
    algorithm: Algorithm, rounds: int, cohort: Sequence[int] = range(len(NAMES))
) -> tuple[Vector, State, Task]:
    task, clients = digits_by_label()
    model = task.initial_model()
    state = algorithm.initialize(model)
    for number in range(1, rounds + 1):
        chosen = [clients[i] for i in cohort]
        model, state = a_round(algorithm, task, chosen, number, model, state)
    return model, state, task


def averaging() -> FedAvg:
    return FedAvg(
        local_work=LocalSgd(clip_norm=1e3, steps=STEPS, learning_rate=RATE),
        server_learning_rate=1.0,
        server_momentum=0.0,
    )


def plain_sgd() -> FedAvg:
    return FedAvg(
        local_work=SampleClippedGradient(clip_norm=1.0),
        server_learning_rate=0.5,
        server_momentum=0.0,
    )


def test_where_clients_differ_it_beats_federated_averaging() -> None:
    rounds = 10
    model, _, task = trained(scaffold(), rounds)
    averaged, _, _ = trained(averaging(), rounds)
    corrected, plain = task.evaluate(model), task.evaluate(averaged)
    assert corrected.loss < 0.8 * plain.loss
    assert corrected.score > plain.score


def test_the_server_holds_the_mean_of_the_clients_control_variates() -> None:
    """Also where their changes are clipped: what a client keeps is what it has sent."""
    for limit in (1e3, 0.02):
        _, state, _ = trained(scaffold(control_clip_norm=limit), 4)
        mean = state["client_controls"].astype(np.float64).mean(axis=0)
        np.testing.assert_allclose(state["control"], mean, atol=1e-6)
        assert np.linalg.norm(state["client_controls"], axis=1).max() <= 4 * limit


def test_an_unclipped_control_variate_is_the_mean_gradient_of_the_local_steps() -> None:
    """With one step that is the client's own gradient at the server's model (option I)."""
    algorithm = scaffold(local_steps=1)
    task, clients = digits_by_label()
    model = task.initial_model()
    state = algorithm.initialize(model)
    for number in (1, 2):
        before = model
        model, state = a_round(algorithm, task, clients, number, model, state)
    for row, one in zip(state["client_controls"], clients, strict=True):
        flat = task.tensor(before).requires_grad_()
        (gradient,) = torch.autograd.grad(task.loss(flat, one.features, one.labels), flat)
        np.testing.assert_allclose(row, gradient.numpy(), atol=1e-5)


def test_on_minibatches_a_control_variate_is_the_mean_over_the_clients_own_steps() -> None:
    algorithm = scaffold(local_steps=1, local_epochs=2, batch_size=30)
    task, clients = digits_by_label()
    clients[1] = ClientData(
        name="b", features=clients[1].features[:40], labels=clients[1].labels[:40]
    )
    model = task.initial_model()
    state = algorithm.initialize(model)
    step = ClientStepInput(
        run="r", round=1, model=model, state=state, randomness=SeededRandomness(0)
    )
    changes = np.stack(
        [
            row
            for block in algorithm.client_steps(task, clients, step)
            for row in zero_nonfinite_rows(block.uplinks[0])
        ]
    )
    _, state = a_round(algorithm, task, clients, 1, model, state)
    steps = np.array([2 * -(-client.num_samples // 30) for client in clients])
    assert len(set(steps)) > 1
    expected = -changes / (steps[:, None] * RATE)
    np.testing.assert_allclose(state["client_controls"], expected, atol=1e-6)


def test_the_first_round_is_federated_averaging() -> None:
    np.testing.assert_allclose(trained(scaffold(), 1)[0], trained(averaging(), 1)[0], atol=1e-9)


def test_only_clients_of_the_round_move_and_the_server_by_their_share() -> None:
    _, state, _ = trained(scaffold(), 1, cohort=[1, 3])
    moved = np.linalg.norm(state["client_controls"], axis=1) > 0
    assert moved.tolist() == [False, True, False, True, False]
    total = state["client_controls"].astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(state["control"], total / len(NAMES), atol=1e-6)


def test_both_uplinks_fit_one_domain_whatever_the_clips() -> None:
    algorithm = scaffold(clip_norm=0.3, control_clip_norm=0.07)
    task, clients = digits_by_label()
    model = task.initial_model()
    state = algorithm.initialize(model)
    step = ClientStepInput(
        run="r", round=1, model=model, state=state, randomness=SeededRandomness(0)
    )
    (block,) = algorithm.client_steps(task, clients, step)
    assert len(block.uplinks) == algorithm.uplinks == 2
    norms = block.uplinks[1].norms()
    assert float(norms.max()) <= 0.3
    assert float(norms.max()) == pytest.approx(0.3, rel=1e-5)  # clipped, and not further
    assert algorithm.domain(task.dimension, 17).records == 1


def test_a_round_leaves_the_state_that_it_started_from_alone() -> None:
    algorithm = scaffold()
    task, clients = digits_by_label()
    model = task.initial_model()
    state = algorithm.initialize(model)
    first = a_round(algorithm, task, clients, 1, model, state)
    assert not state["client_controls"].any()
    again = a_round(algorithm, task, clients, 1, model, state)
    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[1]["client_controls"], again[1]["client_controls"])


def test_a_round_that_came_to_nothing_moves_no_one() -> None:
    algorithm = scaffold()
    task, clients = digits_by_label()
    model = task.initial_model()
    state = algorithm.initialize(model)
    step = ClientStepInput(
        run="r", round=1, model=model, state=state, randomness=SeededRandomness(0)
    )
    for _ in algorithm.client_steps(task, clients[:2], step):
        pass  # nothing was released: the server makes no step
    _, after = a_round(algorithm, task, clients[3:], 2, model, state)
    moved = np.linalg.norm(after["client_controls"], axis=1) > 0
    assert moved.tolist() == [False, False, False, True, True]


def test_drafts_are_of_one_round_and_taken_once() -> None:
    drafts = PendingControls()
    drafts.put(1, ["a"], np.ones((1, 2), dtype=np.float32))
    drafts.put(2, ["b"], np.ones((1, 2), dtype=np.float32))
    drafts.put(2, ["c"], np.ones((1, 2), dtype=np.float32))
    assert list(drafts.take()) == ["b", "c"]
    assert drafts.take() == {}


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e38])
def test_a_client_that_diverges_keeps_a_finite_control_variate(bad: float) -> None:
    algorithm = scaffold()
    task, clients = digits_by_label()
    broken = ClientData(
        name="b",
        features=torch.full_like(clients[1].features, bad),
        labels=clients[1].labels,
    )
    model = task.initial_model()
    state = algorithm.initialize(model)
    for number in (1, 2):
        model, state = a_round(
            algorithm, task, [clients[0], broken, *clients[2:]], number, model, state
        )
    for array in (model, state["control"], state["client_controls"]):
        assert np.isfinite(array).all()
    assert state["client_controls"][0].any()


def test_at_sample_level_with_everyone_it_is_federated_sgd() -> None:
    np.testing.assert_allclose(
        trained(sample_scaffold(), 6)[0], trained(plain_sgd(), 6)[0], rtol=0, atol=1e-12
    )


def test_at_sample_level_a_few_clients_speak_for_all() -> None:
    """One client a round: plain SGD runs after whoever was asked last, SCAFFOLD does not."""
    losses = {}
    for name, algorithm in (("plain", plain_sgd()), ("scaffold", sample_scaffold())):
        task, clients = digits_by_label()
        model = task.initial_model()
        state = algorithm.initialize(model)
        for number in range(1, 61):
            cohort = [clients[number % len(clients)]]
            model, state = a_round(algorithm, task, cohort, number, model, state)
        losses[name] = task.evaluate(model).loss
    assert losses["scaffold"] < losses["plain"]


def test_at_sample_level_the_server_holds_the_weighted_mean_of_what_was_released() -> None:
    _, state, _ = trained(sample_scaffold(), 3, cohort=[0, 4])
    _, clients = digits_by_label()
    weights = np.array([client.num_samples for client in clients], dtype=np.float64)
    mean = weights @ state["client_controls"].astype(np.float64) / weights.sum()
    np.testing.assert_allclose(state["control"], mean, atol=1e-12)
    assert not state["client_controls"][1:4].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"control_clip_norm": 0.0}, "control_clip_norm must be"),
        ({"local_steps": 0}, "local_steps must be"),
        ({"server_learning_rate": -1.0}, "server_learning_rate must be"),
        ({"clients": ("a", "a")}, "name every client of the run once"),
        ({"clients": ()}, "name every client of the run once"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        scaffold(**changes)
