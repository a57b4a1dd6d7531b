"""Exact sampling of one bit a coordinate, in numpy: P(1 | z) = 1/(1 + e^(-2z)).

Lazy in both operands. Coordinate i reads 16 random bits, the i-th halfword of the stream with nonce
0, and compares them with a crude float32 threshold; only where these cannot decide does it read on
in the stream with nonce i + 1 and compare in float64, and at last in arbitrary precision. The code
is 1 where the infinitely long uniform number 0.halfword,extension... is at least
q = 1/(1 + e^(2z)), so the sampled law is the declared one and no rounding term enters the
accounting.

The margin of the first comparison, in units of 2^-16. With t = 2z and |t| <= 1/2

    2^16 q = 2^15 - t (2^14 - t^2 (2^16/48 - t^2 2^16/480)) + r,   |r| <= 2^16 (17/80640) |t|^7,

and |r| <= .108. Float32: t carries 3 roundings, the bracket 8, each 2^-24 of at most 2^13, together
below .006; the sum, below 2^16, and the difference to the halfword round by 2^-9 each. That is
below .12, and the margin is .25. Where |t| > 1/2 the threshold is computed in float64. So of 2^16
halfwords at most 1 + 2 * .25, rounded up to two, leave a code undecided: 2e-5 of all coordinates.

The second comparison: q carries at most 4 roundings and exp its own of one unit, 2^-52 each of at
most 1, the uniform number is truncated by 2^-53: below 2^-49.
"""

import decimal
from collections.abc import Callable, Sequence
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from sottovoce.domains import Vector
from sottovoce.randomness import Keystream

Bits = NDArray[np.uint8]

_MARGIN = np.float32(0.75)  # half a unit, and the margin
_SERIES_REACH = np.float32(0.5)
_SECOND_MARGIN = 2.0**-49
_CHUNK = 1 << 15


def sample_bits(tilts: Vector, keystream: Keystream) -> Bits:
    """A bit for each tilt z, 1 with probability 1/(1 + e^(-2z))."""
    words = keystream.halfwords(len(tilts))
    bits = np.empty(len(tilts), dtype=np.uint8)
    for start in range(0, len(tilts), _CHUNK):
        part = slice(start, start + _CHUNK)
        doubled = (2.0 * tilts[part]).astype(np.float32)
        bits[part], undecided = _first(doubled, words[part], tilts[part].__getitem__)
        for offset in np.flatnonzero(undecided):
            i = start + int(offset)
            bits[i] = decide(float(tilts[i]), int(words[i]), i, keystream)
    return bits


def sample_rows(
    rows: NDArray[np.float32], noise_stddev: float, keystreams: Sequence[Keystream]
) -> Bits:
    """Bits of several vectors, each with its own keystream, for tilts row/noise_stddev.

    The same bits as `sample_bits` gives for each row in float64.
    """
    bits = np.empty(rows.shape, dtype=np.uint8)
    doubled = rows * np.float32(2.0 / noise_stddev)
    dimension = rows.shape[1]
    words = np.empty(rows.shape, dtype=np.uint16)
    for row, keystream in zip(words, keystreams, strict=True):
        keystream.halfwords_into(row)
    flat = rows.reshape(-1)
    found, undecided = _first(
        doubled.reshape(-1), words.reshape(-1), lambda i: flat[i].astype(np.float64) / noise_stddev
    )
    bits = found.reshape(rows.shape)
    for position in np.flatnonzero(undecided):
        row, i = divmod(int(position), dimension)
        tilt = float(flat[position]) / noise_stddev
        bits[row, i] = decide(tilt, int(words[row, i]), i, keystreams[row])
    return bits


def _first(
    doubled: NDArray[np.float32],
    words: NDArray[np.uint16],
    tilts_at: Callable[[NDArray[np.intp]], Vector],
) -> tuple[Bits, NDArray[np.bool_]]:
    """Bits as 16 random bits decide them, and where they do not; overwrites `doubled`."""
    largest = max(float(doubled.max(initial=0.0)), -float(doubled.min(initial=0.0)))
    steep = None if largest <= _SERIES_REACH else np.flatnonzero(np.abs(doubled) > _SERIES_REACH)
    square = doubled * doubled
    series = square * np.float32(-(2.0**16) / 480.0)
    series += np.float32(2.0**16 / 48.0)
    series *= square
    np.subtract(np.float32(2.0**14), series, out=series)
    series *= doubled
    # The halfword less the threshold, plus 1/2: its cell lies above where this is positive.
    series += words.astype(np.float32, copy=False)
    series -= np.float32(2.0**15 - 0.5)
    if steep is not None:
        above = 2.0**16 * _upper_tail(2.0 * tilts_at(steep))
        series[steep] = words[steep].astype(np.float64) + 0.5 - above
    bits = (series > 0.0).view(np.uint8)
    return bits, np.abs(series, out=square) < _MARGIN


def _upper_tail(doubled: Vector) -> Vector:
    """1/(1 + e^t), without overflow."""
    small = np.exp(-np.abs(doubled))
    return np.asarray(np.where(doubled > 0.0, small, 1.0) / (1.0 + small))


def decide(tilt: float, word: int, coordinate: int, keystream: Keystream) -> int:
    """The bit that the uniform number 0.word,extension... selects."""
    extension = int.from_bytes(keystream.extension(coordinate, 8), "big")
    uniform = (word + extension * 2.0**-64) * 2.0**-16
    distance = uniform - float(_upper_tail(np.array(2.0 * tilt)))
    if abs(distance) > _SECOND_MARGIN:
        return int(distance > 0.0)
    return exact_bit(tilt, word, coordinate, keystream)


def exact_bit(tilt: float, word: int, coordinate: int, keystream: Keystream) -> int:
    """The same in arbitrary precision, with as many further random bits as it takes."""
    num_bytes = 16
    while True:
        size = 16 + 8 * num_bytes
        extension = int.from_bytes(keystream.extension(coordinate, num_bytes), "big")
        lower = (word << (8 * num_bytes)) | extension
        room = 20 + max(0, Decimal(tilt).adjusted())
        context = decimal.Context(
            prec=size + room, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=[]
        )
        with decimal.localcontext(context):
            threshold = 1 / (1 + (2 * Decimal(tilt)).exp())
            error = Decimal(10) ** -size
            if Decimal(lower) / 2**size >= threshold + error:
                return 1
            if Decimal(lower + 1) / 2**size <= threshold - error:
                return 0
        num_bytes *= 2
