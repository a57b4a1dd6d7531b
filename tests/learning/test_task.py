import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sottovoce.core.errors import ParameterError
from sottovoce.learning import models, task
from sottovoce.learning.clients import ClientData
from sottovoce.learning.task import Task
from sottovoce_papers.models.strided_cnn import StridedCnn


def clients(sizes: list[int]) -> list[ClientData]:
    generator = torch.Generator().manual_seed(0)
    return [
        ClientData(
            name=str(n),
            features=torch.randn(size, 6, generator=generator),
            labels=torch.randint(0, 3, (size,), generator=generator),
        )
        for n, size in enumerate(sizes)
    ]


def make_task() -> tuple[Task, nn.Module]:
    model = models.Mlp(hidden_units=4)
    module = models.build(model, (6,), 3)
    models.initialize(model, module, np.random.default_rng(0))
    return Task(module, torch.zeros(2, 6), torch.zeros(2, dtype=torch.int64)), module


def plain_gradient(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    module.zero_grad()
    cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])


@pytest.mark.parametrize("most", [1, 50, 10**6])
def test_sample_gradients_equal_plain_autograd_whatever_the_chunks(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "MAX_GRADIENT_ELEMENTS", most)
    made, module = make_task()
    group = clients([3, 1, 5])
    found: dict[int, list[torch.Tensor]] = {}
    for owners, rows in made.sample_gradients(made.initial_model(), group):
        (values,) = rows.blocks(len(rows))
        for owner, row in zip(owners.tolist(), values, strict=True):
            found.setdefault(owner, []).append(row)
    for position, client in enumerate(group):
        assert len(found[position]) == client.num_samples
        for row, x, y in zip(found[position], client.features, client.labels, strict=True):
            torch.testing.assert_close(row, plain_gradient(module, x[None], y[None]))


@pytest.mark.parametrize("most", [1, 10**6])
@pytest.mark.parametrize("penalties", [[0.0, 0.0, 0.0], [0.5, 0.0, 0.9]])
def test_local_models_equal_plain_full_batch_descent(
    most: int, penalties: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "MAX_GRADIENT_ELEMENTS", most)
    made, module = make_task()
    start = made.initial_model()
    group = clients([3, 1, 5])
    trained = made.local_models(
        start, group, steps=4, learning_rate=0.3, proximal_weights=penalties
    )
    rows = [(start + i, row) for start, block in trained for i, row in enumerate(block)]
    assert [position for position, _ in rows] == [0, 1, 2]
    for position, row in rows:
        flat = origin = torch.as_tensor(start, dtype=torch.float32)
        for _ in range(4):
            torch.nn.utils.vector_to_parameters(flat, module.parameters())
            gradient = plain_gradient(module, group[position].features, group[position].labels)
            flat = flat - 0.3 * (gradient + penalties[position] * (flat - origin))
        torch.testing.assert_close(row, flat)


def test_batch_normalization_is_refused_because_its_buffers_leave_unprivatized() -> None:
    module = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    with pytest.raises(ParameterError, match="group normalization"):
        Task(module, torch.zeros(2, 6), torch.zeros(2, dtype=torch.int64))


def test_the_layout_covers_the_flat_vector() -> None:
    made, _ = make_task()
    assert sum(int(np.prod(shape)) for shape in made.layout.values()) == made.dimension
    assert made.initial_model().shape == (made.dimension,)


def test_targets_that_would_be_broadcast_over_samples_are_refused() -> None:
    module = nn.Linear(6, 1)
    made = Task(module, torch.zeros(2, 6), torch.zeros(2, 1), objective="regression")
    bad = ClientData(name="a", features=torch.ones(3, 6), labels=torch.ones(3))
    with pytest.raises(ParameterError, match="row for each sample"):
        list(made.sample_gradients(made.initial_model(), [bad]))
    flat = nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))  # outputs of shape (samples,)
    made = Task(flat, torch.zeros(2, 6), torch.zeros(2), objective="regression")
    with pytest.raises(ParameterError, match="row for each sample"):
        made.evaluate(made.initial_model())


class _Bent(nn.Linear):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return torch.tanh(2.0 * super().forward(features))


def test_a_module_with_one_linear_layer_need_not_be_linear() -> None:
    module = nn.Sequential(nn.Flatten(), _Bent(6, 3))
    made = Task(module, torch.zeros(2, 6), torch.zeros(2, dtype=torch.int64))
    (one,) = clients([1])
    ((_, rows),) = made.sample_gradients(made.initial_model(), [one])
    (values,) = rows.blocks(1)
    torch.testing.assert_close(values[0], plain_gradient(module, one.features, one.labels))


def test_outputs_follow_from_the_embeddings_by_the_last_layer() -> None:
    module = models.create(StridedCnn(), (1, 12, 12), 3, np.random.default_rng(0))
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(5, 1, 12, 12)).astype(np.float32))
    task = Task(module, x, torch.zeros(5, dtype=torch.int64))
    flat = task.tensor(task.initial_model())
    embeddings = task.embeddings(flat, x)
    weight, bias = list(module.parameters())[-2:]
    assert embeddings.shape == (5, 256)
    torch.testing.assert_close(embeddings @ weight.T + bias, task.outputs(flat, x))
    assert not any(layer._forward_pre_hooks for layer in module.modules())


def test_a_module_that_does_not_end_in_a_linear_layer_has_no_embeddings() -> None:
    module = torch.nn.Sequential(
        torch.nn.Linear(4, 6),
        torch.nn.Unflatten(1, (1, 6)),
        torch.nn.Conv1d(1, 1, 4),
        torch.nn.Flatten(),
    )
    x = torch.zeros(2, 4)
    task = Task(module, x, torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ParameterError, match="no penultimate layer"):
        task.embeddings(task.tensor(task.initial_model()), x)
