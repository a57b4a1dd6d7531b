"""All membership attacks on one or several targets, from the same shadow models."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.attacks import canary, confidences, lira, shokri
from sottovoce.attacks.canary import Climb
from sottovoce.attacks.candidates import Mask
from sottovoce.attacks.confidences import Confidences, Query
from sottovoce.domains import Vector
from sottovoce.learning.task import Task

Attack = Literal["shokri", "lira-offline", "lira-online", "canary"]
ATTACKS: tuple[Attack, ...] = ("shokri", "lira-offline", "lira-online", "canary")
OnAttack = Callable[[Attack], None]


def _ignore(_attack: str) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """(targets, candidates): what an attack says; above its own threshold it says "member"."""

    scores: NDArray[np.float64]
    threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Siege:
    """What an attacker has: shadows and who they trained on, targets, the candidates' records.

    Models are rows; `trained_on` is (shadows, candidates).
    """

    task: Task
    shadows: Vector
    trained_on: Mask
    targets: Vector
    features: Tensor
    labels: Tensor
    climb: Climb = field(default_factory=Climb)

    def __post_init__(self) -> None:
        confidences.check_classifies(self.task)

    @property
    def queries(self) -> list[Query]:
        return list(confidences.queries(self.features.shape[1:]).values())


def scored(
    siege: Siege,
    attacks: Sequence[Attack],
    generator: np.random.Generator,
    on_attack: OnAttack = _ignore,
) -> dict[Attack, Scored]:
    """Every attack's scores, in the order asked for."""
    found: dict[Attack, Scored] = {}
    asked: tuple[Confidences, Confidences] | None = None
    for attack in attacks:
        on_attack(attack)
        if attack == "shokri":
            found[attack] = _shokri(siege, generator)
            continue
        if attack == "canary":
            found[attack] = _canary(siege, canary.seed_of(generator))
            continue
        if asked is None:
            asked = _answers(siege, siege.shadows), _answers(siege, siege.targets)
        judge = lira.online if attack == "lira-online" else lira.offline
        scores = judge(asked[0], siege.trained_on, asked[1])
        found[attack] = Scored(scores=scores, threshold=lira.OWN_THRESHOLD)
    return found


def _answers(siege: Siege, models: Vector) -> Confidences:
    return confidences.confidences(siege.task, models, siege.features, siege.labels, siege.queries)


def _shokri(siege: Siege, generator: np.random.Generator) -> Scored:
    shadows = confidences.outputs_of(siege.task, siege.shadows, siege.features)
    targets = confidences.outputs_of(siege.task, siege.targets, siege.features)
    scores = shokri.scores(shadows, siege.trained_on, targets, siege.labels, generator)
    return Scored(scores=scores, threshold=shokri.OWN_THRESHOLD)


def _canary(siege: Siege, seed: int) -> Scored:
    makers, judges = canary.halves(len(siege.shadows))
    made = canary.climbed(
        siege.task,
        siege.shadows[makers],
        siege.trained_on[makers],
        siege.features,
        siege.labels,
        siege.climb,
        seed,
    )
    asked = torch.cat([siege.features[None], made])  # the candidate itself is a query too

    def answers(models: Vector) -> Confidences:
        fixed: list[Query] = [lambda _, query=query: query for query in asked]  # type: ignore[misc]
        return confidences.confidences(siege.task, models, siege.features, siege.labels, fixed)

    shadows, targets = answers(siege.shadows[judges]), answers(siege.targets)
    scores = lira.online(shadows, siege.trained_on[judges], targets)
    return Scored(scores=scores, threshold=lira.OWN_THRESHOLD)
