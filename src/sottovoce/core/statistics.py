"""Exact confidence bounds on a probability from counts, and intervals of means over seeds.

    lower   the p at which k or more hits of n have probability `error`; 0 if k = 0.
    upper   the p at which k or fewer hits of n have probability `error`; 1 if k = n.

Each bound is wrong with probability at most `error`, for every true p and every n.

Reference: Clopper and Pearson 1934.
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
    """Return the mean of values, and half the width of Student's confidence interval for it.

    Args:
        values: At least two values; fewer raise statistics.StatisticsError.
        confidence: The probability with which the interval mean +- half width contains the true
            mean, if the values are independent and normally distributed.

    Returns:
        (mean, half width), both in the unit of the values.
    """
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(values) - 1, 0.5 + confidence / 2.0))
    return statistics.fmean(values), quantile * statistics.stdev(values) / math.sqrt(len(values))


def lower(hits: ArrayLike, trials: ArrayLike, error: float) -> Vector:
    """Return a lower bound on a probability that holds with probability at least 1 - error.

    This is the one-sided bound of Clopper and Pearson on the probability of a hit.

    Args:
        hits: The number of hits k, from 0 to the number of trials.
        trials: The number of independent trials n.
        error: The probability with which the bound may be wrong, above 0.

    Returns:
        The bound, elementwise; 0 where there is no hit.

    Raises:
        ParameterError: There is no trial, hits are not between 0 and trials, or error is not in
            (0, 1].

    Examples:
        >>> round(float(lower(10, 10, 0.05)), 4)
        0.7411
    """
    from scipy.special import betaincinv

    k, n = _checked(hits, trials, error)
    return np.where(k > 0, betaincinv(np.maximum(k, 1), n - k + 1, error), 0.0)


def upper(hits: ArrayLike, trials: ArrayLike, error: float) -> Vector:
    """Return an upper bound on a probability that holds with probability at least 1 - error.

    This is the one-sided bound of Clopper and Pearson on the probability of a hit.

    Args:
        hits: The number of hits k, from 0 to the number of trials.
        trials: The number of independent trials n.
        error: The probability with which the bound may be wrong, above 0.

    Returns:
        The bound, elementwise; 1 where every trial is a hit.

    Raises:
        ParameterError: There is no trial, hits are not between 0 and trials, or error is not in
            (0, 1].
    """
    from scipy.special import betainccinv

    k, n = _checked(hits, trials, error)
    return np.where(k < n, betainccinv(k + 1, np.maximum(n - k, 1), error), 1.0)


def _checked(hits: ArrayLike, trials: ArrayLike, error: float) -> tuple[Vector, Vector]:
    k, n = np.asarray(hits, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    if not np.all((k >= 0) & (k <= n) & (n >= 1)):
        raise ParameterError(
            "a confidence bound needs at least one trial, and hits must lie between 0 and trials"
        )
    parameter_rules.fraction("error of an interval", error)
    return k, n


def two_sided_bounds(hits: int, trials: int, confidence: float) -> tuple[float, float]:
    """Return (lower, upper), the interval of Clopper and Pearson for the probability of a hit.

    It contains the probability with probability at least `confidence`: each bound is wrong with
    probability at most (1 - confidence)/2. ParameterError is raised as by `lower`.
    """
    error = (1.0 - confidence) / 2.0
    return float(lower(hits, trials, error)), float(upper(hits, trials, error))
