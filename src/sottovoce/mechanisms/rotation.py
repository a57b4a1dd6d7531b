"""A randomized Hadamard rotation, which spreads every update evenly over its coordinates.

With K the largest power of two that is at most d, H the normalized Hadamard matrix of order K and
random signs D1, D2,

    R = (H D2 on the last K coordinates) (H D1 on the first K coordinates)

No padding is needed: the two blocks overlap and cover all coordinates, because K > d/2. (If K = d,
they are the same block, and one pass is enough.) Every coordinate of R v is a sum with random
signs, of variance at most |v|^2/K; a single large coordinate ends with magnitude about 1/sqrt(K)
everywhere.

Rounding. A level of butterflies rounds each coordinate once, by 2^-53 of itself, and so the vector
by 2^-53 of its norm; with K = 2^k and the scaling,

    |fl(R v) - R v| <= 2 (k + 3) 2^-53 |v| <= 2^-46 |v|          (k <= 34)

so the distance of neighbors grows by at most 2^-45 C. The input of the rotation was projected onto
norm C (1 - 2^-20), or is a mean of n <= 2^22 records clipped to that norm. That headroom, 2^-20 C
at client level and 2^-20 C/n >= 2^-42 C between neighbors at sample level, covers the rounding. So
sensitivities stay what the domain says, and a rotated vector lies in the ball that it came from,
without a second projection.

References: Ailon and Chazelle 2009 (randomized Hadamard transform); Suresh et al. 2017 (rotation
before quantization).
"""

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.domains import MAX_DIMENSION, Vector, finite_vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.native import native
from sottovoce.core.randomness import Keystream
from sottovoce.core.threads import over_rows, thread_count

SEED_BYTES = 32
_BYTE = 8
_LEAST_SIZE = 512  # smaller blocks are not worth a call of the kernel
_THREADED_SIZE = 1 << 17  # smaller blocks are not worth several threads

Signs = NDArray[np.uint8]  # packed
_NO_SIGNS: Final[Signs] = np.zeros(0, dtype=np.uint8)


def block_size(dimension: int) -> int:
    """Return K, the largest power of two that is at most `dimension`."""
    return 1 << (dimension.bit_length() - 1)


