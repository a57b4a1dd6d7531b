"""Exact sampling of noise that is added to a value and then rounded to a grid.

The code is round((x + noise)/step) for real-valued noise: a post-processing of the continuous
mechanism, drawn without ever forming a real number. Each coordinate draws 32 bits. The lowest bit
is the sign. The others, h, followed by as many further bits as needed, are a tail v in (0, 1/2),
and the noise is the t with P(noise > t) = v. Float64 arithmetic decides nearly always. If
(x + noise)/step lies within the proven error of the middle between two grid points, 64 more bits
are read. If that does not decide either, v is compared in arbitrary precision with the tail at
that middle. So the sampled law is exactly the declared one, for the x and step given as float64
numbers, and no rounding term enters the accounting.

The error of float64, in grid steps. A tail with relative error r moves t by at most the law's
quantile slope times r. `quantile` has a relative error of 2^-40. The reciprocal of the step, the
products and the sum add less than 2^-51 of |x| and of t. So

    error < (slope r + (slope + t) 2^-40 + |x| 2^-51)/step,

where r is 1/h for the draw alone and 2^-52 with 64 more bits; the margin is twice all but the first
term. Tails below 2^-20 always read more bits. The C kernel takes t from chords over cells of h
instead (see below). Time: the first draw leaves a coordinate undecided with probability below 3e-8
for each step of the noise's width, plus 2^-19 for the tails; with 64 more bits about 1e-11.

Kernels read a table of noise quantiles, which are interpolated by chords over cells of the tail. A
draw's 31 bits h stand for a tail v = (h + something in [0, 1)) 2^-32. The quantile Q(v) is convex
where the density decreases away from 0, as it does for every noise law here. So over a cell of h
the chord between the ends of the cell lies above Q. The gap g between them is concave, with
g <= 2 g(middle), because g(middle) is at least the mean of g(x) and of g at the mirror image of x.
Hence

    chord(h + 1) - 2 g(middle)  <=  noise  <=  chord(h).

Cells have a relative width of 2^-10: the gap is about 1e-7 of the noise's width.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.core.native import Native, native
from sottovoce.core.randomness import ExtendedDraws, Keystream, spend_all
from sottovoce.mechanisms.noise.laws import Noise
from sottovoce.mechanisms.row_batches import RowBatch

CELL_BITS: Final = 10  # the binary logarithm of the number of cells in an octave
OCTAVES: Final = range(12, 31)
LEAST_BITS: Final = OCTAVES[0]
LEAST_TAIL: Final = 1 << LEAST_BITS  # in units of 2^-32; smaller tails read more bits
_CAPACITY = 1024  # undecided coordinates for which the first call of the kernel has space


@lru_cache(maxsize=16)
def chords(
    noise: Noise, step: float, cell_bits: int = CELL_BITS, octaves: range = OCTAVES
) -> NDArray[np.float64]:
    """Return a table of noise quantiles for the kernels, in grid steps; it is read-only and cached.

    The quantile Q(h) is the t with P(noise > t) = h 2^-32. Each octave of h (by default from 2^12
    to 2^31) is divided into 2^cell_bits cells, and each cell has a row (value, slope, error, 0):
    the chord value + slope (h - start of the cell) is at least Q(h), and at most `error` (twice the
    gap at the middle of the cell) above it, up to rounding.
    """
    within = np.arange(1 << cell_bits) * 2.0**-cell_bits
    starts = np.concatenate([2.0**octave * (1.0 + within) for octave in octaves])
    ends = np.append(starts[1:], 2.0 ** (octaves[-1] + 1))
    at_edges = noise.quantile(np.append(starts, ends[-1]) * _UNIT) / step
    at_middles = noise.quantile((starts + ends) / 2.0 * _UNIT) / step
    gaps = (at_edges[:-1] + at_edges[1:]) / 2.0 - at_middles
    table = np.zeros((len(starts), 4))
    table[:, 0] = at_edges[:-1]
    table[:, 1] = np.diff(at_edges) / (ends - starts)
    table[:, 2] = 2.0 * np.maximum(gaps, 0.0)
    table.flags.writeable = False
    return table


def slack_of(noise: Noise, step: float, farthest: float) -> float:
    """Return a bound, in grid steps, on the rounding errors of a chord and of x/step.

    Chords are those of `chords`, and |x| is at most `farthest`.

    `quantile` enters at three points, and the error of a chord and twice its gap is at most five
    times its error. The factor 8 also covers the rounding of the chord and of the sum; the last
    term covers that of x.
    """
    return slack_of_chords(noise, step, chords(noise, step)) + slack_of_values(step, farthest)


def slack_of_chords(noise: Noise, step: float, table: NDArray[np.float64]) -> float:
    """Return the part of `slack_of` for a table of `chords`."""
    largest = float(table[0, 0])
    return 8.0 * (largest + noise.quantile_slope / step) * 2.0**-40


def slack_of_values(step: float, farthest: float) -> float:
    """Return the part of `slack_of` for values up to `farthest`."""
    return (farthest / step) * 2.0**-50


def codes_by_chords(
    values: Vector,
    noise: Noise,
    step: float,
    farthest: float,
    keystream: Keystream,
    kernels: Native,
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return round((x + noise)/step) for each value x, and the indices that are undecided.

    The C kernel decides with 32 random bits and the table of `chords`. The caller must replace the
    codes of undecided coordinates (`settle_codes`). `farthest` is a bound on |x|. The keystream is
    used up.
    """
    table = chords(noise, step)
    slack = slack_of(noise, step, farthest)
    centers = np.require(values, np.float64, ["C", "A"])
    codes = np.empty(len(values), dtype=np.int32)
    key, capacity = keystream.spend(), _CAPACITY
    while True:
        left = np.empty(capacity, dtype=np.int64)
        capacity = kernels.library.grid_noise(
            kernels.level, key, 0, 1.0 / step, slack, table, centers, codes, left
        )
        if capacity <= len(left):
            return codes, left[:capacity]


