"""Shokri's attack: learn from shadow models what members look like, one attack model a class.

The shadows' class probabilities on records that they trained on, and on others, are the examples;
an attack model (logistic regression) for each class tells the two apart, whichever record it is.
Above 1/2 says "member".

References: Shokri et al. 2017 (shadow models, one attack model a class); Salem et al. 2019 (sorted
probabilities).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.auditing.attacks.context import (
    Mask,
    Scored,
    Siege,
    logit_confidences,
    outputs_of,
    register,
)
from sottovoce.core.errors import DataError

OWN_THRESHOLD = 0.5
_MOST_EXAMPLES = 10_000  # of a class: more would only take longer

Features = NDArray[np.float64]


def features_of(outputs: Tensor, labels: Tensor) -> Features:
    """(..., classes): the logit of the true class's probability, then all logs, largest first."""
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
    """(targets, candidates): how likely each candidate is a member.

    Outputs are (models, candidates, classes) of shadows and of targets.
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
            f"class {label} is missing: shadow models saw {inside} of its candidates and missed "
            f"{outside}, and the attack model of a class needs both; take more candidates, or "
            "shadows"
        )


def _likelihoods(examples: Features, answers: Mask, asked: Features) -> NDArray[np.float64]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    attack = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    attack.fit(examples, answers)
    return np.asarray(attack.predict_proba(asked)[:, 1], dtype=np.float64)


@register("shokri", summary="an attack model for each class, trained on shadows", turn=1)
def shokri(siege: Siege, generator: np.random.Generator) -> Scored:
    shadows = outputs_of(siege.task, siege.shadows, siege.features)
    targets = outputs_of(siege.task, siege.targets, siege.features)
    found = scores(shadows, siege.trained_on, targets, siege.labels, generator)
    return Scored(scores=found, threshold=OWN_THRESHOLD)
