"""The sampler of one bit for each coordinate: P(1 | x) = 1/(1 + e^(-2z)).

The tilt is z = (x scale)/stddev, rounded to float64 after each step.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core.domains import Floats, contiguous_vector
from sottovoce.core.native import Native, native
from sottovoce.core.randomness import Keystream, spend_all
from sottovoce.core.threads import collect_undecided
from sottovoce.mechanisms.kernels.reference import one_bit as reference
from sottovoce.mechanisms.row_batches import RowBatch

Bits = NDArray[np.uint8]
Payloads = NDArray[np.uint8]
Rows = tuple[Any, ...]
Coordinates = NDArray[np.int64]

_LOG2_E2 = 2.0 / math.log(2.0)
# The kernel computes the odds from 2z/ln 2 = slope x in float32; numpy handles other slopes.
_SLOPES = 2.0**-100, 2.0**100


def sample_payload(
    values: ArrayLike, noise_stddev: float, keystream: Keystream, *, scale: float = 1.0
) -> Bits:
    """Return a random bit for each value, packed, the lowest bit of a byte first.

    A bit is 1 with probability 1/(1 + e^(-2z)), exactly, where z = value * scale / noise_stddev.

    Args:
        values: A vector of finite numbers.
        noise_stddev: The divisor of the values.
        keystream: The randomness; it is used up.
        scale: The factor by which clipping multiplies the values.

    Returns:
        The packed bits, as uint8; unused bits of the last byte are 0.

    Raises:
        RandomnessError: The keystream was used before.
    """
    vector = contiguous_vector(np.asarray(values))
    kernels, slope = native(), _LOG2_E2 * scale / noise_stddev
    if kernels is not None and _SLOPES[0] <= slope <= _SLOPES[1]:
        return _native_payload(vector, scale, noise_stddev, slope, keystream, kernels)
    tilts = vector.astype(np.float64) * scale / noise_stddev
    return np.packbits(reference.sample_bits(tilts, keystream), bitorder="little")


def sample_bits(
    values: ArrayLike, noise_stddev: float, keystream: Keystream, *, scale: float = 1.0
) -> Bits:
    """Return a random bit for each value, 0 or 1 as uint8: those of `sample_payload`, unpacked.

    A bit is 1 with probability 1/(1 + e^(-2z)), where z = value * scale / noise_stddev. The
    keystream is used up.
    """
    payload = sample_payload(values, noise_stddev, keystream, scale=scale)
    return np.unpackbits(payload, count=np.size(values), bitorder="little")


def sample_bit_rows(
    batch: RowBatch, noise_stddev: float, keystreams: Sequence[Keystream]
) -> Payloads | None:
    """Return the packed bits of many rows, drawn by the C kernels with one call for many rows.

    Args:
        batch: The rows, with the factors by which clipping multiplies them and their rotation.
        noise_stddev: The divisor of the values.
        keystreams: The randomness of each row; it is used up.

    Returns:
        A row of bytes for each row, the same as `sample_payload` returns for it; None if the C
        kernels do not suit these rows. The keystreams are then not used.

    Raises:
        RandomnessError: A keystream was used before.
    """
    slopes = _LOG2_E2 * batch.factor_range() / noise_stddev
    if native() is None or not batch.suits_rows or slopes[0] < _SLOPES[0] or slopes[1] > _SLOPES[1]:
        return None
    keys = spend_all(keystreams)

    def kernel(kernels: Native, rows: Rows, out: Bits, left: Any) -> int:
        found = kernels.library.one_bit_rows(
            kernels.level, rows, keys, noise_stddev, _LOG2_E2, out, left
        )
        return int(found)

    payloads, undecided = batch.encode(1, kernel)
    for row, i, value, factor in undecided:
        stream = keystreams[row]
        tilt = value * factor / noise_stddev
        set_bit(payloads[row], i, reference.exact_bit(tilt, stream.draw(16, i), i, stream))
    return payloads


def set_bit(payload: Bits, i: int, bit: int) -> None:
    """Replace bit i of a packed payload."""
    payload[i // 8] = int(payload[i // 8]) & ~(1 << i % 8) | bit << i % 8


def _native_payload(
    vector: Floats,
    scale: float,
    noise_stddev: float,
    slope: float,
    keystream: Keystream,
    kernels: Native,
) -> Bits:
    key = keystream.spend()
    payload = np.empty((len(vector) + 7) // 8, dtype=np.uint8)
    wide = vector.dtype == np.float64

    def work(start: int, stop: int, undecided: Coordinates) -> int:
        out = payload[start // 8 : (stop + 7) // 8]
        return int(
            kernels.library.one_bit(
                kernels.level, key, start, scale, noise_stddev, slope, vector[start:stop], wide,
                out, undecided,
            )
        )  # fmt: skip

    for i in collect_undecided(len(vector), work):
        tilt = float(vector[i]) * scale / noise_stddev
        bit = reference.exact_bit(tilt, keystream.draw(16, i), i, keystream)
        set_bit(payload, i, bit)
    return payload
