"""Private statistics in one call: everybody's value in, an estimate with its interval out.

    estimate("mean", ages, lower=0, upper=120, epsilon=1.0)

Every value is privatised by itself, as its owner's device would; the estimate reads the codes
alone. `ask` does the same for a question at hand, and in batches for data that does not fit into
memory.
"""

import inspect
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

from numpy.typing import ArrayLike, NDArray

from sottovoce.analytics import intervals
from sottovoce.analytics.assignment import MAX_SEED
from sottovoce.analytics.histogram import HistogramQuestion
from sottovoce.analytics.mean import MeanQuestion
from sottovoce.analytics.places import PlacesQuestion
from sottovoce.analytics.quantiles import QuantilesQuestion
from sottovoce.analytics.question import MAX_BATCH, Question
from sottovoce.analytics.result import NO_LEDGER, SEEDED, Estimate
from sottovoce.analytics.tallies import Tally, added
from sottovoce.analytics.values import people
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
# These ask different people different things, by a public draw.
_DRAWN = ("variance", "histogram", "quantiles")
STATISTICS = tuple(_QUESTIONS)


def question_for(statistic: str, *, public_seed: int | None = None, **options: Any) -> Question:
    """The question about a statistic, with every choice made that `options` leaves open.

    Without a `public_seed` a fresh one says who is asked what.
    """
    if statistic == "median":
        raise UnknownNameError(
            "the median is one of the quantiles: ask for 'quantiles' with quantiles 0.5 "
            "(--quantiles 0.5)"
        )
    if statistic not in _QUESTIONS:
        raise UnknownNameError.among("statistic", statistic, _QUESTIONS)
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
            raise ParameterError(f"'{name}' is missing, and the {statistic} needs it (--{option})")
    found: Question = make(**options)
    return found


def takes_people(statistic: str) -> bool:
    """Whether the question is better made when it is known how many will answer."""
    return "people" in inspect.signature(_QUESTIONS[statistic]).parameters


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
    array = people(values)
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


def _batches(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for start in range(0, len(array), MAX_BATCH):
        yield array[start : start + MAX_BATCH]
