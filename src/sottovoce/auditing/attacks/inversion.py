"""Gradient inversion: find images whose simulated update has the direction of an observed one.

    minimize over x in the box   1 - cos(update(x), observed) + weight * total variation(x)

by Adam on the sign of the gradient, with decreasing steps. `update` simulates what the client
computes, which is public: the mean of the clipped gradients of its records, or some local steps.
The observed update is what the server decodes, so it contains the mechanism's noise.

Many updates are inverted at once, each from several random starts.

References: Geiping, Bauermeister, Droege and Moeller 2020; Zhao, Mopuri and Bilen 2020 (labels).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad, vmap

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Floats, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.learning.model_steps import clip_gradients
from sottovoce.learning.task import Task

MOST_IMAGES = 100
_BOX = 0.5  # Every loader scales pixels to [-1/2, 1/2].
_STEP_DECAYS_AT = (3 / 8, 5 / 8, 7 / 8)
_STEP_DECAY = 0.1
_START_STDDEV = 0.2
_TINY = 1e-12  # This keeps the cosine of a zero gradient finite.
_MAX_ELEMENTS = 1 << 24  # Parameters times images that are processed at once on a CPU.
_TIMES_ON_GPU = 32

OnStep = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedMean:
    """A client that sends the mean of its records' gradients, each clipped to `clip_norm`."""

    clip_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSteps:
    """A client that sends the change of its model over local steps on all its records.

    Attributes:
        steps: The number of steps.
        learning_rate: The length of a step relative to the gradient.
        gradient_clip: The norm to which gradients are clipped; None for no clipping.
    """

    steps: int
    learning_rate: float
    gradient_clip: float | None = None


