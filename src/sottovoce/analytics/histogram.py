"""Histograms over bins or categories, from one code per person.

There are two mechanisms. In both a code *supports* some categories: a person's own category with
probability a, and each other one with probability b < a. The number of codes that support category
k is then binomial with probability b + s_k (a - b), where s_k is its share, and s_k is estimated by
(supports/n - b)/(a - b).

    randomized_response   k-ary randomized response: a code supports itself. In parameters its name
                          is "randomised_response".
                          a = e^eps/(e^eps + K - 1), b = 1/(e^eps + K - 1); log2 K bits.
    hadamard_response     one bit. A public draw gives each person a row r >= 1 of a Hadamard matrix
                          of order M >= K. The person sends the sign H[r, own category] through
                          binary randomized response with p = e^eps/(e^eps + 1). A sign supports the
                          k with H[r, k] equal to it. a = p; averaged over the M - 1 rows, two
                          columns agree with probability (M/2 - 1)/(M - 1), so
                          b = 1/2 - (p - 1/2)/(M - 1).

The interval of each bin is Wilson's score interval for the binomial, mapped to shares and
restricted to [0, 1] as described in `intervals`. The simultaneous intervals hold for all bins
together (Bonferroni). With many bins they depend on the far tails, where a binomial of small
probability is not normal (score intervals for 64 bins held together in 84% of cases), so they are
Clopper and Pearson's exact ones.

References: Kairouz, Bonawitz and Ramage 2016; Acharya, Sun and Zhang 2019 (Hadamard response);
Wilson 1927; Clopper and Pearson 1934.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.analytics import intervals, transforms
from sottovoce.analytics.assignment import (
    PersonNumbers,
    assign_choices,
    check_seed,
    stream_of,
)
from sottovoce.analytics.question import build_estimate, check_people, question
from sottovoce.analytics.randomizers import CategoryRandomizer, RandomizedQuestion
from sottovoce.analytics.result import Estimate, Number
from sottovoce.analytics.tallies import CodeCounts, Tally
from sottovoce.analytics.values import numbers, words
from sottovoce.core import parameter_rules, statistics
from sottovoce.core.domains import Box, Vector
from sottovoce.core.errors import DomainError, ParameterError, UnknownNameError
from sottovoce.core.randomness import Randomness
from sottovoce.mechanisms.design.store import table_epsilon
from sottovoce.mechanisms.kernels.table import MAX_LEVELS
from sottovoce.mechanisms.mechanism import Codes

Ends = list[tuple[float, float] | None]

AUTO, K_ARY, HADAMARD = "auto", "randomised_response", "hadamard_response"
MECHANISMS = (K_ARY, HADAMARD)
MAX_BINS = 4096
OTHER = "other"
# Least expected number of answers that noise moves into a bin, for a normal approximation.
_LEAST_NOISE = 30.0
_RARE_NOISE = (
    "noise moves fewer than 30 answers into a bin, so the interval of a small share covers more "
    "often than stated, or a little less often"
)


@question
@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramQuestion(RandomizedQuestion):
    """A question about the bin of each person's number, or the category of each person's word.

    Attributes:
        lower: Lower bound of the numbers; None with categories.
        upper: Upper bound of the numbers; None with categories.
        bins: Number of equal bins of [lower, upper]; None with categories.
        categories: The public list of categories; words that are not in it count as "other".
        epsilon: Pure epsilon of one person's code.
        mechanism: "randomised_response" or "hadamard_response".
        public_seed: Seed of the public assignment of matrix rows to people.

    Examples:
        >>> from sottovoce.analytics import estimate
        >>> words = ["red", "red", "green", "blue"] * 2500
        >>> options = {"categories": ["red", "green"], "epsilon": 1.0}
        >>> found = estimate("histogram", words, seed=1, **options)
        >>> [row["label"] for row in found.rows()]
        ['red', 'green', 'other']
        >>> found.rows()[0]["low"] < 0.5 < found.rows()[0]["high"]
        True
    """

    kind: ClassVar[str] = "histogram"
    least_people: ClassVar[int] = 100

    lower: float | None
    upper: float | None
    bins: int | None
    categories: tuple[str, ...] | None
    epsilon: float
    mechanism: str
    public_seed: int

    def __post_init__(self) -> None:
        check_seed(self.public_seed)
        table_epsilon(self.epsilon)
        _count_bins(self.lower, self.upper, self.bins, self.categories)
        if self.mechanism not in MECHANISMS:
            raise UnknownNameError.among("mechanism for a histogram", self.mechanism, MECHANISMS)
        if self.mechanism == K_ARY and self.num_bins > MAX_LEVELS:
            raise ParameterError(
                f"'{K_ARY}' has at most {MAX_LEVELS} bins, got {self.num_bins}; use '{HADAMARD}'"
            )

    @classmethod
    def of(
        cls,
        *,
        epsilon: float,
        public_seed: int,
        lower: float | None = None,
        upper: float | None = None,
        bins: int | None = None,
        categories: Any = None,
        bits: int | None = None,
        mechanism: str = AUTO,
    ) -> "HistogramQuestion":
        """Build the question and make the choices that are left open.

        Args:
            epsilon: Pure epsilon of one person's code.
            public_seed: Seed of the public assignment of matrix rows to people.
            lower: Lower bound of the numbers.
            upper: Upper bound of the numbers.
            bins: Number of bins; None is 10.
            categories: List of words, instead of bounds and bins.
            bits: The most bits that a person sends; None is 8.
            mechanism: A mechanism, or "auto" for the one with the least variance within `bits`.

        Returns:
            The question.

        Raises:
            UnknownNameError: The mechanism is not known.
            ParameterError: The parameters do not fit together or are out of range.
        """
        if isinstance(categories, str):
            raise ParameterError(
                f"categories must be a list of words, got the string {categories!r}; give "
                f"[{categories!r}], or a list of its parts"
            )
        names = None if categories is None else tuple(str(name) for name in categories)
        if names is None and bins is None:
            bins = 10
        table_epsilon(epsilon)
        num = _count_bins(lower, upper, bins, names)
        chosen = _choose_mechanism(mechanism, epsilon, num, bits)
        return cls(
            lower=None if lower is None else float(lower),
            upper=None if upper is None else float(upper),
            bins=bins,
            categories=names,
            epsilon=float(epsilon),
            mechanism=chosen,
            public_seed=public_seed,
        )

    @property
    def num_bins(self) -> int:
        """The number of bins, or of categories with "other"."""
        return _count_bins(self.lower, self.upper, self.bins, self.categories)

    @property
    def order(self) -> int:
        """The order of the Hadamard matrix: the least power of two that is at least `num_bins`."""
        return transforms.order_for(self.num_bins)

    @property
    def randomizer(self) -> CategoryRandomizer:
        """The randomizer of one person's category, or with "hadamard_response" of one sign."""
        num = 2 if self.mechanism == HADAMARD else self.num_bins
        return CategoryRandomizer(epsilon=self.epsilon, num_categories=num)

    @property
    def support(self) -> tuple[float, float]:
        """The probabilities (a, b) that a code supports its owner's category, and any given other.

        A k-ary code supports the category that it names; a sign supports the categories whose entry
        in the person's row of the Hadamard matrix has this sign.
        """
        randomizer = self.randomizer
        if self.mechanism == K_ARY:
            return randomizer.kept, randomizer.other
        return randomizer.kept, 0.5 - (randomizer.kept - 0.5) / (self.order - 1)

    def labels(self) -> list[str]:
        """Return the names of the bins ("[a, b)"), or of the categories and then "other"."""
        if self.categories is not None:
            return [*self.categories, OTHER]
        edges = self.edges()
        inner = [f"[{a:g}, {b:g})" for a, b in itertools.pairwise(edges[:-1])]
        return [*inner, f"[{edges[-2]:g}, {edges[-1]:g}]"]

    def edges(self) -> list[float]:
        """Return the edges of the bins, from lower to upper; not defined for categories."""
        assert self.lower is not None
        assert self.upper is not None
        return [float(edge) for edge in np.linspace(self.lower, self.upper, self.num_bins + 1)]

    def indices(self, values: ArrayLike) -> NDArray[np.int64]:
        """Return the index of each value's bin or category, counted from 0.

        Numbers outside the bounds are clipped; words that are not listed have the last index.
        """
        if self.categories is not None:
            places = {name: place for place, name in enumerate(self.categories)}
            other = len(self.categories)
            found = [places.get(word, other) for word in words(values)]
            return np.array(found, dtype=np.int64)
        assert self.lower is not None
        assert self.upper is not None
        # Values are clipped first: a huge one would overflow, and wrap around as an integer.
        inside = np.clip(numbers(values), self.lower, self.upper)
        share = (inside - self.lower) / (self.upper - self.lower)
        return np.clip(np.floor(share * self.num_bins), 0, self.num_bins - 1).astype(np.int64)

    def answer(self, values: ArrayLike, randomness: Randomness, first: PersonNumbers = 0) -> Codes:
        own = self.indices(values)
        if self.mechanism == HADAMARD:
            own = transforms.is_negative(self._rows(first, len(own)), own)
        return self.randomizer.answer(own, stream_of(randomness, "histogram", first))

    def tally(self, codes: Codes, first: PersonNumbers = 0) -> Tally:
        if self.mechanism == K_ARY:
            return CodeCounts.of(codes, self.num_bins)
        return CodeCounts.of(codes, 2, self._rows(first, len(codes)), self.order)

    def _rows(self, first: PersonNumbers, count: int) -> NDArray[np.int64]:
        """Return the matrix rows of people with these numbers; never row 0."""
        return 1 + assign_choices(self.public_seed, "row", first, count, self.order - 1)

    def check_rows(self, tally: Tally) -> None:
        """Raise DomainError if a tally has answers to row 0 of the Hadamard matrix.

        Row 0 is constant and is assigned to no person. A forged answer to it would support every
        category.
        """
        assert isinstance(tally, CodeCounts)
        if self.mechanism == HADAMARD and tally.counts[0].any():
            raise DomainError(
                "a tally has answers to row 0 of the matrix, which is assigned to no person; "
                "discard it and check where it came from"
            )

    def supports(self, tally: Tally) -> Vector:
        """Return the number of codes that support each category.

        A k-ary code supports the category that it names; a sign supports the categories whose entry
        in the person's row of the Hadamard matrix has this sign. Raise DomainError if a tally has
        answers to row 0, which is assigned to no person.
        """
        assert isinstance(tally, CodeCounts)
        self.check_rows(tally)
        if self.mechanism == K_ARY:
            return np.asarray(tally.counts[0], dtype=np.float64)
        signs = (tally.counts[:, 0] - tally.counts[:, 1]).astype(np.float64)
        return np.asarray((tally.people + transforms.transform(signs)[: self.num_bins]) / 2.0)

    def estimate(self, tally: Tally, confidence: float = 0.95) -> Estimate:
        intervals.check_confidence(confidence)
        people = tally.people
        check_people(people)
        a, b = self.support
        supports = self.supports(tally)
        shares = (supports / people - b) / (a - b)

        def stddev(share: Vector) -> Vector:
            p = b + share * (a - b)
            return np.asarray(np.sqrt(p * (1.0 - p) / people) / (a - b))

        labels = self.labels()
        own: Ends = [None] * len(labels)
        together: Ends = own
        if people >= self.least_people:
            own = _pairs(*intervals.bounded_interval(shares, stddev, 0.0, 1.0, confidence))
            error = (1.0 - confidence) / (2.0 * len(labels))  # The error at each end of each bin.
            low = statistics.lower(supports, people, error)
            high = statistics.upper(supports, people, error)
            ends = (np.clip((p - b) / (a - b), 0.0, 1.0) for p in (low, high))
            together = _pairs(*ends)
        rows = zip(labels, shares, own, strict=True)
        rare = people * min(b, 1.0 - a) < _LEAST_NOISE
        caveat = _RARE_NOISE if rare and people >= self.least_people else None
        numbers_ = tuple(
            Number(label=name, estimate=float(share), interval=ends, caveat=caveat)
            for name, share, ends in rows
        )
        details: dict[str, Any] = {
            "share": [float(share) for share in project_to_simplex(shares)],
            "simultaneous_interval": together,
        }
        if self.categories is None:
            details["edges"] = self.edges()
        return build_estimate(
            self,
            numbers_,
            people=people,
            confidence=confidence,
            mechanism=self.mechanism,
            notes=(
                "each interval holds for its own bin; 'simultaneous_interval' (--json) holds for "
                "all bins",
                "estimates are unbiased and may lie below 0; 'share' is the nearest distribution",
            ),
            details=details,
        )


