from typing import Any

import numpy as np
import pytest
import torch
from flat_network import FlatNetwork, digits
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce_papers.algorithms.mode_connectivity import (
    CombinedModels,
    ModeConnectivity,
    ProxySet,
    disjoint_pairs,
)

PROXY = ProxySet(features=torch.zeros(1, 1), labels=torch.zeros(1))


class Flat:
    """A loss that is the same everywhere: no bend ever moves."""

    def loss(self, flat: Tensor, features: Tensor, labels: Tensor) -> Tensor:
        return 0.0 * flat.sum()


class Bowl:
    """Least where every coordinate is 3."""

    def loss(self, flat: Tensor, features: Tensor, labels: Tensor) -> Tensor:
        return ((flat - 3.0) ** 2).sum() / 2.0


def aggregator(**changes: Any) -> ModeConnectivity:
    given: dict[str, Any] = {
        "kind": "polygonal", "steps": 4, "learning_rate": 0.1, "proxy": PROXY
    }  # fmt: skip
    return ModeConnectivity(**(given | changes))


def combine(models: Vector, weights: Vector, task: Flat | Bowl) -> CombinedModels:
    return aggregator().combine(models, weights, task, np.random.default_rng(1))


@given(number=st.integers(0, 41), seed=st.integers(0, 1000))
def test_pairs_are_disjoint_and_one_is_left_of_an_odd_number(number: int, seed: int) -> None:
    pairs, left = disjoint_pairs(number, np.random.default_rng(seed))
    assert len(pairs) == number // 2
    assert len(left) == number % 2
    assert sorted([*(k for pair in pairs for k in pair), *left]) == list(range(number))


def test_pairs_are_drawn_at_random() -> None:
    draws = {str(disjoint_pairs(6, np.random.default_rng(seed))) for seed in range(20)}
    assert len(draws) > 10


@pytest.mark.parametrize("number", [1, 2, 5, 6])
def test_with_bends_half_way_and_equal_weights_the_average_is_left(number: int) -> None:
    models = np.random.default_rng(0).normal(size=(number, 3))
    found = combine(models, np.ones(number), Flat())
    np.testing.assert_allclose(found.average, models.mean(axis=0))
    np.testing.assert_allclose(found.connected, models.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(found.fine_tuned, models.mean(axis=0), atol=1e-6)
    assert len(found.barriers) == number // 2
    assert found.connected.dtype == found.fine_tuned.dtype == np.float64


def test_the_average_is_weighted_and_a_pair_weighs_what_its_models_do() -> None:
    models, weights = np.array([[0.0], [1.0], [5.0]]), np.array([1.0, 3.0, 4.0])
    found = combine(models, weights, Flat())
    np.testing.assert_allclose(found.average, [23.0 / 8.0])
    (pair,) = found.barriers
    (left,) = {0, 1, 2} - {pair.first, pair.second}
    together = weights[pair.first] + weights[pair.second]
    middle = (models[pair.first] + models[pair.second]) / 2.0
    expected = (together * middle + weights[left] * models[left]) / 8.0
    np.testing.assert_allclose(found.connected, expected, rtol=1e-6)


def test_the_odd_model_stays_as_it_is_to_the_last_bit() -> None:
    model = np.array([[0.1, 1.0 / 3.0]])
    found = combine(model, np.array([2.0]), Bowl())
    for one in (found.connected, found.average, found.fine_tuned):
        np.testing.assert_array_equal(one, model[0])
    assert found.gradient_steps == 0


def test_the_average_is_trained_with_as_many_gradients_as_all_curves_took() -> None:
    found = combine(np.zeros((5, 2)), np.ones(5), Bowl())
    assert found.gradient_steps == 2 * 4
    np.testing.assert_allclose(found.fine_tuned, 3.0 * (1.0 - 0.9**8), rtol=1e-5)
    assert (found.connected > 0.0).all()
    assert (found.connected < found.fine_tuned).all()


def test_on_digits_the_midpoints_beat_the_average_of_networks_trained_apart() -> None:
    data, network = digits(), FlatNetwork(64, 10, hidden_units=8)
    parts = [slice(start, 250, 3) for start in range(3)]
    models = [
        network.trained(seed, data.features[part], data.labels[part], steps=60)
        for seed, part in enumerate(parts)
    ]
    features, labels = data.features[250:], data.labels[250:]
    proxy = ProxySet(features=features, labels=labels)
    found = aggregator(kind="bezier", steps=60, learning_rate=1.0, proxy=proxy).combine(
        np.stack([model.numpy() for model in models]), np.ones(3), network, np.random.default_rng(0)
    )

    def loss(flat: Vector) -> float:
        return float(network.loss(torch.as_tensor(flat, dtype=torch.float32), features, labels))

    assert loss(found.connected) < loss(found.average)
    assert loss(found.fine_tuned) < loss(found.average)


def test_without_a_proxy_set_the_error_says_what_is_missing() -> None:
    with pytest.raises(ParameterError, match="needs data at the server; give a public proxy set"):
        aggregator(proxy=None)


def test_a_proxy_set_needs_samples_with_labels() -> None:
    with pytest.raises(ParameterError, match="one label each"):
        ProxySet(features=torch.zeros(2, 1), labels=torch.zeros(1))
    with pytest.raises(ParameterError, match="at least one sample"):
        ProxySet(features=torch.zeros(0, 1), labels=torch.zeros(0))


@pytest.mark.parametrize(
    ("models", "weights", "message"),
    [
        (np.zeros((0, 2)), np.zeros(0), "at least one flat model"),
        (np.zeros(2), np.ones(2), "at least one flat model"),
        (np.zeros((2, 2)), np.ones(3), "a weight for each"),
        (np.full((2, 2), np.nan), np.ones(2), "diverged"),
        (np.zeros((2, 2)), np.array([1.0, -1.0]), "at least 0, with a positive sum"),
        (np.zeros((2, 2)), np.zeros(2), "with a positive sum"),
    ],
)
def test_models_and_weights_are_checked(models: Vector, weights: Vector, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        combine(models, weights, Flat())


def test_parameters_are_checked() -> None:
    with pytest.raises(UnknownNameError, match="curve"):
        aggregator(kind="spline")
    with pytest.raises(ParameterError, match="steps"):
        aggregator(steps=0)
    with pytest.raises(ParameterError, match="learning_rate"):
        aggregator(learning_rate=0.0)
