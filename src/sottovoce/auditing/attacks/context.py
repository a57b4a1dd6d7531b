"""What a membership attack is given, what it answers, and the register of such attacks.

    @register("foo", summary="...")
    def foo(siege: Siege, generator: np.random.Generator) -> Scored: ...

Drop the file into `attacks/`, or name its module under the entry point group `sottovoce.attacks`
(see `sottovoce.core.registry`); then `sottovoce attack membership RUN --attack foo` runs it.

All attacks on one or several targets use the same shadow models. Whose membership is guessed, and
which shadow model trains on whom:

    candidates   as many members as non-members of the target; the attacker knows them all.
    known        the target's other records: granted to the attacker, as differential privacy grants
                 everything but one record, so shadow models are as large as their target.

Shadows come in pairs: one trains on a random half of the candidates, the other on the other half.
So every candidate is in exactly half of them, and each shadow has half of the candidates.

What models say about records is the confidence in the true class, on a scale without ends:

    phi = log(p_y/(1 - p_y)) = z_y - log sum_{j != y} exp(z_j)

Computed from the outputs z, so that a confidence of 1 - 1e-30 is a number like any other. It is
about normal over retrained models (Carlini et al. 2022, section V.C).
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
from sottovoce.core.plugin_returns import held, instance
from sottovoce.core.registry import Register
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


Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

FEWEST_SHADOWS = 4  # two with each candidate, two without: a spread needs two
_SCORES_PER_ALARM = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Rows of a pool in which the members come first; `is_member` says who is one."""

    rows: Rows
    is_member: Mask
    known: Rows

    def __len__(self) -> int:
        return len(self.rows)


def choose(
    num_members: int, num_non_members: int, wanted: int, generator: np.random.Generator
) -> Candidates:
    """`wanted` candidates at random, half of them members, of a pool with the members first."""
    each = wanted // 2
    most = 2 * min(num_members, num_non_members)
    if wanted % 2 or not 2 <= wanted <= most:
        raise ParameterError(
            f"candidates must be an even number from 2 to {most}, got {wanted}: half of them are "
            f"members, of which there are {num_members}, and half of the {num_non_members} others"
        )
    members = np.sort(generator.choice(num_members, each, replace=False))
    others = num_members + np.sort(generator.choice(num_non_members, each, replace=False))
    return Candidates(
        rows=np.concatenate([members, others]),
        is_member=np.arange(wanted) < each,
        known=np.setdiff1d(np.arange(num_members), members),
    )


def design(num_shadows: int, num_candidates: int, generator: np.random.Generator) -> Mask:
    """(shadows, candidates): who trains on whom."""
    parameter_rules.integer(
        "shadows", num_shadows, low=FEWEST_SHADOWS, high=2**16, remedy="take more shadow models"
    )
    if num_shadows % 2:
        raise ParameterError(
            f"shadows must be an even number, got {num_shadows}: every candidate is in half of them"
        )
    masks = np.zeros((num_shadows, num_candidates), dtype=bool)
    for first in range(0, num_shadows, 2):
        half = generator.permutation(num_candidates)[: num_candidates // 2]
        masks[first, half] = True
        masks[first + 1] = ~masks[first]
    return masks


def check_enough(num_shadows: int, num_candidates: int, fpr: float) -> None:
    """Shadows without a candidate must give enough scores to place the attacker's threshold."""
    have = num_shadows // 2 * num_candidates
    needed = int(np.ceil(_SCORES_PER_ALARM / fpr - 1e-9))
    if have < needed:
        raise DataError(
            f"too few shadow models for the false-positive rate {fpr:g}: {num_shadows} of them "
            f"give {have} scores of records that they never saw, and {needed} are needed; take "
            f"{2 * -(-needed // num_candidates)} shadows or more candidates, or ask for a larger "
            "rate"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """How queries are made: how many a candidate, how far from it at most, in how many steps."""

    queries: int = 2
    reach: float = 8.0 / 255.0
    steps: int = 10

    def __post_init__(self) -> None:
        parameter_rules.integer("queries", self.queries, low=1, high=100)
        parameter_rules.positive("reach", self.reach)
        parameter_rules.integer("steps", self.steps, low=1, high=10_000)

    @property
    def step(self) -> float:
        """Twice the reach in all: from one side of the ball to the other."""
        return 2.0 * self.reach / self.steps


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
    _answers: dict[str, Confidences] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_classifies(self.task)

    @property
    def queries(self) -> list[Query]:
        return list(queries(self.features.shape[1:]).values())

    @property
    def shadow_answers(self) -> Confidences:
        """(shadows, candidates, queries): how sure shadows are of each record and its mirrors."""
        return self._answered("shadows", self.shadows)

    @property
    def target_answers(self) -> Confidences:
        """(targets, candidates, queries), likewise."""
        return self._answered("targets", self.targets)

    def _answered(self, whose: str, models: Vector) -> Confidences:
        """Several attacks ask the same; models are asked once."""
        if whose not in self._answers:
            self._answers[whose] = confidences(
                self.task, models, self.features, self.labels, self.queries
            )
        return self._answers[whose]


Attack = Callable[[Siege, np.random.Generator], Scored]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """An attack, what it does in a few words, and its turn among all that are asked for."""

    attack: Attack
    summary: str
    turn: int


ATTACKS: Register[Registered] = Register("attack", package="sottovoce.auditing.attacks")
_RETURNS = instance(Scored, "sottovoce.auditing.Scored")


def register(name: str, *, summary: str, turn: int = 100) -> Callable[[Attack], Attack]:
    """Function decorator that enters a membership attack."""

    def enter(attack: Attack) -> Attack:
        checked = held(ATTACKS, name, attack, _RETURNS)
        registered = Registered(attack=checked, summary=summary, turn=turn)
        ATTACKS.enter(name, registered, module=attack.__module__)
        return attack

    return enter


OnAttack = Callable[[str], None]


def _ignore(_attack: str) -> None:
    """Nobody watches."""


def own_attacks() -> tuple[str, ...]:
    """The names of our own attacks, in their turn; plug-ins are run where they are asked for."""
    known = ATTACKS.ours()
    return tuple(sorted(known, key=lambda name: known[name].turn))


def scored(
    siege: Siege,
    attacks: Sequence[str],
    generator: np.random.Generator,
    on_attack: OnAttack = _ignore,
) -> dict[str, Scored]:
    """Every attack's scores, in the order asked for."""
    chosen = {name: ATTACKS.find(name).attack for name in attacks}
    found: dict[str, Scored] = {}
    for name, attack in chosen.items():
        on_attack(name)
        found[name] = _checked(name, attack(siege, generator), siege)
    return found


def _checked(name: str, scored: Scored, siege: Siege) -> Scored:
    """Scores that are numbers, one for each target and candidate."""
    wanted = len(siege.targets), len(siege.labels)
    if np.shape(scored.scores) != wanted or np.isnan(scored.scores).any():
        raise DataError(
            f"attack '{name}' must give {wanted[0]} times {wanted[1]} numbers, one for each target "
            f"and candidate, and gave {np.shape(scored.scores)}, or NaN; mend it"
        )
    return scored
