"""Private statistics in one call: the values of all people in, an estimate with its interval out.

    estimate("mean", ages, lower=0, upper=120, epsilon=1.0)

Every value is privatized separately, as on its owner's device; the estimate is computed from the
codes alone. `ask` does the same for an existing question, in batches, for data that do not fit
into memory.
"""

import inspect
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.analytics import intervals
from sottovoce.analytics.assignment import MAX_SEED, secret_numbers
from sottovoce.analytics.histogram import HistogramQuestion
from sottovoce.analytics.mean import MeanQuestion
from sottovoce.analytics.places import PlacesQuestion
from sottovoce.analytics.quantiles import QuantilesQuestion
from sottovoce.analytics.question import MAX_BATCH, Question
from sottovoce.analytics.result import NO_LEDGER, SEEDED, Estimate
from sottovoce.analytics.tallies import Tally, add_tallies
from sottovoce.analytics.values import as_people_array
from sottovoce.analytics.variance import VarianceQuestion
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.core.randomness import Randomness, SeededRandomness, SystemRandomness

_QUESTIONS: dict[str, Any] = {
    "mean": MeanQuestion.of,
    "variance": VarianceQuestion.of,
    "histogram": HistogramQuestion.of,
    "quantiles": QuantilesQuestion.of,
    "location": PlacesQuestion.of,
}
# These questions ask different people different things, by a public assignment.
_DRAWN = ("variance", "histogram", "quantiles")
STATISTICS = tuple(_QUESTIONS)


def question_for(statistic: str, *, public_seed: int | None = None, **options: Any) -> Question:
    """Build the question about a statistic; choices that `options` leave open are made.

    Args:
        statistic: "mean", "variance", "histogram", "quantiles" or "location".
        public_seed: Seed of the public assignment of sub-questions to people; None draws one. Mean
            and location ignore it.
        **options: The parameters of the question. All need `epsilon`. Mean, variance and quantiles
            need `lower` and `upper`; a histogram needs `lower` and `upper`, or `categories`; a
            location needs `center` and `side_km`. Others are `bits`, `mechanism`, `bins`,
            `quantiles`, `depth`, `people` and `cells`.

    Returns:
        The question, which can be sent to clients as JSON (`to_json`).

    Raises:
        UnknownNameError: The statistic, an option or a mechanism is not known.
        ParameterError: A parameter is missing or out of range.

    Examples:
        >>> question = question_for("mean", lower=0, upper=120, epsilon=1.0)
        >>> question.mechanism, question.bits
        ('mvu', 3)
    """
    if statistic == "median":
        raise UnknownNameError(
            "there is no statistic 'median'; use 'quantiles' with the level 0.5 (--quantiles 0.5)"
        )
    if statistic not in _QUESTIONS:
        raise UnknownNameError.among("statistic", statistic, _QUESTIONS)
    if statistic == "location" and "centre" in options:  # the spelling of version 0.1
        if "center" in options:
            raise ParameterError(
                "'center' is given twice, once in its old British spelling; leave that one out"
            )
        options = {"center" if name == "centre" else name: one for name, one in options.items()}
    make = _QUESTIONS[statistic]
    parameters = inspect.signature(make).parameters
    known = set(parameters)
    if unknown := sorted(set(options) - known):
        raise UnknownNameError.among(
            f"option of the {statistic}", unknown[0], known - {"public_seed", "people"}
        )
    if statistic in _DRAWN:
        seed = secrets.randbelow(MAX_SEED) if public_seed is None else public_seed
        options = {**options, "public_seed": seed}
    needed = [name for name, one in parameters.items() if one.default is inspect.Parameter.empty]
    for name in needed:
        if name not in options:
            option = name.replace("_", "-")
            raise ParameterError(f"the {statistic} needs '{name}'; give it (--{option})")
    found: Question = make(**options)
    return found


def takes_people(statistic: str) -> bool:
    """Return whether the question about a statistic has the option `people`.

    It is the approximate number of people, which helps to choose the question's parameters.
    """
    return "people" in inspect.signature(_QUESTIONS[statistic]).parameters


