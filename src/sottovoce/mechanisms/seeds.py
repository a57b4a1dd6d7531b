"""What mechanisms that send seeds share: layouts of signs, the search for a seed, codes.

A seed is 16 bytes, sent as four 32-bit codes, and stands for signs that anybody can expand with
ChaCha20 (see `kernels.seeded`). It is found by rejection: of candidates drawn one after another
from the client's own keystream, the first accepted one is sent, or the last of J.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.domains import MAX_DIMENSION, Vector
from sottovoce.core.errors import DomainError, ParameterError, UnknownNameError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.encoding import Prepared, Tensor, pack_codes
from sottovoce.mechanisms.kernels import seeded
from sottovoce.mechanisms.kernels.seeded import SEED_BYTES
from sottovoce.mechanisms.mechanism import LevelCodes, level_indices

Weights = NDArray[np.int16]
Signs = NDArray[np.uint8]  # packed: bit 1 is +1
Score = Callable[[NDArray[np.uint8], Any], NDArray[np.int64]]
Words = NDArray[np.uint64]

GENERATORS = (seeded.GENERATOR,)
TIMINGS = ("variable", "constant")
LARGEST_WEIGHT = 32_767
WORDS_PER_TRY = 3  # a seed, and 64 bits to accept it with
_CHUNK = 1 << 15  # coordinates that stay in a core's cache
_LEAST_STEP = 1e-290
_SERIES_REACH = 0.1
_CODES = 4  # in a seed
_WORD = 2**64
SCORED_TOGETHER = 256  # candidates for one seed, on a CUDA device
_TOGETHER = 1 << 19  # signs of candidates that are scored in one call
_FEWEST, _MOST = 16, 256  # of them


def check_choices(generator: str, timing: str) -> None:
    """Refuses a generator or a timing that this side does not know."""
    check_name("generator of signs", generator, GENERATORS)
    check_name("timing", timing, TIMINGS)


def search_timing(timing: str, keystream: Keystream) -> str:
    """How the search for one message runs: a simulation from a seed has no time to hide."""
    return timing if keystream.grade == "system" else "variable"


def check_name(what: str, name: object, names: Sequence[str]) -> None:
    """Refuses anything but one of the names; specs may bring any value."""
    if name not in names:
        raise UnknownNameError.among(what, str(name), names)


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
        parameter_rules.integer("copies", self.copies, low=1, high=MAX_DIMENSION)
        parameter_rules.integer("blocks", self.blocks, low=1, high=MAX_DIMENSION)
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

    def signs(self, messages: ArrayLike) -> Signs:
        """All signs that the codes of some messages stand for, a row for each message."""
        seeds = self.seeds(messages)
        if self.blocks == 1:
            return seeded.sign_rows(seeds[:, 0], self.num_signs)
        return np.concatenate(
            [
                seeded.sign_rows(np.ascontiguousarray(seeds[:, i]), end - start)
                for i, (start, end) in enumerate(self.bounds)
            ],
            axis=1,
        )

    def seeds(self, messages: ArrayLike) -> NDArray[np.uint8]:
        """The seeds that codes spell: at [message, block, byte]."""
        words = level_indices(messages, 2**32)
        if words.ndim != 2 or words.shape[1] != _CODES * self.blocks:
            raise DomainError(
                f"expected {self.blocks} seeds of {SEED_BYTES} bytes ({_CODES} codes each) in a "
                f"message, got codes of shape {words.shape[1:]}"
            )
        octets = words.astype("<u4").view(np.uint8)
        return octets.reshape(len(words), self.blocks, SEED_BYTES)

    def decoded(self, codes: ArrayLike, magnitude: float) -> Vector:
        """The vector whose coordinates are +-magnitude for each sign, folded."""
        signs = self.signs(np.asarray(codes)[None])[0]
        bits = np.unpackbits(signs, count=self.num_signs, bitorder="little")
        return self.folded(np.where(bits, magnitude, -magnitude))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """How values become weights: tilts are per_unit times values, in multiples of a step.

    They are rounded to the `nearest` multiple, or else towards 0.
    """

    per_unit: float
    step: float
    nearest: bool

    @property
    def vanishes(self) -> bool:
        """Whether all tilts are as good as 0."""
        return self.step < _LEAST_STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Tilts:
    """Tilts z = step * weights, and sum log cosh z_i; the weights lie where they are scored."""

    weights: Any
    step: float
    log_cosh_sum: float


def quantised(values: Vector, grid: Grid) -> Tilts:
    """The tilts of some values, cut off at the largest weight."""
    weights = np.zeros(len(values), dtype=np.int16)
    total = 0.0
    if grid.vanishes:
        return Tilts(weights=weights, step=0.0, log_cosh_sum=0.0)
    for start in range(0, len(values), _CHUNK):
        part = slice(start, start + _CHUNK)
        whole = values[part] * (grid.per_unit / grid.step)
        np.clip(whole, -LARGEST_WEIGHT, LARGEST_WEIGHT, out=whole)
        (np.rint if grid.nearest else np.trunc)(whole, out=whole)
        weights[part] = whole
        whole *= grid.step
        total += _log_cosh_sum(whole)
    return Tilts(weights=weights, step=grid.step, log_cosh_sum=total)


def _log_cosh_sum(tilts: Vector) -> float:
    """sum log cosh z_i: by its series where tilts are small."""
    if float(np.max(np.abs(tilts))) > _SERIES_REACH:
        sizes = np.abs(tilts)
        return float(np.sum(sizes + np.log1p(np.exp(-2.0 * sizes)) - math.log(2.0)))
    # z^2/2 - z^4/12 + z^6/45 - 17 z^8/2520 + 31 z^10/14175, wrong by less than 1e-12 z^2 up to .1
    squares = tilts * tilts
    fourths = squares * squares
    total = float(np.sum(squares)) / 2.0 - float(np.sum(fourths)) / 12.0
    total += float(fourths @ squares) / 45.0 - 17.0 / 2520.0 * float(fourths @ fourths)
    return total + 31.0 / 14175.0 * float((fourths * squares) @ fourths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """Where candidates are scored: how, and how many in one call (None: as suits the processor)."""

    score: Score = seeded.scores
    together: int | None = None

    def batch(self, num_signs: int) -> int:
        return self.together or min(_MOST, max(_FEWEST, _TOGETHER // num_signs))


ON_CPU = Scorer()


def placed(prepared: Prepared, codes_of: Callable[[int], NDArray[np.uint32]]) -> Tensor:
    """Pack the seeds that are found for rows on a CUDA device, and bring them there."""
    from sottovoce.mechanisms.kernels.cuda import rows
    from sottovoce.mechanisms.kernels.cuda.seeded import placed_bytes

    code_format = prepared.mechanism.code_format()

    def payload(i: int) -> Tensor:
        return placed_bytes(pack_codes(codes_of(i), code_format), prepared.rows.device)

    return rows.stacked(payload, len(prepared))


def as_codes(seeds: list[bytes]) -> NDArray[np.uint32]:
    """Seeds as they are packed: four little-endian words each."""
    return np.frombuffer(b"".join(seeds), dtype="<u4").astype(np.uint32)


def chosen_seed(
    weights: Any,
    accept: Callable[[NDArray[np.int64]], Vector],
    words: Words,
    *,
    timing: str,
    scorer: Scorer = ON_CPU,
) -> bytes:
    """The first seed that is accepted, or the last of all candidates.

    `words` has a row for each candidate: two of a seed, one to accept it with. `accept` gives the
    probability for each score <b, w>. With 'constant' timing every candidate is scored and
    compared, whichever is chosen: the number of tries then tells nothing.
    """
    seeds: NDArray[np.uint8] = words[:, :2].astype("<u8").view(np.uint8)
    together = scorer.batch(len(weights))
    accepted: list[NDArray[np.bool_]] = []
    for start in range(0, len(words), together):
        part = slice(start, start + together)
        probabilities = accept(scorer.score(np.ascontiguousarray(seeds[part]), weights))
        # A probability of 1 would not fit into 64 bits; 2^-53 less makes no difference that counts.
        thresholds = np.minimum(probabilities, 1.0 - 2.0**-53) * float(_WORD)
        accepted.append(words[part, 2] < thresholds.astype(np.uint64))
        if timing == "variable" and accepted[-1].any():
            break
    found = np.flatnonzero(np.concatenate(accepted))
    return bytes(seeds[found[0] if len(found) else -1])
