"""The ladders of the C and CUDA kernels: piecewise linear thresholds with bounds on their errors.

The code of a value x is the number of thresholds that a uniform random number has passed; the
thresholds are functions of x. A ladder approximates them by linear functions over cells of x. It
decides a code only if all thresholds within the error margin give the same code; other coordinates
are decided by exact methods. Thresholds are in units of 2^-16, the resolution of a draw (the first
16 random bits of a coordinate). docs/explanation/kernels.md proves the margins.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Floats, Vector
from sottovoce.core.native import Native, native
from sottovoce.core.randomness import Keystream, spend_all
from sottovoce.core.threads import collect_undecided
from sottovoce.mechanisms.row_batches import RowBatch

Singles = NDArray[np.float32]
Payloads = NDArray[np.uint8]
# Decides one code from u, the draw, the coordinate and its keystream.
ExactCode = Callable[[float, int, int, Keystream], int]

DRAW, HALF_DRAW = 2.0**16, 2.0**15
NARROW_CELLS, NARROW_THRESHOLDS = 32, 15
# With a larger margin the first pass would decide little; with this one thresholds fit 16 bits.
_NARROW_MARGIN = 2.0**12
_FAR = 4.0
_SLOPES = 2.0**-100, 2.0**100
_PADDING = 16  # Thresholds are compared in whole vectors.
# In float32, an edge's value, the rise, its product, their sum, the gap and w + gap have an error
# of at most 2^-8 each as long as none exceeds 2^17.
_ROUNDING = 6.0 * 2.0**-8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ladder:
    """Approximate thresholds of a sampler, linear over equal cells of its argument x, in float32.

    The code of x is the number of thresholds that a uniform random number has passed; threshold j
    is P(code <= j) at x, in units of 2^-16. A draw w is the first 16 bits of that number.

    Row rows[c, 0] has the thresholds at the edge where cell c begins, and rows[c, 1] their rise
    over the cell. Thresholds are raised by the cell's margin, and gaps[c] is twice that margin,
    plus 1 for the width of a draw: a draw w has surely passed the thresholds up to w, and none
    beyond w + gap. The position of x is x cells_per_unit + origin, in cells from the first edge.
    After the last cell there is one more, whose gap is infinite, for all x outside the range
    (kernels for tables move such an x to the nearer end instead). There are `levels` codes.
    """

    levels: int
    cells_per_unit: float
    origin: float
    rows: Singles
    gaps: Singles

    @property
    def length(self) -> float:
        """The length of the range of x that the cells cover."""
        return (len(self.gaps) - 1) / self.cells_per_unit

    @classmethod
    def between(
        cls, low: float, high: float, thresholds: Vector, errors: Vector, slope: float
    ) -> "Ladder":
        """Build a ladder over equal cells between `low` and `high`.

        Args:
            low: The first edge.
            high: The last edge.
            thresholds: The probabilities P(code <= j): a row for each edge, a column for each code
                j but the last.
            errors: For each cell, a bound on the distance between a threshold and the straight line
                between its values at the cell's edges, as a probability.
            slope: A bound on the magnitude of the derivative of any threshold in x.

        Returns:
            The ladder.
        """
        cells, levels = len(thresholds) - 1, thresholds.shape[1] + 1
        # Up to 16 thresholds are compared at once. If there are more, they are padded so that the
        # last one is padding, and every 16th is repeated after them, to be compared first.
        few = levels - 1 <= _PADDING
        width = _PADDING if few else (levels - 1) // _PADDING * _PADDING + 2 * _PADDING
        rows = np.zeros((cells + 1, 2, width), dtype=np.float32)
        rows[:, 0] = np.inf  # A draw never passes padding, nor any threshold of the last cell.
        rises = DRAW * np.diff(thresholds, axis=0)
        # Subnormal float32 numbers would slow the processor down.
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
    """A `Ladder` in 16-bit integers with at most 32 cells, which AVX-512 and NEON try first.

    A ladder holds approximate thresholds with which random bits are compared to draw a code. Units
    are 2^-15, counted from 1/2, so that a threshold near 1 still fits when it is raised. Row
    rows[j, 0] has threshold j at each edge, raised by the margin and less 1, and rows[j, 1] its
    rise over each cell. A draw above a threshold has surely passed it, one that is `gap` or more
    below has surely not, and others are undecided.
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
        """Build a narrow ladder from the arguments of `Ladder.between`.

        Returns:
            The ladder; None if there are more than 32 cells or 16 codes, or if a threshold changes
            by almost 1 over a cell or may be off by about 1/8 or more, too much for 16 bits.
        """
        cells, count = len(thresholds) - 1, thresholds.shape[1]
        rises = HALF_DRAW * np.diff(thresholds, axis=0)
        if cells > NARROW_CELLS or count > NARROW_THRESHOLDS or np.abs(rises).max() > 32766.0:
            return None
        misplaced = _misplaced(low, high)
        # The rise and its product are each off by half a unit, the place by 2^-15 of the rise.
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
    """Return a bound on the error of x in float32.

    x, cells_per_unit, their product, origin and the sum are 5 roundings of at most the farther end.
    The shift that is subtracted from x first, at most `_FAR` times the ladder's length, and the
    difference have as many again.
    """
    return 5.0 * 2.0**-24 * (max(abs(low), abs(high), high - low) + (high - low))


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """The map u = ((x - shift) * scale) / divisor in float64, computed in this order.

    Each of the three operations rounds once. The codes have the law of this rounded u, and the C
    kernels round in the same way, so that all kernels give the same codes.

    Attributes:
        shift: The number that is subtracted first.
        scale: The factor of the difference.
        divisor: The number by which the product is divided.
    """

    shift: float = 0.0
    scale: float = 1.0
    divisor: float = 1.0

    def __call__(self, x: Vector) -> Vector:
        return np.asarray((x - self.shift) * self.scale / self.divisor)

    def at(self, x: float) -> float:
        """Return u = ((x - shift) * scale) / divisor for one number x."""
        return (x - self.shift) * self.scale / self.divisor

    @property
    def is_moderate(self) -> bool:
        """Whether 2^-100 <= |scale/divisor| <= 2^100, so that kernels can compute in float32."""
        return _SLOPES[0] <= abs(self.scale / self.divisor) <= _SLOPES[1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Law:
    """The distribution that decides the codes of coordinates that a ladder leaves undecided.

    Attributes:
        is_table: Whether it is an interpolated table, or else an exponential family.
        first: The knots of the table, or the points of the family.
        second: The thresholds of the table, or the weights of the family.
    """

    is_table: bool
    first: Vector
    second: Vector


def is_far(affine: Affine, ladder: Ladder) -> bool:
    """Return whether the shift is so large that x - shift would be too inexact in float32.

    That is, mapped to u, larger than 4 times the range that the ladder covers. Kernels then
    subtract it in float64.
    """
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
    """Return the codes of values, and the indices of those that need arbitrary precision.

    Args:
        values: The values x.
        affine: The map from x to the argument u of the distribution.
        ladder: The approximate thresholds in float32.
        narrow: The approximate thresholds in 16 bits, which are tried first; None if there are
            none.
        law: The distribution, for coordinates that the ladders leave undecided.
        keystream: The random bits; this uses them up.
        kernels: The C kernels.

    Returns:
        The codes, and the sorted indices of coordinates that are still undecided: the caller must
        replace their codes.

    Raises:
        RandomnessError: The keystream was used before.
    """
    if is_far(affine, ladder):
        values = values.astype(np.float64, copy=False)
    key = keystream.spend()
    codes = np.empty(len(values), dtype=np.uint8)
    wide, parts = values.dtype == np.float64, kernel_parts(affine, ladder, narrow, law)

    def work(start: int, stop: int, undecided: NDArray[np.int64]) -> int:
        found = kernels.library.ladder(
            kernels.level, key, start, parts, values[start:stop], wide, codes[start:stop], undecided
        )
        return int(found)

    return codes, collect_undecided(len(values), work)


def sample_packed_rows(
    batch: RowBatch,
    affine: Affine,
    ladder: Ladder,
    narrow: NarrowLadder | None,
    law: Law,
    keystreams: Sequence[Keystream],
    exact: ExactCode,
) -> Payloads | None:
    """Return the packed codes of many rows, drawn with one call of the C kernels for many rows.

    Args:
        batch: The rows; the factor of a row multiplies the scale of a family, but the values of a
            table, which are shifted afterwards.
        affine: The map from a clipped value to the argument u of the distribution.
        ladder: The approximate thresholds in float32.
        narrow: The approximate thresholds in 16 bits; None if there are none.
        law: The distribution.
        keystreams: The random bits of each row; this uses them up.
        exact: Decides one code, given u, the draw, the coordinate and its keystream.

    Returns:
        A row of bytes for each row; None if the kernels do not suit the rows, and the keystreams
        are then not used.

    Raises:
        RandomnessError: A keystream was used before.
    """
    if native() is None or not batch.suits_rows or is_far(affine, ladder):
        return None
    keys, bits = spend_all(keystreams), (ladder.levels - 1).bit_length()
    parts = kernel_parts(affine, ladder, narrow, law)

    def kernel(kernels: Native, rows: Any, out: Any, left: Any) -> int:
        found = kernels.library.ladder_rows(kernels.level, rows, keys, parts, bits, out, left)
        return int(found)

    payloads, undecided = batch.encode(bits, kernel)
    for row, i, value, factor in undecided:
        if law.is_table:
            u = affine.at(value * factor)
        else:
            u = replace(affine, scale=affine.scale * factor).at(value)
        stream = keystreams[row]
        _set_code(payloads[row], i, bits, exact(u, stream.draw(16, i), i, stream))
    return payloads


def _set_code(payload: Payloads, i: int, bits: int, code: int) -> None:
    """Replace code i of a packed payload."""
    for k in range(bits):
        at = i * bits + k
        payload[at // 8] = int(payload[at // 8]) & ~(1 << at % 8) | (code >> k & 1) << at % 8


def kernel_parts(
    affine: Affine, ladder: Ladder, narrow: NarrowLadder | None, law: Law
) -> tuple[Any, ...]:
    """Return a ladder as the C kernels take it; its arrays must outlive the call."""
    first_pass: tuple[Any, ...] = (b"", 0, 0.0, 0.0, 0)
    if narrow is not None:
        first_pass = (
            narrow.rows, narrow.cells, narrow.cells_per_unit, narrow.origin, narrow.gap
        )  # fmt: skip
    return (
        affine.shift, affine.scale, affine.divisor, ladder.cells_per_unit, ladder.origin,
        ladder.levels, ladder.rows.shape[2], ladder.rows, ladder.gaps, law.is_table, law.first,
        law.second, *first_pass,
    )  # fmt: skip