def estimate(
    statistic: str,
    values: Any,
    *,
    confidence: float = 0.95,
    seed: int | None = None,
    **options: Any,
) -> Estimate:
    """Estimate a statistic of values that are each sent privately.

    Each person's code is epsilon-DP for any two values (replace-one); for "location" epsilon is per
    kilometer: two places that are d kilometers apart have epsilon times d. Values outside the
    bounds are clipped to them.

    Args:
        statistic: "mean", "variance", "histogram", "quantiles" or "location".
        values: One value for each person: a list, an array or a pandas Series; rows of latitude and
            longitude for "location".
        confidence: Confidence level of the intervals, from 0.5 to 0.9999.
        seed: Seed of the noise and of the public assignment, for simulation only; None takes both
            from the operating system.
        **options: The parameters of the question, see `question_for`.

    Returns:
        The estimate with its interval, epsilon, bits per person and notes. It is not charged to a
        ledger.

    Raises:
        UnknownNameError: The statistic, an option or a mechanism is not known.
        ParameterError: A parameter is missing or out of range, or there are no values, or too few
            for a variance.
        DomainError: A value is missing or no finite number.

    Examples:
        >>> ages = [18, 25, 31, 44, 67] * 2000
        >>> found = estimate("mean", ages, lower=0, upper=120, epsilon=1.0, seed=1)
        >>> low, high = found.interval
        >>> low < 37.0 < high
        True
        >>> found.bits, found.epsilon
        (3, 1.0)
    """
    array = as_people_array(values)
    if statistic in STATISTICS and takes_people(statistic):
        options = {"people": len(array), **options}
    asked = question_for(statistic, public_seed=seed, **options)
    randomness: Randomness = SystemRandomness() if seed is None else SeededRandomness(seed)
    return ask(asked, _batches(array), randomness, confidence=confidence).noted(NO_LEDGER)


def ask(
    asked: Question,
    batches: Iterable[ArrayLike],
    randomness: Randomness,
    *,
    confidence: float = 0.95,
) -> Estimate:
    """Ask a question of values in batches, with the client's and the server's side in one process.

    Each batch has the values of further people. Values become codes, codes are tallied, and nothing
    else is kept or charged. If the randomness is seeded, a note of the estimate says so. Raise
    ParameterError if there is no batch or the confidence is out of range.
    """
    intervals.check_confidence(confidence)
    found = asked.estimate(tally_of(asked, batches, randomness), confidence)
    return found if randomness.grade == "system" else found.noted(SEEDED)


def tally_of(
    asked: Question, batches: Iterable[ArrayLike], randomness: Randomness, *, first: int = 0
) -> Tally:
    """Return the tally of the codes of people who are numbered from `first`.

    Each batch has the values of further people; nothing else is kept of them. Raise ParameterError
    if there is no batch.
    """
    total: Tally | None = None
    for batch in batches:
        codes = asked.answer(batch, randomness, first)
        tally = asked.tally(codes, first)
        total = tally if total is None else add_tallies(total, tally)
        first += tally.people
    if total is None:
        raise ParameterError("there are no answers; give the values of at least one person")
    return total


def secret_tally_of(asked: Question, batches: Iterable[ArrayLike]) -> Tally:
    """Return the tally of the codes of people who draw in secret what they are asked.

    Only sums of such tallies may be revealed. All randomness comes from the operating system. Raise
    ParameterError if there is no batch.
    """
    randomness = SystemRandomness()
    total: Tally | None = None
    for batch in batches:
        people = secret_numbers(len(np.asarray(batch)))
        tally = asked.tally(asked.answer(batch, randomness, people), people)
        total = tally if total is None else add_tallies(total, tally)
    if total is None:
        raise ParameterError("there are no answers; give the values of at least one person")
    return total


def _batches(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for start in range(0, len(array), MAX_BATCH):
        yield array[start : start + MAX_BATCH]
