"""Whether the outputs of several models can be computed at once, tried on a few samples."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:  # Tasks use this module.
    from sottovoce.learning.task import Task

_SAMPLES_TRIED = 3
_TOLERANCE = 1e-3
_LONGEST_REASON = 200


def why_not_stacked(task: "Task") -> str | None:
    """Return why the module's models cannot be trained at once; None if they can.

    Args:
        task: The module and its test data, of which the first samples are used.

    Returns:
        The reason, as a clause for a message.
    """
    if task.is_chain:  # No sample influences another in these layers.
        return None
    own = task.tensor(task.initial_model())
    models, samples = torch.stack([own, 0.9 * own]), task.test_samples(_SAMPLES_TRIED)
    pair = samples.expand(2, *samples.shape)
    try:
        with torch.enable_grad():
            at_once = task.stacked_outputs(models.requires_grad_(), pair)
            torch.autograd.grad(at_once.sum(), models)
        with task.evaluating():  # Without dropout, which would give other outputs each time.
            at_once = task.stacked_outputs(models, pair)
    except Exception as error:  # The user's code may raise anything.
        text = " ".join(str(error).split())[:_LONGEST_REASON]
        return f"torch.func.vmap cannot compute the module ({type(error).__name__}: {text})"
    with torch.no_grad():
        alone = torch.stack([task.outputs(model, samples) for model in models])
        first = task.outputs(own, samples[:1])
    if not _agree(at_once.detach(), alone):
        return "torch.func.vmap computes other outputs than the module"
    if not _agree(first, alone[0, :1]):
        return "the module mixes the samples of a batch, whose sizes differ from client to client"
    return None


def _agree(found: Tensor, expected: Tensor) -> bool:
    scale = max(1.0, float(expected.abs().max()))
    return torch.allclose(found, expected, rtol=0.0, atol=_TOLERANCE * scale, equal_nan=True)
