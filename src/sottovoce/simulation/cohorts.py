"""Who is asked in a round. The server sees who answers, so sampling amplifies no privacy here."""

from dataclasses import dataclass
from typing import assert_never

import numpy as np

from sottovoce import parameters
from sottovoce.errors import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Everyone:
    """Every client in every round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Each client independently with probability `rate`."""

    rate: float

    def __post_init__(self) -> None:
        parameters.fraction("rate", self.rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSize:
    """Exactly `size` clients, without replacement."""

    size: int

    def __post_init__(self) -> None:
        parameters.integer("size", self.size, low=1, high=2**31)


ClientSampling = Everyone | Poisson | FixedSize


def draw(sampling: ClientSampling, num_clients: int, generator: np.random.Generator) -> list[int]:
    """Positions of the clients of a round, in increasing order."""
    match sampling:
        case Everyone():
            return list(range(num_clients))
        case Poisson(rate=rate):
            return [int(i) for i in np.flatnonzero(generator.random(num_clients) < rate)]
        case FixedSize(size=size):
            if size > num_clients:
                raise ParameterError(
                    f"sampling size {size} exceeds the {num_clients} clients; ask for fewer"
                )
            return sorted(int(i) for i in generator.choice(num_clients, size, replace=False))
        case _:
            assert_never(sampling)