def _pairs(low: Vector, high: Vector) -> Ends:
    return [(float(x), float(y)) for x, y in zip(low, high, strict=True)]


def project_to_simplex(shares: Vector) -> Vector:
    """Return the nearest vector (in L2) with entries of at least 0 that sum to 1.

    Reference: Duchi, Shalev-Shwartz, Singer and Chandra 2008.
    """
    ordered = np.sort(shares)[::-1]
    excess = (np.cumsum(ordered) - 1.0) / np.arange(1, len(shares) + 1)
    last = int(np.flatnonzero(ordered > excess)[-1])
    return np.asarray(np.maximum(shares - excess[last], 0.0))


def _count_bins(
    lower: float | None, upper: float | None, bins: int | None, names: tuple[str, ...] | None
) -> int:
    """Check bounds and bins, or categories, and return the number of bins."""
    if names is None:
        if lower is None or upper is None:
            raise ParameterError(
                "a histogram needs lower and upper, or a list of categories; give --lower and "
                "--upper for numbers, --categories for words"
            )
        Box(dimension=1, lower=lower, upper=upper)
        return parameter_rules.integer("bins", bins or 0, low=2, high=MAX_BINS)
    if lower is not None or upper is not None or bins is not None:
        raise ParameterError(
            "categories have no bounds and no bins; leave out lower, upper and bins, or categories"
        )
    if not isinstance(names, tuple) or not all(isinstance(name, str) and name for name in names):
        raise ParameterError(
            "categories must be a tuple (in JSON a list) of words that are not empty, got "
            f"{names!r}"
        )
    if len(set(names)) < len(names) or OTHER in names:
        raise ParameterError(
            f"categories must differ, and none may be '{OTHER}', which stands for words that are "
            f"not listed, got {', '.join(names)}"
        )
    parameter_rules.integer("number of categories", len(names), low=1, high=MAX_BINS - 1)
    return len(names) + 1


