"""What models say about records: the confidence in the true class, on a scale without ends.

    phi = log(p_y/(1 - p_y)) = z_y - log sum_{j != y} exp(z_j)

Computed from the outputs z, so that a confidence of 1 - 1e-30 is a number like any other. It is
about normal over retrained models (Carlini et al. 2022, section V.C).
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.core.domains import Vector
from sottovoce.core.errors import DataError, ParameterError
from sottovoce.learning.task import Task

Query = Callable[[Tensor], Tensor]
Confidences = NDArray[np.float64]

_TOGETHER = {"cpu": 1 << 22, "cuda": 1 << 30}  # numbers on their way through the models, at once


def queries(input_shape: Sequence[int]) -> dict[str, Query]:
    """Ways to ask about a record: as it is and, of images, mirrored and moved by a pixel."""
    asked: dict[str, Query] = {"as it is": lambda x: x}
    if len(input_shape) == 3:
        asked["mirrored"] = lambda x: x.flip(-1)
        for name, axis, step in (
            ("down", -2, 1),
            ("up", -2, -1),
            ("right", -1, 1),
            ("left", -1, -1),
        ):
            asked[f"moved {name}"] = _moved(axis, step)
    return asked


def _moved(axis: int, step: int) -> Query:
    def moved(images: Tensor) -> Tensor:
        rolled = torch.roll(images, step, dims=axis)
        edge = 0 if step > 0 else images.shape[axis] - 1
        rolled.select(axis, edge).copy_(images.select(axis, edge))  # the edge is repeated
        return rolled

    return moved


def logit_confidences(outputs: Tensor, labels: Tensor) -> Tensor:
    """phi of outputs (..., classes) for labels (...)."""
    true = torch.nn.functional.one_hot(labels, outputs.shape[-1]).bool()
    others = torch.logsumexp(outputs.masked_fill(true, -torch.inf), dim=-1)
    return outputs.gather(-1, labels[..., None])[..., 0] - others


def check_classifies(task: Task) -> None:
    if task.objective != "classification":
        raise ParameterError(
            "membership is guessed from the confidence in a class, and this model predicts "
            "numbers; attack a classification"
        )


@torch.no_grad()
def outputs_of(task: Task, models: Vector, features: Tensor) -> Tensor:
    """(models, records, classes): what every model puts out for every record, in blocks."""
    room = _TOGETHER.get(task.device.type, _TOGETHER["cpu"])
    records = max(1, min(len(features), room // task.elements_per_sample))
    together = max(1, room // (task.elements_per_sample * records))
    stacked = task.tensor(models)
    blocks = []
    for start in range(0, len(stacked), together):
        some = stacked[start : start + together]
        parts = [
            task.stacked_outputs(some, part.expand(len(some), *part.shape))
            for part in torch.split(features, records)
        ]
        blocks.append(torch.cat(parts, dim=1))
    found = torch.cat(blocks)
    _check_finite(found)
    return found


def _check_finite(outputs: Tensor) -> None:
    bad = int((~torch.isfinite(outputs)).flatten(start_dim=1).any(dim=1).sum())
    if bad:
        raise DataError(
            f"{bad} of {len(outputs)} models diverged: what they put out is not finite; train with "
            "a smaller learning rate"
        )


def confidences(
    task: Task, models: Vector, features: Tensor, labels: Tensor, asked: Sequence[Query]
) -> Confidences:
    """(models, records, queries): phi of every model on every record, however asked."""
    found = [_answers(outputs_of(task, models, query(features)), labels) for query in asked]
    return np.stack(found, axis=-1)


def _answers(outputs: Tensor, labels: Tensor) -> Confidences:
    phi = logit_confidences(outputs, labels.expand(len(outputs), -1))
    return phi.to("cpu", torch.float64).numpy()
