"""Exact sampling of one bit for each coordinate, in numpy: P(1 | z) = 1/(1 + e^(-2z)).

Both operands are computed only as precisely as needed. A coordinate's draw of 16 bits is compared
with an approximate float32 threshold; only if these do not decide, it reads further bits and
compares in float64, and at last in arbitrary precision. The code is 1 where the infinitely long
uniform number 0.draw,extension... is at least q = 1/(1 + e^(2z)), so the sampled distribution is
the declared one and the accounting needs no term for rounding.

The margin of the first comparison, in units of 2^-16. With t = 2z and |t| <= 1/4

    2^16 q = 2^15 - t (2^14 - t^2 2^16/48) + r,   |r| <= 2^16 (1/480) |t|^5 <= .134.

Float32: t has 3 roundings, the bracket 4 and the product one, each 2^-24 of at most 2^12, together
below .002; the sum with the draw, below 2^17, rounds by 2^-8. That is below .15, and the margin is
.25. Where |t| > 1/4 the threshold is computed in float64. So a fraction of 1.5 * 2^-16, or 2.3e-5,
of all coordinates is left undecided.

The second comparison: q has at most 4 roundings and exp its own of one unit, 2^-52 each of at most
1, and the uniform number is truncated by 2^-53: together below 2^-49.
"""

import decimal
import math
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.errors import DomainError
from sottovoce.core.randomness import Keystream

Bits = NDArray[np.uint8]

_SERIES_REACH = 0.25
# With s = w + 2^16 (1/2 - q) the cell [w, w + 1) of a draw lies above 2^16 q if s >= 2^15, and
# reaches above it if s > 2^15 - 1.
_SURELY, _PERHAPS = 2.0**15 + 0.25, 2.0**15 - 1.25
_SECOND_MARGIN = 2.0**-49
_CHUNK = 1 << 15


def sample_bits(tilts: Vector, keystream: Keystream) -> Bits:
    """Return a bit for each tilt z, 1 with probability 1/(1 + e^(-2z)); use the keystream up."""
    words = keystream.draws(16, len(tilts))
    bits = np.empty(len(tilts), dtype=np.uint8)
    for start in range(0, len(tilts), _CHUNK):
        part = slice(start, start + _CHUNK)
        surely, perhaps = _compare(tilts[part], words[part])
        bits[part] = surely
        for offset in np.flatnonzero(surely != perhaps):
            i = start + int(offset)
            bits[i] = decide(float(tilts[i]), int(words[i]), i, keystream)
    return bits


def _compare(
    tilts: Vector, words: NDArray[np.uint16]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return where 16 random bits surely give a 1, and where they perhaps do."""
    # Larger tilts are replaced below, so clipping changes no result.
    doubled = np.clip(2.0 * tilts, -1.0, 1.0).astype(np.float32)
    series = doubled * doubled
    series *= np.float32(-(2.0**16) / 48.0)
    series += np.float32(2.0**14)
    series *= doubled
    series += words
    steep = ~(np.abs(doubled) <= _SERIES_REACH * (1.0 - 1e-6))
    if steep.any():
        series[steep] = words[steep] + 2.0**16 * (0.5 - _upper_tail(2.0 * tilts[steep]))
    return series >= np.float32(_SURELY), series > np.float32(_PERHAPS)


def _upper_tail(doubled: Vector) -> Vector:
    """Return 1/(1 + e^t) without overflow."""
    small = np.exp(-np.abs(doubled))
    return np.asarray(np.where(doubled > 0.0, small, 1.0) / (1.0 + small))


def decide(tilt: float, word: int, coordinate: int, keystream: Keystream) -> int:
    """Return the bit of one coordinate, decided in float64 if possible, else by `exact_bit`.

    It is 1 if a uniform number is at least 1/(1 + e^(2 tilt)). The binary digits of that number are
    `word`, the coordinate's draw of 16 bits, followed by further bits of the keystream.
    """
    extension = int.from_bytes(keystream.extension(coordinate, 8), "big")
    uniform = (word + extension * 2.0**-64) * 2.0**-16
    small = math.exp(-2.0 * abs(tilt))
    distance = uniform - (small if tilt > 0.0 else 1.0) / (1.0 + small)
    if abs(distance) > _SECOND_MARGIN:
        return int(distance > 0.0)
    return exact_bit(tilt, word, coordinate, keystream)


def exact_bit(tilt: float, word: int, coordinate: int, keystream: Keystream) -> int:
    """Return the bit of one coordinate, decided in arbitrary precision.

    It is 1 if a uniform number is at least 1/(1 + e^(2 tilt)). The binary digits of that number are
    `word`, the coordinate's draw of 16 bits, followed by as many further bits of the keystream as
    it takes.

    Raises:
        DomainError: The tilt is NaN.
    """
    if math.isnan(tilt):  # No number of bits would decide.
        raise DomainError(f"coordinate {coordinate} is NaN; every coordinate must be a number")
    num_bytes = 16
    while True:
        size = 16 + 8 * num_bytes
        extension = int.from_bytes(keystream.extension(coordinate, num_bytes), "big")
        lower = (word << (8 * num_bytes)) | extension
        guard_digits = 20 + max(0, Decimal(tilt).adjusted())
        context = decimal.Context(
            prec=size + guard_digits, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=[]
        )
        with decimal.localcontext(context):
            threshold = 1 / (1 + (2 * Decimal(tilt)).exp())
            error = Decimal(10) ** -size
            if Decimal(lower) / 2**size >= threshold + error:
                return 1
            if Decimal(lower + 1) / 2**size <= threshold - error:
                return 0
        num_bytes *= 2
