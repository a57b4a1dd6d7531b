"""The exact law of how often each message is sent by a few people, and its divergences."""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np

from sottovoce.analytics import transforms
from sottovoce.analytics.assignment import secret_numbers
from sottovoce.analytics.histogram import HADAMARD, HistogramQuestion
from sottovoce.analytics.quantiles import HAAR, QuantilesQuestion
from sottovoce.analytics.randomizers import Randomizer
from sottovoce.analytics.tallies import CodeCounts

Law = dict[tuple[int, ...], float]


def signs(question: HistogramQuestion, category: int, rows: Sequence[int]) -> np.ndarray:
    """The law of one person's message: a row of the matrix, evenly from `rows`, and a sign."""
    law = np.zeros((question.order - 1, 2))
    for row in rows:
        (sign,) = transforms.is_negative(np.array([row]), np.array([category])).astype(int)
        law[row - 1, sign] = question.randomizer.kept / len(rows)
        law[row - 1, 1 - sign] = question.randomizer.other / len(rows)
    return law.ravel()


def cell_law(question: HistogramQuestion | QuantilesQuestion, value: object) -> np.ndarray:
    """The law of the cell of one person with this value, who draws in secret what is asked.

    What is sent without noise is read off the question's own answers to many secret numbers.
    """
    numbers = secret_numbers(4096)
    with mock.patch.object(Randomizer, "answer", _without_noise):
        codes = question.answer(np.full(len(numbers), value), mock.Mock(), numbers)
    tally = question.tally(codes, numbers)
    assert isinstance(tally, CodeCounts)
    sent = tally.counts > 0
    chances = _chances(question)
    assert (sent.sum(axis=1) == (chances > 0)).all()
    own = np.where(sent, question.randomizer.kept, question.randomizer.other)
    law: np.ndarray = (own * chances[:, None]).ravel()
    assert abs(law.sum() - 1.0) < 1e-12
    return law


def _without_noise(_: Randomizer, values: Any, keystream: object) -> Any:
    return values.astype(np.uint8)


def _chances(question: HistogramQuestion | QuantilesQuestion) -> np.ndarray:
    """The probability with which a person is asked each sub-question."""
    if isinstance(question, HistogramQuestion) and question.mechanism == HADAMARD:
        return np.array([0.0, *[1.0 / (question.order - 1)] * (question.order - 1)])
    if isinstance(question, QuantilesQuestion) and question.mechanism == HAAR:
        rows = [[1.0 / (question.depth << level)] * (1 << level) for level in range(question.depth)]
        return np.array(list(itertools.chain(*rows)))
    return np.ones(1)


def counts_law(messages: Sequence[np.ndarray]) -> Law:
    """The law of how often each message is sent, when everybody sends one by a law of its own."""
    found: Law = {(0,) * len(messages[0]): 1.0}
    for message in messages:
        found = _added(found, message)
    return found


def delta_of(first: Law, second: Law, epsilon: float) -> float:
    """The exact delta at which the first law is epsilon-close to the second."""
    odds = math.exp(epsilon)
    return sum(max(0.0, p - odds * second.get(x, 0.0)) for x, p in first.items())


def worst_delta(
    question: HistogramQuestion | QuantilesQuestion,
    values: tuple[object, ...],
    people: int,
    epsilon: float,
) -> float:
    """The exact delta of one person among so many, over all values of this one and the others."""
    return max(
        delta_of(one, two, epsilon)
        for laws in _neighbors(question, values, people)
        for one, two in itertools.permutations(laws, 2)
    )


@functools.cache
def _neighbors(
    question: HistogramQuestion | QuantilesQuestion, values: tuple[object, ...], people: int
) -> list[list[Law]]:
    """The laws of the counts for each value of one person, for all values of the others."""
    laws = [cell_law(question, value) for value in values]
    crowds = map(counts_law, itertools.combinations_with_replacement(laws, people - 1))
    return [[_added(crowd, own) for own in laws] for crowd in crowds]


def _added(crowd: Law, own: np.ndarray) -> Law:
    """The law of the counts after one more person."""
    found: Law = {}
    for counts, chance in crowd.items():
        for place in np.flatnonzero(own):
            more = tuple(n + (i == place) for i, n in enumerate(counts))
            found[more] = found.get(more, 0.0) + chance * float(own[place])
    return found
