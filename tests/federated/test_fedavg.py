"""The sensitivity that the privacy rests on is measured here, not assumed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_task import make_task

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms import exact_sums
from sottovoce.federated.algorithms.algorithm import AggregatedUplink, ClientStepInput
from sottovoce.federated.algorithms.fedavg import (
    FedAvg,
    LocalSgd,
    LocalWork,
    SampleClippedGradient,
    budget_penalties,
)
from sottovoce.federated.rounds import zero_nonfinite_rows
from sottovoce.learning.clients import ClientData

CLIP_NORM = 0.7


def client(features: torch.Tensor, labels: torch.Tensor, name: str = "a") -> ClientData:
    return ClientData(name=name, features=features, labels=labels)


def data(seed: int, size: int, scale: float = 1.0) -> ClientData:
    generator = torch.Generator().manual_seed(seed)
    return client(
        scale * torch.randn(size, 5, generator=generator),
        torch.randint(0, 3, (size,), generator=generator),
    )


def updates(work: LocalWork, model: Vector, clients: list[ClientData]) -> list[Vector]:
    """What each client would hand on, as the messages' side reads it."""
    step = ClientStepInput(run="r", round=1, model=model, state={}, randomness=SeededRandomness(0))
    return [
        row
        for _, rows in work.updates(make_task(), clients, step)
        for row in zero_nonfinite_rows(rows)
    ]


def sample_level_update(model: Vector, one: ClientData) -> Vector:
    (update,) = updates(SampleClippedGradient(clip_norm=CLIP_NORM), model, [one])
    return update


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 40), scale=st.sampled_from([0.01, 1.0, 1e6]))
def test_replacing_one_sample_moves_the_update_by_at_most_the_sensitivity(
    seed: int, size: int, scale: float
) -> None:
    model = np.random.default_rng(seed).normal(size=make_task().dimension)
    before, other = data(seed, size, scale), data(seed + 1, size, scale)
    changed = client(before.features.clone(), before.labels.clone())
    changed.features[0], changed.labels[0] = other.features[0], other.labels[0]
    algorithm = FedAvg(
        local_work=SampleClippedGradient(clip_norm=CLIP_NORM),
        server_learning_rate=1.0,
        server_momentum=0.0,
    )
    domain = algorithm.domain(make_task().dimension, before.num_samples)
    first, second = sample_level_update(model, before), sample_level_update(model, changed)
    moved = np.linalg.norm(first - second)
    assert moved <= domain.sensitivity(Adjacency.REPLACE_ONE)
    domain.check(first)


def test_zeroing_one_sample_moves_the_update_by_at_most_the_zero_out_sensitivity() -> None:
    model = np.random.default_rng(1).normal(size=make_task().dimension)
    both = data(1, 2, scale=100.0)
    alone = [client(both.features[i : i + 1], both.labels[i : i + 1]) for i in (0, 1)]
    contributions = [sample_level_update(model, one) for one in alone]
    np.testing.assert_allclose(sample_level_update(model, both), sum(contributions) / 2)
    # Large gradients: the bound is attained, so it is not loose either.
    assert np.linalg.norm(contributions[0]) == pytest.approx(CLIP_NORM, rel=1e-5)


def test_clients_trained_together_get_what_they_get_alone() -> None:
    model = np.random.default_rng(2).normal(size=make_task().dimension)
    group = [data(5, 4), data(6, 1), data(7, 9)]
    work = SampleClippedGradient(clip_norm=CLIP_NORM)
    together = updates(work, model, group)
    # Gradients are float32, and processors add up batches of other sizes in another order.
    for one, update in zip(group, together, strict=True):
        np.testing.assert_allclose(sample_level_update(model, one), update, rtol=1e-6, atol=1e-7)


def test_client_level_domain_and_weight_ignore_the_private_sample_count() -> None:
    algorithm = FedAvg(
        local_work=LocalSgd(clip_norm=CLIP_NORM, steps=2, learning_rate=0.1),
        server_learning_rate=1.0,
        server_momentum=0.0,
    )
    for size in (1, 30):
        assert algorithm.domain(18, size).records == 1
        assert algorithm.weight(size) == 1.0


