"""The attack of Shokri et al.: attack models, trained on shadow models, that recognize members.

The examples are the class probabilities of the shadow models, on records that they trained on and
on others. For each class, one attack model (logistic regression) learns to separate the two. It is
shared by all records of the class. Scores above 1/2 mean "member".

References: Shokri et al. 2017 (shadow models, one attack model per class); Salem et al. 2019
(sorted probabilities).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.auditing.attacks.context import (
    AttackContext,
    Mask,
    MembershipScores,
    logit_confidences,
    outputs_of,
    register,
)
from sottovoce.core.errors import DataError

OWN_THRESHOLD = 0.5
_MOST_EXAMPLES = 10_000  # Per class; more examples cost time and do not improve the model.

Features = NDArray[np.float64]


def features_of(outputs: Tensor, labels: Tensor) -> Features:
    """Return the attack model's features, (..., 1 + classes).

    They are the logit of the true class's probability, then the log probabilities of all classes in
    descending order.
    """
    phi = logit_confidences(outputs, labels)[..., None]
    logs = torch.log_softmax(outputs, dim=-1).sort(dim=-1, descending=True).values
    return torch.cat([phi, logs], dim=-1).to("cpu", torch.float64).numpy()


def scores(
    shadows: Tensor,
    trained_on: Mask,
    targets: Tensor,
    labels: Tensor,
    generator: np.random.Generator,
) -> NDArray[np.float64]:
    """Return the probability of membership of each candidate, (targets, candidates).

    For each class a logistic regression learns from the shadow models, whose membership is known.
    `shadows` and `targets` are outputs before the softmax, (models, candidates, classes). Raise
    DataError if a class has no examples of members or none of non-members.
    """
    known = features_of(shadows, labels.expand(len(shadows), -1))
    asked = features_of(targets, labels.expand(len(targets), -1))
    classes = labels.cpu().numpy()
    found = np.empty(asked.shape[:2])
    for label in np.unique(classes):
        own = classes == label
        examples, answers = known[:, own].reshape(-1, known.shape[-1]), trained_on[:, own].ravel()
        _check_both(int(label), answers)
        some = generator.permutation(len(answers))[:_MOST_EXAMPLES]
        found[:, own] = _likelihoods(
            examples[some], answers[some], asked[:, own].reshape(-1, asked.shape[-1])
        ).reshape(len(asked), -1)
    return found


def _check_both(label: int, answers: Mask) -> None:
    inside, outside = int(answers.sum()), int((~answers).sum())
    if not inside or not outside:
        raise DataError(
            f"class {label} has {inside} examples of members and {outside} of non-members in the "
            "shadow models, and its attack model needs both; use more candidates or more shadow "
            "models"
        )


def _likelihoods(examples: Features, answers: Mask, asked: Features) -> NDArray[np.float64]:
    """Fit one attack model and return its probabilities of membership."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    attack = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    attack.fit(examples, answers)
    return np.asarray(attack.predict_proba(asked)[:, 1], dtype=np.float64)


@register("shokri", summary="an attack model for each class, trained on shadows", turn=1)
def shokri(context: AttackContext, generator: np.random.Generator) -> MembershipScores:
    """Score candidates by one attack model per class, trained on the shadow models."""
    shadows = outputs_of(context.task, context.shadows, context.features)
    targets = outputs_of(context.task, context.targets, context.features)
    found = scores(shadows, context.trained_on, targets, context.labels, generator)
    return MembershipScores(scores=found, threshold=OWN_THRESHOLD)
