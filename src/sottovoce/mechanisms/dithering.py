"""Dithering: unbiased stochastic rounding to a uniform grid, and what it does to the norm.

With grid points lower + i D, i = 0 ... B - 1, D = (upper - lower)/(B - 1), an x between points i
and i + 1 becomes the upper one with probability (x - point i)/D. So E[dither(x)] = x and the
variance, (x - point i)(point i+1 - x), is at most D^2/4.

Dithering can lengthen a vector. On a grid symmetric about 0 (below: [-1, 1] in units of the
radius), write each coordinate as |v_i| = l_i + a_i with l_i the grid magnitude toward 0, if |v_i|
is at least the smallest grid magnitude m (0 for odd B, D/2 for even B). Then |v'_i| = l_i + Z_i,
Z_i in {0, D} with mean a_i, l_i <= |v_i|. If |v_i| < m (even B only), |v'_i| = D/2 for certain.

L2.  X_i = v'_i^2 - v_i^2 has mean at most D^2/4, and its two values differ by D (2 l_i + D), or
     not at all where |v_i| < m. Hoeffding for the sum, and ||2l + D|| <= 2 ||v|| + sqrt(d) D, give
     with probability at least 1 - delta

         ||v'||^2 <= ||v||^2 + e + D (2 ||v|| + sqrt(d) D) sqrt(log(1/delta)/2),    e = d D^2/4.

     For odd B the mean of X_i is a_i (D - a_i) <= D |v_i|, so e = min(d D^2/4, D sqrt(d) ||v||).

L1.  E|v'_i| = |v_i| unless |v_i| < m, where |v'_i| <= |v_i| + D/2. With e = d D/2 for even B and 0
     for odd B, and t the smaller of Hoeffding's D sqrt(d log(1/delta)/2) and Bernstein's
     sqrt(2 V log(1/delta)) + D log(1/delta)/3 (Boucheron, Lugosi and Massart 2013, theorem 2.10),
     V = sum a_i (D - a_i) <= D ||v||_1,

         ||v'||_1 <= ||v||_1 + e + t.

An even grid has no 0: the zero vector itself becomes one of norm D sqrt(d)/2 (L2) or d D/2 (L1).

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
    """Codes i in 0 ... levels - 1, one word of the keystream for each coordinate.

    Exactly unbiased for the position (x - lower)/D as float64 computes it, which is within
    levels 2^-51 grid steps of the true one; each probability is a multiple of 2^-64.
    """
    vector = np.asarray(values, dtype=np.float64)
    dimension = vector.size if vector.ndim == 1 else 1
    vector = Box(dimension=dimension, lower=lower, upper=upper).check(vector)
    return _round(_positions(vector, levels, lower, upper), keystream.words(dimension))


def lemma_10_bound(norm: float, dimension: int, levels: int, failure_probability: float) -> float:
    """The paper's bound on the L2 norm after dithering on [-1, 1], as printed, for a norm <= 1:

        ||v'||^2 <= ||v||^2 + sqrt(2) ||v|| D log(4/delta) + d D^2/4 + sqrt(2 d) D log(4/delta).

    The printed proof has a gap: it rounds downward, l_i <= v_i, and claims sum l_i^2 <= ||v||^2,
    which fails for negative coordinates (v_i just below 0 has l_i = -D). Its uses of Hoeffding's
    inequality are valid, though loose: log for sqrt(log), and D for D^2, which needs D <= 2. The
    statement is true: rounding toward 0 instead repairs the proof, and `dithered_norm_bound`,
    proved above, is never larger. Use that one; this one is here for comparison.
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
    """A norm that dithering on [-1, 1] exceeds with at most `failure_probability`.

    For every vector of that dimension whose L1 (power 1) or L2 (power 2) norm is at most `norm`;
    proved in the module's text. Increasing in `norm`.
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
    """The largest factor g in [0, 1] for which the proven bound keeps dither(g v) in the ball.

    For every v of norm at most `radius`, dithered on [-radius, radius], the norm exceeds `radius`
    with at most `failure_probability`. The factor depends on no data; by scaling, not even on the
    radius. Found by bisection on `dithered_norm_bound`, rounded down.
    """
    parameter_rules.clip_norm("radius", radius)

    def stays(factor: float) -> bool:
        bound = dithered_norm_bound(factor, dimension, levels, failure_probability, power=power)
        return bound <= 1.0

    if not stays(0.0):
        raise ParameterError(
            f"{levels} levels are too few for dimension {dimension}: even the zero vector cannot "
            "be shown to stay in the ball; use more levels, an odd number of them (a grid with 0), "
            "or a larger failure probability"
        )
    low, high = 0.0, 1.0  # 1 never stays: the bound exceeds the norm
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
    """Codes of `values` on the grid over [-radius, radius], drawn again until the norm fits.

    The accepted vector has L1 or L2 norm at most `radius`, decided in integers: with
    m_i = 2 code_i - (levels - 1), sum |m_i|^p <= (levels - 1)^p. So its law is a mixture of grid
    vectors in the ball, and by joint quasi-convexity of D_a the accounting over pairs of such
    vectors covers it. Rejection favours short vectors, which biases the mean: where a try fails
    with probability f, v - E[accepted] = f (E[rejected] - E[accepted]), at most f D sqrt(d) in L2
    and f D d in L1. Scale by `gamma_scaling` first to make f small.

    Try 0 reads the keystream's words, try t its extension t - 1; the stream is then spent. After
    `max_tries` a DomainError: nothing is clamped.
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
        f"no dithering within the radius in {max_tries} tries; scale the vector by gamma_scaling, "
        "or use more levels"
    )


def _positions(vector: Vector, levels: int, lower: float, upper: float) -> Vector:
    """(x - lower)/D, from 0 to levels - 1."""
    top = _checked_levels(levels) - 1
    # Halved first, so that the width of the widest interval does not overflow.
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
