"""Outer products that are never made must be what they stand for."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sottovoce.learning.clients import Clients, DenseRows, OuterRows, clip_rows, samples_of
from sottovoce.learning.task import Task

FEATURES, OUTPUTS = 7, 4


def some_clients(count: int, size: int = 1) -> Clients:
    generator = np.random.default_rng(1)
    features = generator.normal(size=(count * size, FEATURES)).astype(np.float16)
    labels = generator.integers(0, OUTPUTS, size=count * size)
    shares = list(np.arange(count * size).reshape(count, size))
    return Clients(features, labels, shares)


def linear_task(*, bias: bool = True) -> tuple[Task, nn.Linear]:
    module = nn.Linear(FEATURES, OUTPUTS, bias=bias)
    test = torch.zeros(2, FEATURES), torch.zeros(2, dtype=torch.int64)
    return Task(module, *test), module


@pytest.mark.parametrize("bias", [True, False])
def test_closed_form_gradients_are_those_of_autograd(bias: bool) -> None:
    task, module = linear_task(bias=bias)
    clients = some_clients(9)
    rows = task.closed_form_gradients(task.initial_model(), clients)
    assert isinstance(rows, OuterRows)
    (made,) = rows.blocks(9)
    for position, client in enumerate(clients):
        module.zero_grad()
        cross_entropy(module(client.features), client.labels).backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad.reshape(-1) for p in module.parameters() if p.grad is not None]
        expected = torch.cat(gradients)
        torch.testing.assert_close(made[position], expected)


def test_clients_with_several_samples_have_no_closed_first_step() -> None:
    task, _ = linear_task()
    assert task.closed_form_gradients(task.initial_model(), some_clients(3, size=2)) is None


@pytest.mark.parametrize("rows", [1, 2, 5, 100])
@pytest.mark.parametrize("has_bias", [True, False])
def test_outer_rows_answer_as_dense_rows_do(rows: int, has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    outer = OuterRows(
        torch.randn(5, OUTPUTS, generator=generator),
        torch.randn(5, FEATURES, generator=generator),
        has_bias=has_bias,
    )
    dense = DenseRows(torch.cat(list(outer.blocks(rows))))
    weights = torch.rand(5, generator=generator)
    torch.testing.assert_close(outer.norms(), dense.norms())
    torch.testing.assert_close(outer.total(weights), dense.total(weights))
    few = torch.tensor([3, 0])
    (chosen,) = outer.select(few).blocks(2)
    torch.testing.assert_close(chosen, dense.select(few).values)
    (scaled,) = outer.scaled(weights).blocks(5)
    torch.testing.assert_close(scaled, dense.scaled(weights).values)


def test_clipping_shortens_long_rows_and_leaves_short_ones() -> None:
    rows = DenseRows(torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]))
    (found,) = clip_rows(rows, 1.0).blocks(3)
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_what_is_not_finite_becomes_zero(bad: float) -> None:
    dense = DenseRows(torch.tensor([[1.0, 1.0], [bad, 0.0]]))
    outer = OuterRows(torch.tensor([[1.0], [bad]]), torch.tensor([[1.0], [0.0]]))
    for rows in (dense, outer):
        (found,) = clip_rows(rows, 10.0).blocks(2)
        torch.testing.assert_close(found[1], torch.zeros(2))
        assert found[0].abs().sum() > 0


def test_a_slice_of_clients_keeps_names_and_samples() -> None:
    clients = some_clients(6, size=2)
    part = clients.take([4, 1])
    assert part.names == ["client-0004", "client-0001"]
    assert part.sizes == [2, 2]
    assert part[0].name == clients[4].name
    features, labels = samples_of(part)
    torch.testing.assert_close(features[:2], clients[4].features)
    torch.testing.assert_close(labels[2:], clients[1].labels)
    assert [c.name for c in clients[1:3]] == ["client-0001", "client-0002"]


@pytest.mark.parametrize("rows", [[0, 1, 2], [128, 129], [1, 2, 3], [0, 2, 1], [5, 5], [199], []])
def test_samples_are_shared_only_if_they_are_consecutive_and_aligned(rows: list[int]) -> None:
    features = torch.empty(200 * FEATURES + 128)
    start = -features.data_ptr() // 4 % 128
    features = features[start : start + 200 * FEATURES].view(200, FEATURES).normal_()
    clients = Clients(features, np.arange(200), [np.array(rows, dtype=np.int64)])
    found, expected = clients.shared_samples(), clients.samples()
    assert all(map(torch.equal, found, expected))
    shares = features.data_ptr() <= found[0].data_ptr() < features[-1].data_ptr()
    assert shares == (rows in ([0, 1, 2], [128, 129]))


@pytest.mark.parametrize("rows", [[0, 1, 2], [128, 129], [1, 2, 3], [0, 2, 1], [5, 5], []])
@pytest.mark.parametrize("writable", [True, False])
def test_shared_samples_of_arrays_are_their_samples(rows: list[int], writable: bool) -> None:
    features = np.random.default_rng(1).normal(size=(200, FEATURES)).astype(np.float32)
    features.flags.writeable = writable
    clients = Clients(features, np.arange(200), [np.array(rows, dtype=np.int64)])
    assert all(map(torch.equal, clients.shared_samples(), clients.samples()))
