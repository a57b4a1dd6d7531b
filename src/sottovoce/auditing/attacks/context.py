"""The inputs and results of membership inference attacks, and the register of such attacks.

    @register("foo", summary="...")
    def foo(context: AttackContext, generator: np.random.Generator) -> MembershipScores: ...

Put the file into `attacks/`, or list its module under the entry point group `sottovoce.attacks`
(see `sottovoce.core.registry`); then `sottovoce attack membership RUN --attack foo` runs it.

All attacks on one or several target models use the same shadow models. The records are of two
kinds:

    candidates   as many members as non-members of the target; the attacker has all of them and
                 guesses which are members.
    known        the target's other training records. The attacker knows them, as differential
                 privacy assumes for all records but one. Every shadow model trains on them, so
                 shadow models have as many records as their target.

Shadow models come in pairs: one trains on a random half of the candidates, the other on the other
half. So every candidate is in exactly half of the shadow models, and each shadow model has half of
the candidates.

The attacks look at a model's confidence in the true class y of a record, on the logit scale:

    phi = log(p_y/(1 - p_y)) = z_y - log sum_{j != y} exp(z_j)

It is computed from the outputs z before the softmax, so that a confidence of 1 - 1e-30 does not
round to 1. Over retrained models phi is approximately normal (Carlini et al. 2022, section V.C).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.core.errors import DataError, ParameterError
from sottovoce.core.plugin_returns import instance, with_checked_results
from sottovoce.core.registry import Register
from sottovoce.learning.task import Task

Query = Callable[[Tensor], Tensor]
Confidences = NDArray[np.float64]

# Activations that are held at once while models are evaluated.
_TOGETHER = {"cpu": 1 << 22, "cuda": 1 << 30}


def queries(input_shape: Sequence[int]) -> dict[str, Query]:
    """Return the queries that an attack makes about a record, by name.

    A query maps a batch of records to the batch that the model is asked about: the records
    themselves and, for images (channels, height, width), their mirror images and shifts by one
    pixel.
    """
    asked: dict[str, Query] = {"as it is": lambda x: x}
    if len(input_shape) == 3:
        asked["mirrored"] = lambda x: x.flip(-1)
        for name, axis, step in (
            ("down", -2, 1),
            ("up", -2, -1),
            ("right", -1, 1),
            ("left", -1, -1),
        ):
            asked[f"moved {name}"] = _shift_by(axis, step)
    return asked


def _shift_by(axis: int, step: int) -> Query:
    def moved(images: Tensor) -> Tensor:
        rolled = torch.roll(images, step, dims=axis)
        edge = 0 if step > 0 else images.shape[axis] - 1
        rolled.select(axis, edge).copy_(images.select(axis, edge))  # repeat the edge
        return rolled

    return moved


def logit_confidences(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the confidence in the true class y on the logit scale, phi = log(p_y/(1 - p_y)).

    `outputs` are the values before the softmax, (..., classes), and `labels` the true classes, of
    the result's shape.
    """
    true = torch.nn.functional.one_hot(labels, outputs.shape[-1]).bool()
    others = torch.logsumexp(outputs.masked_fill(true, -torch.inf), dim=-1)
    return outputs.gather(-1, labels[..., None])[..., 0] - others


def check_classifies(task: Task) -> None:
    """Raise ParameterError unless the task is a classification, as confidences need classes."""
    if task.objective != "classification":
        raise ParameterError(
            "membership is inferred from the confidence in a class, and this model predicts "
            "numbers; choose a run whose task is a classification"
        )


