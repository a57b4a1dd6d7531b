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
        learning_rate: The length of a step relative to the gradient.
        minibatches: The records of each step.
        pulls: The proximal weight of each client; None for zero.
        shifts: A row for each client that is added to its gradients; None for zero.
    """

    model: Tensor
    learning_rate: float
    minibatches: Minibatches
    pulls: Sequence[float] | None = None
    shifts: Tensor | None = None

    def part(self, clients: slice) -> "StepSettings":
        """Return the computation of some of the clients."""
        return StepSettings(
            model=self.model,
            learning_rate=self.learning_rate,
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

    Their parameters are in the order of the task's `stack_form`.
    """

    models: Tensor
    origin: Tensor
    rate: Tensor
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
        return cls(
            models=origin.expand(clients, -1).clone(),
            origin=origin,
            rate=torch.full((), steps.learning_rate, device=origin.device),
            pulls=pulls,
            shifts=shifts,
        )

    def copy(self) -> "ClientGroup":
        """Return a copy with tensors of its own."""
        return ClientGroup(
            models=self.models.clone(),
            origin=self.origin.clone(),
            rate=self.rate.clone(),
            pulls=None if self.pulls is None else self.pulls.clone(),
            shifts=None if self.shifts is None else self.shifts.clone(),
        )

    def tensors(self) -> list[Tensor]:
        """Return all tensors, in a fixed order."""
        every = (self.models, self.origin, self.rate, self.pulls, self.shifts)
        return [tensor for tensor in every if tensor is not None]


def take_step(task: "Task", group: ClientGroup, batch: StepBatch) -> ClientGroup:
    """Return the group after one step of each of its models that has records in this step."""
    models = group.models.detach().requires_grad_()
    with torch.enable_grad():
        outputs = task.stack_form.outputs(models, batch.features)
        total = task.sample_losses(outputs, batch.labels).mul(batch.weights).sum()
        (gradients,) = torch.autograd.grad(total, models)
    models = models.detach()
    if group.shifts is not None:
        gradients = gradients + group.shifts
    if group.pulls is not None:
        gradients = gradients + group.pulls * (models - group.origin)
    moved = torch.where(batch.weights[:, :1] > 0, models - group.rate * gradients, models)
    return replace(group, models=moved)


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
            self._group.models.copy_(take_step(task, self._group, self._batch).models)

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
        every = [*group.tensors(), *batch.tensors()]
        key = group.pulls is None, *((tensor.shape, tensor.dtype) for tensor in every)
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
