"""Interpolated integer tables: the law at x lies on the chord between the rows of two knots."""

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
_ladders: "weakref.WeakKeyDictionary[Table, Ladders]" = weakref.WeakKeyDictionary()


class Table(Protocol):
    """Running sums of the rows at `knots`: in units of one over their last, and in float64."""

    @property
    def knots(self) -> Vector: ...
    @property
    def thresholds(self) -> Vector: ...
    @property
    def cumulative(self) -> tuple[tuple[int, ...], ...]: ...


def sample_table(
    values: ArrayLike,
    table: Table,
    keystream: Keystream,
    affine: Affine = _AS_IT_IS,
    *,
    clamp: bool = False,
) -> Codes:
    """A code for each value, at the place on the table that `affine` gives.

    Places lie between the first knot and the last, or so little outside that rounding explains it.
    With `clamp` they may lie anywhere, and those outside count as the nearer end.
    """
    kernels, vector = native(), contiguous_vector(np.asarray(values))
    knots = table.knots
    first, last = float(knots[0]), float(knots[-1])
    if clamp:
        if not (math.isfinite(square_sum(vector)) or np.isfinite(vector).all()):
            raise DomainError("every coordinate must be finite")
    elif len(vector):
        ends = affine.at(float(vector.min())), affine.at(float(vector.max()))
        if not (first - _SLACK <= ends[0] and ends[1] <= last + _SLACK):  # also refuses NaN
            raise DomainError(f"places on the table must lie between {first:g} and {last:g}")
    if kernels is None or not has_ladder(affine, table):
        places = np.clip(affine(vector.astype(np.float64, copy=False)), first, last)
        return reference.sample_table(places, knots, table.thresholds, table.cumulative, keystream)
    law = Law(is_table=True, first=knots, second=table.thresholds)
    codes, left = sample(vector, affine, *kept_ladders(table), law, keystream, kernels)
    for i in left:
        word = keystream.draw(16, i)
        place = min(max(affine.at(float(vector[i])), first), last)
        codes[i] = reference.exact_code(place, knots, table.cumulative, word, i, keystream)
    return codes


def has_ladder(affine: Affine, table: Table) -> bool:
    """Whether float32 has the range for a ladder, and a byte for the codes."""
    return affine.is_moderate and table.thresholds.shape[1] <= MAX_LEVELS


def kept_ladders(table: Table) -> Ladders:
    """The ladders of a table, made once."""
    ladders = _ladders.get(table)
    if ladders is None:
        ladders = _ladders[table] = ladders_of(table.knots, table.thresholds)
    return ladders


def ladders_of(knots: Vector, thresholds: Vector) -> Ladders:
    """The cells are the knots' if these are evenly spaced; else many, some with a knot inside.

    A chord over a cell with knots inside is farthest off at one of them.
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
