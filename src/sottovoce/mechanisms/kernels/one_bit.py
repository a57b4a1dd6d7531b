"""One bit a coordinate: P(1 | x) = 1/(1 + e^(-2z)), z = (x scale)/stddev rounded to float64."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core.domains import Floats, contiguous_vector
from sottovoce.core.native import Native, native
from sottovoce.core.randomness import Keystream
from sottovoce.core.threads import left_open
from sottovoce.mechanisms.kernels.reference import one_bit as reference

Bits = NDArray[np.uint8]
Left = NDArray[np.int64]

_LOG2_E2 = 2.0 / math.log(2.0)
# The crude odds need 2z/ln 2 = slope x in float32; other slopes are left to numpy.
_SLOPES = 2.0**-100, 2.0**100


def sample_payload(
    values: ArrayLike, noise_stddev: float, keystream: Keystream, *, scale: float = 1.0
) -> Bits:
    """Packed bits, the lowest of a byte first; the unused ones of the last byte are 0.

    `values` are finite numbers; `scale` is what a clip multiplies them with.
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
    """The same bits, one in each byte."""
    payload = sample_payload(values, noise_stddev, keystream, scale=scale)
    return np.unpackbits(payload, count=np.size(values), bitorder="little")


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

    def work(start: int, stop: int, left: Left) -> int:
        out = payload[start // 8 : (stop + 7) // 8]
        return int(
            kernels.library.one_bit(
                kernels.level, key, start, scale, noise_stddev, slope, vector[start:stop], wide,
                out, left,
            )
        )  # fmt: skip

    for i in left_open(len(vector), work):
        tilt = float(vector[i]) * scale / noise_stddev
        bit = reference.exact_bit(tilt, keystream.draw(16, i), i, keystream)
        payload[i // 8] = int(payload[i // 8]) & ~(1 << i % 8) | bit << i % 8
    return payload