GridCodes = NDArray[np.int32]

# With wider noise float64 would leave too many coordinates undecided.
MAX_STEPS = 2.0**24
_CHUNK = 1 << 14
_UNIT = 2.0**-32
_LEAST_SPELLED = 2.0**-96  # the smallest tail other than 0 of a draw with 64 more bits


def sample_rounded(values: Vector, noise: Noise, step: float, keystream: Keystream) -> GridCodes:
    """Return round((x + noise)/step) for each value x, with independent noise of exactly this law.

    The keystream is used up.

    Raises:
        ParameterError: The noise is more than 2^24 steps wide (see `check_width`).
        DomainError: A value is NaN, or farther than 2^24 steps from 0.
        RandomnessError: The keystream was used before.
    """
    check_width(noise, step)
    farthest = float(max(values.max(initial=0.0), -values.min(initial=0.0)))
    if not farthest <= MAX_STEPS * step:  # also refuses NaN
        raise DomainError(f"values must lie within {MAX_STEPS:g} steps of 0; use a coarser grid")
    kernels = native()
    if kernels is None:
        codes, left = _codes_by_draws(values, noise, step, keystream)
    else:
        codes, left = codes_by_chords(values, noise, step, farthest, keystream, kernels)
    if len(left):
        spelled = keystream.spelled(32, left)
        codes[left] = settle_codes(values[left], noise, step, spelled, keystream)
    return codes


def sample_packed_rows(
    batch: RowBatch,
    middle: float,
    noise: Noise,
    step: float,
    farthest: float,
    bits: int,
    keystreams: Sequence[Keystream],
) -> NDArray[np.uint8] | None:
    """Return the lowest bits of round((x - middle + noise)/step) for each x of many rows, packed.

    The C kernels clip, draw and pack a few coordinates at a time, in a core's cache.

    Args:
        batch: The rows.
        middle: The number that is subtracted from each x.
        noise: The law of the noise.
        step: The distance of grid points.
        farthest: A bound on |x - middle|.
        bits: How many of the lowest bits of a code are packed.
        keystreams: The random bits of each row; this uses them up.

    Returns:
        A row of bytes for each row; None if the kernels do not suit the rows, and the keystreams
        are then not used.

    Raises:
        ParameterError: The noise is more than 2^24 steps wide (see `check_width`).
        RandomnessError: A keystream was used before.
    """
    check_width(noise, step)
    if native() is None or not farthest <= MAX_STEPS * step:
        return None
    table, slack = chords(noise, step), slack_of(noise, step, farthest)
    keys = spend_all(keystreams)

    def kernel(kernels: Native, rows: Any, out: Any, left: Any) -> int:
        found = kernels.library.grid_rows(
            kernels.level, rows, keys, 1.0 / step, slack, table, middle, bits, out, left
        )
        return int(found)

    # Twice as many as draws of 32 bits leave undecided on average.
    share = 2.0 * (2.0**-19 + 3e-8 * noise.quantile_slope / step)
    capacity = _CAPACITY + math.ceil(share * len(batch) * batch.dimension)
    payloads, rows, coordinates = batch.draw(bits, kernel, capacity)
    for row in np.unique(rows).tolist():
        keystream, chosen = keystreams[row], coordinates[rows == row]
        values = batch.values_at(row, chosen) - middle
        spelled = keystream.spelled(32, chosen)
        codes = settle_codes(values, noise, step, spelled, keystream)
        _replace_codes(payloads[row], chosen, bits, codes)
    return payloads


def _replace_codes(
    payload: NDArray[np.uint8], coordinates: NDArray[np.int64], bits: int, codes: GridCodes
) -> None:
    """Replace some codes of a packed payload by the lowest bits of others."""
    each = np.arange(bits)
    octets, places = np.divmod(coordinates[:, None] * bits + each, 8)
    weights = (1 << places).astype(np.uint8)
    ones = (codes[:, None] >> each & 1).astype(np.uint8)
    np.bitwise_and.at(payload, octets, ~weights)
    np.bitwise_or.at(payload, octets, weights * ones)


