"""Exact sampling from an exponential family, in numpy.

A code is drawn by comparing one uniform number with the cumulative probabilities. Float64 decides
nearly always; where the uniform number lies within the proven error of a threshold, the comparison
is made again in arbitrary precision with as many further random bits as it takes. So the sampled
law is the declared law itself, for every tilt however large, and no rounding term enters the
accounting.

The error of float64: a logit log w_j + y_j z carries at most (|log w_j| + 2 |y_j z|) 2^-52, hence
a cumulative probability at most twice the largest of those, plus B + 2 roundings of the sums. The
margin below is four times that, and includes the 2^-53 by which the uniform number is truncated.

Time: a coordinate is undecided with probability about 2 B margin (1e-12), whatever its value, so
the slow path tells nothing.
"""

import decimal
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from sottovoce.domains import Vector
from sottovoce.randomness import Keystream

Codes = NDArray[np.uint8]

_CHUNK = 1 << 15
_UNIT = 2.0**-53


def sample_exponential_family(
    tilts: Vector, points: Vector, weights: Vector, keystream: Keystream
) -> Codes:
    """Codes j with probability w_j e^(y_j z) / sum_k w_k e^(y_k z), one for each tilt z."""
    words = keystream.words(len(tilts))
    codes = np.empty(len(tilts), dtype=np.uint8)
    for start in range(0, len(tilts), _CHUNK):
        part = slice(start, start + _CHUNK)
        thresholds, margin = _thresholds(tilts[part], points, weights)
        uniform = (words[part] >> np.uint64(11)).astype(np.float64)[:, None] * _UNIT
        codes[part] = np.sum(uniform >= thresholds, axis=1)
        close = np.abs(uniform - thresholds) <= margin[:, None]
        for offset in np.flatnonzero(close.any(axis=1)):
            i = start + int(offset)
            codes[i] = exact_code(float(tilts[i]), points, weights, int(words[i]), i, keystream)
    return codes


def _thresholds(tilts: Vector, points: Vector, weights: Vector) -> tuple[Vector, Vector]:
    """The B - 1 inner cumulative probabilities of each tilt, and their error margin."""
    log_weights = np.log(weights)
    logits = log_weights + np.outer(tilts, points)
    law = np.exp(logits - logits.max(axis=1, keepdims=True))
    cumulative = np.cumsum(law, axis=1)
    largest_logit = 2.0 * np.abs(tilts) * np.abs(points).max() + np.abs(log_weights).max()
    margin = 4.0 * (2.0 * largest_logit + len(points) + 2.0) * 2.0**-52
    return cumulative[:, :-1] / cumulative[:, -1:], margin


def exact_code(
    tilt: float, points: Vector, weights: Vector, word: int, coordinate: int, keystream: Keystream
) -> int:
    """The code that the infinitely long uniform number 0.word,extension... selects."""
    num_bytes = 16
    while True:
        bits = 64 + 8 * num_bytes
        extension = int.from_bytes(keystream.extension(coordinate, num_bytes), "big")
        lower = (word << (8 * num_bytes)) | extension
        code = _decide(tilt, points, weights, lower, bits)
        if code is not None:
            return code
        num_bytes *= 2


def _decide(tilt: float, points: Vector, weights: Vector, lower: int, bits: int) -> int | None:
    """The code of every uniform number in [lower, lower + 1) / 2^bits, or None if they differ."""
    digits = bits  # more decimal digits than the interval needs
    room = 20 + max(0, Decimal(tilt).adjusted())  # for the sums and for large exponents
    context = decimal.Context(
        prec=digits + room, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=[]
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
