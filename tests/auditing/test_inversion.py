"""Inversion recovers what it must, and refuses what it cannot."""

import numpy as np
import pytest
import torch
from torch.func import grad

from sottovoce.auditing import reconstruction_scores
from sottovoce.auditing.attacks.inversion import (
    ClippedMean,
    GradientInversion,
    InversionTarget,
    LocalSteps,
    Work,
    infer_labels,
    invert,
    simulate_update,
    total_variation,
)
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms.algorithm import ClientStepInput
from sottovoce.federated.algorithms.fedavg import LocalSgd, LocalWork, SampleClippedGradient
from sottovoce.learning import models
from sottovoce.learning.clients import ClientData
from sottovoce.learning.task import Task
from sottovoce_papers.models.strided_cnn import StridedCnn

SHAPE, CLASSES = (1, 12, 12), 4


def _task(model: models.Model | None = None) -> Task:
    chosen = model or StridedCnn()
    module = models.create(chosen, SHAPE, CLASSES, np.random.default_rng(0))
    return Task(module, torch.zeros(1, *SHAPE), torch.zeros(1, dtype=torch.int64))


def _images(count: int) -> np.ndarray:
    """Smooth pictures: one cosine wave each."""
    generator = np.random.default_rng(3)
    down, across = np.mgrid[0:12, 0:12] / 12.0
    pictures = [
        0.45 * np.cos(2.0 * np.pi * (f * down + g * across) + p)
        for f, g, p in generator.uniform(0.2, 1.2, size=(count, 3))
    ]
    return np.stack(pictures)[:, None].astype(np.float32)


