"""The sampler of tables of output probabilities, which are interpolated between their rows."""

import math
import weakref
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core.domains import Vector, contiguous_vector, square_sum
from sottovoce.core.errors import DomainError
from sottovoce.core.native import native
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.kernels.ladder import (
    Affine,
    Ladder,
    Law,
    NarrowLadder,
    Payloads,
    sample,
    sample_packed_rows,
)
from sottovoce.mechanisms.kernels.reference import table as reference
from sottovoce.mechanisms.row_batches import RowBatch

Codes = NDArray[np.uint8]
Ladders = tuple[Ladder, NarrowLadder | None]

MAX_LEVELS = 256
_UNEVEN_CELLS = 1024
_AS_IT_IS = Affine()
_SLACK = 2.0**-40
_ladders: "weakref.WeakKeyDictionary[ThresholdTable, Ladders]" = weakref.WeakKeyDictionary()


class ThresholdTable(Protocol):
    """A table of output probabilities: a row for each knot, and linear interpolation in between.

    A code is drawn by comparing a uniform number with the cumulative probabilities of a row.
    `thresholds` decide unless the number is too near one of them; then `cumulative` decides, so
    the sampled distribution is exact.

    Attributes:
        knots: The inputs at which the table has rows, ascending.
        thresholds: The cumulative probabilities, rounded to float64; a matrix with a row for each
            knot and a column for each code. Each row ends in 1.
        cumulative: The exact cumulative probabilities, as integers. Divide each row by its last
            entry to get probabilities.
    """

    @property
    def knots(self) -> Vector:
        """The inputs at which the table has rows, ascending."""

    @property
    def thresholds(self) -> Vector:
        """The cumulative probabilities, rounded to float64: a matrix with a row for each knot."""

    @property
    def cumulative(self) -> tuple[tuple[int, ...], ...]:
        """The exact cumulative probabilities of each row, times the row's last entry."""


def sample_table(
    values: ArrayLike,
    table: ThresholdTable,
    keystream: Keystream,
    affine: Affine = _AS_IT_IS,
    *,
    clamp: bool = False,
) -> Codes:
    """Return a random code for each value, drawn from the table's interpolated row at that value.

    Args:
        values: A vector of numbers.
        table: The table.
        keystream: The randomness; it is used up.
        affine: The map from values to inputs of the table, in units of its knots.
        clamp: Whether inputs beyond the first or last knot are moved to that knot. If False, such
            inputs are an error, except for rounding.

    Returns:
        A code for each value, as uint8: the index of a column of the table.

    Raises:
        DomainError: A value is not finite, or its input lies outside the knots without `clamp`.
        RandomnessError: The keystream was used before.
    """
    kernels, vector = native(), contiguous_vector(np.asarray(values))
    knots = table.knots
    first, last = float(knots[0]), float(knots[-1])
    if clamp:
        if not (math.isfinite(square_sum(vector)) or np.isfinite(vector).all()):
            raise DomainError("every coordinate must be finite; leave out missing values")
    elif len(vector):
        ends = affine.at(float(vector.min())), affine.at(float(vector.max()))
        # The negated condition also refuses NaN.
        if not (first - _SLACK <= ends[0] and ends[1] <= last + _SLACK):
            raise DomainError(
                f"values must be finite and map to inputs of the table from {first:g} to {last:g}; "
                "clip the values first"
            )
    if kernels is None or not has_ladder(affine, table):
        places = np.clip(affine(vector.astype(np.float64, copy=False)), first, last)
        return reference.sample_table(places, knots, table.thresholds, table.cumulative, keystream)
    law = Law(is_table=True, first=knots, second=table.thresholds)
    codes, left = sample(vector, affine, *cached_ladders(table), law, keystream, kernels)
    for i in left:
        word = keystream.draw(16, i)
        place = min(max(affine.at(float(vector[i])), first), last)
        codes[i] = reference.exact_code(place, knots, table.cumulative, word, i, keystream)
    return codes


