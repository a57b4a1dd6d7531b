"""The mean of a number that everybody holds.

A person's number goes through an unbiased mechanism as one code; the estimate is the mean of what
the codes decode to. Those are independent, each with mean E[x] over the population, so Student's
interval with their sample variance holds for the population's mean, in which noise and sampling
are both contained; see `intervals` for what happens near the bounds.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from numpy.typing import ArrayLike

from sottovoce.analytics import intervals
from sottovoce.analytics.question import check_people, finished, question
from sottovoce.analytics.randomizers import RandomizedQuestion
from sottovoce.analytics.result import Estimate, Number
from sottovoce.analytics.scalar_randomizer import AUTO, ScalarRandomizer, randomizer_for
from sottovoce.analytics.tallies import Tally
from sottovoce.analytics.values import numbers
from sottovoce.core.randomness import Randomness
from sottovoce.mechanisms.mechanism import Codes

_AT_BOUND = (
    "the interval reaches a bound: values beyond it were moved to it, so if many are, the mean of "
    "all lies farther out; wider bounds would tell"
)


@question
@dataclass(frozen=True, slots=True, kw_only=True)
class MeanQuestion(RandomizedQuestion):
    """Everybody's number in [lower, upper], through `mechanism` with `bits` bits."""

    kind: ClassVar[str] = "mean"
    least_people: ClassVar[int] = 100

    lower: float
    upper: float
    epsilon: float
    bits: int
    mechanism: str

    def __post_init__(self) -> None:
        _ = self.randomizer

    @classmethod
    def of(
        cls,
        *,
        lower: float,
        upper: float,
        epsilon: float,
        bits: int | None = None,
        mechanism: str = AUTO,
    ) -> "MeanQuestion":
        """The question with every choice made."""
        found = randomizer_for(lower, upper, epsilon, bits, mechanism)
        return cls(
            lower=found.lower,
            upper=found.upper,
            epsilon=found.epsilon,
            bits=found.bits,
            mechanism=found.mechanism,
        )

    @property
    def randomizer(self) -> ScalarRandomizer:
        return ScalarRandomizer(
            lower=self.lower,
            upper=self.upper,
            epsilon=self.epsilon,
            bits=self.bits,
            mechanism=self.mechanism,
        )

    def answer(self, values: ArrayLike, randomness: Randomness, first: int = 0) -> Codes:
        return self.randomizer.answer(numbers(values), randomness.stream("mean", first))

    def tally(self, codes: Codes, first: int = 0) -> Tally:  # noqa: ARG002  (all are asked alike)
        return self.randomizer.tally(codes)

    def estimate(self, tally: Tally, confidence: float = 0.95) -> Estimate:
        intervals.check_confidence(confidence)
        check_people(tally.people)
        found = self.randomizer.contributions(tally)
        interval = None
        if found.people >= self.least_people:
            factor = intervals.student_factor(found.people - 1, confidence)
            error = factor * math.sqrt(found.squared_error)
            low, high = intervals.within(found.mean, error, self.lower, self.upper, confidence)
            interval = float(low[0]), float(high[0])
        at_bound = interval and (interval[0] <= self.lower or interval[1] >= self.upper)
        return finished(
            self,
            (
                Number(
                    label="mean",
                    estimate=found.mean,
                    interval=interval,
                    caveat=self.randomizer.caveat(found) if interval else None,
                ),
            ),
            is_single=True,
            people=found.people,
            confidence=confidence,
            mechanism=self.mechanism,
            notes=(_AT_BOUND,) if at_bound else (),
        )