Work = ClippedMean | LocalSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientInversion:
    """The settings of the attack.

    Attributes:
        iterations: Steps of Adam.
        restarts: Random starts for each update; the one with the smallest mismatch is kept.
        total_variation: Weight of the total variation in the objective.
        step_size: First step size of Adam.
    """

    iterations: int = 1000
    restarts: int = 1
    total_variation: float = 1e-3
    step_size: float = 0.05

    def __post_init__(self) -> None:
        parameter_rules.integer("iterations", self.iterations, low=1, high=10**6)
        parameter_rules.integer("restarts", self.restarts, low=1, high=1000)
        parameter_rules.positive("step_size", self.step_size)
        if parameter_rules.finite("total_variation", self.total_variation) < 0.0:
            raise ParameterError(f"total_variation must be at least 0, got {self.total_variation}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InversionTarget:
    """Observed updates and what the attacker knows about them.

    Attributes:
        model: The model that all updates were computed from.
        work: What clients compute.
        observed: The decoded updates, one row each.
        labels: The labels of each update's images, (updates, images of each).
        image_shape: The shape of one image.
    """

    model: Floats
    work: Work
    observed: Vector
    labels: NDArray[np.int64]
    image_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        rows = len(self.observed)
        if self.labels.ndim != 2 or len(self.labels) != rows or not rows:
            raise ParameterError(
                f"labels of shape {self.labels.shape} do not fit {rows} updates; give at least one "
                "update, and a matrix with a row of labels for each"
            )
        parameter_rules.integer(
            "images of an update", self.labels.shape[1], low=1, high=MOST_IMAGES
        )
        if not np.abs(self.observed).max(axis=1).all():
            raise ParameterError(
                "an update is 0 in every coordinate and has no direction to match; leave it out, "
                "or choose other images"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction:
    """The reconstructed images, (updates, images of each, *image_shape), and their mismatch.

    The mismatch of an update is 1 minus the cosine between it and the update that its reconstructed
    images would give: 0 for the same direction.
    """

    images: NDArray[np.float32]
    mismatch: Vector


def invert(
    task: Task,
    target: InversionTarget,
    attack: GradientInversion,
    generator: np.random.Generator,
    *,
    on_step: OnStep | None = None,
) -> Reconstruction:
    """Return images whose simulated updates have the directions of the observed ones.

    `generator` draws the starting points. `on_step` is called after each iteration with the
    iterations done and their number.
    """
    starts = (attack.restarts, *target.labels.shape, *target.image_shape)
    draws = generator.normal(scale=_START_STDDEV, size=starts).astype(np.float32)
    x = torch.from_numpy(draws.clip(-_BOX, _BOX)).flatten(end_dim=1).to(task.device)
    y = torch.from_numpy(target.labels).to(task.device).repeat(attack.restarts, 1)
    observed = _directions(torch.from_numpy(target.observed)).to(task.device)
    observed = observed.repeat(attack.restarts, 1)
    descent = _descent(task, target, attack)
    optimizer = torch.optim.Adam([x], lr=attack.step_size)
    milestones = [int(attack.iterations * part) for part in _STEP_DECAYS_AT]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, _STEP_DECAY)
    for done in range(attack.iterations):
        x.grad = descent(x, y, observed)[0].sign()
        optimizer.step()
        x.clamp_(-_BOX, _BOX)
        schedule.step()
        if on_step is not None:
            on_step(done + 1, attack.iterations)
    mismatch = descent(x, y, observed)[1]
    return _best(x, mismatch, attack.restarts)


def _best(x: Tensor, mismatch: Tensor, restarts: int) -> Reconstruction:
    """Return, for each update, the restart with the smallest mismatch."""
    by_restart = mismatch.reshape(restarts, -1)
    images = x.reshape(restarts, -1, *x.shape[1:])
    chosen = by_restart.argmin(dim=0)
    rows = torch.arange(len(chosen), device=x.device)
    return Reconstruction(
        images=images[chosen, rows].cpu().numpy(),
        mismatch=by_restart[chosen, rows].to("cpu", torch.float64).numpy(),
    )


def _directions(rows: Tensor) -> Tensor:
    """Return the rows scaled to length 1.

    The division is done in float64, because decoded noise can overflow float32.
    """
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return (rows / norms).float()


def _descent(
    task: Task, target: InversionTarget, attack: GradientInversion
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return a function of (x, y, direction): the objective's gradient by x, and 1 - cosine."""
    model = task.tensor(target.model)

    def objective(x: Tensor, y: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        update = simulate_update(task, model, x, y, target.work)
        mismatch = 1.0 - (update * direction).sum() / (update.norm() + _TINY)
        return mismatch + attack.total_variation * total_variation(x), mismatch

    images = target.labels.shape[1]
    most = _MAX_ELEMENTS * (_TIMES_ON_GPU if task.device.type == "cuda" else 1)
    together = max(1, most // (images * task.dimension))
    descent: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = vmap(
        grad(objective, has_aux=True), chunk_size=together
    )
    return descent


def simulate_update(task: Task, model: Tensor, x: Tensor, y: Tensor, work: Work) -> Tensor:
    """Return the update that a client with these images would send before it is privatized.

    A single image's gradient is not clipped: only the direction is right then. The update is
    differentiable by the images `x`; `y` has their labels.
    """
    if isinstance(work, LocalSteps):
        moved = model
        for _ in range(work.steps):
            gradient: Tensor = grad(task.loss)(moved, x, y)
            if work.gradient_clip is not None:
                gradient = clip_gradients(gradient, work.gradient_clip)
            moved = moved - work.learning_rate * gradient
        return moved - model
    if len(y) == 1:  # Clipping a single gradient does not change its direction.
        gradient = grad(task.loss)(model, x, y)
        return -gradient
    gradients = vmap(grad(task.loss), in_dims=(None, 0, 0))(model, x[:, None], y[:, None])
    norms: Tensor = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
    clipped: Tensor = gradients * (work.clip_norm / norms.clamp(min=work.clip_norm))
    return -clipped.mean(dim=0)


def total_variation(images: Tensor) -> Tensor:
    """Return the mean absolute difference of adjacent pixels, vertically plus horizontally.

    It is 0 for rows that are no images.
    """
    if images.ndim < 4:
        return torch.zeros((), device=images.device)
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
    across = (images[..., :, 1:] - images[..., :, :-1]).abs().mean()
    return down + across


def infer_labels(task: Task, observed: Vector, num_classes: int) -> NDArray[np.int64]:
    """Return the label of the single image behind each update, from the biases of the last layer.

    Under cross-entropy the gradient by these biases is softmax - onehot(label). An update is a step
    against the gradient, so it is positive at the label and at no other class; with noise, the
    class with the largest entry is returned. Raise ParameterError if the model does not end in
    biases, one for each class. Reference: Zhao, Mopuri and Bilen 2020.
    """
    name, shape = list(task.layout.items())[-1]
    if shape != (num_classes,):
        raise ParameterError(
            f"labels are inferred from the biases of the last layer, but the model ends in "
            f"'{name}' of shape {shape}, not in {num_classes} biases; give the labels "
            "(--labels known)"
        )
    return np.asarray(observed[:, -num_classes:].argmax(axis=1), dtype=np.int64)
