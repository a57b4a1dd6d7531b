"""The sampler of interpolated integer tables: at x, the distribution between two knots' rows."""

import math
import weakref
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core.domains import Vector, contiguous_vector, square_sum
from sottovoce.core.errors import DomainError
from sottovoce.core.native import native
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.kernels.ladder import Affine, Ladder, Law, NarrowLadder, sample
from sottovoce.mechanisms.kernels.reference import table as reference

Codes = NDArray[np.uint8]
Ladders = tuple[Ladder, NarrowLadder | None]

MAX_LEVELS = 256
_UNEVEN_CELLS = 1024
_AS_IT_IS = Affine()
_SLACK = 2.0**-40
_ladders: "weakref.WeakKeyDictionary[ThresholdTable, Ladders]" = weakref.WeakKeyDictionary()


class ThresholdTable(Protocol):
    """A table of distributions at knots, between which they are interpolated linearly.

    Attributes:
        knots: The inputs at which the table has rows, ascending.
        thresholds: The cumulative sums of each row in float64, the last one being 1.
        cumulative: The same as integers, in units of 1/(their last entry).
    """

    @property
    def knots(self) -> Vector:
        """The inputs at which the table has rows, ascending."""

    @property
    def thresholds(self) -> Vector:
        """The cumulative sums of each row in float64."""

    @property
    def cumulative(self) -> tuple[tuple[int, ...], ...]:
        """The cumulative sums of each row as integers, in units of 1/(their last entry)."""


def sample_table(
    values: ArrayLike,
    table: ThresholdTable,
    keystream: Keystream,
    affine: Affine = _AS_IT_IS,
    *,
    clamp: bool = False,
) -> Codes:
    """Return a code for each value, drawn at the place on the table that `affine` gives.

    Args:
        values: The values.
        table: The table.
        keystream: The randomness; it is used up.
        affine: The map from values to places.
        clamp: Whether places may lie outside the knots and then count as the nearer end. Otherwise
            they must lie between the first and the last knot, except for rounding.

    Returns:
        A code for each value.

    Raises:
        DomainError: A value is not finite, or lies outside the table.
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
            raise DomainError(f"places on the table must lie between {first:g} and {last:g}")
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


def has_ladder(affine: Affine, table: ThresholdTable) -> bool:
    """Return whether float32 has the range for a ladder, and a byte for the codes."""
    return affine.is_moderate and table.thresholds.shape[1] <= MAX_LEVELS


def cached_ladders(table: ThresholdTable) -> Ladders:
    """Return the ladders of a table, which are built once."""
    ladders = _ladders.get(table)
    if ladders is None:
        ladders = _ladders[table] = ladders_of(table.knots, table.thresholds)
    return ladders


def ladders_of(knots: Vector, thresholds: Vector) -> Ladders:
    """Return the ladders of a table, with the knots as edges if they are evenly spaced.

    Otherwise there are many equal cells, some with a knot inside; the chord over a cell is farthest
    from the thresholds at one of its knots, which gives the error.
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
