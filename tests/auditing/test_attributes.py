"""Attributes are found where they are, not where they are not, and refusals name the remedy."""

from typing import Any

import numpy as np
import pytest
import torch

from sottovoce.auditing.attacks.attributes import (
    AttributeClassifier,
    accuracy,
    attribute_labels,
    compute_embeddings,
    f1,
    infer,
    macro_f1,
    majority_guesses,
)
from sottovoce.core.errors import DataError, ParameterError, UnknownNameError
from sottovoce.learning import models
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.task import Task

ATTACK = AttributeClassifier(hidden_units=16, epochs=100)


def _people(count: int, seed: int, signal: float) -> tuple[Any, Any]:
    """Embeddings of which one coordinate tells the attribute, 0 or 7, times a signal."""
    generator = np.random.default_rng(seed)
    attribute = 7 * generator.integers(0, 2, count)
    x = generator.normal(size=(count, 6))
    x[:, 2] += signal * (attribute > 0)
    return x.astype(np.float32), attribute.astype(np.int64)


@pytest.mark.slow
def test_what_the_embeddings_tell_is_found_and_nothing_else() -> None:
    for signal, low, high in ((6.0, 0.95, 1.0), (0.0, 0.4, 0.6)):
        known, attribute = _people(400, 0, signal)
        asked, truth = _people(400, 1, signal)
        guesses = infer(known, attribute, asked, ATTACK, seed=1)
        assert set(guesses) <= {0, 7}
        assert low <= (guesses == truth).mean() <= high


def test_the_same_seed_gives_the_same_guesses_and_leaves_chance_alone() -> None:
    known, attribute = _people(100, 0, 1.0)
    state = torch.random.get_rng_state()
    one, two = (infer(known, attribute, known, ATTACK, seed=5) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert torch.equal(state, torch.random.get_rng_state())


def test_accuracy_has_the_interval_of_clopper_and_pearson() -> None:
    """8 of 10: 0.4439 to 0.9748 (Clopper and Pearson 1934, by R's binom.test)."""
    truth, guesses = np.zeros(10, int), np.array([0] * 8 + [1] * 2)
    found = accuracy(truth, guesses)
    assert (found.mean, found.low, found.high) == pytest.approx((0.8, 0.4439045, 0.9747893))
    assert accuracy(truth, truth).high == 1.0
    assert accuracy(truth, truth + 1).low == 0.0


def test_f1_is_that_of_another_library() -> None:
    from sklearn.metrics import f1_score

    generator = np.random.default_rng(0)
    truth, guesses = generator.integers(0, 3, 200), generator.integers(0, 3, 200)
    assert macro_f1(truth, guesses) == pytest.approx(f1_score(truth, guesses, average="macro"))
    found = f1(truth, guesses, generator)
    assert found.low < found.mean < found.high
    assert 0.08 < found.high - found.low < 0.25  # about 4 sqrt(.33 .67/200) = 0.13


def test_the_majority_is_guessed_for_everyone() -> None:
    assert majority_guesses(np.array([3, 3, 1]), 4).tolist() == [3, 3, 3, 3]


def _data(train: list[int], test: list[int]) -> Dataset:
    def part(values: list[int]) -> tuple[Any, Any, Any]:
        count = len(values)
        return np.zeros((count, 2), np.float32), np.zeros(count, np.int64), np.array(values)

    train_x, train_y, own = part(train)
    test_x, test_y, others = part(test)
    return Dataset(
        name="people",
        train_features=train_x,
        train_labels=train_y,
        test_features=test_x,
        test_labels=test_y,
        num_classes=2,
        train_attributes={"smoker": own},
        test_attributes={"smoker": others},
    )


def test_attributes_that_cannot_be_inferred_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="valid names: smoker"):
        attribute_labels(_data([0, 1], [0, 1]), "gender")
    with pytest.raises(DataError, match="the value 1 in every row: there is nothing to infer"):
        attribute_labels(_data([1, 1], [1, 1]), "smoker")
    with pytest.raises(DataError, match="no test row has the value 2 of attribute 'smoker'"):
        attribute_labels(_data([0, 1, 2], [0, 1]), "smoker")
    plain = Dataset(
        name="plain",
        train_features=np.zeros((2, 2), np.float32),
        train_labels=np.zeros(2, np.int64),
        test_features=np.zeros((2, 2), np.float32),
        test_labels=np.zeros(2, np.int64),
        num_classes=2,
    )
    with pytest.raises(DataError, match=r"no attributes to infer.*attribute_gender"):
        attribute_labels(plain, "gender")
    with pytest.raises(ParameterError, match="epochs"):
        AttributeClassifier(epochs=0)


def test_embeddings_of_many_rows_are_those_of_each() -> None:
    module = models.create(models.Mlp(hidden_units=5), (4,), 3, np.random.default_rng(0))
    task = Task(module, torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64))
    rows = np.random.default_rng(1).normal(size=(1100, 4)).astype(np.float32)
    found = compute_embeddings(task, task.initial_model(), rows)
    assert found.shape == (1100, 5)
    np.testing.assert_allclose(
        found[[0, 1099]], compute_embeddings(task, task.initial_model(), rows[[0, 1099]]), atol=1e-6
    )
