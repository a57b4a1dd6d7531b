"""What a membership attack is given, what it answers, and the register of such attacks.

    @register("foo", summary="...")
    def foo(siege: Siege, generator: np.random.Generator) -> Scored: ...

Drop the file into `attacks/`, or name its module under the entry point group `sottovoce.attacks`
(see `sottovoce.core.registry`); then `sottovoce attack membership RUN --attack foo` runs it.

All membership attacks on one or several targets, from the same shadow models.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.auditing.attacks import confidences
from sottovoce.auditing.attacks.candidates import Mask
from sottovoce.auditing.attacks.confidences import Confidences, Query
from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.core.errors import DataError
from sottovoce.core.plugin_returns import held, instance
from sottovoce.core.registry import Register
from sottovoce.learning.task import Task


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
        confidences.check_classifies(self.task)

    @property
    def queries(self) -> list[Query]:
        return list(confidences.queries(self.features.shape[1:]).values())

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
            self._answers[whose] = confidences.confidences(
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
