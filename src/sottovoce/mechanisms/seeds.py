"""The common parts of mechanisms that send seeds: sign layouts, the search for a seed, codes.

A seed is 16 bytes, sent as four 32-bit codes, and stands for the signs into which ChaCha20 expands
it (see `kernels.seeded`); the expansion is public. A seed is found by rejection sampling: of
candidates drawn one after another from the client's own keystream, the first accepted one is sent,
or the last of J.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.domains import MAX_DIMENSION, Vector, plain_array
from sottovoce.core.errors import DomainError, ParameterError, UnknownNameError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.encoding import Prepared, Tensor, pack_codes
from sottovoce.mechanisms.kernels import seeded
from sottovoce.mechanisms.kernels.seeded import SEED_BYTES
from sottovoce.mechanisms.mechanism import LevelCodes, level_indices

Weights = NDArray[np.int16]
Signs = NDArray[np.uint8]  # packed; a bit 1 is the sign +
Score = Callable[[NDArray[np.uint8], Any], NDArray[np.int64]]
Words = NDArray[np.uint64]

GENERATORS = (seeded.GENERATOR,)
TIMINGS = ("variable", "constant")
LARGEST_WEIGHT = 32_767
WORDS_PER_TRY = 3  # a seed, and 64 bits to accept it with
_CHUNK = 1 << 15  # this many coordinates fit into a core's cache
_LEAST_STEP = 1e-290
_SERIES_REACH = 0.1
_CODES = 4  # the number of codes of a seed
_WORD = 2**64
SCORED_TOGETHER = 256  # candidates that a CUDA device scores in one call
_TOGETHER = 1 << 19  # signs of the candidates that the CPU scores in one call
_FEWEST, _MOST = 32, 256  # limits on the number of those candidates


def check_choices(generator: str, timing: str) -> None:
    """Raise UnknownNameError for an unknown generator or timing."""
    check_name("generator of signs", generator, GENERATORS)
    check_name("timing", timing, TIMINGS)


def search_timing(timing: str, keystream: Keystream) -> str:
    """Return `timing`, or "variable" if the keystream is seeded: a simulation hides no time."""
    return timing if keystream.grade == "system" else "variable"


def check_name(what: str, name: object, names: Sequence[str]) -> None:
    """Raise UnknownNameError unless `name` is one of `names`; `what` says what it names."""
    if name not in names:
        raise UnknownNameError.among(what, str(name), names)


@dataclass(frozen=True)
class SeedLayout:
    """The assignment of the signs of several seeds to the coordinates of a vector.

    The signs are `copies` of the vector, divided into `blocks`. Every coordinate is spread evenly
    over its copies, which are added up again when decoding. More signs cost no bytes once a seed
    stands for them, and are closer to Gaussian noise. Each block has its own seed. All blocks but
    the last have the same size, a multiple of 8.
    """

    dimension: int
    copies: int
    blocks: int

    def __post_init__(self) -> None:
        parameter_rules.integer("copies", self.copies, low=1, high=MAX_DIMENSION)
        parameter_rules.integer("blocks", self.blocks, low=1, high=MAX_DIMENSION)
        if (self.blocks - 1) * self.block_size >= self.num_signs:
            raise ParameterError(
                f"{self.num_signs} signs do not fill {self.blocks} blocks of at least 8 signs; use "
                "fewer blocks"
            )

    @classmethod
    def of(cls, dimension: int, *, blocks: int, least_signs: int) -> "SeedLayout":
        """Return a layout of at least `least_signs` signs.

        A vector with that many coordinates has one copy, which the blocks share. A shorter one has
        several copies, and every block holds the same number of them.
        """
        copies = -(-least_signs // dimension)
        if copies > 1:
            copies = 8 * blocks * -(-copies // (8 * blocks))
        return cls(dimension, copies, blocks)

    @property
    def num_signs(self) -> int:
        """The number of signs in all blocks."""
        return self.dimension * self.copies

    @property
    def block_size(self) -> int:
        """The number of signs in each block except the last."""
        return 8 * -(-self.num_signs // (8 * self.blocks))

    @property
    def is_even(self) -> bool:
        """Whether every block has the same number of signs of every coordinate."""
        return self.copies % self.blocks == 0 and self.num_signs % (8 * self.blocks) == 0

    @cached_property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """The first sign of each block and the one after its last, as indices."""
        size = self.block_size
        return tuple((i * size, min(self.num_signs, (i + 1) * size)) for i in range(self.blocks))

    def spread(self, values: Vector) -> Vector:
        """Return one number per sign: each coordinate over sqrt(copies); the norm is kept."""
        if self.copies == 1:
            return values
        return np.tile(values / math.sqrt(self.copies), self.copies)

    def fold(self, values: Vector) -> Vector:
        """Return the sum over the copies of each coordinate, scaled: the inverse of `spread`."""
        if self.copies == 1:
            return values
        together = values.reshape(self.copies, self.dimension)
        return np.asarray(together.sum(axis=0) / math.sqrt(self.copies))

    def code_format(self) -> LevelCodes:
        """Return the format of the codes: four 32-bit codes for each seed."""
        return LevelCodes(levels=2**32, count=_CODES * self.blocks)

    def signs(self, messages: ArrayLike) -> Signs:
        """Return the packed signs of several messages: a row of bytes for each row of codes.

        The lowest bit of a byte is the first sign; a bit 1 is the sign +.
        """
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
        """Return the seeds that codes stand for, at [message, block, byte].

        Raises:
            DomainError: A row is not the four 32-bit codes of each block's seed.
        """
        words = level_indices(messages, 2**32)
        if words.ndim != 2 or words.shape[1] != _CODES * self.blocks:
            raise DomainError(
                f"a message must be a flat array of {_CODES * self.blocks} codes ({_CODES} for "
                f"each of its seeds of {SEED_BYTES} bytes), got shape {words.shape[1:]}; pass "
                "whole messages"
            )
        octets = words.astype("<u4").view(np.uint8)
        return octets.reshape(len(words), self.blocks, SEED_BYTES)

    def decoded(self, codes: ArrayLike, magnitude: float) -> Vector:
        """Return the vector that a message decodes to, with +-magnitude for each sign."""
        signs = self.signs(plain_array(codes)[None])[0]
        bits = np.unpackbits(signs, count=self.num_signs, bitorder="little")
        return self.fold(np.where(bits, magnitude, -magnitude))


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGrid:
    """A rule that rounds values to integer weights.

    Tilts are per_unit * value, in multiples of a step. They are rounded to the nearest multiple if
    `nearest`, else toward 0.
    """

    per_unit: float
    step: float
    nearest: bool

    @property
    def vanishes(self) -> bool:
        """Whether `step` is below 1e-290; all values then get the weight 0, hence the tilt 0."""
        return self.step < _LEAST_STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedTilts:
    """The tilts z = step * weights of a block, with the sum of log cosh z_i.

    The integer weights are an array, or a tensor on the device where candidates are scored.
    """

    weights: Any
    step: float
    log_cosh_sum: float


def quantize(values: Vector, grid: WeightGrid) -> QuantizedTilts:
    """Return the tilts of values, rounded as `grid` says and clipped to 32,767 steps."""
    weights = np.zeros(len(values), dtype=np.int16)
    if grid.vanishes:
        return QuantizedTilts(weights=weights, step=0.0, log_cosh_sum=0.0)
    for start in range(0, len(values), _CHUNK):
        part = slice(start, start + _CHUNK)
        whole = values[part] * (grid.per_unit / grid.step)
        np.clip(whole, -LARGEST_WEIGHT, LARGEST_WEIGHT, out=whole)
        (np.rint if grid.nearest else np.trunc)(whole, out=whole)
        weights[part] = whole
    total = _log_cosh_sum(np.abs(weights), grid.step)
    return QuantizedTilts(weights=weights, step=grid.step, log_cosh_sum=total)


def _log_cosh_sum(levels: Weights, step: float) -> float:
    """Return sum log cosh(step * level); equal levels of a long vector make one term."""
    if len(levels) <= LARGEST_WEIGHT:
        return float(np.sum(_log_cosh(levels.astype(np.float64) * step)))
    counts = np.bincount(levels)
    found = np.flatnonzero(counts)
    return float(np.sum(counts[found] * _log_cosh(found.astype(np.float64) * step)))


def _log_cosh(tilts: Vector) -> Vector:
    """Return log cosh z of tilts z >= 0, by a series if all are small."""
    if float(np.max(tilts)) > _SERIES_REACH:
        return np.asarray(tilts + np.log1p(np.exp(-2.0 * tilts)) - math.log(2.0))
    # z^2/2 - z^4/12 + z^6/45 - 17 z^8/2520 + 31 z^10/14175; the error is below 1e-12 z^2 up to .1.
    y = tilts * tilts
    series = 1.0 / 45.0 + y * (-17.0 / 2520.0 + y * (31.0 / 14175.0))
    return np.asarray(y * (0.5 + y * (-1.0 / 12.0 + y * series)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """A function that scores candidates, and the number to score in one call."""

    score: Score = seeded.scores
    together: int | None = None

    def batch(self, num_signs: int) -> int:
        """Return how many candidates of `num_signs` signs to score in one call."""
        return self.together or min(_MOST, max(_FEWEST, _TOGETHER // num_signs))


ON_CPU = Scorer()


def pack_on_device(prepared: Prepared, codes_of: Callable[[int], NDArray[np.uint32]]) -> Tensor:
    """Return the packed codes that `codes_of(i)` returns for each row i, on the rows' device."""
    from sottovoce.mechanisms.kernels.cuda import rows
    from sottovoce.mechanisms.kernels.cuda.seeded import bytes_to_device

    code_format = prepared.mechanism.code_format()

    def payload(i: int) -> Tensor:
        return bytes_to_device(pack_codes(codes_of(i), code_format), prepared.rows.device)

    return rows.stacked(payload, len(prepared))


