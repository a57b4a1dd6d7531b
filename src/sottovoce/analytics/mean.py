"""The mean of a number that each person has.

Each person's number is sent through an unbiased mechanism as one code; the estimate is the mean of
the decoded codes. These are independent, each with mean E[x] over the population. So Student's
interval with their sample variance holds for the population mean and includes both the noise and
the sampling of people; `intervals` describes what changes near the bounds.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from numpy.typing import ArrayLike

from sottovoce.analytics import intervals
from sottovoce.analytics.assignment import PersonNumbers, stream_of
from sottovoce.analytics.question import build_estimate, check_people, question
from sottovoce.analytics.randomizers import RandomizedQuestion
from sottovoce.analytics.result import Estimate, Number
from sottovoce.analytics.scalar_randomizer import AUTO, ScalarRandomizer, randomizer_for
from sottovoce.analytics.tallies import Tally
from sottovoce.analytics.values import numbers
from sottovoce.core.randomness import Randomness
from sottovoce.mechanisms.mechanism import Codes

_AT_BOUND = (
    "the interval reaches a bound: values beyond the bounds were clipped, so the mean without "
    "clipping may lie farther out; use wider bounds to check"
)


@question
@dataclass(frozen=True, slots=True, kw_only=True)
class MeanQuestion(RandomizedQuestion):
    """A question about the mean of numbers in [lower, upper].

    Attributes:
        lower: Lower bound; smaller numbers are clipped to it.
        upper: Upper bound; larger numbers are clipped to it.
        epsilon: Pure epsilon of one person's code.
        bits: Bits of one person's code.
        mechanism: Name of the mechanism.
    """

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
        """Build the question and make the choices that are left open.

        Args:
            lower: Lower bound of the numbers.
            upper: Upper bound of the numbers.
            epsilon: Pure epsilon of one person's code.
            bits: The most bits of a code with "auto", else the bits of the mechanism. None is 3,
                but 10 for "discrete_laplace", 14 for "discrete_staircase" and 32 for "laplace" and
                "staircase".
            mechanism: A mechanism, or "auto" for the one with the least worst-case variance.

        Returns:
            The question.

        Raises:
            UnknownNameError: The mechanism is not known.
            ParameterError: A parameter is out of range.
        """
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
        """The randomizer of one person's number."""
        return ScalarRandomizer(
            lower=self.lower,
            upper=self.upper,
            epsilon=self.epsilon,
            bits=self.bits,
            mechanism=self.mechanism,
        )

    def answer(self, values: ArrayLike, randomness: Randomness, first: PersonNumbers = 0) -> Codes:
        return self.randomizer.answer(numbers(values), stream_of(randomness, "mean", first))

    def tally(self, codes: Codes, first: PersonNumbers = 0) -> Tally:  # noqa: ARG002  (everyone is asked the same)
        return self.randomizer.tally(codes)

    def estimate(self, tally: Tally, confidence: float = 0.95) -> Estimate:
        intervals.check_confidence(confidence)
        check_people(tally.people)
        found = self.randomizer.contributions(tally)
        interval = None
        if found.people >= self.least_people:
            factor = intervals.student_factor(found.people - 1, confidence)
            error = factor * math.sqrt(found.squared_error)
            low, high = intervals.bounded_interval(
                found.mean, error, self.lower, self.upper, confidence
            )
            interval = float(low[0]), float(high[0])
        at_bound = interval and (interval[0] <= self.lower or interval[1] >= self.upper)
        return build_estimate(
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
