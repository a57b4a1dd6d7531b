"""A decoder finds what outputs tell of a row, and no more."""

import numpy as np
import pytest
import torch
from torch import nn

from sottovoce.auditing.attacks.learned_reconstruction import (
    LearnedReconstruction,
    reconstruct_from_outputs,
)
from sottovoce.auditing.reconstruction_scores import mean_squared_errors
from sottovoce.core.errors import ParameterError
from sottovoce.learning.task import Task

ATTACK = LearnedReconstruction(epochs=60, hidden_units=64, refinements=20)


def _rows(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.5, 0.5, (count, 6)).astype(np.float32)


def _task(module: nn.Module) -> Task:
    return Task(module, torch.zeros(1, 6), torch.zeros(1, dtype=torch.int64))


def _first_three() -> nn.Module:
    """Puts out the first three numbers of a row, times a constant, and nothing of the rest."""
    layer = nn.Linear(6, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(6)[:3] * 4.0)
        layer.bias.zero_()
    return layer


@pytest.mark.slow
def test_what_the_outputs_hold_comes_back_and_the_rest_is_the_mean() -> None:
    task, rows, own = _task(_first_three()), _rows(50, 1), _rows(1500, 2)
    found = reconstruct_from_outputs(task, task.initial_model(), rows, own, ATTACK, seed=1)
    mean = np.broadcast_to(own.mean(axis=0), rows.shape)
    for guess in (found.decoded, found.refined):
        seen = mean_squared_errors(rows[:, :3], guess[:, :3]).mean()
        hidden = mean_squared_errors(rows[:, 3:], guess[:, 3:]).mean()
        assert seen < 0.1 * mean_squared_errors(rows[:, :3], mean[:, :3]).mean()
        assert hidden > 0.9 * mean_squared_errors(rows[:, 3:], mean[:, 3:]).mean()


def test_refinement_brings_the_outputs_nearer() -> None:
    task, rows, own = _task(_first_three()), _rows(50, 1), _rows(300, 2)
    short = LearnedReconstruction(epochs=2, refinements=50)
    flat = task.tensor(task.initial_model())
    found = reconstruct_from_outputs(task, task.initial_model(), rows, own, short, seed=1)
    truth = task.outputs(flat, torch.from_numpy(rows))
    misses = [
        float(((task.outputs(flat, torch.from_numpy(guess)) - truth) ** 2).mean())
        for guess in (found.decoded, found.refined)
    ]
    assert misses[1] < 0.5 * misses[0]
    assert np.abs(found.refined).max() <= 0.5


def test_too_few_rows_to_learn_from_are_refused() -> None:
    task = _task(_first_three())
    with pytest.raises(ParameterError, match="has 9 rows to learn from but needs at least 10"):
        reconstruct_from_outputs(
            task, task.initial_model(), _rows(2, 1), _rows(9, 2), ATTACK, seed=1
        )