def _choose_mechanism(mechanism: str, epsilon: float, num: int, bits: int | None) -> str:
    """Choose the mechanism with the least variance for equal shares, among those within `bits`."""
    if mechanism not in (AUTO, *MECHANISMS):
        raise UnknownNameError.among("mechanism for a histogram", mechanism, (AUTO, *MECHANISMS))
    most = 8 if bits is None else parameter_rules.integer("bits", bits, low=1, high=32)
    needed = (num - 1).bit_length()
    if mechanism == K_ARY and needed > most:
        raise ParameterError(
            f"'{K_ARY}' over {num} bins sends {needed} bits, and bits allows {most}; use "
            f"'{HADAMARD}', which sends one bit"
        )
    if mechanism != AUTO:
        return mechanism
    if num > MAX_LEVELS or needed > most:
        return HADAMARD
    odds = math.exp(epsilon)

    def variance(a: float, b: float) -> float:
        p = b + (a - b) / num
        return p * (1.0 - p) / (a - b) ** 2

    kept = odds / (odds + 1.0)
    one_bit = variance(kept, 0.5 - (kept - 0.5) / (transforms.order_for(num) - 1))
    k_ary = variance(odds / (odds + num - 1), 1.0 / (odds + num - 1))
    return K_ARY if k_ary <= one_bit else HADAMARD