def as_codes(seeds: list[bytes]) -> NDArray[np.uint32]:
    """Return seeds of 16 bytes as codes: four 32-bit little-endian numbers for each seed."""
    return np.frombuffer(b"".join(seeds), dtype="<u4").astype(np.uint32)


def choose_seed(
    weights: Any,
    accept: Callable[[NDArray[np.int64]], Vector],
    words: Words,
    *,
    timing: str,
    scorer: Scorer = ON_CPU,
) -> bytes:
    """Return the first accepted seed, or the last of all candidates.

    `words` has a row for each candidate: two words of a seed and one to accept it with. `accept`
    gives the probability of acceptance for each score, the sum of weights times signs. With
    "constant" timing every candidate is scored and compared, so that the number of tries reveals
    nothing; with "variable" timing the search stops after the batch that holds the first accepted
    one.
    """
    seeds: NDArray[np.uint8] = words[:, :2].astype("<u8").view(np.uint8)
    together = scorer.batch(len(weights))
    accepted: list[NDArray[np.bool_]] = []
    for start in range(0, len(words), together):
        part = slice(start, start + together)
        probabilities = accept(scorer.score(np.ascontiguousarray(seeds[part]), weights))
        # A probability of 1 does not fit into 64 bits. The accounting allows for far more rounding
        # than the missing 2^-53.
        thresholds = np.minimum(probabilities, 1.0 - 2.0**-53) * float(_WORD)
        accepted.append(words[part, 2] < thresholds.astype(np.uint64))
        if timing == "variable" and accepted[-1].any():
            break
    found = np.flatnonzero(np.concatenate(accepted))
    return bytes(seeds[found[0] if len(found) else -1])
