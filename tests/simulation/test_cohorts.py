import numpy as np
import pytest

from sottovoce.errors import ParameterError
from sottovoce.simulation.cohorts import Everyone, FixedSize, Poisson, draw


def test_everyone_is_everyone() -> None:
    assert draw(Everyone(), 4, np.random.default_rng(0)) == [0, 1, 2, 3]


def test_fixed_size_draws_distinct_clients() -> None:
    for seed in range(20):
        cohort = draw(FixedSize(size=3), 5, np.random.default_rng(seed))
        assert len(set(cohort)) == 3
        assert cohort == sorted(cohort)


def test_poisson_asks_each_client_at_its_rate() -> None:
    generator = np.random.default_rng(0)
    counts = np.zeros(50)
    for _ in range(2000):
        counts[draw(Poisson(rate=0.3), 50, generator)] += 1
    # Binomial(2000, .3): standard deviation 20.5; five of them.
    assert np.abs(counts - 600).max() < 103


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan")])
def test_a_senseless_rate_is_refused(rate: float) -> None:
    with pytest.raises(ParameterError, match="rate"):
        Poisson(rate=rate)


def test_a_cohort_larger_than_the_population_is_refused() -> None:
    with pytest.raises(ParameterError, match="exceeds the 5 clients"):
        draw(FixedSize(size=6), 5, np.random.default_rng(0))
