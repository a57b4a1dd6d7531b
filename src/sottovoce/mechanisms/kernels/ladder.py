"""Ladders: thresholds that are nearly linear over cells of x, and by how much they are not.

A ladder is a filter for the C kernel: it gives a code only where every threshold that its margin
allows gives the same one. Units are those of a draw, 2^-16. docs/kernels.md proves the margins.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Floats, Vector
from sottovoce.core.native import Native
from sottovoce.core.randomness import Keystream
from sottovoce.core.threads import left_open

Singles = NDArray[np.float32]

DRAW, HALF_DRAW = 2.0**16, 2.0**15
NARROW_CELLS, NARROW_THRESHOLDS = 32, 15
_NARROW_MARGIN = 2.0**12  # beyond it the first pass would decide little; thresholds fit 16 bits
_FAR = 4.0
_SLOPES = 2.0**-100, 2.0**100
_PADDING = 16  # thresholds are compared in whole vectors
# float32: an edge's value, the rise, its product, their sum, the gap and w + gap, each at most 2^-8
# wrong as long as nothing exceeds 2^17.
_ROUNDING = 6.0 * 2.0**-8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ladder:
    """rows[c, 0] are the thresholds at the edge where cell c begins, rows[c, 1] rise over it.

    Thresholds are raised by the cell's margin, and gaps[c] is twice that margin, plus 1 for the
    width of a draw: draw w has surely passed the thresholds up to w, and none beyond w + gap.
    x lies x cells_per_unit + origin cells from the first edge. What lies beyond the last edge, or
    before the first, is in a cell of its own, with an infinite gap.
    """

    levels: int
    cells_per_unit: float
    origin: float
    rows: Singles
    gaps: Singles

    @property
    def length(self) -> float:
        return (len(self.gaps) - 1) / self.cells_per_unit

    @classmethod
    def between(
        cls, low: float, high: float, thresholds: Vector, errors: Vector, slope: float
    ) -> "Ladder":
        """Over equal cells between `low` and `high`, given the thresholds at all their edges.

        `errors` says for each cell by how much a threshold may lie off its chord, and `slope`
        bounds how fast any of them moves with x; both as probabilities.
        """
        cells, levels = len(thresholds) - 1, thresholds.shape[1] + 1
        # Up to 16 thresholds are compared at once. More are padded, the last being padding, and
        # every 16th comes again after them, to be compared first.
        few = levels - 1 <= _PADDING
        width = _PADDING if few else (levels - 1) // _PADDING * _PADDING + 2 * _PADDING
        rows = np.zeros((cells + 1, 2, width), dtype=np.float32)
        rows[:, 0] = np.inf  # padding is never passed; in the last cell, nothing but the gap is
        rises = DRAW * np.diff(thresholds, axis=0)
        # Numbers so small that float32 barely holds them would slow the processor down.
        rows[:cells, 1, : levels - 1] = np.where(np.abs(rises) < 2.0**-40, 0.0, rises)
        misplaced = _misplaced(low, high)
        margins = DRAW * (errors + slope * misplaced) + _ROUNDING
        rows[:cells, 0, : levels - 1] = DRAW * thresholds[:-1] + margins[:, None]
        if not few:
            coarse = rows[:, :, _PADDING - 1 : -_PADDING : _PADDING]
            rows[:, :, -_PADDING:][:, :, : coarse.shape[2]] = coarse
        gaps = np.full(cells + 1, np.inf, dtype=np.float32)
        gaps[:cells] = 1.0 + 2.0 * margins
        per_unit = cells / (high - low)
        return cls(
            levels=levels,
            cells_per_unit=per_unit,
            origin=-low * per_unit,
            rows=rows,
            gaps=gaps,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NarrowLadder:
    """The same in 16 bits, over at most 32 cells: what AVX-512 tries first.

    Units are 2^-15, counted from 1/2, so that a threshold near 1 still fits when it is raised.
    rows[j, 0] are threshold j at each edge, raised by the margin and less 1, and rows[j, 1] its
    rise over each cell.
    """

    cells: int
    cells_per_unit: float
    origin: float
    gap: int
    rows: NDArray[np.int16]

    @classmethod
    def between(
        cls, low: float, high: float, thresholds: Vector, errors: Vector, slope: float
    ) -> "NarrowLadder | None":
        """As for a `Ladder`; None for too many cells or levels, or too steep a rise."""
        cells, count = len(thresholds) - 1, thresholds.shape[1]
        rises = HALF_DRAW * np.diff(thresholds, axis=0)
        if cells > NARROW_CELLS or count > NARROW_THRESHOLDS or np.abs(rises).max() > 32766.0:
            return None
        misplaced = _misplaced(low, high)
        # The rise and its product are each half a unit off, the place by 2^-15 of the rise.
        margin = HALF_DRAW * (float(errors.max()) + slope * misplaced) + 2.0
        if not margin <= _NARROW_MARGIN:
            return None
        rows = np.zeros((count, 2, NARROW_CELLS), dtype=np.int16)
        starts = np.ceil(HALF_DRAW * thresholds[:-1] + margin) - 1.0
        rows[:, 0, :cells] = (starts - HALF_DRAW / 2.0).T
        rows[:, 1, :cells] = np.rint(rises).T
        per_unit = cells / (high - low)
        return cls(
            cells=cells,
            cells_per_unit=per_unit,
            origin=-low * per_unit,
            gap=math.ceil(2.0 * margin) + 2,
            rows=rows,
        )


def _misplaced(low: float, high: float) -> float:
    """By how much float32 may misplace x.

    x, cells_per_unit, their product, origin and the sum: 5 roundings of at most the farther end.
    And what is subtracted from x first, at most `_FAR` times the ladder's length, and the
    difference: as many again.
    """
    return 5.0 * 2.0**-24 * (max(abs(low), abs(high), high - low) + (high - low))


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """u = (x - shift) scale/divisor, rounded to float64 after each step."""

    shift: float = 0.0
    scale: float = 1.0
    divisor: float = 1.0

    def __call__(self, x: Vector) -> Vector:
        return np.asarray((x - self.shift) * self.scale / self.divisor)

    def at(self, x: float) -> float:
        return (x - self.shift) * self.scale / self.divisor

    @property
    def is_moderate(self) -> bool:
        """Whether float32 has the range for x, and for how many cells a unit of it is."""
        return _SLOPES[0] <= abs(self.scale / self.divisor) <= _SLOPES[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """What decides where a ladder does not: points and weights, or knots and thresholds."""

    is_table: bool
    first: Vector
    second: Vector


def is_far(affine: Affine, ladder: Ladder) -> bool:
    """Whether so much is subtracted from x that float32 would lose too much of it."""
    return abs(affine.shift * (affine.scale / affine.divisor)) > _FAR * ladder.length


def sample(
    values: Floats,
    affine: Affine,
    ladder: Ladder,
    narrow: NarrowLadder | None,
    law: Law,
    keystream: Keystream,
    kernels: Native,
) -> tuple[NDArray[np.uint8], list[int]]:
    """Codes of values x by the law at u, and the coordinates that arbitrary precision decides."""
    per_unit = affine.scale / affine.divisor
    if is_far(affine, ladder):
        values = values.astype(np.float64, copy=False)
    key = keystream.spend()
    codes = np.empty(len(values), dtype=np.uint8)
    wide = values.dtype == np.float64
    per_x = ladder.cells_per_unit * per_unit
    first_pass: tuple[Any, ...]
    if narrow is None:
        first_pass = (b"", 0, 0.0, 0.0, 0)
    else:
        narrow_per_x = narrow.cells_per_unit * per_unit
        first_pass = (narrow.rows, narrow.cells, narrow_per_x, narrow.origin, narrow.gap)

    def work(start: int, stop: int, left: NDArray[np.int64]) -> int:
        return int(
            kernels.library.ladder(
                kernels.level, key, start, affine.shift, affine.scale, affine.divisor, per_x,
                ladder.origin, ladder.levels, ladder.rows.shape[2], ladder.rows, ladder.gaps,
                law.is_table, law.first, law.second, values[start:stop], wide, codes[start:stop],
                left, *first_pass,
            )
        )  # fmt: skip

    return codes, left_open(len(values), work)
