"""Exact divergences between finite laws, between Gaussians, and of logistic bits, in log space.

Other bounds are tested against these.

Worst case of logistic bits. One bit with P(1) = 1/(1 + e^-z) and neighboring logits z and z + s
has, with A(z) = log(1 + e^z),

    (a - 1) D_a = A(z + a s) - a A(z + s) + (a - 1) A(z)        (both directions, as z ranges).

Here D_a is the Renyi divergence of order a. As a function of z this has exactly one stationary
point, its maximum:

    e^z = (e^(as) - a e^s + a - 1) / (e^s ((a-1) e^(as) - a e^((a-1)s) + 1)).

The maximal divergence g_a(u) is concave as a function of u = s^2. So if the logit of bit i of d
bits moves by s_i, and sum s_i^2 <= S^2, the worst case is that all bits move equally far:
D_a <= d g_a(S^2/d) <= a S^2/8. The first bound is attained, the second in the limit of large d.
Proof: docs/explanation/privacy.md, section 14.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.core.domains import Vector

# Where a s is below this, a s^2/8 is within a few 1e-6 of g_a and better conditioned.
_SMALL = 1e-2
_LARGE_STEP = 300.0  # From here on D_a <= s is as tight.
_ROUNDING = 2.0**-44


def one_bit_renyi(shift: float, dimension: int, order: float) -> float:
    """Return an upper bound on the Renyi divergence between neighbors of independent logistic bits.

    Bit i is 1 with probability 1/(1 + e^-z_i). The bound holds for all vectors z of logits and all
    neighbors z' with ||z - z'|| <= shift, in both directions. It is d g_a(shift^2/d), the worst
    case, or a shift^2/8 where that is the smaller number or (for a shift/sqrt(d) < 0.01) nearly
    equal, or shift sqrt(d) where shift/sqrt(d) exceeds 300; see this module's docstring.

    Args:
        shift: The largest Euclidean distance between the logits of neighbors.
        dimension: The number of bits d.
        order: The order a of the divergence, above 1.

    Returns:
        The bound on D_a.
    """
    step = shift / math.sqrt(dimension)
    gaussian = order * shift**2 / 8.0
    if order * step < _SMALL:
        return gaussian
    worst = step if step > _LARGE_STEP else _largest(step, order)
    return min(gaussian, dimension * worst * (1.0 + _ROUNDING))


def _largest(step: float, order: float) -> float:
    """Return g_a(step^2): D_a of one bit whose logit moves by `step`, at the worst logit."""
    # Numerator and denominator divided by e^(as), as differences that keep precision for small
    # steps.
    growth = order * step
    far = math.exp(-growth)
    above = -math.expm1(-growth) - order * math.expm1(step) * far
    below = math.expm1(-growth) - order * math.expm1(-step)
    logit = math.log(above) - math.log(below) - step
    largest, middle, least = (_softplus(logit + move) for move in (growth, step, 0.0))
    excess = largest - order * middle + (order - 1.0) * least
    slack = 2.0**-50 * (largest + order * (middle + least))  # Rounding, on the private side.
    return (excess + slack) / (order - 1.0)


def _softplus(value: float) -> float:
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))


def log_sum_exp(logs: Vector) -> float:
    """Return log sum exp(logs), without overflow; -inf if all logs are -inf."""
    top = float(np.max(logs))
    if not math.isfinite(top):
        return top
    return top + math.log(float(np.sum(np.exp(logs - top))))


def finite_renyi(first: ArrayLike, second: ArrayLike, order: float) -> float:
    """Return D_a(first || second) = log( sum p^a q^(1-a) ) / (a - 1), for pmfs p, q and a > 1.

    This is the Renyi divergence of order a = `order`, with p = `first` and q = `second` over the
    same outcomes. Infinite where `first` has mass that `second` does not. Rounded up.
    """
    if isinstance(first, tuple) and isinstance(second, tuple):
        q, ratios, largest = _known_log_ratios(first, second)
    else:
        q, ratios, largest = _log_ratios(first, second)
    if largest == math.inf:
        return math.inf
    if order * largest > 30.0:
        shares, powers = np.log(q), order * ratios
        total = log_sum_exp(shares + powers)
        # The terms may nearly cancel, so the rounding is bounded by the size of each term,
        # weighted by its share of the sum.
        counts = np.isfinite(powers)
        weights = np.exp((shares + powers)[counts] - total)
        parts = (np.abs(shares) + np.abs(powers))[counts]
        slack = 2.0**-48 * (1.0 + float(weights @ parts))
        return (max(0.0, total) * (1.0 + 2.0**-48) + slack) / (order - 1.0)
    # sum p^a q^(1-a) - 1 = sum q (r^a - 1 - a (r - 1)) for r = p/q. No term is negative, so there
    # is no cancellation, and the rounding (relative to each term) is added on the private side.
    powers, slopes = np.expm1(order * ratios), order * np.expm1(ratios)
    rounding = 2.0**-50 * (np.abs(powers) + np.abs(slopes))
    excess = math.fsum(q * (np.maximum(0.0, powers - slopes) + rounding))
    return math.log1p(excess) / (order - 1.0)


def _log_ratios(first: ArrayLike, second: ArrayLike) -> tuple[Vector, Vector, float]:
    """Return q and log(p/q) where q > 0, and the largest log(p/q) of all outcomes."""
    p, q = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    alone = bool(np.any(q[p > 0.0] == 0.0))
    p, q = p[q > 0.0], q[q > 0.0]
    with np.errstate(divide="ignore"):
        ratios: Vector = np.log1p((p - q) / q)  # Accurate where p and q are close.
    return q, ratios, math.inf if alone else float(ratios.max())


# Accountants ask for the same pair at hundreds of orders. Tuples are hashable and immutable.
_known_log_ratios = lru_cache(maxsize=256)(_log_ratios)


def finite_hockey_stick(first: ArrayLike, second: ArrayLike, epsilon: float) -> float:
    """Return the delta at `epsilon` of an ordered pair of pmfs: sum max(0, p - e^epsilon q).

    p is `first` and q is `second`, over the same outcomes. Exact up to float64 rounding, which is
    not upward.
    """
    p, q = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    with np.errstate(divide="ignore"):
        # e^eps alone could overflow, so the product is formed in logarithms.
        scaled = np.exp(np.minimum(epsilon + np.log(q), 709.0))
    return math.fsum(np.maximum(0.0, p - scaled))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the exact delta of Gaussian noise with means mu standard deviations apart, rounded up.

        delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu),

    where eps is `epsilon` and Phi the standard normal cdf; it is the same in both directions.

    Reference: Balle and Wang 2018, theorem 8.
    """
    from scipy.special import log_ndtr

    reach = mu / 2.0 + epsilon / mu
    # The two logarithms are about reach^2/2; their rounding is added on the private side.
    slack = 2.0**-51 * (1.0 + reach * reach + epsilon)
    upper = float(log_ndtr(mu / 2.0 - epsilon / mu))
    lower = epsilon + float(log_ndtr(-reach))
    gap = min(0.0, lower - upper) - 2.0 * slack
    return min(1.0, math.exp(upper + slack) * -math.expm1(gap))
