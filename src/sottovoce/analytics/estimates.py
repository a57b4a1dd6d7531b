"""Private statistics in one call: everybody's value in, an estimate with its interval out.

    estimate("mean", ages, lower=0, upper=120, epsilon=1.0)

Every value is privatised by itself, as its owner's device would; the estimate reads the codes
alone. `ask` does the same for a question at hand, and in batches for data that does not fit into
memory.
"""

import secrets
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.analytics import intervals
from sottovoce.analytics.assignment import MAX_SEED
from sottovoce.analytics.mean import MeanQuestion
from sottovoce.analytics.question import MAX_BATCH, Question
from sottovoce.analytics.result import NO_LEDGER, SEEDED, Estimate
from sottovoce.analytics.tallies import Tally, added
from sottovoce.errors import ParameterError, UnknownNameError
from sottovoce.randomness import Randomness, SeededRandomness, SystemRandomness

_QUESTIONS: dict[str, Any] = {
    "mean": MeanQuestion.of,
}
STATISTICS = tuple(_QUESTIONS)


def question_for(statistic: str, **options: Any) -> Question:
    """The question about a statistic, with every choice made that `options` leaves open."""
    if statistic not in _QUESTIONS:
        raise UnknownNameError.among("statistic", statistic, _QUESTIONS)
    make = _QUESTIONS[statistic]
    try:
        found: Question = make(**options)
    except TypeError as error:  # an option that is missing, or unknown to this statistic
        text = str(error).split("() ", 1)[-1]
        raise ParameterError(f"the {statistic} {text}") from None
    return found


def estimate(
    statistic: str,
    values: Any,
    *,
    confidence: float = 0.95,
    seed: int | None = None,
    **options: Any,
) -> Estimate:
    """The statistic of everybody's values, each sent privately.

    Noise comes from the operating system; a `seed` repeats it, for simulation. `options` are the
    question's: lower, upper, epsilon, bits, mechanism; bins or categories; quantiles.
    """
    public = secrets.randbelow(MAX_SEED) if seed is None else seed
    asked = question_for(statistic, **_with_seed(statistic, options, public))
    randomness: Randomness = SystemRandomness() if seed is None else SeededRandomness(seed)
    return ask(asked, _batches(values), randomness, confidence=confidence).noted(NO_LEDGER)


def ask(
    asked: Question,
    batches: Iterable[ArrayLike],
    randomness: Randomness,
    *,
    confidence: float = 0.95,
) -> Estimate:
    """Both sides in one process: values become codes, codes are added up, nothing else is kept."""
    intervals.check_confidence(confidence)
    found = asked.estimate(tally_of(asked, batches, randomness), confidence)
    return found if randomness.grade == "system" else found.noted(SEEDED)


def tally_of(
    asked: Question, batches: Iterable[ArrayLike], randomness: Randomness, *, first: int = 0
) -> Tally:
    """The added codes of people who are numbered from `first`: all that is kept of the values."""
    total: Tally | None = None
    for batch in batches:
        codes = asked.answer(batch, randomness, first)
        tally = asked.tally(codes, first)
        total = tally if total is None else added(total, tally)
        first += tally.people
    if total is None:
        raise ParameterError("nobody answered; an estimate needs at least one person")
    return total


def _batches(values: Any) -> Iterable[Any]:
    array = values if isinstance(values, np.ndarray) else np.asarray(values)
    if array.ndim == 0 or len(array) == 0:
        raise ParameterError("there are no values; an estimate needs at least one person")
    for start in range(0, len(array), MAX_BATCH):
        yield array[start : start + MAX_BATCH]


def _with_seed(statistic: str, options: dict[str, Any], seed: int) -> dict[str, Any]:
    """Statistics that ask different people different things draw that from a public seed."""
    if statistic == "mean" or "public_seed" in options:
        return options
    return {**options, "public_seed": seed}
