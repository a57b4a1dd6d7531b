"""Exact sampling from an interpolated integer table, in numpy.

Between knots u < v the distribution at x is (1 - t) row_u + t row_v with t = (x - u)/(v - u), a
rational number. A code is drawn by comparing one uniform number with the interpolated cumulative
sums: first its draw of 16 bits, in float64; if more than one code is still possible, 64 bits more;
and if the uniform number lies within the proven error of a threshold, the comparison is made again
in integers with as many further random bits as it takes. So the sampled distribution is the
declared one, and the accounting needs no term for rounding.

The error of float64: that of t, at most 3 * 2^-53, is multiplied by the difference of two
thresholds, which is below 1; 1 - t adds half a unit, each stored threshold 2^-54, the products and
their sum three roundings of numbers below 1, and the uniform number is truncated by 2^-53: together
below 8 * 2^-53 = 2^-50. The margin is twice that.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.errors import DomainError
from sottovoce.core.randomness import ExtendedDraws, Keystream

Codes = NDArray[np.uint8]

_CELLS = 1 << 17
_MARGIN = 2.0**-49
_UNIT = 2.0**-16


def sample_table(
    positions: Vector,
    knots: Vector,
    thresholds: Vector,
    cumulative: tuple[tuple[int, ...], ...],
    keystream: Keystream,
) -> Codes:
    """Return one code for each position, drawn from the table's row interpolated there.

    Args:
        positions: The inputs, in the units of the knots, from knots[0] to knots[-1].
        knots: The inputs at which the table has rows.
        thresholds: The cumulative sums of the rows, in float64.
        cumulative: The cumulative sums as integers, in units of 1/(their last entry).
        keystream: The randomness; it is used up.

    Returns:
        The codes, as uint8.

    Raises:
        DomainError: A position lies outside the knots, or is NaN.
    """
    # The negated condition also refuses NaN.
    if not ((positions >= knots[0]) & (positions <= knots[-1])).all():
        raise DomainError(f"positions must lie between {knots[0]:g} and {knots[-1]:g}")
    words = keystream.draws(16, len(positions))
    codes = np.empty(len(positions), dtype=np.uint8)
    size = max(1, _CELLS // thresholds.shape[1])
    for start in range(0, len(positions), size):
        part = slice(start, start + size)
        low = words[part] * _UNIT
        codes[part], undecided = _float_codes(positions[part], knots, thresholds, low, low + _UNIT)
        (open_,) = np.nonzero(undecided)
        if not len(open_):
            continue
        open_ = open_ + start
        spelled = ExtendedDraws(open_, words[open_], keystream.extensions(open_))
        codes[open_] = decide_codes(
            positions[open_], knots, thresholds, cumulative, spelled, keystream
        )
    return codes


def decide_codes(
    positions: Vector,
    knots: Vector,
    thresholds: Vector,
    cumulative: tuple[tuple[int, ...], ...],
    spelled: ExtendedDraws,
    keystream: Keystream,
) -> Codes:
    """Return the codes of coordinates that their draws of 16 bits left undecided.

    Args:
        positions: The input of each of these coordinates, in the units of the knots.
        knots: The inputs at which the table has rows.
        thresholds: The cumulative sums of the rows, in float64.
        cumulative: The cumulative sums as integers, in units of 1/(their last entry).
        spelled: The coordinates, their draws, and 64 further random bits of each.
        keystream: The source of more bits, where 64 do not decide either.

    Returns:
        A code for each coordinate, in the order given.
    """
    uniform = (spelled.words + spelled.extensions * 2.0**-64) * _UNIT
    codes, undecided = _float_codes(positions, knots, thresholds, uniform, uniform)
    for k in np.flatnonzero(undecided).tolist():
        word, i = int(spelled.words[k]), int(spelled.coordinates[k])
        codes[k] = exact_code(float(positions[k]), knots, cumulative, word, i, keystream)
    return codes


def _float_codes(
    positions: Vector, knots: Vector, thresholds: Vector, low: Vector, high: Vector
) -> tuple[Codes, NDArray[np.bool_]]:
    """Return codes of uniform numbers in [low, high], and where float64 does not decide them."""
    left = np.clip(np.searchsorted(knots, positions, "right") - 1, 0, len(knots) - 2)
    share = (positions - knots[left]) / (knots[left + 1] - knots[left])
    codes = np.zeros(len(positions), dtype=np.uint8)
    undecided = np.zeros(len(positions), dtype=np.bool_)
    rest = 1.0 - share
    surely, perhaps = low - _MARGIN, high + _MARGIN
    for column in thresholds.T[:-1]:
        threshold = rest * column[left] + share * column[left + 1]
        passed = surely >= threshold
        codes += passed
        undecided |= passed != (perhaps >= threshold)
    return codes, undecided


def exact_code(
    position: float,
    knots: Vector,
    cumulative: tuple[tuple[int, ...], ...],
    word: int,
    coordinate: int,
    keystream: Keystream,
) -> int:
    """Return the code of one coordinate, decided in exact rational arithmetic.

    It is the number of interpolated cumulative probabilities that a uniform number has passed. The
    binary digits of that number are `word`, the coordinate's draw of 16 bits, followed by as many
    further bits of the keystream as it takes.
    """
    k = int(np.clip(np.searchsorted(knots, position, "right") - 1, 0, len(knots) - 2))
    low, high = Fraction(float(knots[k])), Fraction(float(knots[k + 1]))
    share = (Fraction(position) - low) / (high - low)
    one = cumulative[k][-1]
    rows = zip(cumulative[k][:-1], cumulative[k + 1][:-1], strict=True)
    limits = [((1 - share) * a + share * b) / one for a, b in rows]
    num_bytes = 16
    while True:
        bits = 16 + 8 * num_bytes
        extension = int.from_bytes(keystream.extension(coordinate, num_bytes), "big")
        lower = Fraction((word << (8 * num_bytes)) | extension, 1 << bits)
        upper = lower + Fraction(1, 1 << bits)
        # A limit inside the interval leaves the code undecided; one at its lower end is passed.
        if not any(lower < limit < upper for limit in limits):
            return sum(limit <= lower for limit in limits)
        num_bytes *= 2
