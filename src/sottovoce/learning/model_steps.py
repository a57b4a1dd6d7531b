"""One gradient step of the models of a group of clients, and its capture as a CUDA graph."""

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sottovoce.learning.minibatches import Minibatches
from sottovoce.learning.optimizers import PLAIN_SGD, OptimizerSettings, RowOptimizer
from sottovoce.learning.stacked_models import StackForm

if TYPE_CHECKING:  # Tasks use this module.
    from sottovoce.learning.task import Task

_SEEN_BEFORE_CAPTURE = 1  # A capture takes as long as many steps.
_KEPT_GRAPHS = 8
_WARM_UP_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """What some clients compute in a round, in addition to their data.

    Attributes:
        model: The flat model that all clients start from, as a float32 tensor on the device.
        learning_rate: The learning rate of the optimizer; for plain SGD the length of a step
            relative to the gradient.
        minibatches: The records of each step.
        optimizer: How gradients move the models.
        gradient_clip: The norm to which the gradient of each minibatch is clipped; None for no
            clipping.
        pulls: The proximal weight of each client; None for zero.
        shifts: A row for each client that is added to its gradients; None for zero.
    """

    model: Tensor
    learning_rate: float
    minibatches: Minibatches
    optimizer: OptimizerSettings = PLAIN_SGD
    gradient_clip: float | None = None
    pulls: Sequence[float] | None = None
    shifts: Tensor | None = None

    def part(self, clients: slice) -> "StepSettings":
        """Return the computation of some of the clients."""
        return replace(
            self,
            minibatches=self.minibatches[clients].used(),
            pulls=self.pulls and self.pulls[clients],
            shifts=None if self.shifts is None else self.shifts[clients],
        )


