"""The canary attack: query records near the candidate that separate members from non-members best.

For each candidate some queries x' are found by gradient ascent, within an L_inf ball around it, on
the gap between shadow models that trained on the candidate and those that did not, in standard
deviations:

    gap(x') = (mean_in phi(x') - mean_out phi(x'))/sqrt((var_in + var_out)/2)

The likelihood ratio of `lira` is then applied to the target's answers to the candidate and to its
queries. The queries are fitted to the shadow models that they were made with, so those are not
used again: the normal distributions are fitted on the other half of the shadow models. Without
leakage the attack therefore performs as guessing does, whatever the queries are.

Reference: Wen et al. 2023, "Canary in a coalmine" (which optimizes losses, not a standardized gap).
"""

import numpy as np
import torch
from torch import Tensor

from sottovoce.auditing.attacks import lira
from sottovoce.auditing.attacks.context import (
    FEWEST_SHADOWS,
    AttackContext,
    Confidences,
    Mask,
    MembershipScores,
    Query,
    QuerySearch,
    confidences,
    logit_confidences,
    register,
)
from sottovoce.core.domains import Vector
from sottovoce.core.errors import DataError
from sottovoce.learning.task import Task

# Activations that are held at once while models are evaluated.
_TOGETHER = {"cpu": 1 << 24, "cuda": 1 << 31}


def split_shadows(num_shadows: int) -> tuple[slice, slice]:
    """Return two slices of the shadow models: the makers of queries, and the judges of answers.

    Pairs of shadow models stay together, so each candidate is in half of either part. Raise
    DataError if there are fewer than 8 shadow models.
    """
    if num_shadows < 2 * FEWEST_SHADOWS:
        raise DataError(
            f"too few shadow models for the canary attack: it needs {FEWEST_SHADOWS} to make "
            f"queries and as many others to judge the answers, got {num_shadows}; train at least "
            f"{2 * FEWEST_SHADOWS} or leave this attack out"
        )
    middle = 2 * (num_shadows // 4)
    return slice(0, middle), slice(middle, num_shadows)


def search_queries(
    task: Task,
    models: Vector,
    trained_on: Mask,
    features: Tensor,
    labels: Tensor,
    search: QuerySearch,
    seed: int,
) -> Tensor:
    """Search records near each candidate for which its membership shows best.

    Each query starts at a random point of the L_inf ball around the candidate. Projected
    sign-gradient ascent increases the gap in confidence between the models that trained on the
    candidate (`trained_on`) and those that did not. Return a tensor of shape (queries, candidates,
    *features).
    """
    stack = task.tensor(models)
    inside = torch.from_numpy(trained_on).to(task.device)
    generator = torch.Generator(device=task.device).manual_seed(seed)
    capacity = _TOGETHER.get(task.device.type, _TOGETHER["cpu"])
    together = max(1, capacity // (task.elements_per_sample * len(stack)))
    made = []
    for _ in range(search.queries):
        parts = []
        for start in range(0, len(features), together):
            part = slice(start, start + together)
            origin = features[part]
            noise = torch.rand(origin.shape, generator=generator, device=origin.device)
            query = origin + search.reach * (2.0 * noise - 1.0)
            for _ in range(search.steps):
                gradient = _gap_gradient(task, stack, inside[:, part], query, labels[part])
                query = query + search.step * gradient.sign()
                query = torch.clamp(query, origin - search.reach, origin + search.reach)
            parts.append(query)
        made.append(torch.cat(parts))
    return torch.stack(made)


def _gap_gradient(
    task: Task, stack: Tensor, inside: Tensor, query: Tensor, labels: Tensor
) -> Tensor:
    """Return the gradient of the summed gaps by the queries; NaN becomes 0."""
    given = query.detach().requires_grad_()
    outputs = task.stacked_outputs(stack, given.expand(len(stack), *given.shape))
    phi = logit_confidences(outputs, labels.expand(len(stack), -1))
    (gradient,) = torch.autograd.grad(standardized_gaps(phi, inside).sum(), given)
    return torch.nan_to_num(gradient)


def standardized_gaps(phi: Tensor, inside: Tensor) -> Tensor:
    """Return each candidate's gap between models that trained on it and those that did not.

    The gap is (mean_in phi - mean_out phi)/sqrt((var_in + var_out)/2), where `phi` has the models'
    confidences and `inside` says which trained on the candidate, both (shadows, candidates).
    """
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
    """Draw a seed for torch from a NumPy generator."""
    return int(generator.integers(2**62))


@register("canary", summary="queries near a record that give its membership away best", turn=4)
def canary(context: AttackContext, generator: np.random.Generator) -> MembershipScores:
    """Score candidates by online LiRA on queries that were searched with half of the shadow models.

    The other half judges the target's answers to the candidate and to its queries. Scores above 0
    mean "member". Raise DataError if there are fewer than 8 shadow models.
    """
    makers, judges = split_shadows(len(context.shadows))
    made = search_queries(
        context.task,
        context.shadows[makers],
        context.trained_on[makers],
        context.features,
        context.labels,
        context.query_search,
        seed_of(generator),
    )
    asked = torch.cat([context.features[None], made])  # The candidate itself is also a query.

    def answers(models: Vector) -> Confidences:
        fixed: list[Query] = [lambda _, query=query: query for query in asked]  # type: ignore[misc]
        return confidences(context.task, models, context.features, context.labels, fixed)

    shadows, targets = answers(context.shadows[judges]), answers(context.targets)
    scores = lira.online(shadows, context.trained_on[judges], targets)
    return MembershipScores(scores=scores, threshold=lira.OWN_THRESHOLD)
