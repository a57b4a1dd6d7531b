"""Quantiles of a number that each person has, from one code per person.

[lower, upper] is divided into 2^L cells. There are two mechanisms:

    haar_hadamard         one bit. A public draw gives each person a level l < L and a row r of the
                          Hadamard matrix of order 2^l. The person sends H[r, j] for the node j of
                          that level that contains the number, with the opposite sign in the node's
                          right half, through binary randomized response. With
                          p = e^eps/(e^eps + 1), c = 1/(2p - 1) and the level's n_l people, theta_lj
                          is estimated by the mean of c H[r, j] sign, with variance
                          (c^2 - theta^2)/n_l, and F follows (`transforms`).
    randomized_response   k-ary randomized response over the cells, L bits: better for large
                          epsilon. In parameters its name is "randomised_response".
                          F^(e) = (share of codes below e - k b)/(a - b) after k cells, where a and
                          b are the probabilities of the own and of any other cell.

Quantiles and their intervals follow from F^ and its covariance (`inversion`). Only the cell of a
value is used, so no interval is finer than a cell.

References: Cormode, Kulkarni and Srivastava 2019 (HaarHRR); Kairouz, Bonawitz and Ramage 2016.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.analytics import intervals, transforms
from sottovoce.analytics.assignment import (
    PersonNumbers,
    assign_choices,
    check_seed,
    stream_of,
)
from sottovoce.analytics.inversion import QuantileInversion
from sottovoce.analytics.question import build_estimate, check_people, question
from sottovoce.analytics.randomizers import CategoryRandomizer, RandomizedQuestion
from sottovoce.analytics.result import Estimate, Number
from sottovoce.analytics.tallies import CodeCounts, Tally
from sottovoce.analytics.transforms import EstimatedCdf
from sottovoce.analytics.values import numbers
from sottovoce.core import parameter_rules
from sottovoce.core.domains import Box
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.core.randomness import Randomness
from sottovoce.mechanisms.design.store import table_epsilon
from sottovoce.mechanisms.mechanism import Codes

AUTO, HAAR, K_ARY = "auto", "haar_hadamard", "randomised_response"
MECHANISMS = (HAAR, K_ARY)
LEAST_DEPTH, MOST_DEPTH, MOST_K_ARY_DEPTH = 4, 10, 8
# With a larger standard deviation an interval would span a fifth of all people to either side, and
# atoms of that size could not be told from noise.
LARGEST_STDDEV = 0.1
_CELLS_PER_STDDEV = 3.0
_GUESSED_PEOPLE = 10_000
# Least expected number of people beyond a quantile: with fewer, F^ there is not normal.
_LEAST_BEYOND = 20
_FEW_BEYOND = (
    f"fewer than {_LEAST_BEYOND} people are expected beyond the quantile, so its interval may "
    "cover far less often than stated"
)
_COARSE = (
    "one cell stands out, because many people have nearly the same value or because of noise, so "
    "the interval is no finer than the cells and may cover more often than stated"
)


@question
@dataclass(frozen=True, slots=True, kw_only=True)
class QuantilesQuestion(RandomizedQuestion):
    """A question about quantiles of numbers in [lower, upper].

    Attributes:
        lower: Lower bound; smaller numbers are clipped to it.
        upper: Upper bound; larger numbers are clipped to it.
        quantiles: The levels, in (0, 1).
        depth: [lower, upper] has 2^depth cells.
        epsilon: Pure epsilon of one person's code.
        mechanism: "haar_hadamard" or "randomised_response".
        public_seed: Seed of the public assignment of levels and matrix rows to people.

    Examples:
        >>> from sottovoce.analytics import estimate
        >>> ages = list(range(0, 100)) * 100
        >>> options = {"lower": 0, "upper": 120, "epsilon": 1.0, "quantiles": [0.5]}
        >>> found = estimate("quantiles", ages, seed=1, **options)
        >>> low, high = found.interval[0]
        >>> low < 49.5 < high
        True
    """

    kind: ClassVar[str] = "quantiles"
    least_people: ClassVar[int] = 100

    lower: float
    upper: float
    quantiles: tuple[float, ...]
    depth: int
    epsilon: float
    mechanism: str
    public_seed: int

    def __post_init__(self) -> None:
        Box(dimension=1, lower=self.lower, upper=self.upper)
        check_seed(self.public_seed)
        table_epsilon(self.epsilon)
        if not isinstance(self.quantiles, tuple) or not self.quantiles:
            raise ParameterError(
                "quantiles must be a tuple (in JSON a list) of at least one level, such as 0.5, "
                f"got {self.quantiles!r}"
            )
        for level in self.quantiles:
            parameter_rules.inner_fraction("a quantile's level", level)
        if self.mechanism not in MECHANISMS:
            raise UnknownNameError.among("mechanism for quantiles", self.mechanism, MECHANISMS)
        most = MOST_DEPTH if self.mechanism == HAAR else MOST_K_ARY_DEPTH
        parameter_rules.integer("depth", self.depth, low=1, high=most)

    @classmethod
    def of(
        cls,
        *,
        lower: float,
        upper: float,
        epsilon: float,
        public_seed: int,
        quantiles: Sequence[float] = (0.25, 0.5, 0.75),
        bits: int | None = None,
        mechanism: str = AUTO,
        depth: int | None = None,
        people: int | None = None,
    ) -> "QuantilesQuestion":
        """Build the question and make the choices that are left open.

        Args:
            lower: Lower bound of the numbers.
            upper: Upper bound of the numbers.
            epsilon: Pure epsilon of one person's code.
            public_seed: Seed of the public assignment of levels and matrix rows to people.
            quantiles: The levels, in (0, 1).
            bits: The most bits that a person sends; None is 8.
            mechanism: A mechanism, or "auto" for the one with the least variance within `bits`.
            depth: [lower, upper] has 2^depth cells; None chooses cells that fit the noise.
            people: Approximate number of people who will answer; None is 10,000. With more people
                the cells are finer.

        Returns:
            The question.

        Raises:
            UnknownNameError: The mechanism is not known.
            ParameterError: A parameter is out of range.
        """
        table_epsilon(epsilon)
        if not isinstance(quantiles, Iterable):
            raise ParameterError(
                f"quantiles must be a list of levels between 0 and 1, got {quantiles!r}"
            )
        chosen, cells_depth = _choose_mechanism(
            mechanism, epsilon, bits, depth, people or _GUESSED_PEOPLE
        )
        return cls(
            lower=float(lower),
            upper=float(upper),
            quantiles=tuple(float(level) for level in quantiles),
            depth=cells_depth,
            epsilon=float(epsilon),
            mechanism=chosen,
            public_seed=public_seed,
        )

    @property
    def cells(self) -> int:
        """The number of equal cells that [lower, upper] is divided into."""
        return 1 << self.depth

    @property
    def randomizer(self) -> CategoryRandomizer:
        """The randomizer of one person's cell, or with "haar_hadamard" of one sign."""
        num = 2 if self.mechanism == HAAR else self.cells
        return CategoryRandomizer(epsilon=self.epsilon, num_categories=num)

    def indices(self, values: ArrayLike) -> NDArray[np.int64]:
        """Return each number's cell, counted from 0; numbers outside the bounds are clipped."""
        inside = np.clip(numbers(values), self.lower, self.upper)
        share = (inside - self.lower) / (self.upper - self.lower)
        return np.clip(np.floor(share * self.cells), 0, self.cells - 1).astype(np.int64)

    def answer(self, values: ArrayLike, randomness: Randomness, first: PersonNumbers = 0) -> Codes:
        sent = self.indices(values)
        if self.mechanism == HAAR:
            levels, rows = self._assign(first, len(sent))
            negative = transforms.is_negative(rows, transforms.nodes(sent, levels, self.depth))
            sent = negative ^ transforms.is_right(sent, levels, self.depth)
        return self.randomizer.answer(sent, stream_of(randomness, "quantiles", first))

    def tally(self, codes: Codes, first: PersonNumbers = 0) -> Tally:
        if self.mechanism == K_ARY:
            return CodeCounts.of(codes, self.cells)
        levels, rows = self._assign(first, len(codes))
        return CodeCounts.of(codes, 2, (1 << levels) - 1 + rows, self.cells - 1)

    def _assign(
        self, first: PersonNumbers, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return each person's level, and row of that level's matrix."""
        levels = assign_choices(self.public_seed, "level", first, count, self.depth)
        rows = assign_choices(self.public_seed, "row", first, count, 1 << self.depth)
        return levels, rows & ((1 << levels) - 1)

    def cdf(self, tally: Tally) -> EstimatedCdf:
        """Return the unbiased estimate of the distribution function at the edges of the cells.

        [lower, upper] is scaled to [0, 1].
        """
        assert isinstance(tally, CodeCounts)
        return self._haar(tally) if self.mechanism == HAAR else self._k_ary(tally)

    def _haar(self, tally: CodeCounts) -> EstimatedCdf:
        magnitude = 1.0 / (2.0 * self.randomizer.kept - 1.0)
        coefficients, people = [], []
        for level in range(self.depth):
            size = 1 << level
            counts = tally.counts[size - 1 : 2 * size - 1]
            asked = max(int(counts.sum()), 1)
            signs = (counts[:, 0] - counts[:, 1]).astype(np.float64)
            coefficients.append(magnitude * transforms.transform(signs) / asked)
            people.append(asked)
        return transforms.cdf_of(coefficients, people, magnitude)

    def _k_ary(self, tally: CodeCounts) -> EstimatedCdf:
        gain = self.randomizer.kept - self.randomizer.other
        seen = np.concatenate([[0.0], np.cumsum(tally.counts[0]) / tally.people])
        values = (seen - np.arange(self.cells + 1) * self.randomizer.other) / gain
        covariance = np.minimum.outer(seen, seen) - np.outer(seen, seen)
        covariance /= tally.people * gain**2
        return EstimatedCdf(values=values, covariance=covariance, is_rough=False)

    def estimate(self, tally: Tally, confidence: float = 0.95) -> Estimate:
        intervals.check_confidence(confidence)
        check_people(tally.people)
        inversion = QuantileInversion(self.cdf(tally), confidence)
        noisy = inversion.largest_stddev > LARGEST_STDDEV
        has_interval = not noisy and tally.people >= self.least_people
        width = self.upper - self.lower
        found = []
        for level in self.quantiles:
            one = inversion.quantile(level)
            ends = (self.lower + width * one.low, self.lower + width * one.high)
            found.append(
                Number(
                    label=f"{level:g}",
                    estimate=self.lower + width * one.estimate,
                    interval=ends if has_interval else None,
                    caveat=_caveat(level, tally.people, one.is_coarse) if has_interval else None,
                )
            )
        notes = [f"values are rounded to {self.cells} cells of width {width / self.cells:.4g}"]
        if has_interval and not 0.9 <= confidence <= 0.99:
            notes.append(
                "the coverage of quantiles' intervals was measured at 95%; at another confidence "
                "it may be higher"
            )
        if noisy:
            notes.append(
                f"no interval: the standard error of a share is {inversion.largest_stddev:.2g}, "
                f"above {LARGEST_STDDEV:g}; ask more people or raise epsilon"
            )
        return build_estimate(
            self,
            tuple(found),
            people=tally.people,
            confidence=confidence,
            mechanism=self.mechanism,
            notes=tuple(notes),
            details={"cells": self.cells, "largest_stddev_of_cdf": inversion.largest_stddev},
        )


def _caveat(level: float, people: int, is_coarse: bool) -> str | None:
    """Return why an interval may not cover as often as stated, or None."""
    if people * min(level, 1.0 - level) < _LEAST_BEYOND - 1e-6:
        return _FEW_BEYOND
    return _COARSE if is_coarse else None


def _choose_mechanism(
    mechanism: str, epsilon: float, bits: int | None, depth: int | None, people: int
) -> tuple[str, int]:
    """Choose the mechanism with the least variance within `bits`, and a suitable depth."""
    if mechanism not in (AUTO, *MECHANISMS):
        raise UnknownNameError.among("mechanism for quantiles", mechanism, (AUTO, *MECHANISMS))
    most = MOST_K_ARY_DEPTH
    if bits is not None:
        most = min(parameter_rules.integer("bits", bits, low=1, high=32), MOST_K_ARY_DEPTH)
    if depth is not None:
        parameter_rules.integer("depth", depth, low=1, high=MOST_DEPTH)
    one_bit = depth or _choose_depth(HAAR, epsilon, people, MOST_DEPTH)
    k_ary = depth or _choose_depth(K_ARY, epsilon, people, most)
    if mechanism == K_ARY and k_ary > most:
        raise ParameterError(
            f"'{K_ARY}' over 2^{k_ary} cells sends {k_ary} bits, and {most} are allowed; use "
            f"'{HAAR}', which sends one bit"
        )
    if mechanism == AUTO:
        fits = LEAST_DEPTH <= k_ary <= most
        better = _stddev(K_ARY, epsilon, people, k_ary) < _stddev(HAAR, epsilon, people, one_bit)
        mechanism = K_ARY if fits and better else HAAR
    return mechanism, one_bit if mechanism == HAAR else k_ary


def _choose_depth(mechanism: str, epsilon: float, people: int, most: int) -> int:
    """Return the least depth whose cells are at most a third of the noise of F^.

    The noise is that for uniformly distributed people.
    """
    for depth in range(LEAST_DEPTH, most):
        if 2.0**-depth <= _stddev(mechanism, epsilon, people, depth) / _CELLS_PER_STDDEV:
            return depth
    return most


def _stddev(mechanism: str, epsilon: float, people: int, depth: int) -> float:
    """Return the standard deviation of F^, averaged over t, for uniformly distributed people."""
    if mechanism == HAAR:
        return depth / math.tanh(epsilon / 2.0) / math.sqrt(12.0 * people)
    gain = math.expm1(epsilon) / (math.expm1(epsilon) + (1 << depth))
    return 1.0 / (gain * math.sqrt(6.0 * people))
