"""Sets chosen on some scores and counted on others: valid, and not far from the truth."""

import numpy as np
import pytest

from sottovoce.auditing.lower_bounds import DrawScores, judge
from sottovoce.auditing.verdict import Certificate, ErrorShares, Verdict
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.display import show_lower
from sottovoce.core.errors import ParameterError
from sottovoce.privacy.events import GaussianNoise, NonPrivate

CERTIFICATE = Certificate(event=GaussianNoise(mu=1.0, adjacency=Adjacency.ZERO_OUT), delta=1e-5)


def verdict_of(mu: float, draws: int, seed: int, expected: str = "frequencies") -> Verdict:
    generator = np.random.default_rng(seed)
    scores = DrawScores(first=generator.normal(mu, size=draws), second=generator.normal(size=draws))
    return judge(
        [scores],
        CERTIFICATE,
        choosing=draws // 10,
        confidence=0.9,
        method="test",
        expected=expected,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("expected", ["frequencies", "normal"])
def test_an_honest_mechanism_is_rarely_accused(expected: str) -> None:
    """At confidence 0.9: more than 12 of 40 alarms would have a chance of some 1e-4."""
    verdicts = [verdict_of(1.0, 2000, seed, expected) for seed in range(40)]
    assert sum(verdict.violated for verdict in verdicts) <= 12
    assert np.mean([verdict.points[0].measured_delta for verdict in verdicts]) > 0.3  # of .383


@pytest.mark.parametrize("expected", ["frequencies", "normal"])
def test_half_of_the_noise_is_found_near_epsilon_0(expected: str) -> None:
    verdict = verdict_of(2.0, 2000, 1, expected)
    assert verdict.violated
    assert verdict.lower_bound < verdict.certified  # at delta = 1e-5 it is not
    assert verdict.points[0].violated
    assert "delta is at least" in verdict.finding


def test_the_other_neighbor_may_be_the_one_that_tells() -> None:
    """Scores of the first are all in the middle: only 'below' or 'above' the second's tells."""
    generator = np.random.default_rng(0)
    second = np.where(generator.random(5000) < 0.5, -9.0, 0.0)
    verdict = judge(
        [DrawScores(first=np.zeros(5000), second=second)],
        CERTIFICATE,
        choosing=500,
        confidence=0.999,
        method="test",
    )
    assert verdict.points[0].measured_delta == pytest.approx(0.5, abs=0.05)
    assert verdict.lower_bound > 4.0


def test_the_error_is_shared_out_once() -> None:
    shares = ErrorShares.of(0.999, 5)
    total = shares.at_delta + 5 * shares.at_each_point + shares.of_the_law
    assert total == pytest.approx(0.001)
    for confidence in (0.2, 1.0, float("nan")):
        with pytest.raises(ParameterError, match="confidence"):
            ErrorShares.of(confidence, 5)


def test_too_few_draws_are_refused() -> None:
    few = DrawScores(first=np.arange(20.0), second=np.arange(20.0))
    for choosing in (2, 19):
        with pytest.raises(ParameterError, match="at least 8"):
            judge([few], CERTIFICATE, choosing=choosing, confidence=0.9, method="test")


def test_without_a_guarantee_nothing_is_violated() -> None:
    none = Certificate(event=NonPrivate(adjacency=Adjacency.ZERO_OUT), delta=1e-5)
    scores = DrawScores(first=np.ones(1000), second=np.zeros(1000))
    verdict = judge([scores], none, choosing=100, confidence=0.999, method="test")
    assert (verdict.violated, verdict.points) == (False, ())
    assert verdict.plain()["certified"] is verdict.plain()["gap"] is None
    assert 4.0 < verdict.lower_bound < 10.0


def test_a_lower_bound_is_printed_rounded_down() -> None:
    assert show_lower(0.99999) == "0.9999"