def _gradient(task: Task, model: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    found = grad(task.loss)(task.tensor(model), torch.from_numpy(x), torch.from_numpy(y))
    return np.asarray(found.double().numpy())


def _target(task: Task, observed: np.ndarray, labels: np.ndarray, work: Work) -> InversionTarget:
    return InversionTarget(
        model=task.initial_model(),
        work=work,
        observed=observed,
        labels=labels,
        image_shape=SHAPE,
    )


@pytest.mark.slow
def test_one_image_comes_back_from_its_gradient() -> None:
    task, x, y = _task(), _images(2), np.array([[1], [3]])
    model = task.initial_model()
    observed = -np.stack([_gradient(task, model, x[i : i + 1], y[i]) for i in range(2)])
    target = _target(task, observed, y, ClippedMean(clip_norm=1.0))
    found = invert(task, target, GradientInversion(iterations=130), np.random.default_rng(0))
    assert (reconstruction_scores.structural_similarities(x, found.images[:, 0]) > 0.9).all()
    assert (found.mismatch < 1e-3).all()


@pytest.mark.slow
def test_noise_in_place_of_a_gradient_gives_no_image() -> None:
    """The check that could fail the one above: without the gradient there is nothing to find."""
    task, x, y = _task(), _images(2), np.array([[1], [3]])
    observed = np.random.default_rng(5).normal(size=(2, task.dimension))
    target = _target(task, observed, y, ClippedMean(clip_norm=1.0))
    found = invert(task, target, GradientInversion(iterations=100), np.random.default_rng(0))
    assert (reconstruction_scores.structural_similarities(x, found.images[:, 0]) < 0.3).all()
    assert (found.mismatch > 0.5).all()


@pytest.mark.slow
def test_a_batch_comes_back_from_the_mean_of_clipped_gradients() -> None:
    task, x, y = _task(), _images(3), np.array([[0, 1, 2]])
    model, clip = task.initial_model(), 0.5
    each = [_gradient(task, model, x[i : i + 1], y[0, i : i + 1]) for i in range(3)]
    norms = [float(np.linalg.norm(one)) for one in each]
    assert max(norms) > clip, "or clipping is not tested"
    observed = -np.mean([g * min(1.0, clip / n) for g, n in zip(each, norms, strict=True)], axis=0)
    target = _target(task, observed[None], y, ClippedMean(clip_norm=clip))
    found = invert(
        task, target, GradientInversion(iterations=110), np.random.default_rng(0)
    ).images[0]
    found = found[reconstruction_scores.match_rows(x, found)]
    assert reconstruction_scores.structural_similarities(x, found).mean() > 0.8


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize(
    ("work", "local_work"),
    [
        (ClippedMean(clip_norm=0.5), SampleClippedGradient(clip_norm=0.5)),
        (
            LocalSteps(steps=4, learning_rate=0.5),
            LocalSgd(clip_norm=100.0, steps=4, learning_rate=0.5),
        ),
    ],
    ids=["clipped mean", "local steps"],
)
def test_the_attacker_simulates_what_clients_do(
    work: Work, local_work: LocalWork, images: int
) -> None:
    """The direction that is matched is that of the update which the algorithm computes."""
    task, x, y = _task(), torch.from_numpy(_images(images)), torch.arange(images)
    model = task.initial_model()
    client = ClientData(name="one", features=x, labels=y)
    step = ClientStepInput(run="r", round=1, model=model, state={}, randomness=SeededRandomness(1))
    ((_, rows),) = local_work.updates(task, [client], step)
    (real,) = next(rows.blocks(1)).double()
    simulated = simulate_update(task, task.tensor(model), x, y, work).double()
    cosine = (real @ simulated) / (real.norm() * simulated.norm())
    assert cosine.item() == pytest.approx(1.0, abs=1e-9)


def test_of_several_starts_the_best_match_is_kept() -> None:
    task, x, y = _task(), _images(2), np.array([[1], [3]])
    model = task.initial_model()
    observed = -np.stack([_gradient(task, model, x[i : i + 1], y[i]) for i in range(2)])
    target = _target(task, observed, y, ClippedMean(clip_norm=1.0))
    # The first of four starts is the one of a single start: draws come in that order.
    one, four = (
        invert(task, target, GradientInversion(iterations=20, restarts=n), np.random.default_rng(0))
        for n in (1, 4)
    )
    assert (four.mismatch <= one.mismatch + 1e-6).all()
    assert four.images.shape == one.images.shape == (2, 1, *SHAPE)


def test_labels_are_read_from_the_last_biases() -> None:
    task, x = _task(), _images(8)
    y = np.arange(8) % CLASSES
    model = task.initial_model()
    observed = -np.stack([_gradient(task, model, x[i : i + 1], y[i : i + 1]) for i in range(8)])
    np.testing.assert_array_equal(infer_labels(task, observed, CLASSES), y)
    with pytest.raises(ParameterError, match="not in 7 biases; give the labels"):
        infer_labels(task, observed, 7)


def test_total_variation_of_known_pictures() -> None:
    stripes = torch.zeros(1, 1, 4, 4)
    stripes[..., ::2] = 1.0
    assert total_variation(stripes).item() == pytest.approx(1.0)
    assert total_variation(torch.ones(2, 3, 4, 4)).item() == 0.0
    assert total_variation(torch.arange(8.0).reshape(2, 4)).item() == 0.0  # flat rows


def test_bad_targets_are_refused() -> None:
    task = _task()
    ones = np.ones((2, task.dimension))
    with pytest.raises(ParameterError, match="a row of labels for each"):
        _target(task, ones, np.array([1, 2]), ClippedMean(clip_norm=1.0))
    with pytest.raises(ParameterError, match="from 1 to 100"):
        _target(task, ones, np.zeros((2, 101), dtype=np.int64), ClippedMean(clip_norm=1.0))
    with pytest.raises(ParameterError, match="0 in every coordinate"):
        _target(task, 0.0 * ones, np.zeros((2, 1), dtype=np.int64), ClippedMean(clip_norm=1.0))
    with pytest.raises(ParameterError, match="total_variation must be at least 0"):
        GradientInversion(total_variation=-1.0)
