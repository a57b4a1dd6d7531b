"""A randomised Hadamard rotation: orthogonal, and after it no update is spiky.

With K the largest power of two that is at most d, H the normalised Hadamard matrix of order K and
random signs D1, D2,

    R = (H D2 on the last K coordinates) (H D1 on the first K coordinates)

No padding: the two blocks overlap and cover everything, for K > d/2. (For K = d they are the same
block, and one pass is enough.) Every coordinate of R v is a sum with random signs, of variance at
most |v|^2/K; a lone spike ends with magnitude about 1/sqrt(K) everywhere.

Rounding. A level of butterflies rounds each coordinate once, by 2^-53 of itself, and so the vector
by 2^-53 of its norm; with K = 2^k and the scaling,

    |fl(R v) - R v| <= 2 (k + 3) 2^-53 |v| <= 2^-46 |v|          (k <= 34)

so neighbours move apart by at most 2^-45 C. What is rotated was projected onto norm C (1 - 2^-20),
or is a mean of n <= 2^22 records clipped to that norm. That headroom, 2^-20 C at client level and
2^-20 C/n >= 2^-42 C between neighbours at sample level, pays for it: sensitivities stay what the
domain says, and a rotated vector lies in the ball that it came from, without a second projection.

References: Ailon and Chazelle 2009 (randomised Hadamard transform); Suresh et al. 2017 (rotation
before quantisation).
"""

import hashlib
import json
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sottovoce import parameters
from sottovoce.domains import MAX_DIMENSION, Vector, finite_vector
from sottovoce.errors import ParameterError
from sottovoce.randomness import Keystream

SEED_BYTES = 32


def block_size(dimension: int) -> int:
    """K, the largest power of two that is at most `dimension`."""
    return 1 << (dimension.bit_length() - 1)


@dataclass(frozen=True, slots=True)
class Rotation:
    """R for vectors of one dimension; the seed is public, the same for server and clients."""

    seed: bytes
    dimension: int

    def __post_init__(self) -> None:
        parameters.integer("dimension", self.dimension, low=1, high=MAX_DIMENSION)
        if len(self.seed) != SEED_BYTES:
            raise ParameterError(f"the seed has {SEED_BYTES} bytes, got {len(self.seed)}")

    @classmethod
    def of_round(cls, run: str, round_number: int, dimension: int) -> "Rotation":
        """The rotation that everybody can derive from the public names of run and round.

        Another one each round: whatever bias is left does not add up in the same coordinates.
        """
        label = json.dumps(["rotation", run, round_number]).encode()
        seed = hashlib.blake2b(label, digest_size=SEED_BYTES).digest()
        return cls(seed=seed, dimension=dimension)

    def forward(self, values: ArrayLike) -> Vector:
        """R v, for finite v."""
        rotated = finite_vector(values, self.dimension).copy()
        for block, signs in self._passes(rotated):
            block *= signs
            _hadamard(block)
        return rotated

    def inverse(self, values: ArrayLike) -> Vector:
        """R^-1 v: H is its own inverse, and so is a sign."""
        restored = finite_vector(values, self.dimension).copy()
        for block, signs in reversed(self._passes(restored)):
            _hadamard(block)
            block *= signs
        return restored

    def _passes(self, values: Vector) -> list[tuple[Vector, Vector]]:
        """The blocks of `values`, as views, each with its signs; the first is turned first."""
        size = block_size(self.dimension)
        return [(values[start : start + size], signs) for start, signs in self.passes()]

    def passes(self) -> list[tuple[int, Vector]]:
        """Where each block starts and its signs; the first is turned first."""
        size = block_size(self.dimension)
        blocks = [0] if size == self.dimension else [0, self.dimension - size]
        words = Keystream(self.seed).words(math.ceil(len(blocks) * size / 64))
        stream = words.astype("<u8", copy=False).view(np.uint8)
        bits = np.unpackbits(stream, count=len(blocks) * size, bitorder="little")
        signs = np.where(bits.reshape(len(blocks), size), -1.0, 1.0)
        return list(zip(blocks, signs, strict=True))


def _hadamard(block: Vector) -> None:
    """H v in place, for a contiguous block whose length is a power of two."""
    size, half = len(block), 1
    while half < size:
        pairs = block.reshape(-1, 2, half)
        below, above = pairs[:, 0], pairs[:, 1]
        difference = below - above
        below += above
        above[...] = difference
        half *= 2
    block *= 1.0 / math.sqrt(size)
