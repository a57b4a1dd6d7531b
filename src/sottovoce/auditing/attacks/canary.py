"""The canary attack: ask about records near the candidate that give its membership away best.

For each candidate some queries x' climb, within an L_inf ball around it, the gap between shadow
models that trained on it and those that did not, in standard deviations:

    gap(x') = (mean_in phi(x') - mean_out phi(x'))/sqrt((var_in + var_out)/2)

The likelihood ratio of `lira` then judges the target's answers to the candidate and its queries.
Queries fit the very shadows that they were made with, so these serve for nothing else: laws are
fitted on the other half, which keeps chance at chance whatever the queries are.

Reference: Wen et al. 2023, "Canary in a coalmine" (which climbs losses, not a standardised gap).
"""

import numpy as np
import torch
from torch import Tensor

from sottovoce.auditing.attacks import context, lira
from sottovoce.auditing.attacks.context import (
    FEWEST_SHADOWS,
    Climb,
    Confidences,
    Mask,
    Query,
    Scored,
    Siege,
    logit_confidences,
    register,
)
from sottovoce.core.domains import Vector
from sottovoce.core.errors import DataError
from sottovoce.learning.task import Task

_TOGETHER = {"cpu": 1 << 24, "cuda": 1 << 31}  # numbers on their way through the models, at once


def halves(num_shadows: int) -> tuple[slice, slice]:
    """Shadows that make queries, and those that judge them; pairs of shadows stay together."""
    if num_shadows < 2 * FEWEST_SHADOWS:
        raise DataError(
            f"too few shadow models for the canary attack: it needs {FEWEST_SHADOWS} to make "
            f"queries and as many others to judge them, and there are {num_shadows}; train "
            f"{2 * FEWEST_SHADOWS} or leave this attack out"
        )
    middle = 2 * (num_shadows // 4)
    return slice(0, middle), slice(middle, num_shadows)


def climbed(
    task: Task,
    models: Vector,
    trained_on: Mask,
    features: Tensor,
    labels: Tensor,
    climb: Climb,
    seed: int,
) -> Tensor:
    """(queries, candidates, ...): the queries that these models make for each candidate."""
    stack = task.tensor(models)
    inside = torch.from_numpy(trained_on).to(task.device)
    generator = torch.Generator(device=task.device).manual_seed(seed)
    room = _TOGETHER.get(task.device.type, _TOGETHER["cpu"])
    together = max(1, room // (task.elements_per_sample * len(stack)))
    made = []
    for _ in range(climb.queries):
        parts = []
        for start in range(0, len(features), together):
            part = slice(start, start + together)
            origin = features[part]
            noise = torch.rand(origin.shape, generator=generator, device=origin.device)
            query = origin + climb.reach * (2.0 * noise - 1.0)
            for _ in range(climb.steps):
                slope = _slope(task, stack, inside[:, part], query, labels[part])
                query = query + climb.step * slope.sign()
                query = torch.clamp(query, origin - climb.reach, origin + climb.reach)
            parts.append(query)
        made.append(torch.cat(parts))
    return torch.stack(made)


def _slope(task: Task, stack: Tensor, inside: Tensor, query: Tensor, labels: Tensor) -> Tensor:
    given = query.detach().requires_grad_()
    outputs = task.stacked_outputs(stack, given.expand(len(stack), *given.shape))
    phi = logit_confidences(outputs, labels.expand(len(stack), -1))
    (slope,) = torch.autograd.grad(gaps(phi, inside).sum(), given)
    return torch.nan_to_num(slope)


def gaps(phi: Tensor, inside: Tensor) -> Tensor:
    """For each candidate how far phi (shadows, candidates) is apart, in standard deviations."""
    moments = []
    for chosen in (inside, ~inside):
        weights = chosen.to(phi.dtype)
        counts = weights.sum(dim=0)
        mean = (phi * weights).sum(dim=0) / counts
        variance = ((phi - mean).square() * weights).sum(dim=0) / (counts - 1.0)
        moments.append((mean, variance))
    (mean_in, var_in), (mean_out, var_out) = moments
    return (mean_in - mean_out) / torch.sqrt(0.5 * (var_in + var_out) + 1e-6)


def seed_of(generator: np.random.Generator) -> int:
    return int(generator.integers(2**62))


@register("canary", summary="queries near a record that give its membership away best", turn=4)
def canary(siege: Siege, generator: np.random.Generator) -> Scored:
    makers, judges = halves(len(siege.shadows))
    made = climbed(
        siege.task,
        siege.shadows[makers],
        siege.trained_on[makers],
        siege.features,
        siege.labels,
        siege.climb,
        seed_of(generator),
    )
    asked = torch.cat([siege.features[None], made])  # the candidate itself is a query too

    def answers(models: Vector) -> Confidences:
        fixed: list[Query] = [lambda _, query=query: query for query in asked]  # type: ignore[misc]
        return context.confidences(siege.task, models, siege.features, siege.labels, fixed)

    shadows, targets = answers(siege.shadows[judges]), answers(siege.targets)
    scores = lira.online(shadows, siege.trained_on[judges], targets)
    return Scored(scores=scores, threshold=lira.OWN_THRESHOLD)
