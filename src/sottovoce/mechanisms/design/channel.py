"""Finite channels on [0, 1]: a row of output probabilities at each knot, linear in between.

Dithering x to the nearest two knots and then drawing from their rows *is* the interpolated row, so
one data structure serves randomized response, the MVU on a grid with dithering, the MVU for
continuous input (whose rows are piecewise linear by themselves) and metric DP.

Interpolation preserves: row sums; unbiasedness, if the rows' means are the knots; epsilon-DP,
because a mixture of numbers in [l, e^eps l] lies there; and metric DP in the form

    |P_j(x_k+1) - P_j(x_k)| <= eps (x_k+1 - x_k) min(P_j(x_k), P_j(x_k+1))

because then |d log P_j / dx| <= eps everywhere, so P_j(x) <= e^(eps |x - x'|) P_j(x').
"""

import hashlib
import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.core.errors import DesignError

TABLE_BITS = 128
_ONE = 1 << TABLE_BITS
_LARGEST_BIAS = 1e-12  # Relative to the largest letter.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChannelMatrix:
    """A randomizer from [0, 1] to finitely many outputs (a finite channel), in float64.

    Between knots the output probabilities are interpolated linearly.

    Attributes:
        knots: The inputs that have a row, ascending from 0 to 1.
        rows: The output probabilities: a row for each knot, a column for each output.
        letters: The value to which each output is decoded.
    """

    knots: Vector
    rows: Vector
    letters: Vector

    def at(self, x: Vector) -> Vector:
        """Return the output probabilities at each x in [0, 1], a row for each x, interpolated."""
        left = np.clip(np.searchsorted(self.knots, x, "right") - 1, 0, len(self.knots) - 2)
        share = ((x - self.knots[left]) / (self.knots[left + 1] - self.knots[left]))[:, None]
        return np.asarray((1.0 - share) * self.rows[left] + share * self.rows[left + 1])

    def variances(self, x: Vector) -> Vector:
        """Return E(letter - x)^2 at each x: the variance of the decoded value if it is unbiased."""
        return np.asarray((self.at(x) * (self.letters - x[:, None]) ** 2).sum(axis=1))

    def mean_variance(self) -> float:
        """Return the mean over x, uniform on [0, 1], of the variance of the decoded letter.

        The channel must be unbiased. On a linear piece the mean is the midpoint's variance, less
        length^2/12.
        """
        middles, lengths = (self.knots[1:] + self.knots[:-1]) / 2.0, np.diff(self.knots)
        return float(lengths @ (self.variances(middles) - lengths**2 / 12.0))

    def scale(self) -> float:
        """Return the largest magnitude of a letter, in relation to which biases are measured."""
        return float(np.abs(self.letters).max())

    def bias(self) -> float:
        """Return the largest |E letter - x| over all inputs x, divided by `scale`."""
        return float(np.abs(self.rows @ self.letters - self.knots).max()) / self.scale()

    def row_error(self) -> float:
        """Return the largest distance of a row's sum from 1."""
        return float(np.abs(self.rows.sum(axis=1) - 1.0).max())

    def pure_epsilon(self) -> float:
        """Return the pure epsilon: the largest log(P_j(x)/P_j(x')) over outputs j and inputs x, x'.

        It is computed in float64, without a margin for rounding; infinite if a probability is 0.
        """
        low = self.rows.min(axis=0)
        if low.min() <= 0.0:
            return math.inf
        return float(np.log(self.rows.max(axis=0) / low).max())

    def metric_epsilon(self) -> float:
        """Return the metric epsilon: the largest |d log P_j(x) / dx| over outputs j and inputs x.

        It is computed in float64, without a margin for rounding; infinite if a probability is 0.
        """
        low = np.minimum(self.rows[1:], self.rows[:-1])
        if low.min() <= 0.0:
            return math.inf
        steps = np.diff(self.knots)[:, None]
        return float((np.abs(np.diff(self.rows, axis=0)) / (low * steps)).max())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class IntegerTable:
    """A finite channel with exact probabilities, integers over 2^128, from which codes are drawn.

    Attributes:
        knots: The inputs that have a row, ascending.
        letters: The value to which each output is decoded.
        rows: The output probabilities at each knot, in units of 2^-128; a row sums to 2^128.
        cumulative: The cumulative sums of the rows.
        thresholds: The cumulative sums in float64, rounded.
        channel: The table in float64, rounded.
        digest: A hash of knots, letters and cumulative sums.
    """

    knots: Vector
    letters: Vector
    rows: tuple[tuple[int, ...], ...]
    cumulative: tuple[tuple[int, ...], ...]
    thresholds: Vector
    channel: ChannelMatrix
    digest: str

    @classmethod
    def of(cls, knots: Vector, letters: Vector, rows: list[list[int]]) -> "IntegerTable":
        """Build the table from integer rows; the arrays `knots` and `letters` become read-only.

        Raises:
            DesignError: A row does not sum to 2^128, or has a probability of 0.
        """
        if any(sum(row) != _ONE or min(row) < 1 for row in rows):
            raise DesignError(
                "every row of an integer table must sum to 2^128 (probability 1) and have no cell "
                "below 1; correct the rows"
            )
        cumulative = tuple(tuple(itertools.accumulate(row)) for row in rows)
        floats, thresholds = (
            np.array([[cell / _ONE for cell in row] for row in matrix])
            for matrix in (rows, cumulative)
        )
        for array in (floats, thresholds, knots, letters):
            array.flags.writeable = False
        digest = hashlib.blake2b(digest_size=16)
        for array in (knots, letters):
            digest.update(array.astype("<f8").tobytes())
        digest.update(repr(cumulative).encode())
        return cls(
            digest=digest.hexdigest(),
            knots=knots,
            letters=letters,
            rows=tuple(tuple(row) for row in rows),
            cumulative=cumulative,
            thresholds=thresholds,
            channel=ChannelMatrix(knots=knots, rows=floats, letters=letters),
        )

    def pure_epsilon(self) -> float:
        """Return the pure epsilon, computed exactly and rounded up.

        It is the largest log(P_j(x)/P_j(x')) over outputs j and inputs x, x'.
        """
        ratio = max(Fraction(max(column), min(column)) for column in zip(*self.rows, strict=True))
        return _log_above(ratio)

    def density_ratios(self) -> tuple[float, float]:
        """Return (lo, hi), rounded outward: all rows lie between lo and hi times one distribution.

        So lo L_j <= P_j(x) <= hi L_j for all inputs x and outputs j. The distribution L is
        proportional to the column minima, which makes lo as large as possible, or to the sums of
        minima and maxima, whichever bounds shuffles better (`privacy.shuffling`). Mixtures of rows
        lie within the same bounds.
        """
        columns = [(min(column), max(column)) for column in zip(*self.rows, strict=True)]
        found = []
        for law in ([low for low, _ in columns], [low + high for low, high in columns]):
            cells = [Fraction(cell, sum(law)) * _ONE for cell in law]
            lo = min(low / cell for (low, _), cell in zip(columns, cells, strict=True))
            hi = max(high / cell for (_, high), cell in zip(columns, cells, strict=True))
            found.append(((1 - lo) * (max(hi, 2 - lo) - lo) / lo, lo, hi))
        _, lo, hi = min(found)
        return math.nextafter(float(lo), 0.0), math.nextafter(float(hi), math.inf)

    def metric_epsilon(self) -> float:
        """Return the metric epsilon, computed exactly and rounded up.

        It is the largest |d log P_j(x) / dx| over outputs j and inputs x.
        """
        largest = Fraction(0)
        knots = [Fraction(float(knot)) for knot in self.knots]
        for k, (first, second) in enumerate(itertools.pairwise(self.rows)):
            step = knots[k + 1] - knots[k]
            ratio = max(Fraction(abs(p - q), min(p, q)) for p, q in zip(first, second, strict=True))
            largest = max(largest, ratio / step)
        return math.nextafter(float(largest), math.inf)

    def bias(self) -> float:
        """Return the largest |E letter - x| over all inputs x, in the units of x.

        It is computed exactly and then rounded to a float. Rows are interpolated between knots, so
        the largest value is at a knot.
        """
        letters = [Fraction(float(a)) for a in self.letters]
        largest = Fraction(0)
        for knot, row in zip(self.knots, self.rows, strict=True):
            mean = sum((a * p for a, p in zip(letters, row, strict=True)), Fraction(0)) / _ONE
            largest = max(largest, abs(mean - Fraction(float(knot))))
        return float(largest)


