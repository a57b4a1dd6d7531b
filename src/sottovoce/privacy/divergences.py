"""Exact divergences between finite laws and between Gaussians, in log space.

These are the yardstick: a claimed guarantee is tested against them.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.domains import Vector


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
    p, q = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    support = p > 0.0
    if np.any(q[support] == 0.0):
        return math.inf
    log_p, log_q = np.log(p[support]), np.log(q[support])
    return max(0.0, log_sum_exp(order * log_p + (1.0 - order) * log_q) / (order - 1.0))


def finite_hockey_stick(first: ArrayLike, second: ArrayLike, epsilon: float) -> float:
    """The least delta at `epsilon` for this ordered pair: sum max(0, p - e^eps q)."""
    p, q = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    # exp can overflow where q is 0; the product is then 0, not NaN.
    scaled = np.where(
        q > 0.0, np.exp(np.minimum(epsilon + np.log(np.maximum(q, 1e-320)), 709.0)), 0
    )
    return math.fsum(np.maximum(0.0, p - scaled))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The exact delta of Gaussian noise with neighbours mu standard deviations apart.

    delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)

    Reference: Balle and Wang 2018, theorem 8.
    """
    from scipy.special import log_ndtr

    upper = float(log_ndtr(mu / 2.0 - epsilon / mu))
    lower = epsilon + float(log_ndtr(-mu / 2.0 - epsilon / mu))
    if lower >= upper:  # the difference is below float64's resolution: report the larger part
        return math.exp(upper)
    return math.exp(upper) * -math.expm1(lower - upper)
