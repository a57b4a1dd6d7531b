"""What a checkpoint holds."""

from dataclasses import dataclass

from sottovoce.core.domains import Vector
from sottovoce.federated.algorithms.algorithm import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Everything that changes from round to round."""

    rounds_done: int
    model: Vector
    algorithm_state: State
