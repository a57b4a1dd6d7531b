"""Who is asked in a round.

The server sees who answers, so sampling amplifies no privacy by itself: only where somebody trusted
adds up and keeps the sample to himself (`channels.central`).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import SeededRandomness


@dataclass(frozen=True, slots=True, kw_only=True)
class Everyone:
    """Every client in every round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Each client independently with probability `rate`."""

    rate: float

    def __post_init__(self) -> None:
        parameter_rules.fraction("rate", self.rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSize:
    """Exactly `size` clients, without replacement."""

    size: int

    def __post_init__(self) -> None:
        parameter_rules.integer("size", self.size, low=1, high=2**31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs:
    """`size` clients a round, and every client once an epoch, in a new random order each time.

    So a client takes part in ceil(rounds/rounds of an epoch) rounds at most, and pays for no more.
    """

    size: int

    def __post_init__(self) -> None:
        parameter_rules.integer("size", self.size, low=1, high=2**31)

    def rounds_of_an_epoch(self, num_clients: int) -> int:
        return -(-num_clients // self.size)


ClientSampling = Everyone | Poisson | FixedSize | Epochs


def most_participations(sampling: ClientSampling, num_clients: int, rounds: int) -> int:
    """In how many of so many rounds one client can be asked."""
    if isinstance(sampling, Epochs):
        return -(-rounds // sampling.rounds_of_an_epoch(num_clients))
    return rounds


def draw(
    sampling: ClientSampling, num_clients: int, schedule: SeededRandomness, number: int
) -> list[int]:
    """Positions of the clients of a round, in increasing order; rounds are counted from 1."""
    generator = schedule.generator("cohort", number)
    match sampling:
        case Everyone():
            return list(range(num_clients))
        case Poisson(rate=rate):
            return [int(i) for i in np.flatnonzero(generator.random(num_clients) < rate)]
        case FixedSize(size=size):
            _check_size(size, num_clients)
            return sorted(int(i) for i in generator.choice(num_clients, size, replace=False))
        case Epochs(size=size):
            _check_size(size, num_clients)
            epoch, place = divmod(number - 1, sampling.rounds_of_an_epoch(num_clients))
            order = _order(schedule, epoch, num_clients)
            return sorted(order[place * size : (place + 1) * size].tolist())
        case _:
            assert_never(sampling)


@lru_cache(maxsize=2)  # the rounds of an epoch share it
def _order(schedule: SeededRandomness, epoch: int, num_clients: int) -> NDArray[np.int64]:
    return schedule.generator("epoch", epoch).permutation(num_clients)


def _check_size(size: int, num_clients: int) -> None:
    if size > num_clients:
        raise ParameterError(
            f"sampling size {size} exceeds the {num_clients} clients; ask for fewer"
        )
