"""Local training of many clients: one after the other, or many of them at once.

One after the other, each step is an ordinary gradient step of one model. At once, the models of a
group of clients are the rows of a matrix, and one step moves all of them: minibatches are index
tensors into the features of the group, padded to one width, and padded places have the weight zero.
A client whose minibatches are used up keeps its model. Both give the same models up to the rounding
of float32.

On a CPU clients are trained one after the other if their steps are large, because that is faster,
and on any device if the model is so large that only one fits at a time.
On a CUDA device a step of a group is captured as a CUDA graph, so that its many small kernels are
launched by one call. Graphs are kept for the shapes that come again.

Training at once computes the outputs of several models together (`Task.stacked_outputs`). Modules
that are no chain of known layers are computed by `torch.func.vmap`. It cannot handle a forward
function that

    branches on values or reads them (`.item()`, `if x.sum() > 0`),
    writes into tensors of its own in place,
    uses an autograd function without a rule for vmap,

and padding would change what a forward function computes that mixes the samples of a batch. Such
modules are trained one client after the other, with a warning that gives the reason.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.learning.augmentation import changed_images
from sottovoce.learning.clients import ClientData, samples_of, sizes_of
from sottovoce.learning.minibatches import NO_RECORD, Indices, Minibatches
from sottovoce.learning.model_steps import (
    ClientGroup,
    Graphs,
    Step,
    StepBatch,
    StepSettings,
    clip_gradients,
    take_step,
)
from sottovoce.learning.precision import computing_in
from sottovoce.learning.stacking_check import why_not_stacked

if TYPE_CHECKING:  # Tasks use this module.
    from sottovoce.learning.task import Task

# On a CPU a step with more numbers than this takes longer than the calls that it saves.
_LARGE_STEP = 1 << 17
_INDEXED_STEPS = 64  # Index tensors of this many steps are on the device at once.
# From this many parameters on, a step of one model keeps a device busy, and the index tensors that
# put its parameters into another order would take four times its memory.
_LARGE_MODEL = 1 << 24
_LARGE_COPY = 1 << 26  # bytes; a pinned copy would take as much memory until the process ends.


class LocalTrainer:
    """Trains the clients of one task.

    Args:
        task: The model and its loss.
        one_by_one: Whether clients are always trained one after the other.
    """

    def __init__(self, task: "Task", *, one_by_one: bool) -> None:
        self._task = task
        self._alone = self._checked = one_by_one
        self._graphs = Graphs()

    def models(
        self, clients: Sequence[ClientData], steps: StepSettings
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield the models of clients after their steps, several clients at once.

        Args:
            clients: The clients.
            steps: What they compute.

        Yields:
            For one group of consecutive clients after the other: the position of its first client,
            and the flat models of its clients as rows of a float32 tensor.
        """
        most = self._task.clients_at_once(
            steps.minibatches.width, keeps_state=not steps.optimizer.is_plain_sgd
        )
        groups = max(1, -(-len(clients) // most))
        together = max(1, -(-len(clients) // groups))  # Groups of one size share a CUDA graph.
        for start in range(0, len(clients), together):
            part = slice(start, start + together)
            group = clients[part]
            features, labels = samples_of(group)
            features, labels = features.to(self._task.device), labels.to(self._task.device)
            pool = _Pool(features=features, labels=labels, sizes=sizes_of(group))
            # All models of a group share the optimizer's step count, see `optimizers`.
            alone = self._trains_alone(len(group), steps.minibatches.width) or not (
                steps.optimizer.is_plain_sgd or steps.minibatches.ends_once
            )
            with computing_in(self._task.precision, self._task.device):
                own = steps.part(part)
                if alone:
                    models = [_one_by_one(self._task, group, pool, own)]
                else:
                    with self._task.layers_of(group):
                        models = [self._at_once(pool, own)]
            yield start, models.pop()  # Only the caller keeps a reference to large models.

    def _trains_alone(self, clients: int, width: int) -> bool:
        """Return whether a group is trained one by one; warn the first time that it has to be."""
        if clients == 1 and self._task.dimension >= _LARGE_MODEL:
            return True
        if self._task.device.type == "cpu" and (
            clients == 1 or width * self._task.elements_in_layers > _LARGE_STEP
        ):
            return True
        if not self._checked:
            self._checked = True
            reason = why_not_stacked(self._task)
            if reason is not None:
                self._alone = True
                warnings.warn(
                    f"clients are trained one after the other, because {reason}; use a chain of "
                    "the layers that docs/reference/training.md names to train many at once",
                    stacklevel=2,
                )
        return self._alone

    def _at_once(self, pool: "_Pool", steps: StepSettings) -> Tensor:
        task, given = self._task, steps.minibatches
        if task.device.type == "cuda":
            given = given.padded(_missing_clients(len(given)))
        group = ClientGroup.start(steps, task.stack_form, clients=len(given))
        step: Step | None = None
        for batch in pool.batches(given):
            if not group.is_ready:
                group = take_step(task, group, batch)
                continue
            step = step or self._graphs.find(task, group, batch)
            group = step(task, group, batch)
        return task.stack_form.leave(group.models[: len(steps.minibatches)]).clone()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """The records of a group of clients, one client after the other."""

    features: Tensor
    labels: Tensor
    sizes: Sequence[int]

    def batches(self, given: Minibatches) -> Iterator[StepBatch]:
        """Yield the minibatches of the clients, step after step."""
        device = self.features.device
        for turn in range(given.repeats):
            for first in range(0, given.records.shape[1], _INDEXED_STEPS):
                part = slice(first, first + _INDEXED_STEPS)
                rows, weights = self._indices(given.records[:, part])
                changes = None
                if given.changes is not None:
                    changes = copy_to(given.changes[:, turn, part].swapaxes(0, 1), device)
                indexed = zip(copy_to(rows, device), copy_to(weights, device), strict=True)
                for step, (chosen, own) in enumerate(indexed):
                    features = self.features[chosen]
                    if changes is not None:
                        features = changed_images(features, changes[step])
                    yield StepBatch(features=features, labels=self.labels[chosen], weights=own)

    def _indices(self, records: Indices) -> tuple[Indices, NDArray[np.float32]]:
        """Return positions and weights of some steps, (steps, models, width) each."""
        offsets = np.zeros((len(records), 1, 1), dtype=np.int64)
        offsets[1 : len(self.sizes) + 1, 0, 0] = np.cumsum(self.sizes)[: len(records) - 1]
        used = records != NO_RECORD
        # A padded place repeats a record of the same step: that of another client could be
        # infinite, and zero times infinity is not zero.
        first = np.maximum(records[:, :, :1], 0)
        rows = np.where(used, records, first) + offsets
        np.minimum(rows, len(self.labels) - 1, out=rows)
        weights = (used / np.maximum(used.sum(axis=2, keepdims=True), 1)).astype(np.float32)
        return rows.swapaxes(0, 1), weights.swapaxes(0, 1)


def _one_by_one(
    task: "Task", clients: Sequence[ClientData], pool: _Pool, steps: StepSettings
) -> Tensor:
    """Return the models of clients that are trained one after the other, as rows."""
    trained, stop = [], 0
    for place, size in enumerate(pool.sizes):
        start, stop = stop, stop + size
        features, labels = pool.features[start:stop], pool.labels[start:stop]
        pull = 0.0 if steps.pulls is None else steps.pulls[place]
        model, optimizer = steps.model, None
        if not steps.optimizer.is_plain_sgd:
            alone = model[None].clone()
            optimizer = steps.optimizer.start(alone, learning_rate=steps.learning_rate)
        with task.layers_of(clients[place : place + 1]):
            for records, changes in steps.minibatches.steps_of(place):
                chosen = torch.from_numpy(records).to(task.device)
                batch = features[chosen]
                if changes is not None:
                    batch = changed_images(batch, torch.from_numpy(changes).to(task.device))
                gradient = task.gradient(model, batch, labels[chosen])
                if steps.gradient_clip is not None:
                    gradient = clip_gradients(gradient, steps.gradient_clip)
                if steps.shifts is not None:
                    gradient = gradient + steps.shifts[place]
                if pull:
                    gradient = gradient + pull * (model - steps.model)
                if optimizer is not None:
                    optimizer.step(gradient[None])
                    model = optimizer.models[0]
                    continue
                # In the memory of the gradient, which is used nowhere else.
                model = torch.sub(model, gradient.mul_(steps.learning_rate), out=gradient)
        # A client without a step must not share the memory of the model that all start from.
        trained.append(model.clone() if model is steps.model else model)
    return trained[0][None] if len(trained) == 1 else torch.stack(trained)


def _missing_clients(count: int) -> int:
    """Return how many clients that take no step are added to a group.

    Group sizes that differ a little then have the same shapes, and share a CUDA graph.
    """
    grain = 1 << max(0, count.bit_length() - 5)
    return -count % grain


def copy_to(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return a copy of an array as a tensor on a device, without waiting for a GPU if it is small.

    Args:
        values: The array.
        device: The device.

    Returns:
        A tensor of the same type.
    """
    if device.type != "cuda":
        return torch.tensor(values, device=device)
    if values.nbytes >= _LARGE_COPY:
        return torch.from_numpy(values).to(device)
    pinned = torch.from_numpy(np.ascontiguousarray(values)).pin_memory()
    return pinned.to(device, non_blocking=True)