def sample_table_rows(
    batch: RowBatch, table: ThresholdTable, keystreams: Sequence[Keystream], affine: Affine
) -> Payloads | None:
    """Return the packed codes of many rows, drawn with one call of the C kernels for many rows.

    Args:
        batch: The rows, whose values lie between the table's knots once they are clipped.
        table: The table.
        keystreams: The randomness of each row; it is used up.
        affine: The map from clipped values to inputs of the table.

    Returns:
        A row of bytes for each row: the packed codes that `sample_table` returns for it. None if
        the C kernels do not suit these rows; the keystreams are then not used.

    Raises:
        RandomnessError: A keystream was used before.
    """
    if not has_ladder(affine, table):
        return None
    first, last = float(table.knots[0]), float(table.knots[-1])
    law = Law(is_table=True, first=table.knots, second=table.thresholds)

    def exact(u: float, word: int, i: int, keystream: Keystream) -> int:
        place = min(max(u, first), last)
        return reference.exact_code(place, table.knots, table.cumulative, word, i, keystream)

    return sample_packed_rows(batch, affine, *cached_ladders(table), law, keystreams, exact)


def has_ladder(affine: Affine, table: ThresholdTable) -> bool:
    """Return whether the fast kernels, which use a `Ladder`, can sample this table.

    They need a moderate map from values to inputs (`affine.is_moderate`), because they compute in
    float32, and at most 256 codes, because a code is a byte.
    """
    return affine.is_moderate and table.thresholds.shape[1] <= MAX_LEVELS


def cached_ladders(table: ThresholdTable) -> Ladders:
    """Return the pair of `ladders_of` for a table; it is built once and kept while the table is."""
    ladders = _ladders.get(table)
    if ladders is None:
        ladders = _ladders[table] = ladders_of(table.knots, table.thresholds)
    return ladders


def ladders_of(knots: Vector, thresholds: Vector) -> Ladders:
    """Return a `Ladder` for a table, and a `NarrowLadder` or None if the table does not allow one.

    `thresholds` has a row for each knot and a column for each code: the cumulative probabilities,
    with 1 in the last column. A NarrowLadder is a ladder in 16-bit integers, which is tried first;
    `NarrowLadder.between` says which tables allow one.

    A ladder holds approximations of all thresholds of the table, which are functions of the input.
    It divides the range of inputs into cells of equal width. In each cell a threshold is
    approximated by the straight line between its values at the cell's two edges, and the cell has a
    bound on the error of these lines. Draws within the bound are decided by exact thresholds.

    If the knots are evenly spaced, they are the edges, and the bound covers rounding only.
    Otherwise there are 1024 cells and no NarrowLadder. The exact thresholds are linear between
    knots, so inside a cell the error is largest at one of the knots in that cell. The bound is the
    largest error at those knots, plus 2^-40 for rounding.
    """
    low, high = float(knots[0]), float(knots[-1])
    even = np.linspace(low, high, len(knots))
    columns = thresholds[:, :-1]
    slope = float(np.abs(np.diff(columns, axis=0) / np.diff(knots)[:, None]).max())
    apart = float(np.abs(knots - even).max())
    if apart <= 2.0**-40 * (high - low):
        errors = np.full(len(knots) - 1, slope * apart)
        chords = low, high, columns, errors, slope
        return Ladder.between(*chords), NarrowLadder.between(*chords)
    edges = np.linspace(low, high, _UNEVEN_CELLS + 1)
    at_edges = np.stack([np.interp(edges, knots, column) for column in columns.T], axis=1)
    off = np.abs(columns - np.stack([np.interp(knots, edges, c) for c in at_edges.T], axis=1))
    cells = np.clip(np.searchsorted(edges, knots, "right") - 1, 0, _UNEVEN_CELLS - 1)
    errors = np.zeros(_UNEVEN_CELLS)
    np.maximum.at(errors, cells, off.max(axis=1))
    return Ladder.between(low, high, at_edges, errors + 2.0**-40, slope), None
