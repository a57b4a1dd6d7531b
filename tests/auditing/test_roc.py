import math

import numpy as np
import pytest
from scipy.stats import norm

from sottovoce.auditing.attacks import roc
from sottovoce.auditing.attacks.roc import IntervalEstimate, ScoresByMembership
from sottovoce.core.errors import DataError, ParameterError

SHIFT = 1.0  # members' scores are N(SHIFT, 1), the others' N(0, 1)


def drawn(
    generator: np.random.Generator, members: int, others: int, shift: float
) -> ScoresByMembership:
    return ScoresByMembership(
        members=generator.normal(shift, 1.0, members), non_members=generator.normal(size=others)
    )


def covers(estimate: IntervalEstimate, truth: float) -> bool:
    return estimate.low <= truth <= estimate.high


@pytest.mark.parametrize(("shift", "sizes"), [(SHIFT, (80, 60)), (0.0, (60, 90))])
def test_intervals_hold_the_truth_as_often_as_they_say(
    shift: float, sizes: tuple[int, int]
) -> None:
    generator, trials = np.random.default_rng(0), 600
    truth = (
        float(norm.sf(norm.isf(0.05) - shift)),
        float(norm.cdf(shift / math.sqrt(2.0))),
        float(norm.cdf(shift / 2.0)),
    )
    hits = np.zeros(3)
    for _ in range(trials):
        verdicts = drawn(generator, *sizes, shift)
        found = (
            roc.true_positive_rate(verdicts, 0.05),
            roc.area(verdicts),
            roc.balanced_accuracy(verdicts, shift / 2.0),
        )
        hits += [covers(one, value) for one, value in zip(found, truth, strict=True)]
    # 95%, less three standard deviations of 600 trials.
    assert (hits / trials >= 0.95 - 3.0 * math.sqrt(0.95 * 0.05 / trials)).all(), hits / trials


def test_figures_are_those_of_the_definition() -> None:
    verdicts = ScoresByMembership.of([0.9, 0.8, 0.4, 0.7, 0.3, 0.1, 0.0], [1, 1, 1, 0, 0, 0, 0])
    assert roc.true_positive_rate(verdicts, 0.25).value == 1.0  # 0.4 lies above 0.3, one alarm
    assert roc.area(verdicts).value == pytest.approx(11 / 12)
    assert roc.balanced_accuracy(verdicts, 0.35).value == pytest.approx(0.5 * (1.0 + 0.75))
    alarms, hits = roc.curve(verdicts)
    assert alarms == [0.0, 0.0, 0.25, 0.25, 0.5, 0.75, 1.0]
    assert hits == pytest.approx([1 / 3, 2 / 3, 2 / 3, 1, 1, 1, 1])


def test_scores_that_tie_raise_no_rate() -> None:
    same = ScoresByMembership(members=np.zeros(200), non_members=np.zeros(200))
    rate = roc.true_positive_rate(same, 0.01)
    assert (rate.value, rate.low) == (0.0, 0.0)
    assert rate.contains_chance
    assert roc.area(same).value == 0.5
    assert roc.area(same).contains_chance


def test_separated_scores_prove_no_certainty() -> None:
    apart = ScoresByMembership(members=np.arange(10.0) + 100.0, non_members=np.arange(10.0))
    area = roc.area(apart)
    assert area.value == area.high == 1.0
    assert 0.6 < area.low < 0.95
    rate = roc.true_positive_rate(apart, 0.1)
    assert (rate.value, rate.high) == (1.0, 1.0)
    assert rate.low == 0.0  # of ten non-members, none may lie above the true threshold


def test_bad_input_is_refused() -> None:
    few = ScoresByMembership(members=np.zeros(5), non_members=np.zeros(99))
    with pytest.raises(
        DataError, match=r"too few non-members .* 0.01: there are 99.* at least 100"
    ):
        roc.true_positive_rate(few, 0.01)
    with pytest.raises(DataError, match="give both members and non-members"):
        ScoresByMembership.of([1.0, 2.0], [True, True])
    with pytest.raises(ParameterError, match="a score is NaN"):
        ScoresByMembership.of([1.0, math.nan], [True, False])
    with pytest.raises(ParameterError, match="one score and one truth value for each candidate"):
        ScoresByMembership.of([1.0], [True, False])