@torch.no_grad()
def outputs_of(task: Task, models: Vector, features: Tensor) -> Tensor:
    """Return the outputs of every model for every record, (models, records, classes).

    Outputs are the values before the softmax. They are computed in blocks, which bounds the memory
    for activations. Raise DataError if an output is not finite, because a training diverged.
    """
    capacity = _TOGETHER.get(task.device.type, _TOGETHER["cpu"])
    records = max(1, min(len(features), capacity // task.elements_per_sample))
    together = max(1, capacity // (task.elements_per_sample * records))
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
            f"the outputs of {bad} of {len(outputs)} models are not finite, because their training "
            "diverged; train with a smaller learning rate"
        )


def confidences(
    task: Task, models: Vector, features: Tensor, labels: Tensor, asked: Sequence[Query]
) -> Confidences:
    """Return every model's confidence in the true class, (models, records, queries).

    It is on the logit scale, log(p/(1 - p)). A query maps the records to those that the models are
    asked about. Raise DataError if an output of a model is not finite.
    """
    found = [_answers(outputs_of(task, models, query(features)), labels) for query in asked]
    return np.stack(found, axis=-1)


def _answers(outputs: Tensor, labels: Tensor) -> Confidences:
    phi = logit_confidences(outputs, labels.expand(len(outputs), -1))
    return phi.to("cpu", torch.float64).numpy()


Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

# Two shadow models with each candidate and two without it: a variance needs two values.
FEWEST_SHADOWS = 4
# Scores of non-members for each false positive that the threshold allows.
_SCORES_PER_ALARM = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The records whose membership is guessed, as row numbers of a pool that has the members first.

    The pool has all training records of the attacked model, and then the non-members.

    Attributes:
        rows: Row numbers of the candidates.
        is_member: Whether each candidate was a training record of the target.
        known: Row numbers of the members that are no candidates; the attacker knows them.
    """

    rows: Rows
    is_member: Mask
    known: Rows

    def __len__(self) -> int:
        return len(self.rows)


def choose_candidates(
    num_members: int, num_non_members: int, wanted: int, generator: np.random.Generator
) -> Candidates:
    """Draw `wanted` candidates, half of them members, from a pool that has the members first.

    Raise ParameterError unless `wanted` is even, at least 2, and at most twice the smaller of the
    two numbers.
    """
    each = wanted // 2
    most = 2 * min(num_members, num_non_members)
    if wanted % 2 or not 2 <= wanted <= most:
        raise ParameterError(
            f"candidates must be an even number from 2 to {most}, got {wanted}: half of them are "
            f"drawn from {num_members} members and half from {num_non_members} non-members"
        )
    members = np.sort(generator.choice(num_members, each, replace=False))
    others = num_members + np.sort(generator.choice(num_non_members, each, replace=False))
    return Candidates(
        rows=np.concatenate([members, others]),
        is_member=np.arange(wanted) < each,
        known=np.setdiff1d(np.arange(num_members), members),
    )


def draw_training_masks(
    num_shadows: int, num_candidates: int, generator: np.random.Generator
) -> Mask:
    """Draw which candidates each shadow model trains on: a mask of shape (shadows, candidates).

    Rows 2 i and 2 i + 1 are complements of each other, so every candidate is in half of the rows.
    Raise ParameterError unless the number of shadow models is even and at least 4.
    """
    parameter_rules.integer(
        "shadows", num_shadows, low=FEWEST_SHADOWS, high=2**16, remedy="take more shadow models"
    )
    if num_shadows % 2:
        raise ParameterError(
            f"shadows must be an even number, got {num_shadows}: each candidate is in half of them"
        )
    masks = np.zeros((num_shadows, num_candidates), dtype=bool)
    for first in range(0, num_shadows, 2):
        half = generator.permutation(num_candidates)[: num_candidates // 2]
        masks[first, half] = True
        masks[first + 1] = ~masks[first]
    return masks


def check_enough_shadows(num_shadows: int, num_candidates: int, fpr: float) -> None:
    """Raise DataError if scores of non-members are too few for a threshold at the rate `fpr`.

    Each shadow model scores the candidates that it did not train on, which gives
    num_shadows num_candidates/2 scores of non-members; at least 10/fpr are required.
    """
    have = num_shadows // 2 * num_candidates
    needed = int(np.ceil(_SCORES_PER_ALARM / fpr - 1e-9))
    if have < needed:
        raise DataError(
            f"too few shadow models for the false positive rate {fpr:g}: {num_shadows} of them "
            f"give {have} scores of records that they did not train on, and {needed} are needed; "
            f"use at least {2 * -(-needed // num_candidates)} shadow models or more candidates, or "
            "choose a larger rate"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySearch:
    """The settings of the search for queries near a candidate.

    Attributes:
        queries: Number of queries for each candidate.
        reach: Radius of the L_inf ball around the candidate, in units of the features.
        steps: Number of steps of projected sign-gradient ascent.
    """

    queries: int = 2
    reach: float = 8.0 / 255.0
    steps: int = 10

    def __post_init__(self) -> None:
        parameter_rules.integer("queries", self.queries, low=1, high=100)
        parameter_rules.positive("reach", self.reach)
        parameter_rules.integer("steps", self.steps, low=1, high=10_000)

    @property
    def step(self) -> float:
        """The size of one step: all steps together cross the ball once, 2 reach/steps."""
        return 2.0 * self.reach / self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipScores:
    """The scores that an attack gives to candidates.

    Attributes:
        scores: One score for each target and candidate, (targets, candidates). Larger means
            "member".
        threshold: Scores above it are counted as "member" for the balanced accuracy. It must not
            depend on the targets' answers.
    """

    scores: NDArray[np.float64]
    threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackContext:
    """Everything that a membership attack may use: shadow models, targets and candidate records.

    Attributes:
        task: The model architecture and loss.
        shadows: Parameters of the shadow models, one row each.
        trained_on: Whether each shadow model trained on each candidate, bool (shadows, candidates).
        targets: Parameters of the models under attack, one row each.
        features: The candidates' features, one row each.
        labels: The candidates' class labels.
        query_search: For the canary attack only: how it searches for inputs near each candidate
            to ask the models about.
    """

    task: Task
    shadows: Vector
    trained_on: Mask
    targets: Vector
    features: Tensor
    labels: Tensor
    query_search: QuerySearch = field(default_factory=QuerySearch)
    _answers: dict[str, Confidences] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_classifies(self.task)

    @property
    def queries(self) -> list[Query]:
        """The queries as functions of a batch: the records; of images also mirrored and shifted."""
        return list(queries(self.features.shape[1:]).values())

    @property
    def shadow_answers(self) -> Confidences:
        """The shadow models' confidences in the true class, (shadows, candidates, queries).

        They are on the logit scale, log(p/(1 - p)), and computed once.
        """
        return self._confidences_of("shadows", self.shadows)

    @property
    def target_answers(self) -> Confidences:
        """The attacked models' confidences in the true class, (targets, candidates, queries).

        They are on the logit scale, log(p/(1 - p)), and computed once.
        """
        return self._confidences_of("targets", self.targets)

    def _confidences_of(self, whose: str, models: Vector) -> Confidences:
        """Return the confidences of some models, computed once for all attacks."""
        if whose not in self._answers:
            self._answers[whose] = confidences(
                self.task, models, self.features, self.labels, self.queries
            )
        return self._answers[whose]


Attack = Callable[[AttackContext, np.random.Generator], MembershipScores]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredAttack:
    """A registered attack, with its summary; `turn` orders the built-in attacks in reports."""

    attack: Attack
    summary: str
    turn: int


ATTACKS: Register[RegisteredAttack] = Register("attack", package="sottovoce.auditing.attacks")
_RETURNS = instance(MembershipScores, "sottovoce.auditing.MembershipScores")


def register(name: str, *, summary: str, turn: int = 100) -> Callable[[Attack], Attack]:
    """Return a decorator that registers a membership inference attack.

    The attack is a function of an `AttackContext` and a NumPy generator that returns a
    `MembershipScores`.

    Args:
        name: The name for `sottovoce attack membership RUN --attack NAME`.
        summary: What the attack does, in a few words.
        turn: Position among the built-in attacks; smaller comes first.

    Returns:
        The decorator. It returns the function unchanged, or raises PluginError if another source
        has registered the name.
    """

    def enter(attack: Attack) -> Attack:
        checked = with_checked_results(ATTACKS, name, attack, _RETURNS)
        registered = RegisteredAttack(attack=checked, summary=summary, turn=turn)
        ATTACKS.enter(name, registered, module=attack.__module__)
        return attack

    return enter


OnAttack = Callable[[str], None]


def _ignore(_attack: str) -> None:
    pass


def own_attacks() -> tuple[str, ...]:
    """Return the names of the built-in attacks in their order; plug-ins are not included."""
    known = ATTACKS.ours()
    return tuple(sorted(known, key=lambda name: known[name].turn))


def run_attacks(
    context: AttackContext,
    attacks: Sequence[str],
    generator: np.random.Generator,
    on_attack: OnAttack = _ignore,
) -> dict[str, MembershipScores]:
    """Run some attacks and return their scores by name, in the order of `attacks`.

    `on_attack` is called with the name of each attack before it starts. Raise UnknownNameError if a
    name is not registered, and DataError if an attack returns scores of a wrong shape or NaN.
    """
    chosen = {name: ATTACKS.find(name).attack for name in attacks}
    found: dict[str, MembershipScores] = {}
    for name, attack in chosen.items():
        on_attack(name)
        found[name] = _check_scores(name, attack(context, generator), context)
    return found


def _check_scores(name: str, scored: MembershipScores, context: AttackContext) -> MembershipScores:
    """Return the scores; raise unless there is one number for each target and candidate."""
    wanted = len(context.targets), len(context.labels)
    if np.shape(scored.scores) != wanted or np.isnan(scored.scores).any():
        raise DataError(
            f"attack '{name}' must return scores of shape {wanted}, one number for each target and "
            f"candidate, but returned shape {np.shape(scored.scores)} or a NaN; correct the attack"
        )
    return scored