def settle_codes(
    values: Vector, noise: Noise, step: float, spelled: ExtendedDraws, keystream: Keystream
) -> GridCodes:
    """Return round((x + noise)/step) for coordinates that their draws of 32 bits left undecided.

    Args:
        values: The value x of each of these coordinates.
        noise: The law of the noise.
        step: The distance of grid points.
        spelled: The coordinates, their draws, and 64 further random bits of each.
        keystream: The source of more bits, where 64 do not decide either.

    Returns:
        The codes, in the order given.
    """
    coordinates, words, extensions = spelled
    heads, further = (words >> 1).astype(np.float64), extensions * 2.0**-64
    tails = np.maximum((heads + further) * _UNIT, _LEAST_SPELLED)
    # If all bits are 0, the tail may be arbitrarily small, and float64 must not decide.
    least = np.where(further > 0.0, further, 2.0**-1000)
    slips = 2.0**-52 + np.where(heads > 0.0, 0.0, 2.0**-64 / least)
    found, undecided = _float_codes(values, noise, step, (words & 1).astype(np.bool_), tails, slips)
    codes = found.astype(np.int32)
    for k in np.flatnonzero(undecided).tolist():
        word, i = int(words[k]), int(coordinates[k])
        codes[k] = exact_code(float(values[k]), noise, step, word, i, keystream)
    return codes


def _codes_by_draws(
    values: Vector, noise: Noise, step: float, keystream: Keystream
) -> tuple[GridCodes, NDArray[np.int64]]:
    """Return codes decided by 32 bits each, and the coordinates that these leave undecided."""
    words = keystream.draws(32, len(values))
    codes = np.empty(len(values), dtype=np.int32)
    left = []
    for start in range(0, len(values), _CHUNK):
        part = slice(start, start + _CHUNK)
        tails = words[part] >> np.uint32(1)
        safe = np.maximum(tails, LEAST_TAIL).astype(np.float64)
        codes[part], undecided = _float_codes(
            values[part], noise, step, (words[part] & 1).astype(np.bool_), safe * _UNIT, 1.0 / safe
        )
        undecided |= tails < LEAST_TAIL
        left.append(start + np.flatnonzero(undecided))
    return codes, np.concatenate([np.empty(0, dtype=np.int64), *left])


def check_width(noise: Noise, step: float) -> None:
    """Raise ParameterError if `noise.quantile_slope` is more than 2^24 grid steps.

    The slope is the largest P(noise > t)/density(t), in the unit of `step`. With wider noise, 32
    random bits in float64 would leave too many coordinates undecided between two grid points, and
    each of these takes more bits and time.
    """
    if not noise.quantile_slope <= MAX_STEPS * step:
        raise ParameterError(
            f"noise {noise} is more than {MAX_STEPS:g} steps of {step:g} wide; use a coarser grid: "
            "lower steps_per_radius, or set it to 'auto'"
        )


def _float_codes(
    values: Vector,
    noise: Noise,
    step: float,
    negative: NDArray[np.bool_],
    tails: Vector,
    slips: Vector,
) -> tuple[Vector, NDArray[np.bool_]]:
    """Return codes computed in float64, and where they are not certain.

    `slips` are bounds on the relative errors of the tails.
    """
    places = noise.quantile(tails)
    slope = noise.quantile_slope
    margin = ((slope + places) * 2.0**-39 + np.abs(values) * 2.0**-50 + slope * slips) / step
    np.negative(places, out=places, where=negative)
    places += values
    places *= 1.0 / step
    codes = np.rint(places)
    places -= codes
    np.abs(places, out=places)
    return codes, ~(places < 0.5 - margin)


def exact_code(
    value: float, noise: Noise, step: float, word: int, coordinate: int, keystream: Keystream
) -> int:
    """Return round((value + noise)/step) for one coordinate, decided in arbitrary precision.

    The lowest bit of `word`, the coordinate's draw of 32 bits, is the sign of the noise. Its other
    31 bits, followed by as many further bits of the keystream as it takes, are the tail
    P(noise > |t|) of the noise t.
    """
    # Negative noise at x mirrors positive noise at -x.
    sign = -1 if word & 1 else 1
    place, grid = sign * Fraction(value), Fraction(step)
    code: int | None = None
    num_bytes = 16
    while True:
        bits = 32 + 8 * num_bytes
        extension = int.from_bytes(keystream.extension(coordinate, num_bytes), "big")
        lower = ((word >> 1) << (8 * num_bytes)) | extension
        if code is None:  # a first guess in float64, which the loop below corrects
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
    """Return whether the noise exceeds the threshold for all tails in [lower, lower + 1)/2^bits.

    Return None if the answer differs between them, or if it takes more digits to tell.
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
