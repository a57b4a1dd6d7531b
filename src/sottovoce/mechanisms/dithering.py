"""Dithering: unbiased stochastic rounding to a uniform grid, and bounds on the norm of the result.

With grid points lower + i D, i = 0 ... B - 1, D = (upper - lower)/(B - 1), an x between points i
and i + 1 becomes the upper one with probability (x - point i)/D. So E[dither(x)] = x, and the
variance, (x - point i)(point i+1 - x), is at most D^2/4.

Dithering can increase the norm of a vector. On a grid symmetric about 0 (below: [-1, 1] in units of
the radius), write each coordinate as |v_i| = l_i + a_i with l_i the next grid magnitude toward 0,
if |v_i| is at least the smallest grid magnitude m (0 for odd B, D/2 for even B). Then
|v'_i| = l_i + Z_i, Z_i in {0, D} with mean a_i, l_i <= |v_i|. If |v_i| < m (even B only),
|v'_i| = D/2 with certainty.

L2.  X_i = v'_i^2 - v_i^2 has mean at most D^2/4, and its two values differ by D (2 l_i + D), or
     not at all where |v_i| < m. Hoeffding's inequality for the sum, and
     ||2l + D|| <= 2 ||v|| + sqrt(d) D, give with probability at least 1 - delta

         ||v'||^2 <= ||v||^2 + e + D (2 ||v|| + sqrt(d) D) sqrt(log(1/delta)/2),    e = d D^2/4.

     For odd B the mean of X_i is a_i (D - a_i) <= D |v_i|, so e = min(d D^2/4, D sqrt(d) ||v||).

L1.  E|v'_i| = |v_i| unless |v_i| < m, where |v'_i| <= |v_i| + D/2. With e = d D/2 for even B and 0
     for odd B, and t the smaller of Hoeffding's D sqrt(d log(1/delta)/2) and Bernstein's
     sqrt(2 V log(1/delta)) + D log(1/delta)/3 (Boucheron, Lugosi and Massart 2013, theorem 2.10),
     V = sum a_i (D - a_i) <= D ||v||_1,

         ||v'||_1 <= ||v||_1 + e + t.

A grid with an even number of points does not contain 0: the zero vector itself becomes one of norm
D sqrt(d)/2 (L2) or d D/2 (L1).

Reference: Chaudhuri, Guo and Rabbat 2022 (MVU), section 2.4 and appendix B.1.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.domains import MAX_DIMENSION, Box, L1Ball, L2Ball, Vector
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.core.randomness import Keystream

GridCodes = NDArray[np.int64]

MAX_LEVELS = 2**16


def dither(
    values: ArrayLike, levels: int, lower: float, upper: float, keystream: Keystream
) -> GridCodes:
    """Round each value at random to one of its two adjacent grid points, without bias.

    The result is exactly unbiased for the position (x - lower)/D as float64 computes it, D the grid
    step, up to probabilities that are multiples of 2^-64. That position is within levels * 2^-51
    grid steps of the true one.

    Args:
        values: A vector with coordinates in [lower, upper].
        levels: The number of grid points, from 2 to 2^16.
        lower: The first grid point.
        upper: The last grid point.
        keystream: The random bits; one 64-bit word per coordinate is consumed.

    Returns:
        The index of a grid point, 0 ... levels - 1, for each coordinate.

    Raises:
        DomainError: A coordinate is not in [lower, upper], or `values` is no vector.
        ParameterError: `levels`, `lower` or `upper` is out of range, or the vector is empty.
        RandomnessError: The keystream was used before.
    """
    vector = np.asarray(values, dtype=np.float64)
    dimension = vector.size if vector.ndim == 1 else 1
    vector = Box(dimension=dimension, lower=lower, upper=upper).check(vector)
    return _round(_positions(vector, levels, lower, upper), keystream.words(dimension))


def lemma_10_bound(norm: float, dimension: int, levels: int, failure_probability: float) -> float:
    """Return the bound of the MVU paper on the L2 norm after dithering on [-1, 1], as printed.

        ||v'||^2 <= ||v||^2 + sqrt(2) ||v|| D log(4/delta) + d D^2/4 + sqrt(2 d) D log(4/delta)

    for the dithered vector v' and the grid step D = 2/(levels - 1).

    The printed proof has a gap: it rounds downward, l_i <= v_i, and claims sum l_i^2 <= ||v||^2,
    which fails for negative coordinates (v_i just below 0 has l_i = -D). Its uses of Hoeffding's
    inequality are valid but loose: log for sqrt(log), and D for D^2, which needs D <= 2. The
    statement is true: rounding toward 0 instead repairs the proof, and `dithered_norm_bound`, which
    is proved in this module's docstring, is never larger. Use that one; this one is for comparison.

    Args:
        norm: The L2 norm of the vector in units of the radius, at most 1.
        dimension: The number of coordinates d.
        levels: The number of grid points, from 2 to 2^16.
        failure_probability: The probability delta with which the bound may fail.

    Returns:
        The bound on ||v'||, in units of the radius.

    Raises:
        ParameterError: If the norm exceeds 1, or another argument is out of range.
    """
    spacing = 2.0 / (_checked_levels(levels) - 1)
    _check_bound(norm, dimension, failure_probability)
    if norm > 1.0:
        raise ParameterError(f"norm must be at most 1, got {norm!r}; divide by the radius first")
    log_term = math.log(4.0 / failure_probability)
    deviation = math.sqrt(2.0) * spacing * log_term * (norm + math.sqrt(dimension))
    return math.sqrt(norm**2 + dimension * spacing**2 / 4.0 + deviation)


def dithered_norm_bound(
    norm: float, dimension: int, levels: int, failure_probability: float, *, power: int = 2
) -> float:
    """Return a norm that a vector dithered on [-1, 1] exceeds with at most `failure_probability`.

    The bound holds for every vector of the dimension whose norm is at most `norm`, and increases
    with `norm`. The proof is in this module's docstring.

    Args:
        norm: The norm of the vector before dithering, in units of the radius.
        dimension: The number of coordinates.
        levels: The number of grid points, from 2 to 2^16.
        failure_probability: The probability with which the bound may fail.
        power: 1 for the L1 norm, 2 for the L2 norm.

    Returns:
        The bound on the norm after dithering, in units of the radius.

    Raises:
        ParameterError: An argument is out of range.
    """
    spacing = 2.0 / (_checked_levels(levels) - 1)
    _check_bound(norm, dimension, failure_probability)
    log_term, odd = -math.log(failure_probability), levels % 2 == 1
    if _checked_power(power) == 1:
        hoeffding = spacing * math.sqrt(dimension * log_term / 2.0)
        bernstein = math.sqrt(2.0 * spacing * norm * log_term) + spacing * log_term / 3.0
        return norm + (0.0 if odd else dimension * spacing / 2.0) + min(hoeffding, bernstein)
    root = math.sqrt(dimension) * spacing
    excess = min(root**2 / 4.0, root * norm) if odd else root**2 / 4.0
    deviation = spacing * (2.0 * norm + root) * math.sqrt(log_term / 2.0)
    return math.sqrt(norm**2 + excess + deviation)


def gamma_scaling(
    radius: float, dimension: int, levels: int, failure_probability: float, *, power: int = 2
) -> float:
    """Return the largest factor g in [0, 1] for which dither(g v) is proved to stay in the ball.

    For every v of norm at most `radius`, dithered on [-radius, radius], the norm of dither(g v)
    exceeds `radius` with at most `failure_probability`. The factor depends neither on data nor, by
    scaling, on the radius. It is found by bisection on `dithered_norm_bound` and rounded down.

    Args:
        radius: The radius of the ball.
        dimension: The number of coordinates.
        levels: The number of grid points.
        failure_probability: The probability with which dither(g v) may leave the ball.
        power: 1 for the L1 norm, 2 for the L2 norm.

    Returns:
        The factor g.

    Raises:
        ParameterError: If there are too few levels even for the zero vector, or an argument is out
            of range.
    """
    parameter_rules.clip_norm("radius", radius)

    def stays(factor: float) -> bool:
        bound = dithered_norm_bound(factor, dimension, levels, failure_probability, power=power)
        return bound <= 1.0

    if not stays(0.0):
        raise ParameterError(
            f"{levels} levels are too few for dimension {dimension}: even the zero vector cannot "
            "be shown to stay in the ball when it is dithered; use more levels, an odd number of "
            "them (a grid with 0), or a larger failure probability"
        )
    low, high = 0.0, 1.0  # a factor of 1 never works: the bound exceeds the norm
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if stays(middle) else (low, middle)
    return low


def dither_within(
    values: ArrayLike,
    levels: int,
    radius: float,
    keystream: Keystream,
    *,
    power: int = 2,
    max_tries: int = 64,
) -> GridCodes:
    """Round a vector to a grid at random, and repeat until the result lies in the ball.

    The accepted vector has norm at most `radius`, which is decided in integers: with
    m_i = 2 code_i - (levels - 1) and p = `power`, sum |m_i|^p <= (levels - 1)^p. So its law is a
    mixture of grid vectors in the ball, and by joint quasi-convexity of Renyi divergences the
    accounting over pairs of such vectors covers it. Rejection prefers short vectors, which biases
    the mean: if a try fails with probability f, v - E[accepted] = f (E[rejected] - E[accepted]),
    at most f D sqrt(d) in L2 and f D d in L1, for d coordinates and the grid step D. Scale by
    `gamma_scaling` first to make f small.

    Args:
        values: A vector of norm at most `radius`.
        levels: The number of grid points over [-radius, radius].
        radius: The radius of the ball.
        keystream: The random bits. Try 0 reads its words, try t its extension t - 1; it cannot be
            used again.
        power: 1 for the L1 norm, 2 for the L2 norm.
        max_tries: The number of tries before giving up.

    Returns:
        The index of a grid point, 0 ... levels - 1, for each coordinate.

    Raises:
        DomainError: If no try stays in the ball (nothing is clamped), or the vector is not in it.
        ParameterError: If another argument is out of range, or the vector is empty.
        RandomnessError: If the keystream was used before.
    """
    _checked_levels(levels)
    parameter_rules.integer("max_tries", max_tries, low=1, high=2**20)
    vector = np.asarray(values, dtype=np.float64)
    dimension = vector.size if vector.ndim == 1 else 1
    ball = (L1Ball if _checked_power(power) == 1 else L2Ball)(dimension=dimension, radius=radius)
    positions = _positions(ball.check(vector), levels, -radius, radius)
    words = keystream.words(dimension)
    for attempt in range(max_tries):
        if attempt > 0:
            words = np.frombuffer(keystream.extension(attempt - 1, 8 * dimension), dtype="<u8")
        codes = _round(positions, words)
        magnitudes = np.abs(2 * codes - (levels - 1))
        if int(np.sum(magnitudes**power)) <= (levels - 1) ** power:
            return codes
    raise DomainError(
        f"none of {max_tries} dithered vectors had a norm within the radius; scale the vector by "
        "gamma_scaling first, or use more levels"
    )


def _positions(vector: Vector, levels: int, lower: float, upper: float) -> Vector:
    """Return (x - lower)/D, from 0 to levels - 1."""
    top = _checked_levels(levels) - 1
    # Everything is halved first, so that the width of the widest interval does not overflow.
    share = (vector / 2.0 - lower / 2.0) / (upper / 2.0 - lower / 2.0)
    return np.clip(share * top, 0.0, float(top))


def _round(positions: Vector, words: NDArray[np.uint64]) -> GridCodes:
    below = np.floor(positions)
    # The fraction is at most 1 - 2^-53, so its 64-bit threshold fits.
    thresholds = ((positions - below) * 2.0**64).astype(np.uint64)
    return below.astype(np.int64) + (words < thresholds)


def _checked_levels(levels: int) -> int:
    return parameter_rules.integer("levels", levels, low=2, high=MAX_LEVELS)


def _checked_power(power: int) -> int:
    return parameter_rules.integer("power (of the norm)", power, low=1, high=2)


def _check_bound(norm: float, dimension: int, failure_probability: float) -> None:
    if not 0.0 <= norm < math.inf:
        raise ParameterError(f"norm must be finite and at least 0, got {norm!r}")
    parameter_rules.integer("dimension", dimension, low=1, high=MAX_DIMENSION)
    parameter_rules.delta(failure_probability, "failure_probability")
