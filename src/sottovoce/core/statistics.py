"""Exact one-sided bounds on a probability from counts.

    lower   the p at which k or more hits of n have probability `error`; 0 if k = 0.
    upper   the p at which k or fewer hits of n have probability `error`; 1 if k = n.

Each is wrong with probability at most `error`, for every true p and every n.

Reference: Clopper and Pearson 1934.

Intervals of means over seeds.
"""

import math
import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError


def mean_and_half_width(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The mean and half the width of Student's interval for it."""
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(values) - 1, 0.5 + confidence / 2.0))
    return statistics.fmean(values), quantile * statistics.stdev(values) / math.sqrt(len(values))


def lower(hits: ArrayLike, trials: ArrayLike, error: float) -> Vector:
    """At or below the true probability, but for a chance of `error`."""
    from scipy.special import betaincinv

    k, n = _checked(hits, trials, error)
    return np.where(k > 0, betaincinv(np.maximum(k, 1), n - k + 1, error), 0.0)


def upper(hits: ArrayLike, trials: ArrayLike, error: float) -> Vector:
    """At or above the true probability, but for a chance of `error`."""
    from scipy.special import betainccinv

    k, n = _checked(hits, trials, error)
    return np.where(k < n, betainccinv(k + 1, np.maximum(n - k, 1), error), 1.0)


def _checked(hits: ArrayLike, trials: ArrayLike, error: float) -> tuple[Vector, Vector]:
    k, n = np.asarray(hits, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    if not np.all((k >= 0) & (k <= n) & (n >= 1)):
        raise ParameterError("an interval needs at least one trial, and from 0 to all of them hit")
    parameter_rules.fraction("error of an interval", error)
    return k, n


def between(hits: int, trials: int, confidence: float) -> tuple[float, float]:
    """Both bounds together, half of the error on either side."""
    error = (1.0 - confidence) / 2.0
    return float(lower(hits, trials, error)), float(upper(hits, trials, error))