def test_server_step_is_momentum_as_documented() -> None:
    algorithm = FedAvg(
        local_work=SampleClippedGradient(clip_norm=1.0),
        server_learning_rate=2.0,
        server_momentum=0.5,
    )
    model = np.zeros(2)
    state = algorithm.initialize(model)
    for expected in ([2.0, 0.0], [5.0, 0.0]):
        model, state = algorithm.server_step(
            model, [AggregatedUplink(mean=np.array([1.0, 0.0]))], state
        )
        np.testing.assert_allclose(model, expected)


def test_momentum_of_one_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"\[0, 1\)"):
        FedAvg(
            local_work=SampleClippedGradient(clip_norm=1.0),
            server_learning_rate=1.0,
            server_momentum=1.0,
        )


@pytest.mark.parametrize("size", [1, 3])
def test_a_sample_whose_gradient_overflows_counts_as_zero_and_raises_nothing(size: int) -> None:
    # The server chooses the model: an error that depends on a sample would give that sample away.
    model = np.zeros(make_task().dimension)
    model[0] = 3e38
    ordinary = data(4, size)
    rare = client(ordinary.features.clone(), ordinary.labels.clone())
    rare.features[0, 0] = 10.0
    update = sample_level_update(model, rare)
    assert np.isfinite(update).all()
    moved = np.linalg.norm(update - sample_level_update(model, ordinary))
    assert moved <= 2.0 * CLIP_NORM / size


def test_a_client_that_diverges_sends_zero_and_raises_nothing() -> None:
    work = LocalSgd(clip_norm=CLIP_NORM, steps=3, learning_rate=1e12)
    model = np.zeros(make_task().dimension)
    model[0] = 3e38
    (update,) = updates(work, model, [data(4, 3, scale=1e6)])
    np.testing.assert_array_equal(update, np.zeros_like(model))


def test_the_sum_over_samples_is_exact_whatever_their_order() -> None:
    model = np.random.default_rng(3).normal(size=make_task().dimension)
    some = data(8, 200, scale=3.0)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    shuffled = client(some.features[order], some.labels[order])
    first, second = sample_level_update(model, some), sample_level_update(model, shuffled)
    # Gradients may differ in their last float32 bits with the order; their sum adds nothing to it.
    np.testing.assert_allclose(first, second, atol=1e-7)
    grid = CLIP_NORM * 2.0**-40 / 200
    np.testing.assert_allclose(first / grid, np.round(first / grid), atol=1e-3)


# -- penalties of small budgets ------------------------------------------------------------


def local_update(steps: int, penalty: float) -> Vector:
    model = np.random.default_rng(1).normal(size=make_task().dimension)
    work = LocalSgd(clip_norm=CLIP_NORM, steps=steps, learning_rate=0.2, penalties={"a": penalty})
    (update,) = updates(work, model, [data(3, 8)])
    return update


def test_a_model_that_is_summed_in_pieces_gets_the_same_update_up_to_the_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = np.random.default_rng(3).normal(size=make_task().dimension)
    one = data(3, 30, scale=100.0)
    one.features[7, 2] = torch.inf
    whole = sample_level_update(model, one)
    monkeypatch.setattr(exact_sums, "_COLUMNS", 4)
    pieces = sample_level_update(model, one)
    assert np.isfinite(whole).all()
    assert np.abs(pieces - whole).max() <= CLIP_NORM * 2.0**-40


def test_a_penalty_is_the_share_of_the_largest_budget_that_is_missing() -> None:
    found = budget_penalties({"a": 1.0, "b": 4.0, "c": 3.0})
    assert found == {"a": 0.75, "b": 0.0, "c": 0.25}
    assert budget_penalties({"a": 2.0, "b": 2.0}) == {"a": 0.0, "b": 0.0}


def test_a_penalty_pulls_towards_the_model_that_was_released() -> None:
    lengths = [np.linalg.norm(local_update(5, penalty)) for penalty in (0.0, 0.3, 0.9)]
    assert lengths[0] > lengths[1] > lengths[2] > 0.0


def test_with_one_local_step_a_penalty_has_no_effect() -> None:
    np.testing.assert_array_equal(local_update(1, 0.0), local_update(1, 0.9))


@pytest.mark.parametrize("penalty", [-0.1, 1.5, float("nan")])
def test_a_penalty_outside_its_range_is_refused(penalty: float) -> None:
    with pytest.raises(ParameterError, match="penalty"):
        LocalSgd(clip_norm=1.0, steps=2, learning_rate=0.1, penalties={"a": penalty})
