"""Exact divergences between finite laws and between Gaussians, in log space.

These are the yardstick: a claimed guarantee is tested against them.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.core.domains import Vector


def log_sum_exp(logs: Vector) -> float:
    """log sum exp(logs), for logs that may be -inf."""
    top = float(np.max(logs))
    if not math.isfinite(top):
        return top
    return top + math.log(float(np.sum(np.exp(logs - top))))


def finite_renyi(first: ArrayLike, second: ArrayLike, order: float) -> float:
    """D_a(first || second) = log( sum p^a q^(1-a) ) / (a - 1), for pmfs p, q and a > 1.

    Infinite where `first` puts mass that `second` does not.
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
        # Their sum may be next to nothing where they are not: the rounding is that of the parts,
        # each as far as it counts.
        counts = np.isfinite(powers)
        weights = np.exp((shares + powers)[counts] - total)
        parts = (np.abs(shares) + np.abs(powers))[counts]
        slack = 2.0**-48 * (1.0 + float(weights @ parts))
        return (max(0.0, total) * (1.0 + 2.0**-48) + slack) / (order - 1.0)
    # sum p^a q^(1-a) - 1 = sum q (r^a - 1 - a (r - 1)) for r = p/q: no term is negative, so
    # nothing cancels, and the rounding (relative to each part) is added on the private side.
    powers, slopes = np.expm1(order * ratios), order * np.expm1(ratios)
    rounding = 2.0**-50 * (np.abs(powers) + np.abs(slopes))
    excess = math.fsum(q * (np.maximum(0.0, powers - slopes) + rounding))
    return math.log1p(excess) / (order - 1.0)


def _log_ratios(first: ArrayLike, second: ArrayLike) -> tuple[Vector, Vector, float]:
    """Where q > 0: q and log(p/q), and the largest of these anywhere."""
    p, q = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    alone = bool(np.any(q[p > 0.0] == 0.0))
    p, q = p[q > 0.0], q[q > 0.0]
    with np.errstate(divide="ignore"):
        ratios: Vector = np.log1p((p - q) / q)  # exact where p and q are close
    return q, ratios, math.inf if alone else float(ratios.max())


# Accountants ask for one pair at hundreds of orders. Tuples do not change.
_known_log_ratios = lru_cache(maxsize=256)(_log_ratios)


def finite_hockey_stick(first: ArrayLike, second: ArrayLike, epsilon: float) -> float:
    """The least delta at `epsilon` for this ordered pair: sum max(0, p - e^eps q)."""
    p, q = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    with np.errstate(
        divide="ignore"
    ):  # e^eps alone could overflow, so its product is formed in logs
        scaled = np.exp(np.minimum(epsilon + np.log(q), 709.0))
    return math.fsum(np.maximum(0.0, p - scaled))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The exact delta of Gaussian noise with neighbours mu standard deviations apart.

    delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)

    Reference: Balle and Wang 2018, theorem 8.
    """
    from scipy.special import log_ndtr

    reach = mu / 2.0 + epsilon / mu
    # Rounding of the two logarithms, which are about reach^2/2: added on the private side.
    slack = 2.0**-51 * (1.0 + reach * reach + epsilon)
    upper = float(log_ndtr(mu / 2.0 - epsilon / mu))
    lower = epsilon + float(log_ndtr(-reach))
    gap = min(0.0, lower - upper) - 2.0 * slack
    return min(1.0, math.exp(upper + slack) * -math.expm1(gap))
