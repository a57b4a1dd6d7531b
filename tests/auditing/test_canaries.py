"""Canaries: what they contribute, where they go, and how they are scored."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from specs import small_spec

from sottovoce.auditing.canary_rounds import (
    SCORES,
    Canaries,
    CanaryAlgorithm,
    CanaryTask,
    split_coordinates,
)
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms.algorithm import (
    AggregatedUplink,
    ClientStepInput,
    ClientVectors,
)
from sottovoce.learning.clients import ClientData
from sottovoce.runs.inputs import load_inputs

CANARIES = Canaries(
    blocks=(slice(0, 4), slice(4, 8), slice(0, 8)),
    signs=np.array([1.0, -1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0]),
    coins=np.array([1, -1, 1]),
    hosts=("a", "b", "b"),
    places=(0, 2, 1),
    silent=frozenset({"b", "r"}),
    clip_norm=2.0,
    adjacency=Adjacency.ZERO_OUT,
)


def test_a_canary_is_a_long_vector_of_its_block_whose_sign_alternates() -> None:
    row = CANARIES.contribution(0, 1)
    assert np.linalg.norm(row) == pytest.approx(2000.0)
    np.testing.assert_array_equal(row[4:], 0.0)
    np.testing.assert_array_equal(np.sign(row[:4]), CANARIES.signs[:4])
    np.testing.assert_array_equal(CANARIES.contribution(0, 2), -row)


def test_one_that_is_out_is_zero_or_the_opposite() -> None:
    np.testing.assert_array_equal(CANARIES.contribution(1, 1), 0.0)
    other = replace(CANARIES, adjacency=Adjacency.REPLACE_ONE)
    inside = replace(other, coins=np.array([1, 1, 1]))
    np.testing.assert_array_equal(other.contribution(1, 1), -inside.contribution(1, 1))


def test_noise_that_all_clients_share_drops_out_of_the_scores() -> None:
    noise = np.random.default_rng(0).normal(size=8)
    direction = CANARIES.signs[:4] / 2.0
    rows = np.stack([noise, noise, noise])
    rows[0, :4] += 0.5 * direction
    each = ClientVectors(clients=("a", "b", "r"), rows=rows, weights=np.array([10.0, 10.0, 10.0]))
    scores = CANARIES.scores(AggregatedUplink(mean=rows.mean(axis=0), each=each), 1)
    np.testing.assert_allclose(scores[0], [5.0, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(scores[1], [2.0, 0.0, 0.0], atol=1e-12)
    later = CANARIES.scores(AggregatedUplink(mean=rows.mean(axis=0), each=each), 2)
    np.testing.assert_allclose(scores + later, 0.0, atol=1e-12)


def test_where_no_one_sees_messages_the_mean_is_scored() -> None:
    mean = np.zeros(8)
    mean[:4] = CANARIES.signs[:4] / 2.0
    np.testing.assert_allclose(CANARIES.scores(AggregatedUplink(mean=mean), 2)[0, :2], [-1.0, 0.0])


def test_blocks_are_disjoint_and_no_more_than_there_are_coordinates() -> None:
    assert split_coordinates(10, 3) == (slice(0, 3), slice(3, 6), slice(6, 9))
    with pytest.raises(ParameterError, match="choose a number from 1 to 10"):
        split_coordinates(10, 11)


# In a task.


def _clients(names: str, size: int) -> list[ClientData]:
    generator = torch.Generator().manual_seed(1)
    return [
        ClientData(
            name=name,
            features=torch.rand(size, 1, 8, 8, generator=generator),
            labels=torch.randint(0, 10, (size,), generator=generator),
        )
        for name in names
    ]


def _wide(dimension: int, **changes: object) -> Canaries:
    blocks = split_coordinates(dimension, 3)
    return replace(CANARIES, blocks=blocks, signs=np.ones(dimension), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("sampled", [False, True])
def test_gradients_are_the_tasks_own_but_for_canaries_and_silence(sampled: bool) -> None:
    task = load_inputs(small_spec()).task
    model, clients = task.initial_model(), _clients("cabrd", 3)
    canaries = _wide(task.dimension)
    planted = CanaryTask(task, canaries, 1, model, sampled=sampled)
    totals = [torch.zeros(5, task.dimension, dtype=torch.float64) for _ in range(2)]
    seen = 0
    for total, one in zip(totals, (task, planted), strict=True):
        for owners, rows in one.sample_gradients(model, clients):
            (block,) = rows.blocks(len(rows))
            total.index_add_(0, owners, block.double())
            seen += len(block)
    assert seen == 15 + (15 if sampled else 9 + 2)  # silent zeros only where they are sampled
    real, found = totals
    torch.testing.assert_close(found[[0, 4]], real[[0, 4]], rtol=1e-5, atol=1e-5)
    expected = sum(canaries.contribution(number, 1) for number in (1, 2))
    np.testing.assert_allclose(found[2].numpy(), -expected, rtol=1e-6)  # 'b', all else silent
    assert not found[3].any()  # 'r', a reference
    replaced = real[1] - _gradient(task, model, clients[1], 0)
    expected = replaced.numpy() - canaries.contribution(0, 1)
    np.testing.assert_allclose(found[1].numpy(), expected, rtol=1e-4, atol=1e-4)


def _gradient(task: object, model: object, client: ClientData, record: int) -> torch.Tensor:
    ((_, rows),) = task.sample_gradients(model, [client])  # type: ignore[attr-defined]
    (block,) = rows.blocks(len(rows))
    return torch.as_tensor(block[record].double())


def test_a_mask_chooses_among_the_same_rows() -> None:
    task = load_inputs(small_spec()).task
    model, clients = task.initial_model(), _clients("cabr", 3)
    planted = CanaryTask(task, _wide(task.dimension), 1, model, sampled=True)
    mask = torch.arange(12) % 2 == 0
    parts = []
    for chosen in (None, mask):
        rows = [
            next(rows.blocks(len(rows)))
            for _, rows in planted.sample_gradients(model, clients, chosen)
            if len(rows)
        ]
        parts.append(torch.cat(rows))
    torch.testing.assert_close(parts[1], parts[0][mask])


def test_local_models_are_moved_by_the_canary_and_nothing_else() -> None:
    task = load_inputs(small_spec()).task
    model, clients = task.initial_model(), _clients("cabrd", 3)
    canaries = _wide(task.dimension)
    planted = CanaryTask(task, canaries, 1, model, sampled=False)
    assert planted.closed_form_gradients(model, clients) is None
    found = torch.zeros(5, task.dimension, dtype=torch.float64)
    for start, rows in planted.local_models(model, clients, steps=2, learning_rate=0.1):
        found[start : start + len(rows)] = rows.double()
    trained = task.local_models(model, clients, steps=2, learning_rate=0.1)
    real = torch.cat([rows for _, rows in trained])
    torch.testing.assert_close(found[[0, 4]], real[[0, 4]].double(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1].numpy() - model, canaries.contribution(0, 1))
    np.testing.assert_array_equal(found[3].numpy(), model)


def test_the_model_goes_on_from_real_messages_alone() -> None:
    inputs = load_inputs(small_spec())
    dimension = inputs.task.dimension
    algorithm = CanaryAlgorithm(
        inner=inputs.algorithm, canaries=_wide(dimension), gathers=True, sends_models=False
    )
    model = np.zeros(dimension)
    state = algorithm.initialize(model)
    rows = np.stack([np.full(dimension, 1.0), np.full(dimension, 50.0), np.full(dimension, 2.0)])
    each = ClientVectors(clients=("a", "b", "c"), rows=rows, weights=np.array([1.0, 5.0, 3.0]))
    combined = [AggregatedUplink(mean=rows.mean(axis=0), each=each)]
    after, state = algorithm.server_step(model, combined, state)
    np.testing.assert_allclose(after, 1.75)
    assert (state[SCORES][:, 0] > 0.0).all()
    _, state = algorithm.server_step(model, combined, state)
    np.testing.assert_allclose(state[SCORES], 0.0, atol=1e-9)


def test_it_is_the_real_algorithm_that_clips() -> None:
    inputs = load_inputs(small_spec())
    task = inputs.task
    canaries = _wide(task.dimension, clip_norm=1.0)
    algorithm = CanaryAlgorithm(
        inner=inputs.algorithm, canaries=canaries, gathers=True, sends_models=False
    )
    step = ClientStepInput(
        run="r", round=1, model=task.initial_model(), state={}, randomness=SeededRandomness(0)
    )
    (block,) = algorithm.client_steps(task, _clients("br", 10), step)
    (rows,) = block.uplinks[0].blocks(2)
    # 'b' has one canary in, of norm 1000 C; the clip leaves C, and the mean C/10.
    assert float(rows[0].norm()) == pytest.approx(0.1, rel=1e-5)
    assert float(rows[1].norm()) == 0.0
