"""What mechanisms that send seeds share: layouts of signs, the search for a seed, codes.

A seed is 16 bytes, sent as four 32-bit codes, and stands for signs that anybody can expand with
ChaCha20 (see `kernels.seeded`). It is found by rejection: of candidates drawn one after another
from the client's own keystream, the first accepted one is sent, or the last of J.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce import parameters
from sottovoce.domains import MAX_DIMENSION, Vector
from sottovoce.errors import DomainError, ParameterError, UnknownNameError
from sottovoce.kernels import seeded
from sottovoce.kernels.seeded import SEED_BYTES
from sottovoce.mechanisms.mechanism import LevelCodes, level_indices

Weights = NDArray[np.int16]
Signs = NDArray[np.uint8]  # packed: bit 1 is +1
Scorer = Callable[[NDArray[np.uint8], Weights], NDArray[np.int64]]
Words = NDArray[np.uint64]

GENERATORS = ("chacha20-1",)
TIMINGS = ("variable", "constant")
LARGEST_WEIGHT = 32_767
WORDS_PER_TRY = 3  # a seed, and 64 bits to accept it with
_CODES = 4  # in a seed
_WORD = 2**64
_TOGETHER = 1 << 19  # signs of candidates that are scored in one call
_FEWEST, _MOST = 8, 256  # of them


def check_choices(generator: str, timing: str) -> None:
    """Refuses a generator or a timing that this side does not know."""
    if generator not in GENERATORS:
        raise UnknownNameError.among("generator of signs", generator, GENERATORS)
    if timing not in TIMINGS:
        raise UnknownNameError.among("timing", timing, TIMINGS)


@dataclass(frozen=True)
class Layout:
    """How the signs of some seeds lie over a vector: `copies` of it, cut into `blocks`.

    Every coordinate is spread evenly over its copies, which are added up again: signs are free once
    a seed stands for them, and more of them are closer to Gaussian noise. Each block has a seed of
    its own; all but the last are of one size, a multiple of 8.
    """

    dimension: int
    copies: int
    blocks: int

    def __post_init__(self) -> None:
        parameters.integer("copies", self.copies, low=1, high=MAX_DIMENSION)
        parameters.integer("blocks", self.blocks, low=1, high=MAX_DIMENSION)
        if (self.blocks - 1) * self.block_size >= self.num_signs:
            raise ParameterError(
                f"{self.num_signs} signs do not fill {self.blocks} blocks of 8 or more; use fewer"
            )

    @classmethod
    def of(cls, dimension: int, *, blocks: int, least_signs: int) -> "Layout":
        """As many copies as it takes to have `least_signs`; then blocks hold whole copies."""
        copies = -(-least_signs // dimension)
        if copies > 1:
            copies = 8 * blocks * -(-copies // (8 * blocks))
        return cls(dimension, copies, blocks)

    @property
    def num_signs(self) -> int:
        return self.dimension * self.copies

    @property
    def block_size(self) -> int:
        return 8 * -(-self.num_signs // (8 * self.blocks))

    @property
    def is_even(self) -> bool:
        """Whether every block has the same part of every coordinate."""
        return self.copies % self.blocks == 0 and self.num_signs % (8 * self.blocks) == 0

    @cached_property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Where each block starts and ends."""
        size = self.block_size
        return tuple((i * size, min(self.num_signs, (i + 1) * size)) for i in range(self.blocks))

    def spread(self, values: Vector) -> Vector:
        """The vector over all signs; its norm stays."""
        if self.copies == 1:
            return values
        return np.tile(values / math.sqrt(self.copies), self.copies)

    def folded(self, values: Vector) -> Vector:
        """The inverse, for what is decoded of each sign."""
        if self.copies == 1:
            return values
        together = values.reshape(self.copies, self.dimension)
        return np.asarray(together.sum(axis=0) / math.sqrt(self.copies))

    def code_format(self) -> LevelCodes:
        return LevelCodes(levels=2**32, count=_CODES * self.blocks)

    def signs(self, codes: ArrayLike) -> Signs:
        """All signs that the codes of a message stand for."""
        seeds = self.seeds(codes)
        if self.blocks == 1:
            return seeded.signs(seeds[0].tobytes(), self.num_signs)
        return np.concatenate(
            [
                seeded.signs(seed.tobytes(), end - start)
                for seed, (start, end) in zip(seeds, self.bounds, strict=True)
            ]
        )

    def seeds(self, codes: ArrayLike) -> NDArray[np.uint8]:
        """The seeds that codes spell, one in each row."""
        words = level_indices(codes, 2**32).astype("<u4")
        if words.shape != (_CODES * self.blocks,):
            raise DomainError(
                f"expected {self.blocks} seeds of {SEED_BYTES} bytes ({_CODES} codes each), got "
                f"codes of shape {words.shape}"
            )
        return words.view(np.uint8).reshape(self.blocks, SEED_BYTES)

    def decoded(self, codes: ArrayLike, magnitude: float) -> Vector:
        """The vector whose coordinates are +-magnitude for each sign, folded."""
        bits = np.unpackbits(self.signs(codes), count=self.num_signs, bitorder="little")
        return self.folded(np.where(bits, magnitude, -magnitude))


def as_codes(seeds: list[bytes]) -> NDArray[np.uint32]:
    """Seeds as they are packed: four little-endian words each."""
    return np.frombuffer(b"".join(seeds), dtype="<u4").astype(np.uint32)


def chosen_seed(
    weights: Weights,
    accept: Callable[[NDArray[np.int64]], Vector],
    words: Words,
    *,
    timing: str,
    scorer: Scorer = seeded.scores,
) -> bytes:
    """The first seed that is accepted, or the last of all candidates.

    `words` has a row for each candidate: two of a seed, one to accept it with. `accept` gives the
    probability for each score <b, w>. With 'constant' timing every candidate is scored, whichever
    is chosen: how long it takes then tells nothing.
    """
    seeds = words[:, :2].astype("<u8").view(np.uint8)
    together = min(_MOST, max(_FEWEST, _TOGETHER // len(weights)))
    found: int | None = None
    for start in range(0, len(words), together):
        part = slice(start, start + together)
        probabilities = accept(scorer(np.ascontiguousarray(seeds[part]), weights))
        # A probability of 1 would not fit into 64 bits; 2^-53 less makes no difference that counts.
        thresholds = np.minimum(probabilities, 1.0 - 2.0**-53) * float(_WORD)
        accepted = np.flatnonzero(words[part, 2] < thresholds.astype(np.uint64))
        if found is None and len(accepted):
            found = start + int(accepted[0])
            if timing == "variable":
                break
    return seeds[len(seeds) - 1 if found is None else found].tobytes()