def round_pure(channel: ChannelMatrix, epsilon: float) -> IntegerTable:
    """Return the channel rounded to an integer table that is exactly epsilon-DP.

    With L_j the first integer above min_j 2^128 and U_j = floor(e^eps L_j), every cell is rounded
    into [L_j, U_j], and what a row lacks to 2^128 goes to the cells farthest from their limit.

    Args:
        channel: The channel in float64.
        epsilon: The epsilon between any two inputs.

    Returns:
        The table.

    Raises:
        DesignError: The channel cannot be rounded within epsilon, or only with a bias above 1e-12
            of the largest letter.
    """
    ratio = _exponential_below(epsilon)
    exact = [[int(Fraction(float(p)) * _ONE) for p in row] for row in channel.rows]
    low = [max(1, min(column) + 1) for column in zip(*exact, strict=True)]
    high = [cell * ratio.numerator // ratio.denominator for cell in low]
    rows = [
        _settled([min(max(c, a), b) for c, a, b in zip(row, low, high, strict=True)], low, high)
        for row in exact
    ]
    table = IntegerTable.of(channel.knots, channel.letters, rows)
    columns = zip(*table.rows, strict=True)
    if any(Fraction(max(column), min(column)) > ratio for column in columns):
        raise DesignError(
            f"the rounded table exceeds epsilon {epsilon:g}, so it is not used; choose a slightly "
            "different epsilon"
        )
    return _unbiased(table)


def round_metric(channel: ChannelMatrix, epsilon: float) -> IntegerTable:
    """Return the channel rounded to an integer table whose metric epsilon is at most `epsilon`.

    Raises:
        DesignError: The rounded table has a larger metric epsilon, or a bias above 1e-12 of the
            largest letter.
    """
    exact = [[max(1, int(Fraction(float(p)) * _ONE)) for p in row] for row in channel.rows]
    rows = [_settled(row, [1] * len(row), [_ONE] * len(row)) for row in exact]
    table = IntegerTable.of(channel.knots, channel.letters, rows)
    if table.metric_epsilon() > epsilon:
        raise DesignError(
            f"the rounded table has epsilon {table.metric_epsilon()!r} per unit of the metric, "
            f"above {epsilon!r}, so it is not used; choose a slightly different epsilon"
        )
    return _unbiased(table)


def _unbiased(table: IntegerTable) -> IntegerTable:
    """Return the table; refuse it if rounding has changed its means."""
    bias = table.bias() / table.channel.scale()
    if not bias <= _LARGEST_BIAS:
        raise DesignError(
            f"rounding within epsilon would bias the table by {bias:.2g} times its largest output, "
            "so it is not used; choose a slightly different epsilon"
        )
    return table


def _settled(row: list[int], low: list[int], high: list[int]) -> list[int]:
    """Return the row with sum 2^128: cells farthest from their limit take the difference."""
    missing = _ONE - sum(row)
    slack = [(b - c) if missing > 0 else (c - a) for c, a, b in zip(row, low, high, strict=True)]
    for j in sorted(range(len(row)), key=lambda j: -slack[j]):
        share = min(abs(missing), slack[j])
        row[j] += share if missing > 0 else -share
        missing -= share if missing > 0 else -share
        if missing == 0:
            return row
    raise DesignError(
        "a row of the design cannot be rounded within its epsilon, so it is not used; choose a "
        "slightly different epsilon"
    )


def _exponential_below(epsilon: float) -> Fraction:
    """Return a rational at or below e^epsilon, within 2^-49 of it."""
    return Fraction(math.exp(epsilon)) * (1 - Fraction(1, 2**50))


def _log_above(ratio: Fraction) -> float:
    """Return log(ratio) rounded up, for a ratio of at least 1 that float64 may not represent."""
    excess = ratio - 1
    if excess < 1:
        return math.log1p(math.nextafter(float(excess), math.inf)) * (1.0 + 2.0**-51)
    return math.log(math.nextafter(float(ratio), math.inf)) * (1.0 + 2.0**-51)
