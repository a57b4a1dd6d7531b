"""Rows of many inputs that kernels clip and rotate while they read them.

Rows are a matrix or `FactoredRows`: parts side by side, of which some are outer products. The
gradient of a linear layer at one sample is such a product. A kernel makes such a row in a buffer
that stays in a core's cache, so that the matrix is never in memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import LEAST_SQUARES, MOST_SQUARES, Floats, L2Ball, Vector
from sottovoce.core.native import Native, native
from sottovoce.core.threads import over_rows, thread_count, threads_for_rows
from sottovoce.mechanisms.rotation import Rotation

_LARGE_ROW = 1 << 17  # From this dimension on, several threads can share the work on one row.
_FIRST_CAPACITY = 1024
_MOST_LAYERS = 64  # The most parts that the C kernels take.

# The most coordinates and rows for each thread that are encoded at once. They are many because
# threads have to be told of each batch, and bounded because some mechanisms need the whole matrix.
_MOST_COORDINATES = 1 << 21
_MOST_ROWS = 1024

Singles = NDArray[np.float32]
Coordinates = NDArray[np.int64]


def rows_at_once(dimension: int) -> int:
    """Return how many rows of this dimension should be encoded at once, on all threads."""
    threads = thread_count()
    return max(1, min(_MOST_ROWS * threads, _MOST_COORDINATES * threads // dimension))


class OuterProducts(NamedTuple):
    """Row i holds the products of `left[i]` and `right[i]`, then `left[i]` if there are biases."""

    left: Singles
    right: Singles
    has_bias: bool

    def matrix(self) -> Singles:
        """Return the rows as a matrix."""
        products = self.left[:, :, None] * self.right[:, None, :]
        flat = products.reshape(len(self.left), -1)
        return np.concatenate([flat, self.left], axis=1) if self.has_bias else flat


@dataclass(frozen=True, slots=True)
class FactoredRows:
    """A float32 matrix whose columns are divided into parts: matrices or outer products.

    Attributes:
        parts: The parts, from left to right, with one row for each input.
    """

    parts: tuple[Singles | OuterProducts, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        return len(self), sum(_width(part) for part in self.parts)

    def __len__(self) -> int:
        first = self.parts[0]
        return int((first.left if isinstance(first, OuterProducts) else first).shape[0])

    def select(self, positions: Any) -> "FactoredRows":
        """Return the rows at these positions, which numpy accepts as an index."""
        return FactoredRows(
            tuple(
                OuterProducts(part.left[positions], part.right[positions], part.has_bias)
                if isinstance(part, OuterProducts)
                else part[positions]
                for part in self.parts
            )
        )

    def matrix(self) -> Singles:
        """Return the rows as one matrix."""
        made = [part.matrix() if isinstance(part, OuterProducts) else part for part in self.parts]
        return np.ascontiguousarray(made[0] if len(made) == 1 else np.concatenate(made, axis=1))


def _width(part: Singles | OuterProducts) -> int:
    if isinstance(part, OuterProducts):
        return int(part.left.shape[1] * (part.right.shape[1] + part.has_bias))
    return int(part.shape[1])


def select_rows(rows: Floats | FactoredRows, positions: Sequence[int]) -> Any:
    """Return some rows; the memory is shared if the positions are consecutive."""
    first, last = positions[0], positions[-1] + 1
    consecutive = list(positions) == list(range(first, last))
    index: Any = slice(first, last) if consecutive else list(positions)
    return rows.select(index) if isinstance(rows, FactoredRows) else rows[index]


def select_singles(matrix: NDArray[Any], positions: NDArray[np.int64]) -> Singles:
    """Return chosen rows of an array of any number of axes, in float32, read on several threads.

    `matrix` may also be like an array, with rows that are read when they are indexed.
    """
    found = np.empty((len(positions), *matrix.shape[1:]), dtype=np.float32)
    kernels, size = native(), found[:1].size
    in_memory = isinstance(matrix, np.ndarray) and matrix.flags.c_contiguous
    if kernels is not None and size and in_memory and matrix.dtype == np.float32:
        threads = threads_for_rows(len(positions), size)
        places = np.ascontiguousarray(positions)
        kernels.library.gather_rows(matrix, 4 * size, places, found, threads)
        return found

    def work(begin: int, end: int) -> None:
        np.copyto(found[begin:end], matrix[positions[begin:end]])

    over_rows(work, len(positions), max(1, size))
    return found


class Undecided(NamedTuple):
    """A coordinate whose code the kernels could not decide, with its row and its value there.

    The value is still to be multiplied with `factor`.
    """

    row: int
    coordinate: int
    value: float
    factor: float


# Encodes rows into payloads; writes undecided coordinates and returns their number.
RowKernel = Callable[[Native, tuple[Any, ...], NDArray[np.uint8], NDArray[np.int64]], int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowBatch:
    """Rows, with the clipping factors and the rotation that are still to be applied to them.

    Attributes:
        source: The rows as they were given: float32 or float64, or factored.
        factors: The clipping factor of each row, or None if all are 1.
        rotation: The rotation of the clipped rows, or None.
    """

    source: Floats | FactoredRows
    factors: Vector | None = None
    rotation: Rotation | None = None

    def __len__(self) -> int:
        return len(self.source)

    @property
    def dimension(self) -> int:
        """The number of coordinates of a row."""
        return int(self.source.shape[1])

    def factor(self, i: int) -> float:
        """Return the clipping factor of row i."""
        return 1.0 if self.factors is None else float(self.factors[i])

    def factor_range(self) -> Vector:
        """Return the least and the largest factor by which the kernels multiply a value."""
        if self.rotation is not None or self.factors is None or not len(self):
            return np.ones(2)
        if len(self.factors) == 1:
            return self.factors.repeat(2)
        return np.array([self.factors.min(), self.factors.max()])

    def select(self, positions: Any) -> "RowBatch":
        """Return the rows at these positions, which numpy accepts as an index."""
        given, factors = self.source, self.factors
        source = given.select(positions) if isinstance(given, FactoredRows) else given[positions]
        chosen = None if factors is None else factors[positions]
        return RowBatch(source=source, factors=chosen, rotation=self.rotation)

    def made(self) -> Vector:
        """Return the clipped and rotated rows as a float64 matrix."""
        out = np.empty((len(self), self.dimension))
        kernels = native()
        if kernels is None or not self.suits_rows:
            self._make_each(out)
        elif out.size:
            kernels.library.prepared_rows(kernels.level, self._parts(), out)
        return out

    def vector(self, i: int) -> Vector:
        """Return row i, clipped and rotated."""
        row: Vector = self.select(slice(i, i + 1)).made()[0]
        return row

    @property
    def suits_rows(self) -> bool:
        """Whether threads work on rows of their own, rather than together on one row."""
        return len(self) > 0 and (self.dimension <= _LARGE_ROW or len(self) >= thread_count())

    def encode(self, bits: int, kernel: RowKernel) -> tuple[NDArray[np.uint8], list[Undecided]]:
        """Return the packed codes that a kernel draws, and what it left undecided.

        Args:
            bits: The bits of a code.
            kernel: It is called as kernel(native, rows, payloads, undecided) with the C kernels and
                their arguments; `undecided` has two rows, one for the numbers of the rows and one
                for the coordinates.

        Returns:
            A matrix of bytes, and the undecided coordinates, in order.
        """
        payloads, rows, coordinates = self.draw(bits, kernel)
        pairs = zip(rows.tolist(), coordinates.tolist(), strict=True)
        return payloads, [self._undecided(row, i) for row, i in pairs]

    def draw(
        self, bits: int, kernel: RowKernel, capacity: int = _FIRST_CAPACITY
    ) -> tuple[NDArray[np.uint8], Coordinates, Coordinates]:
        """Return the packed codes that a kernel draws, and where it left codes undecided.

        Args:
            bits: The bits of a code.
            kernel: The kernel, as for `encode`.
            capacity: If more coordinates are undecided, the kernel is called twice.

        Returns:
            A matrix of bytes, and the row and the coordinate of each undecided code, in order.
        """
        kernels = native()
        assert kernels is not None, "the caller has checked it"
        payloads = np.empty((len(self), (self.dimension * bits + 7) // 8), dtype=np.uint8)
        if not len(self):
            return payloads, *np.empty((2, 0), dtype=np.int64)
        parts = self._parts()
        while True:
            places = np.empty((2, capacity), dtype=np.int64)
            number = kernel(kernels, parts, payloads, places)
            if not number:
                return payloads, places[0, :0], places[1, :0]
            if number <= capacity:
                rows, coordinates = places[:, :number]
                order = np.lexsort((coordinates, rows))
                return payloads, rows[order], coordinates[order]
            capacity = number

    def values_at(self, row: int, coordinates: Coordinates) -> Vector:
        """Return some coordinates of row `row`, clipped and rotated."""
        if self.rotation is not None:
            return self.vector(row)[coordinates]
        given = self.source
        one = given.select([row]).matrix()[0] if isinstance(given, FactoredRows) else given[row]
        return np.asarray(one[coordinates].astype(np.float64) * self.factor(row))

    def _undecided(self, row: int, coordinate: int) -> Undecided:
        if self.rotation is not None:
            return Undecided(row, coordinate, float(self.vector(row)[coordinate]), 1.0)
        given = self.source
        one = given.select([row]).matrix()[0] if isinstance(given, FactoredRows) else given[row]
        return Undecided(row, coordinate, float(one[coordinate]), self.factor(row))

    def _make_each(self, out: Vector) -> None:
        """Make the rows with one call for each, on several threads if there is but one."""
        given = self.source
        rows = given.matrix() if isinstance(given, FactoredRows) else given

        def work(begin: int, end: int) -> None:
            for i in range(begin, end):
                np.multiply(rows[i], self.factor(i), out=out[i], dtype=np.float64)

        over_rows(work, *out.shape)
        if self.rotation is not None:
            self.rotation.rotate_rows(out)

    def _parts(self) -> tuple[Any, ...]:
        signs = b"" if self.rotation is None else self.rotation.packed_signs()
        factors = b"" if self.factors is None else np.ascontiguousarray(self.factors)
        return _parts(self.source, factors, signs)


def _parts(source: Floats | FactoredRows, factors: Any = b"", signs: Any = b"") -> tuple[Any, ...]:
    """Return rows as the C kernels take them; the arrays must outlive the call."""
    is_double = not isinstance(source, FactoredRows) and source.dtype == np.float64
    threads = threads_for_rows(*source.shape)
    return _layers(source), *source.shape, is_double, factors, signs, threads


def _layers(given: Floats | FactoredRows) -> list[tuple[Any, ...]]:
    if not isinstance(given, FactoredRows):
        return [(np.ascontiguousarray(given), None, 0)]
    if len(given.parts) > _MOST_LAYERS:
        return [(given.matrix(), None, 0)]
    return [
        (np.ascontiguousarray(one.left), np.ascontiguousarray(one.right), one.has_bias)
        if isinstance(one, OuterProducts)
        else (np.ascontiguousarray(one), None, 0)
        for one in given.parts
    ]


def clip_factors(source: Floats | FactoredRows, ball: L2Ball) -> Vector:
    """Return the factor by which the projection onto a ball multiplies each row.

    Args:
        source: The rows.
        ball: The ball.

    Returns:
        For each row the result of `ball.clip_scale`, with NaN instead of None.
    """
    factors = np.full(len(source), np.nan)
    kernels = native()
    if kernels is not None and factors.size:
        kernels.library.clip_factors(
            kernels.level, _parts(source), ball.limit, LEAST_SQUARES, MOST_SQUARES, factors
        )
    for i in np.flatnonzero(np.isnan(factors)):
        row = source.select([i]).matrix()[0] if isinstance(source, FactoredRows) else source[i]
        scale = ball.clip_scale(row)
        factors[i] = np.nan if scale is None else scale
    return factors
