"""The sign vectors that seeds of 16 bytes expand to, and their inner products with weights.

The generator "chacha20-1": the key of ChaCha20 (RFC 8439) is the seed followed by the 16 bytes of
`sottovoce-signs1`; nonce and first counter are 0. Bit i of the expansion is bit i % 8, the lowest
first, of byte i // 8 of the keystream, and

    b_i = +1 where that bit is 1, and -1 where it is 0.

The bytes are in the order of the standard, not interleaved as draws are, so any implementation of
ChaCha20 can expand a seed. Scores are exact integers: the weights have 16 bits, their sums 64.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.core.native import native
from sottovoce.core.threads import over_ranges
from sottovoce.mechanisms.kernels.reference import seeded as reference

GENERATOR: Final = "chacha20-1"
SEED_BYTES: Final = 16
# This tag is used for nothing else, so the key of a seed is no key of another keystream by design.
TAG: Final = b"sottovoce-signs1"
MAX_SIGNS: Final = 8 * 64 * 2**32  # The block counter of ChaCha20 ends here.

_LANES = 16  # The number of seeds that the widest registers take at once.
_ALONE = 1 << 25  # The fewest signs that are worth a thread.


def signs(seed: bytes, count: int) -> NDArray[np.uint8]:
    """Return the first `count` signs to which a seed of 16 bytes expands, packed into bytes.

    A bit is 1 for the sign +1 and 0 for -1, the lowest bit of a byte first; unused bits are 0.

    Raises:
        ParameterError: The seed has another length, or `count` is out of range.
    """
    if len(seed) != SEED_BYTES:
        raise ParameterError(f"a seed must have {SEED_BYTES} bytes, got {len(seed)}")
    return sign_rows(np.frombuffer(seed, dtype=np.uint8)[None], count).reshape(-1)


def sign_rows(
    seeds: NDArray[np.uint8], count: int, *, threads: int | None = None
) -> NDArray[np.uint8]:
    """Return the first `count` signs of each of the seeds, a matrix (n, 16) of bytes, packed.

    Row k of the result, a matrix (n, ceil(count/8)) of bytes, is what `signs` returns for seed k: a
    bit is 1 for +1 and 0 for -1. `threads` limits the number of threads; None for the default of
    `core.threads`.

    Raises:
        ParameterError: The seeds have another type or shape, or `count` is out of range.
    """
    given = check_seeds(seeds)
    parameter_rules.integer("count", count, low=0, high=MAX_SIGNS)
    rows = np.empty((len(given), -(-count // 8)), dtype=np.uint8)
    kernels = native()
    if kernels is None:
        for row, seed in zip(rows, given, strict=True):
            row[:] = reference.sign_row(seed.tobytes() + TAG, count)
        return rows

    def work(begin: int, end: int) -> None:
        kernels.library.expand_signs(kernels.level, TAG, given[begin:end], count, rows[begin:end])

    over_ranges(work, len(given), unit=1, least=1 + _ALONE // max(1, count), threads=threads)
    return rows


def scores(
    seeds: NDArray[np.uint8], weights: NDArray[np.int16], *, threads: int | None = None
) -> NDArray[np.int64]:
    """Return sum_i b_i w_i exactly for each of the seeds, a matrix (n, 16) of bytes.

    Here w_i are the weights, and b_i in {-1, +1} is sign i of the seed (`signs`). It is fastest for
    16 or more seeds at once. `threads` limits the number of threads; None for the default of
    `core.threads`.

    Raises:
        ParameterError: The seeds or the weights have another type or shape.
    """
    given, wide = check_seeds(seeds), _checked_weights(weights)
    found = np.empty(len(given), dtype=np.int64)
    kernels = native()
    if kernels is None:
        for k, seed in enumerate(given):
            found[k] = reference.score(seed.tobytes() + TAG, wide)
        return found

    def work(begin: int, end: int) -> None:
        kernels.library.score_signs(kernels.level, TAG, given[begin:end], wide, found[begin:end])

    least = _LANES + _ALONE // max(1, len(wide))
    over_ranges(work, len(given), unit=_LANES, least=least, threads=threads)
    return found


def check_seeds(seeds: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return seeds as a contiguous matrix of bytes (n, 16), with a seed in each row.

    Raises:
        ParameterError: The seeds are not a uint8 matrix with 16 columns.
    """
    given = np.asarray(seeds)
    if given.dtype != np.uint8 or given.ndim != 2 or given.shape[1] != SEED_BYTES:
        raise ParameterError(
            f"seeds must be bytes (uint8) of shape (seeds, {SEED_BYTES}), got {given.dtype} of "
            f"shape {given.shape}; use np.frombuffer(..., np.uint8).reshape(-1, {SEED_BYTES})"
        )
    return np.ascontiguousarray(given)


def _checked_weights(weights: NDArray[np.int16]) -> NDArray[np.int16]:
    given = np.asarray(weights)
    if given.dtype.kind != "i" or given.dtype.itemsize != 2 or given.ndim != 1:
        raise ParameterError(
            f"weights must be a vector of int16, got {given.dtype} of shape {given.shape}; scale "
            "and round them to -32768 ... 32767 first"
        )
    parameter_rules.integer("the number of weights", len(given), low=0, high=MAX_SIGNS)
    return np.require(given, np.int16, ["C", "A"])
