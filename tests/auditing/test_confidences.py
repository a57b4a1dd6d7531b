import numpy as np
import pytest
import torch
from torch import nn

from sottovoce.auditing.attacks import context
from sottovoce.auditing.attacks.context import logit_confidences, outputs_of, queries
from sottovoce.core.errors import DataError, ParameterError
from sottovoce.learning.task import Task

SHAPE = (1, 4, 5)


def task_of() -> Task:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3))
    return Task(module, torch.zeros(2, *SHAPE), torch.zeros(2, dtype=torch.int64))


def test_it_is_the_logit_of_the_true_classs_probability() -> None:
    outputs, labels = torch.randn(4, 6, 3, dtype=torch.float64), torch.randint(0, 3, (4, 6))
    p = torch.softmax(outputs, dim=-1).gather(-1, labels[..., None])[..., 0]
    torch.testing.assert_close(logit_confidences(outputs, labels), torch.log(p / (1.0 - p)))


def test_confidences_that_round_to_one_are_told_apart() -> None:
    outputs = torch.tensor([[100.0, 0.0, 0.0], [200.0, 0.0, 0.0], [-200.0, 0.0, 0.0]])
    found = logit_confidences(outputs, torch.zeros(3, dtype=torch.int64))
    expected = torch.tensor([100.0, 200.0, -200.0]) - np.log(2.0)
    torch.testing.assert_close(found, expected.float())


def test_models_and_records_in_many_blocks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    task, models = task_of(), np.random.default_rng(0).normal(size=(3, task_of().dimension))
    generator = torch.Generator().manual_seed(0)
    records = torch.randn(7, *SHAPE, generator=generator)
    labels = torch.randint(0, 3, (7,), generator=generator)
    asked = list(queries(SHAPE).values())
    whole = context.confidences(task, models, records, labels, asked)
    assert whole.shape == (3, 7, 6)
    monkeypatch.setitem(context._TOGETHER, "cpu", 2 * task.elements_per_sample)
    found = context.confidences(task, models, records, labels, asked)
    # Differences of logits of up to 15, in float32.
    np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-5)
    alone = task._outputs(task._flat.split(task.tensor(models[1])), records.flip(-1))
    np.testing.assert_allclose(
        whole[1, :, 1], logit_confidences(alone, labels).detach().numpy(), rtol=1e-4, atol=1e-5
    )


def test_images_are_mirrored_and_moved_and_tables_are_not() -> None:
    image = torch.arange(20.0).reshape(1, *SHAPE)
    asked = queries(SHAPE)
    assert list(asked) == [
        "as it is",
        "mirrored",
        "moved down",
        "moved up",
        "moved right",
        "moved left",
    ]
    down = asked["moved down"](image)
    torch.testing.assert_close(down[0, 0, 1:], image[0, 0, :-1])
    torch.testing.assert_close(down[0, 0, 0], image[0, 0, 0])
    left = asked["moved left"](image)
    torch.testing.assert_close(left[..., :-1], image[..., 1:])
    torch.testing.assert_close(left[..., -1], image[..., -1])
    torch.testing.assert_close(image, torch.arange(20.0).reshape(1, *SHAPE))
    assert list(queries((12,))) == ["as it is"]


def test_a_model_that_diverged_is_refused() -> None:
    task = task_of()
    models = np.zeros((2, task.dimension))
    models[1] = np.nan
    with pytest.raises(DataError, match="1 of 2 models are not finite"):
        outputs_of(task, models, torch.zeros(2, *SHAPE))


def test_a_regression_has_no_classes() -> None:
    task = Task(nn.Linear(2, 1), torch.zeros(2, 2), torch.zeros(2, 1), objective="regression")
    with pytest.raises(ParameterError, match="predicts numbers"):
        context.check_classifies(task)
