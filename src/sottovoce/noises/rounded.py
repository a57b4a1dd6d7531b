"""Exact sampling of noise that is rounded to a grid after it was added, in numpy.

The code is round((x + noise)/step) for real-valued noise: a post-processing of the continuous
mechanism, drawn without ever forming a real number. Of a coordinate's 64-bit word the lowest bit is
the sign; the others, with as many further bits as it takes, are a tail v in (0, 1/2), and the noise
is the t with P(noise > t) = v. Float64 decides nearly always; where (x + noise)/step lies within
the proven error of the middle between two grid points, v is compared in arbitrary precision with
the tail at that middle. So the sampled law is the declared one, for the x and step given as float64
numbers, and no rounding term enters the accounting.

The error of float64, in grid steps. The word's 63 bits h give v = (h + something in [0, 1)) 2^-64;
h 2^-64 is relatively wrong by at most 1/h + 2^-53, below 2^-40 + 2^-53 for v >= 2^-24, and smaller
tails go straight to arbitrary precision. That moves t by at most the law's quantile slope times as
much; `quantile` is relatively wrong by 2^-40; the reciprocal of step, the products and the sum add
less than 2^-51 of |x| and of t. Together, with T = quantile(2^-24) the largest t that comes here,

    error < ((slope + T) (2^-40 + 2^-50) + |x| 2^-51)/step,

and the margin is nearly twice that. Time: a coordinate is undecided with probability 2 margin, some
2e-11 for each step that the noise is wide, plus 2^-23 for the tails.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sottovoce.domains import Vector
from sottovoce.errors import DomainError, ParameterError
from sottovoce.noises.noise import Noise
from sottovoce.randomness import Keystream

GridCodes = NDArray[np.int64]

# Beyond it float64 would decide too little to be worth its while.
MAX_STEPS = 2.0**24
_CHUNK = 1 << 14
_SMALLEST_TAIL = 2.0**-24
_UNIT = 2.0**-64


def sample_rounded(values: Vector, noise: Noise, step: float, keystream: Keystream) -> GridCodes:
    """round((x + noise)/step) for each value x, with independent noise."""
    check_width(noise, step)
    farthest = float(np.abs(values).max(initial=0.0))
    if not farthest <= MAX_STEPS * step:  # also refuses NaN
        raise DomainError(f"values must lie within {MAX_STEPS:g} steps of 0")
    words = keystream.words(len(values))
    codes = np.empty(len(values), dtype=np.int64)
    margin = _margin(farthest, noise, step)
    for start in range(0, len(values), _CHUNK):
        part = slice(start, start + _CHUNK)
        codes[part], undecided = _float_codes(values[part], noise, step, words[part], margin)
        for offset in np.flatnonzero(undecided):
            i = start + int(offset)
            codes[i] = exact_code(float(values[i]), noise, step, int(words[i]), i, keystream)
    return codes


def check_width(noise: Noise, step: float) -> None:
    """The noise spans few enough steps."""
    if not noise.quantile_slope <= MAX_STEPS * step:
        raise ParameterError(
            f"noise {noise} is more than {MAX_STEPS:g} steps of {step:g} wide; use a coarser grid: "
            "lower steps_per_radius, or make it 'auto'"
        )


def _margin(farthest: float, noise: Noise, step: float) -> float:
    """How near to the middle between two grid points, in steps, float64 may not decide."""
    largest = float(noise.quantile(np.array([_SMALLEST_TAIL]))[0])
    return ((noise.quantile_slope + largest) * 2.0**-39 + farthest * 2.0**-50) / step


def _float_codes(
    values: Vector, noise: Noise, step: float, words: NDArray[np.uint64], margin: float
) -> tuple[Vector, NDArray[np.bool_]]:
    """Codes as float64 sees them, and where it cannot be sure."""
    tails = (words >> np.uint64(1)).astype(np.float64)
    tails *= _UNIT
    np.maximum(tails, _SMALLEST_TAIL, out=tails)
    places = noise.quantile(tails)
    places.view(np.uint64)[...] ^= words << np.uint64(63)  # the word's lowest bit is the sign
    places += values
    places *= 1.0 / step
    codes = np.rint(places)
    places -= codes
    np.abs(places, out=places)
    return codes, (places >= 0.5 - margin) | (tails <= _SMALLEST_TAIL)


def exact_code(
    value: float, noise: Noise, step: float, word: int, coordinate: int, keystream: Keystream
) -> int:
    """The code that the sign and the infinitely long tail 0.word,extension... select."""
    # Negative noise at x is positive noise at -x, mirrored.
    sign = -1 if word & 1 else 1
    place, grid = sign * Fraction(value), Fraction(step)
    code: int | None = None
    num_bytes = 16
    while True:
        bits = 64 + 8 * num_bytes
        extension = int.from_bytes(keystream.extension(coordinate, num_bytes), "big")
        lower = ((word >> 1) << (8 * num_bytes)) | extension
        if code is None:  # a first guess, as good as float64 can tell
            tail = np.array([(lower + 0.5) / 2**bits])
            code = round((place + Fraction(float(noise.quantile(tail)[0]))) / grid)
        while True:
            above = _exceeds((code + Fraction(1, 2)) * grid - place, noise, lower, bits)
            below = _exceeds((code - Fraction(1, 2)) * grid - place, noise, lower, bits)
            if above is False and below is True:
                return sign * code
            if above is None or below is None:
                break
            code += 1 if above else -1
        num_bytes *= 2


def _exceeds(threshold: Fraction, noise: Noise, lower: int, bits: int) -> bool | None:
    """Whether the noise lies above the threshold, for all tails in [lower, lower + 1)/2^bits.

    None if they differ, or if it takes more digits to tell.
    """
    if threshold <= 0:
        return True
    digits = bits // 3 + 2  # 10^-digits < 2^-bits/100
    at_threshold = Fraction(noise.survival(threshold, digits))
    error = Fraction(1, 10**digits)
    if Fraction(lower + 1, 1 << bits) <= at_threshold - error:
        return True
    if Fraction(lower, 1 << bits) >= at_threshold + error:
        return False
    return None
