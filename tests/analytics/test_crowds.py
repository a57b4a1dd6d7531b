"""The charge of a code among many, against the exact law of the counts of a few people."""

import itertools
from collections.abc import Sequence

import pytest
from crowd_laws import counts_law, delta_of, signs

from sottovoce.analytics.estimates import question_for
from sottovoce.analytics.histogram import HistogramQuestion
from sottovoce.privacy.accounting import privacy_spent

PEOPLE = 5


def _question() -> HistogramQuestion:
    found = question_for(
        "histogram",
        categories=("a", "b", "c"),
        epsilon=1.0,
        mechanism="hadamard_response",
        public_seed=1,
    )
    assert isinstance(found, HistogramQuestion)
    return found


def _worst_delta(question: HistogramQuestion, rows: Sequence[Sequence[int]], eps: float) -> float:
    """The exact delta of the first person over all inputs; `rows` says who is asked what."""
    own = [signs(question, x, rows[0]) for x in range(4)]
    worst = 0.0
    for others in itertools.product(range(4), repeat=2):  # the other people are two kinds
        crowd = [signs(question, others[i % 2], rows[i]) for i in range(1, PEOPLE)]
        laws = [counts_law([mine, *crowd]) for mine in own]
        worst = max(
            worst, *(delta_of(one, two, eps) for one, two in itertools.permutations(laws, 2))
        )
    return worst


@pytest.mark.parametrize("delta", [pytest.param(0.15, marks=pytest.mark.slow), 0.05])
def test_counts_with_secret_rows_cost_no_more_than_is_charged(delta: float) -> None:
    question = _question()
    epsilon = privacy_spent(question.event_among(PEOPLE), delta).epsilon
    assert epsilon < 0.95  # the crowd helps
    assert _worst_delta(question, [[1, 2, 3]] * PEOPLE, epsilon) <= delta * (1.0 + 1e-9)


def test_with_public_rows_the_same_charge_would_be_too_low() -> None:
    """A person who alone is asked something is seen, however many others answer."""
    question, delta = _question(), 0.15
    epsilon = privacy_spent(question.event_among(PEOPLE), delta).epsilon
    rows = [[1], [2], [2], [3], [3]]
    assert _worst_delta(question, rows, epsilon) > delta
