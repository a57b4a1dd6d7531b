"""Clopper and Pearson's bounds: their coverage is enumerated, not sampled."""

import math

import numpy as np
import pytest
from cases import denser
from scipy.stats import binom

from sottovoce.auditing.lower_bounds import Hits
from sottovoce.core import statistics
from sottovoce.core.errors import ParameterError


@pytest.mark.parametrize("trials", [1, 7, 40])
@pytest.mark.parametrize("error", denser([0.2, 0.001]))
def test_each_bound_is_wrong_with_no_more_than_its_error(trials: int, error: float) -> None:
    hits = np.arange(trials + 1)
    low, high = (
        statistics.lower(hits, trials, error),
        statistics.upper(hits, trials, error),
    )
    for p in (*np.linspace(0.0, 1.0, 101), *low, *high):
        pmf = binom.pmf(hits, trials, p)
        assert pmf[low > p * (1.0 + 1e-9)].sum() <= error * (1.0 + 1e-9)
        assert pmf[high < p * (1.0 - 1e-9)].sum() <= error * (1.0 + 1e-9)


def test_the_bounds_are_where_the_tail_is_the_error() -> None:
    assert binom.sf(29, 100, statistics.lower(30, 100, 0.001)) == pytest.approx(0.001)
    assert binom.cdf(30, 100, statistics.upper(30, 100, 0.001)) == pytest.approx(0.001)
    assert float(statistics.lower(0, 9, 0.01)) == 0.0
    assert float(statistics.upper(9, 9, 0.01)) == 1.0
    assert statistics.upper(0, 9, 0.01) == pytest.approx(1.0 - 0.01 ** (1 / 9))


def test_hits_bound_delta_and_epsilon_by_the_two_bounds_together() -> None:
    hits = Hits(first=900, first_trials=1000, second=100, second_trials=1000)
    p, q = statistics.lower(900, 1000, 0.005), statistics.upper(100, 1000, 0.005)
    assert hits.delta(0.5, 0.01) == pytest.approx(p - math.exp(0.5) * q)
    assert hits.epsilon(0.01, 0.01) == pytest.approx(math.log((p - 0.01) / q))
    none = Hits(first=1, first_trials=1000, second=900, second_trials=1000)
    assert none.delta(3.0, 0.01) == none.epsilon(0.5, 0.01) == 0.0
    assert hits.delta(1e4, 0.01) == 0.0


def test_the_total_variation_is_covered_for_every_pair_of_probabilities() -> None:
    """One bound for draws of two kinds: its coverage is enumerated too."""
    n, error = 12, 0.05
    counts = np.arange(n + 1)
    bounds = np.array(
        [
            [
                Hits(first=a, first_trials=n, second=b, second_trials=n).delta(0.0, error)
                for b in counts.tolist()
            ]
            for a in counts.tolist()
        ]
    )
    tightest = 0.0
    for p in np.linspace(0.0, 1.0, 41):
        for q in np.linspace(0.0, p, 21):
            chance = np.outer(binom.pmf(counts, n, p), binom.pmf(counts, n, q))
            wrong = float(chance[bounds > p - q + 1e-12].sum())
            assert wrong <= error
            tightest = max(tightest, wrong)
    assert tightest > 0.5 * error


def test_counts_that_cannot_be_are_refused() -> None:
    for hits, trials in ((-1, 5), (6, 5), (0, 0)):
        with pytest.raises(ParameterError, match="trial"):
            statistics.lower(hits, trials, 0.1)
    with pytest.raises(ParameterError, match="error"):
        statistics.upper(1, 5, 0.0)
