"""Steinke, Nasr and Jagielski's bound, against enumeration and randomised response."""

import math

import numpy as np
import pytest
from cases import denser
from scipy.stats import binom

from sottovoce.auditing.lower_bounds import (
    count_right_guesses,
    judge_one_run,
    largest_refuted_delta,
    largest_refuted_epsilon,
    p_value,
)
from sottovoce.auditing.verdict import Certificate
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import ParameterError
from sottovoce.privacy.events import PureDp


def test_without_delta_the_p_value_is_the_binomial_tail() -> None:
    share = math.exp(1.0) / (1.0 + math.exp(1.0))
    found = p_value(canaries=100, guesses=40, right=35, epsilon=1.0, delta=0.0)
    assert found == pytest.approx(binom.sf(34, 40, share), rel=1e-12)


def test_what_delta_adds_is_the_largest_quotient_of_the_theorem() -> None:
    m, r, v, epsilon, delta = 50, 30, 22, 0.7, 1e-3
    tail = [binom.sf(k - 1, r, 1.0 / (1.0 + math.exp(-epsilon))) for k in range(-m, r + 1)]

    def f(k: int) -> float:
        return float(tail[k + m])

    worst = max((f(v - i) - f(v)) / i for i in range(1, m + 1))
    found = p_value(canaries=m, guesses=r, right=v, epsilon=epsilon, delta=delta)
    assert found == pytest.approx(f(v) + 2 * m * delta * worst, rel=1e-9)


@pytest.mark.parametrize("epsilon", denser([0.5, 2.0]))
def test_the_bound_covers_randomized_response_exactly(epsilon: float) -> None:
    """W is binomial there, so the chance that the bound exceeds epsilon is enumerated."""
    m, share = 400, 1.0 / (1.0 + math.exp(-epsilon))
    every = np.arange(m + 1)
    likely = every[binom.pmf(every, m, share) > 1e-12]
    pmf = binom.pmf(likely, m, share)
    bounds = np.array(
        [
            largest_refuted_epsilon(canaries=m, guesses=m, right=w, delta=0.0, error=0.05)
            for w in likely
        ]
    )
    others = 1.0 - pmf.sum()
    assert 0.03 < pmf[bounds > epsilon].sum() + others <= 0.05  # valid, and with little to spare
    assert pmf @ bounds > epsilon - 0.5


def test_many_canaries_come_near_the_truth() -> None:
    m = 100_000
    right = round(m / (1.0 + math.exp(-2.0)))
    found = largest_refuted_epsilon(canaries=m, guesses=m, right=right, delta=1e-9, error=0.001)
    assert 1.95 < found < 2.0


def test_the_refuted_delta_has_the_error_as_its_p_value() -> None:
    def refuted(right: int) -> float:
        return largest_refuted_delta(
            canaries=1000, guesses=300, right=right, epsilon=1.0, error=0.01
        )

    delta = refuted(290)
    assert 0.0 < delta < 1.0
    found = p_value(canaries=1000, guesses=300, right=290, epsilon=1.0, delta=delta)
    assert found == pytest.approx(0.01)
    assert refuted(200) == 0.0


def test_guesses_are_the_outer_scores() -> None:
    coins = np.array([1, 1, -1, -1, 1])
    scores = np.array([3.0, 2.0, -5.0, 9.0, 0.0])
    assert count_right_guesses(scores, coins, 5) == 3  # out: 2, 4; in: 1, 0, 3
    assert count_right_guesses(scores, coins, 2) == 1  # out: 2; in: 3
    assert count_right_guesses(scores, coins, 1) == 0
    with pytest.raises(ParameterError, match="at most the number of canaries"):
        count_right_guesses(scores, coins, 6)


@pytest.mark.parametrize(("real", "violated"), [(1.0, False), (2.0, True)])
def test_a_run_that_leaks_more_than_is_certified_is_found(real: float, violated: bool) -> None:
    generator = np.random.default_rng(4)
    coins = generator.choice([-1, 1], 4000)
    kept = generator.random(4000) < 1.0 / (1.0 + math.exp(-real))
    certificate = Certificate(event=PureDp(epsilon=1.0, adjacency=Adjacency.ZERO_OUT), delta=1e-6)
    verdict = judge_one_run(
        np.where(kept, coins, -coins) + generator.normal(size=4000) * 0.01,
        coins,
        certificate,
        confidence=0.999,
        method="test",
    )
    assert verdict.violated is violated
    assert real - 0.3 < verdict.lower_bound < real
