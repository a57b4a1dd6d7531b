"""Intervals of means over seeds."""

import math
import statistics
from collections.abc import Sequence


def mean_and_half_width(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The mean and half the width of Student's interval for it."""
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(values) - 1, 0.5 + confidence / 2.0))
    return statistics.fmean(values), quantile * statistics.stdev(values) / math.sqrt(len(values))