@dataclass(frozen=True, slots=True)
class StepBatch:
    """A minibatch of each model: (models, width, ...), with weights that are 0 where padded."""

    features: Tensor
    labels: Tensor
    weights: Tensor

    def tensors(self) -> list[Tensor]:
        """Return all tensors, in a fixed order."""
        return [self.features, self.labels, self.weights]

    def without_records(self) -> "StepBatch":
        """Return a minibatch of the same shapes, for which no model takes a step."""
        return StepBatch(*map(torch.zeros_like, self.tensors()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientGroup:
    """The models of a group of clients as rows, and what is the same in all of their steps.

    Their parameters are in the order of the task's `stack_form`. Plain SGD needs no `optimizer`;
    another optimizer changes `models` in place.
    """

    models: Tensor
    origin: Tensor
    rate: Tensor
    clip: Tensor | None
    optimizer: RowOptimizer | None
    pulls: Tensor | None
    shifts: Tensor | None

    @classmethod
    def start(cls, steps: StepSettings, form: StackForm, *, clients: int) -> "ClientGroup":
        """Return the group before its first step, with unused models up to `clients`."""
        origin, pulls = form.enter(steps.model[None])[0], None
        shifts = None if steps.shifts is None else form.enter(steps.shifts)
        if steps.pulls is not None and any(steps.pulls):
            padded = [*steps.pulls, *[0.0] * (clients - len(steps.pulls))]
            pulls = torch.tensor(padded, device=origin.device)[:, None]
        if shifts is not None:
            shifts = pad(shifts, (0, 0, 0, clients - len(shifts)))
        models, clip, optimizer = origin.expand(clients, -1).clone(), None, None
        if steps.gradient_clip is not None:
            clip = torch.full((), steps.gradient_clip, device=origin.device)
        if not steps.optimizer.is_plain_sgd:
            optimizer = steps.optimizer.start(models, learning_rate=steps.learning_rate)
        return cls(
            models=models,
            origin=origin,
            rate=torch.full((), steps.learning_rate, device=origin.device),
            clip=clip,
            optimizer=optimizer,
            pulls=pulls,
            shifts=shifts,
        )

    @property
    def is_ready(self) -> bool:
        """Whether the optimizer's state exists, which comes into being in its first step."""
        return self.optimizer is None or self.optimizer.started

    def copy(self) -> "ClientGroup":
        """Return a copy with tensors of its own."""
        optimizer = None if self.optimizer is None else self.optimizer.copy()
        return ClientGroup(
            models=self.models.clone() if optimizer is None else optimizer.models,
            origin=self.origin.clone(),
            rate=self.rate.clone(),
            clip=None if self.clip is None else self.clip.clone(),
            optimizer=optimizer,
            pulls=None if self.pulls is None else self.pulls.clone(),
            shifts=None if self.shifts is None else self.shifts.clone(),
        )

    def tensors(self) -> list[Tensor]:
        """Return all tensors, in a fixed order."""
        every = (self.models, self.origin, self.rate, self.clip, self.pulls, self.shifts)
        kept = {} if self.optimizer is None else self.optimizer.state()
        return [*(tensor for tensor in every if tensor is not None), *kept.values()]

    def form(self) -> tuple[object, ...]:
        """Return what two groups must share, apart from shapes, to share a captured step."""
        optional = (self.clip, self.pulls, self.shifts)
        optimizer = self.optimizer
        settings = None if optimizer is None else (optimizer.settings, optimizer.learning_rate)
        return (settings, *(tensor is None for tensor in optional))


def take_step(task: "Task", group: ClientGroup, batch: StepBatch) -> ClientGroup:
    """Return the group after one step of each of its models that has records in this step."""
    models = group.models.detach().requires_grad_()
    with torch.enable_grad():
        outputs = task.stack_form.outputs(models, batch.features)
        total = task.sample_losses(outputs, batch.labels).mul(batch.weights).sum()
        (gradients,) = torch.autograd.grad(total, models)
    models = models.detach()
    if group.clip is not None:
        gradients = clip_gradients(gradients, group.clip)
    if group.shifts is not None:
        gradients = gradients + group.shifts
    if group.pulls is not None:
        gradients = gradients + group.pulls * (models - group.origin)
    moving = batch.weights[:, :1] > 0
    if group.optimizer is not None:
        group.optimizer.step(gradients, moving)
        return group
    return replace(group, models=torch.where(moving, models - group.rate * gradients, models))


def clip_gradients(gradients: Tensor, norm: Tensor | float) -> Tensor:
    """Return gradients, each scaled down to a Euclidean norm if its own is larger.

    Args:
        gradients: One gradient, or one as each row.
        norm: The largest norm.

    Returns:
        The gradients; one that is not finite stays so.
    """
    norms = torch.linalg.vector_norm(gradients, dim=-1, keepdim=True)
    return gradients * torch.clamp(norm / norms, max=1.0)


Step = Callable[["Task", ClientGroup, StepBatch], ClientGroup]


class _CapturedStep:
    """A step of groups with the same shapes, which one call launches on a CUDA device.

    The group that it returns changes with its next call.
    """

    def __init__(self, task: "Task", group: ClientGroup, batch: StepBatch, pool: Any) -> None:
        self._group, self._batch = group.copy(), batch.without_records()
        stream = torch.cuda.Stream(task.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(task.device))
        with torch.cuda.stream(stream):  # Libraries allocate what they need before the capture.
            for _ in range(_WARM_UP_STEPS):
                take_step(task, self._group, self._batch)
        torch.cuda.current_stream(task.device).wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            after = take_step(task, self._group, self._batch)
            if after is not self._group:  # An optimizer has changed the models in place.
                self._group.models.copy_(after.models)

    def __call__(self, task: "Task", group: ClientGroup, batch: StepBatch) -> ClientGroup:  # noqa: ARG002
        """Return the group after a step."""
        if group is not self._group:
            _copy(group.tensors(), self._group.tensors())
        _copy(batch.tensors(), self._batch.tensors())
        self._graph.replay()
        return self._group


def _copy(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source, non_blocking=True)


class Graphs:
    """The CUDA graphs of steps, one for each shape that came again; the latest are kept."""

    def __init__(self) -> None:
        self._seen: Counter[object] = Counter()
        self._kept: OrderedDict[object, Step] = OrderedDict()
        self._pool: Any = None  # Graphs run one at a time and share the memory of their steps.
        self._failed = False

    def find(self, task: "Task", group: ClientGroup, batch: StepBatch) -> Step:
        """Return the function that takes a step of groups and minibatches of these shapes."""
        if task.device.type != "cuda" or self._failed:
            return take_step
        if group.optimizer is not None and not group.optimizer.fits_a_graph:
            return take_step
        every = [*group.tensors(), *batch.tensors()]
        key = group.form(), *((tensor.shape, tensor.dtype) for tensor in every)
        self._seen[key] += 1
        if self._seen[key] <= _SEEN_BEFORE_CAPTURE:
            return take_step
        if key not in self._kept:
            if not self._kept:  # The memory is freed together with the last graph.
                self._pool = torch.cuda.graph_pool_handle()
            try:
                self._kept[key] = _CapturedStep(task, group, batch, self._pool)
            except RuntimeError as error:
                self._failed = True
                warnings.warn(
                    "local steps take longer, because they could not be captured as a CUDA graph "
                    f"({str(error).splitlines()[0]}); remove copies to the CPU from the module",
                    stacklevel=2,
                )
                return take_step
        self._kept.move_to_end(key)
        while len(self._kept) > _KEPT_GRAPHS:
            self._kept.popitem(last=False)
        return self._kept[key]
