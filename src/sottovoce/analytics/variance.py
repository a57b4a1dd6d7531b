"""The variance of a number that each person has, from one code per person.

Let y = (x - c)/h in [-1, 1], with c the middle and h half the width of [lower, upper]. A public
draw asks each person for y or for 2 y^2 - 1, through the same unbiased mechanism. With the means
m_1 and m_2 of the two groups, and e_1, e_2 the squares of their standard errors,

    v = (1 + m_2)/2 - (m_1^2 - e_1)         unbiased for Var y, as E[m_1^2] = mu^2 + e_1
    Var v = e_2/4 + 4 mu^2 e_1 + 2 e_1^2    last term: m_1 is nearly normal, its square is not

and Var x = h^2 v, which lies between 0 and h^2. The standard error depends on mu, which is related
to v: with mu^2 estimated from m_1 alone, intervals cover 90% where the mean is far from c. So a
variance t is accepted or not (as in a score test) with the mu^2 that fits t: the mean of
m_1^2 - e_1 and (1 + m_2)/2 - t, weighted by the inverse of their variances.

Reference: the delta method to second order; Rao 1948 (score tests).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.analytics import intervals
from sottovoce.analytics.assignment import (
    PersonNumbers,
    assign_choices,
    check_seed,
    stream_of,
)
from sottovoce.analytics.question import build_estimate, check_people, question
from sottovoce.analytics.randomizers import RandomizedQuestion
from sottovoce.analytics.result import Estimate, Number
from sottovoce.analytics.scalar_randomizer import AUTO, ScalarRandomizer, randomizer_for
from sottovoce.analytics.tallies import Tally
from sottovoce.analytics.values import numbers
from sottovoce.core.domains import Box, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Randomness
from sottovoce.mechanisms.mechanism import Codes

_NUMBER, _SQUARE = 0, 1
# Largest standard deviation of m_1: beyond it, its square is too far from normal for an interval.
LARGEST_STDDEV = 0.1
_ROUNDS_OF_WEIGHTS = 3


@question
@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceQuestion(RandomizedQuestion):
    """A question about the variance: half of the people send their number, half its square.

    Both are scaled to [-1, 1] first.

    Attributes:
        lower: Lower bound; smaller numbers are clipped to it.
        upper: Upper bound; larger numbers are clipped to it.
        epsilon: Pure epsilon of one person's code.
        bits: Bits of one person's code.
        mechanism: Name of the mechanism.
        public_seed: Seed of the public draw of who sends what.
    """

    kind: ClassVar[str] = "variance"
    least_people: ClassVar[int] = 100

    lower: float
    upper: float
    epsilon: float
    bits: int
    mechanism: str
    public_seed: int

    def __post_init__(self) -> None:
        Box(dimension=1, lower=self.lower, upper=self.upper)
        check_seed(self.public_seed)
        _ = self.randomizer

    @classmethod
    def of(
        cls,
        *,
        lower: float,
        upper: float,
        epsilon: float,
        public_seed: int,
        bits: int | None = None,
        mechanism: str = AUTO,
    ) -> "VarianceQuestion":
        """Build the question and make the choices that are left open.

        Args:
            lower: Lower bound of the numbers.
            upper: Upper bound of the numbers.
            epsilon: Pure epsilon of one person's code.
            public_seed: Seed of the public draw of who sends what.
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
        found = randomizer_for(-1.0, 1.0, epsilon, bits, mechanism)
        return cls(
            lower=float(lower),
            upper=float(upper),
            epsilon=found.epsilon,
            bits=found.bits,
            mechanism=found.mechanism,
            public_seed=public_seed,
        )

    @property
    def randomizer(self) -> ScalarRandomizer:
        """The randomizer of either answer; both lie in [-1, 1]."""
        return ScalarRandomizer(
            lower=-1.0, upper=1.0, epsilon=self.epsilon, bits=self.bits, mechanism=self.mechanism
        )

    @property
    def half_width(self) -> float:
        """Half the width of [lower, upper]."""
        return (self.upper - self.lower) / 2.0

    def answer(self, values: ArrayLike, randomness: Randomness, first: PersonNumbers = 0) -> Codes:
        clipped = np.clip(numbers(values), self.lower, self.upper)
        y = np.clip((clipped - (self.lower + self.upper) / 2.0) / self.half_width, -1.0, 1.0)
        asked = assign_choices(self.public_seed, "square", first, len(y), 2)
        sent = np.where(asked == _SQUARE, 2.0 * y**2 - 1.0, y)
        return self.randomizer.answer(sent, stream_of(randomness, "variance", first))

    def tally(self, codes: Codes, first: PersonNumbers = 0) -> Tally:
        asked = assign_choices(self.public_seed, "square", first, len(codes), 2)
        return self.randomizer.tally(codes, asked, 2)

    def estimate(self, tally: Tally, confidence: float = 0.95) -> Estimate:
        intervals.check_confidence(confidence)
        check_people(tally.people)
        found = self.randomizer
        mean, square = (found.contributions(tally, group) for group in (_NUMBER, _SQUARE))
        if min(mean.people, square.people) < 1:
            raise ParameterError(
                f"{tally.people} people are too few for a variance; ask at least "
                f"{self.least_people}"
            )
        scale = self.half_width**2
        e1, e2 = mean.squared_error, square.squared_error
        mu2 = mean.mean**2 - e1
        value = (1.0 + square.mean) / 2.0 - mu2
        interval: tuple[float, float] | None = None
        notes: tuple[str, ...] = ()
        if e1 > LARGEST_STDDEV**2:
            notes = (
                f"no interval: the standard error of the mean is {math.sqrt(e1):.2g} times half "
                f"the width of the bounds, above {LARGEST_STDDEV:g}; ask more people or raise "
                "epsilon",
            )
        elif tally.people >= self.least_people:
            factor = intervals.student_factor(min(mean.people, square.people) - 1, confidence)

            def stddev(variance: Vector) -> Vector:
                return factor * _stddev(variance, mu2, (1.0 + square.mean) / 2.0, e1, e2)

            low, high = intervals.bounded_interval(value, stddev, 0.0, 1.0, confidence)
            interval = scale * float(low[0]), scale * float(high[0])
        return build_estimate(
            self,
            (
                Number(
                    label="variance",
                    estimate=scale * value,
                    interval=interval,
                    caveat=(found.caveat(mean) or found.caveat(square)) if interval else None,
                ),
            ),
            is_single=True,
            people=tally.people,
            confidence=confidence,
            mechanism=self.mechanism,
            notes=notes,
        )


def _stddev(variance: Vector, mu2: float, square: float, e1: float, e2: float) -> Vector:
    """Return the standard deviation of v if `variance` were the true variance of y.

    `mu2` and `square` are estimates of mu^2 and mu^2 + variance.
    """
    found = np.full_like(variance, min(max(mu2, 0.0), 1.0))
    for _ in range(_ROUNDS_OF_WEIGHTS):
        own, other = 1.0 / (4.0 * found * e1 + 2.0 * e1**2), 4.0 / e2
        found = np.clip((own * mu2 + other * (square - variance)) / (own + other), 0.0, 1.0)
    return np.asarray(np.sqrt(e2 / 4.0 + 4.0 * found * e1 + 2.0 * e1**2))