@dataclass(frozen=True)  # Slots could not hold the cached signs.
class Rotation:
    """A public random rotation R of vectors; server and clients derive it from the same seed.

    Attributes:
        seed: 32 public bytes that determine the random signs.
        dimension: The number of coordinates.

    Raises:
        ParameterError: The seed does not have 32 bytes, or the dimension is out of range.

    Examples:
        >>> rotation = Rotation.of_round("my-run", 1, dimension=4)
        >>> rotation.inverse(rotation.forward([1.0, 2.0, 3.0, 4.0])).round(12).tolist()
        [1.0, 2.0, 3.0, 4.0]
    """

    seed: bytes
    dimension: int

    def __post_init__(self) -> None:
        parameter_rules.integer("dimension", self.dimension, low=1, high=MAX_DIMENSION)
        if len(self.seed) != SEED_BYTES:
            raise ParameterError(f"the seed must have {SEED_BYTES} bytes, got {len(self.seed)}")

    @classmethod
    def of_round(cls, run: str, round_number: int, dimension: int) -> "Rotation":
        """Return the rotation that is derived from the public names of a run and a round.

        Every round has another rotation, so that the remaining bias of a mechanism does not
        accumulate in the same coordinates.

        Args:
            run: The name of the run.
            round_number: The number of the round; runs count from 1.
            dimension: The number of coordinates; it need not be a power of two.

        Returns:
            The rotation, the same for the same arguments on every machine.
        """
        label = json.dumps(["rotation", run, round_number]).encode()
        seed = hashlib.blake2b(label, digest_size=SEED_BYTES).digest()
        return cls(seed=seed, dimension=dimension)

    def forward(self, values: ArrayLike) -> Vector:
        """Rotate a vector.

        Args:
            values: A vector v of `dimension` finite numbers.

        Returns:
            R v as a new float64 vector of the same length.

        Raises:
            DomainError: The vector has another length, or a number is not finite.
        """
        rotated = finite_vector(values, self.dimension).copy()
        self.rotate_rows(rotated[None])
        return rotated

    def rotate_rows(self, rows: Vector) -> None:
        """Rotate every row of a matrix in place.

        Args:
            rows: A contiguous float64 matrix of finite numbers with `dimension` columns.
        """
        size, passes = block_size(self.dimension), self.packed_passes()

        def work(begin: int, end: int) -> None:
            for row in rows[begin:end]:
                for start, signs in passes:
                    _rotate_block(row[start : start + size], before=signs)

        over_rows(work, *rows.shape)

    def inverse(self, values: ArrayLike) -> Vector:
        """Undo the rotation of a vector.

        The normalized Hadamard transform is its own inverse, and so is a multiplication by signs.

        Args:
            values: A vector v of `dimension` finite numbers.

        Returns:
            R^-1 v as a new float64 vector of the same length.

        Raises:
            DomainError: The vector has another length, or a number is not finite.
        """
        return self.undo(finite_vector(values, self.dimension).copy())

    def undo(self, rotated: Vector) -> Vector:
        """Undo the rotation of a vector in its own memory, for vectors as large as a model.

        Args:
            rotated: A contiguous float64 vector of `dimension` finite numbers, which is changed.

        Returns:
            The same array, or R^-1 of it in a new one if it is not contiguous float64.

        Raises:
            DomainError: The vector has another length, or a number is not finite.
        """
        restored = np.require(finite_vector(rotated, self.dimension), requirements=["C", "W"])
        for start, signs in reversed(self.packed_passes()):
            _rotate_block(restored[start : start + block_size(self.dimension)], after=signs)
        return restored

    def passes(self) -> list[tuple[int, Vector]]:
        """Return the passes of the rotation, in the order in which they are applied.

        Each pass multiplies a block of coordinates by signs and then applies the normalized
        Hadamard transform to it.

        Returns:
            One or two pairs: the index of the block's first coordinate, and a vector of +-1 with
            the length of the block.
        """
        size = block_size(self.dimension)
        return [(start, _unpack_signs(signs, size)) for start, signs in self.packed_passes()]

    def packed_signs(self) -> Signs:
        """Return the signs of all passes, packed as in `packed_passes`.

        Returns:
            One pass after the other, each from a new byte on.
        """
        return self._packed.reshape(-1)

    def packed_passes(self) -> list[tuple[int, Signs]]:
        """Return the passes with one bit per sign, lowest bit first; 1 is a minus.

        Returns:
            One or two pairs, as of `passes`.
        """
        return list(zip(self._starts, self._packed, strict=True))

    @property
    def _starts(self) -> list[int]:
        """The first coordinate of the block of each pass."""
        size = block_size(self.dimension)
        return [0] if size == self.dimension else [0, self.dimension - size]

    @cached_property
    def _packed(self) -> Signs:
        """The packed signs, a row for each pass."""
        size, passes = block_size(self.dimension), len(self._starts)
        words = Keystream(self.seed).words(math.ceil(passes * size / 64))
        stream = words.astype("<u8", copy=False).view(np.uint8)
        if size < _BYTE:
            bits = np.unpackbits(stream, count=passes * size, bitorder="little")
            return np.packbits(bits.reshape(passes, size), axis=1, bitorder="little")
        return stream[: passes * size // _BYTE].reshape(passes, size // _BYTE)


def _unpack_signs(signs: Signs, size: int) -> Vector:
    """Return packed signs as a vector of +-1."""
    return np.where(np.unpackbits(signs, count=size, bitorder="little"), -1.0, 1.0)


def _rotate_block(block: Vector, *, before: Signs = _NO_SIGNS, after: Signs = _NO_SIGNS) -> None:
    """Apply signs, H and signs in place to a contiguous block whose length is a power of two."""
    kernels, size = native(), len(block)
    if kernels is None or size < _LEAST_SIZE:
        if len(before):
            block *= _unpack_signs(before, size)
        _hadamard(block)
        if len(after):
            block *= _unpack_signs(after, size)
        return
    threads = thread_count() if size >= _THREADED_SIZE else 1
    kernels.library.rotate(kernels.level, block, before, after, threads)


def _hadamard(block: Vector) -> None:
    """Apply H in place; every kernel must give the same result, bit for bit."""
    size, half = len(block), 1
    while half < size:
        pairs = block.reshape(-1, 2, half)
        below, above = pairs[:, 0], pairs[:, 1]
        difference = below - above
        below += above
        above[...] = difference
        half *= 2
    block *= 1.0 / math.sqrt(size)
