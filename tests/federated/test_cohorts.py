from dataclasses import dataclass

import numpy as np
import pytest

from sottovoce.core.errors import ConfigError, ParameterError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.cohorts import (
    ClientSampling,
    Epochs,
    Everyone,
    FixedSize,
    Poisson,
    draw,
    draw_positions,
)

SCHEDULE = SeededRandomness(0)


def test_everyone_is_everyone() -> None:
    assert draw(Everyone(), 4, SCHEDULE, 1) == [0, 1, 2, 3]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstOfPoisson(Poisson):
    """What a plug-in may define: only the list."""

    def draw(self, num_clients: int, schedule: SeededRandomness, number: int) -> list[int]:
        return [0]


@pytest.mark.parametrize(
    "sampling",
    [Everyone(), Poisson(rate=0.3), FixedSize(size=3), Epochs(size=4), FirstOfPoisson(rate=0.3)],
)
def test_cohorts_as_arrays_are_those_as_lists(sampling: ClientSampling) -> None:
    for number in range(1, 5):
        found = draw_positions(sampling, 10, SCHEDULE, number)
        assert found.dtype == np.int64
        assert found.tolist() == draw(sampling, 10, SCHEDULE, number)


def test_fixed_size_draws_distinct_clients() -> None:
    for number in range(1, 21):
        cohort = draw(FixedSize(size=3), 5, SCHEDULE, number)
        assert len(set(cohort)) == 3
        assert cohort == sorted(cohort)


def test_poisson_asks_each_client_at_its_rate() -> None:
    counts = np.zeros(50)
    for number in range(1, 2001):
        counts[draw(Poisson(rate=0.3), 50, SCHEDULE, number)] += 1
    # Binomial(2000, .3): standard deviation 20.5; five of them.
    assert np.abs(counts - 600).max() < 103


@pytest.mark.parametrize(("clients", "size"), [(10, 5), (10, 4), (7, 7), (9, 1)])
def test_an_epoch_asks_everyone_once_in_an_order_of_its_own(clients: int, size: int) -> None:
    sampling = Epochs(size=size)
    rounds = sampling.rounds_of_an_epoch(clients)
    epochs = [
        [draw(sampling, clients, SCHEDULE, epoch * rounds + i + 1) for i in range(rounds)]
        for epoch in range(3)
    ]
    for cohorts in epochs:
        assert sorted(i for cohort in cohorts for i in cohort) == list(range(clients))
        assert all(len(cohort) <= size for cohort in cohorts)
    if rounds > 1:
        assert epochs[0] != epochs[1]


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 7])
def test_no_client_takes_part_more_often_than_is_promised(rounds: int) -> None:
    for sampling in (Everyone(), FixedSize(size=2), Epochs(size=4), Epochs(size=10)):
        counts = np.zeros(10)
        for number in range(1, rounds + 1):
            counts[draw(sampling, 10, SCHEDULE, number)] += 1
        assert counts.max() <= sampling.most_participations(10, rounds)
    assert Epochs(size=4).most_participations(10, 3) == 1
    assert Epochs(size=4).most_participations(10, 4) == 2


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan")])
def test_a_senseless_rate_is_refused(rate: float) -> None:
    with pytest.raises(ParameterError, match="rate"):
        Poisson(rate=rate)


@pytest.mark.parametrize("sampling", [FixedSize(size=6), Epochs(size=6)])
def test_a_cohort_larger_than_the_population_is_refused(sampling: FixedSize | Epochs) -> None:
    with pytest.raises(ConfigError, match="exceeds the 5 clients"):
        draw(sampling, 5, SCHEDULE, 1)
