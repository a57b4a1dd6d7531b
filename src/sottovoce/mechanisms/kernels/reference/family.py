"""Exact sampling from an exponential family, in numpy.

A code is drawn by comparing one uniform number with the cumulative probabilities: first its draw of
16 bits, in float64; if more than one code is still possible, 64 bits more; and if the uniform
number lies within the proven error of a threshold, the comparison is made again in arbitrary
precision with as many further random bits as it takes. So the sampled distribution is the declared
one, for every tilt however large, and the accounting needs no term for rounding.

The error of float64: with Y = max |y_j|, the exponent y_j z - |z| Y has an error of at most
2 |z| Y 2^-52, so a mass w_j exp(...) and each sum of B of them have a relative error of at most
(2 |z| Y + B/2 + 2) 2^-52, and a cumulative probability at most twice that. The margin is four times
the mass's error, which also covers the 2^-53 by which the uniform number is truncated. The masses
that matter do not underflow: the node at the tilted end has exponent 0.

Time: 16 bits leave a coordinate undecided with probability below (B - 1) 2^-16, and 64 bits more
with about 1e-12, which grows slowly with |z|.
"""

import decimal
import itertools
import math
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.errors import DomainError
from sottovoce.core.randomness import ExtendedDraws, Keystream

Codes = NDArray[np.uint8]

_CHUNK = 1 << 15
_UNIT = 2.0**-16


def sample_exponential_family(
    tilts: Vector, points: Vector, weights: Vector, keystream: Keystream
) -> Codes:
    """Return a code for each tilt z: j with probability w_j e^(y_j z) / sum_k w_k e^(y_k z).

    Here y_j are the points and w_j the weights. Tilts must be finite, which is not checked. The
    keystream is used up.
    """
    words = keystream.draws(16, len(tilts))
    codes = np.empty(len(tilts), dtype=np.uint8)
    for start in range(0, len(tilts), _CHUNK):
        part = slice(start, start + _CHUNK)
        low = words[part] * _UNIT
        codes[part], undecided = _float_codes(tilts[part], points, weights, low, low + _UNIT)
        (open_,) = np.nonzero(undecided)
        if not len(open_):
            continue
        open_ = open_ + start
        spelled = ExtendedDraws(open_, words[open_], keystream.extensions(open_))
        codes[open_] = decide_codes(tilts[open_], points, weights, spelled, keystream)
    return codes


def decide_codes(
    tilts: Vector, points: Vector, weights: Vector, spelled: ExtendedDraws, keystream: Keystream
) -> Codes:
    """Return the codes of coordinates that their draws of 16 bits left undecided.

    Args:
        tilts: The tilt z of each of these coordinates.
        points: The points y_j of the family.
        weights: The weights w_j of the family.
        spelled: The coordinates, their draws, and 64 further random bits of each.
        keystream: The source of more bits, where 64 do not decide either.

    Returns:
        A code for each coordinate, in the order given.
    """
    codes = np.empty(len(tilts), dtype=np.uint8)
    for start in range(0, len(tilts), _CHUNK):
        part = slice(start, start + _CHUNK)
        uniform = (spelled.words[part] + spelled.extensions[part] * 2.0**-64) * _UNIT
        codes[part], undecided = _float_codes(tilts[part], points, weights, uniform, uniform)
        for k in (start + np.flatnonzero(undecided)).tolist():
            word, i = int(spelled.words[k]), int(spelled.coordinates[k])
            codes[k] = exact_code(float(tilts[k]), points, weights, word, i, keystream)
    return codes


def _float_codes(
    tilts: Vector, points: Vector, weights: Vector, low: Vector, high: Vector
) -> tuple[Codes, NDArray[np.bool_]]:
    """Return codes of uniform numbers in [low, high], and where float64 does not decide them."""
    reach = np.maximum(tilts * points.max(), tilts * points.min())  # The largest exponents.
    # After the loop, row j has the mass of levels 0 ... j, not yet divided by the total.
    masses = np.multiply.outer(points, tilts)
    masses -= reach
    np.exp(masses, out=masses)
    masses *= weights[:, None]
    for below, row in itertools.pairwise(masses):
        row += below
    total = masses[-1]
    largest = np.abs(tilts) * np.abs(points).max()
    margin = (2.0 * largest + len(points) / 2.0 + 2.0) * (4.0 * 2.0**-52) * total
    surely, perhaps = low * total - margin, high * total + margin
    codes = np.zeros(len(tilts), dtype=np.uint8)
    undecided = np.zeros(len(tilts), dtype=np.bool_)
    for row in masses[:-1]:
        passed = surely >= row
        codes += passed
        undecided |= passed != (perhaps >= row)
    return codes, undecided


def exact_code(
    tilt: float, points: Vector, weights: Vector, word: int, coordinate: int, keystream: Keystream
) -> int:
    """Return the code of one coordinate, decided in arbitrary precision.

    It is the number of cumulative probabilities that a uniform number has passed. The binary digits
    of that number are `word`, the coordinate's draw of 16 bits, followed by as many further bits of
    the keystream as it takes.

    Raises:
        DomainError: The tilt is not finite.
    """
    if not math.isfinite(tilt):
        raise DomainError(f"coordinate {coordinate} is {tilt}; every coordinate must be finite")
    num_bytes = 16
    while True:
        bits = 16 + 8 * num_bytes
        extension = int.from_bytes(keystream.extension(coordinate, num_bytes), "big")
        lower = (word << (8 * num_bytes)) | extension
        code = _decide(tilt, points, weights, lower, bits)
        if code is not None:
            return code
        num_bytes *= 2


def _decide(tilt: float, points: Vector, weights: Vector, lower: int, bits: int) -> int | None:
    """Return the code of all numbers in [lower, lower + 1) / 2^bits, or None if they differ."""
    digits = bits  # These are more decimal digits than the interval needs.
    # Further digits cover the rounding of sums and of large exponents.
    guard_digits = 20 + max(0, Decimal(tilt).adjusted())
    context = decimal.Context(
        prec=digits + guard_digits, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=[]
    )
    with decimal.localcontext(context):
        exponents = [Decimal(float(y)) * Decimal(tilt) for y in points]
        top = max(exponents)
        masses = [
            Decimal(float(w)) * (exponent - top).exp()
            for w, exponent in zip(weights, exponents, strict=True)
        ]
        total = sum(masses, Decimal(0))
        low, high = Decimal(lower) / 2**bits, Decimal(lower + 1) / 2**bits
        error = Decimal(10) ** -digits
        cumulative, code = Decimal(0), 0
        for mass in masses[:-1]:
            cumulative += mass
            threshold = cumulative / total
            if low >= threshold + error:
                code += 1
            elif high > threshold - error:
                return None
        return code
