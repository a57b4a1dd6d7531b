"""Confidence intervals for a parameter that is known to lie in a range.

An unbiased private estimate x of m in [low, high] may itself lie outside the range. If x +- z sigma
were cut to the range, the interval would cover m = low with 97.5% instead of 95%, and could be
empty. Instead, m is accepted where the statistic

    d(x) = (x - m)^2 - (x - cut(x))^2,    cut(x) = min(max(x, low), high)

(sigma^2 times minus twice the log likelihood ratio of m against the best m of the range) is not in
the upper tail of its distribution: P(d(X) > d(x) | m) >= 1 - confidence. The X with d(X) below a
bound are an interval, so this probability is a sum of two normal tails. Far from both ends the
accepted m are x +- z sigma. The interval is never empty, and it has the stated coverage at the ends
of the range, too.

Reference: Feldman and Cousins 1998, section IV.B.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError

Mask = NDArray[np.bool_]
Stddev = Callable[[Vector], Vector]  # The estimate's standard deviation as a function of m.

LEAST_CONFIDENCE, MOST_CONFIDENCE = 0.5, 0.9999
_STEPS, _STAGES = 16, 6  # The search is accurate to 16^-6 of the range.


def check_confidence(confidence: float) -> float:
    """Return the confidence; raise ParameterError unless it lies between 0.5 and 0.9999."""
    number = parameter_rules.inner_fraction("confidence", confidence)
    low, high = LEAST_CONFIDENCE, MOST_CONFIDENCE
    if not low <= number <= high:
        raise ParameterError(
            f"confidence must lie between {low:g} and {high:g}, got {confidence!r}; use 0.95"
        )
    return number


def student_factor(degrees: float, confidence: float) -> float:
    """Return the ratio of Student's two-sided quantile to the normal one at a confidence level.

    `degrees` are the degrees of freedom. A standard error that was estimated from few people is
    multiplied by the ratio.
    """
    from scipy.special import ndtri, stdtrit

    tail = 0.5 + confidence / 2.0
    return float(stdtrit(degrees, tail) / ndtri(tail))


def bounded_interval(
    estimate: ArrayLike, stddev: Vector | float | Stddev, low: float, high: float, confidence: float
) -> tuple[Vector, Vector]:
    """Return the lower ends and the upper ends of confidence intervals, one for each estimate.

    The estimated parameters are known to lie in [low, high], and so do the intervals, which are
    never empty. The estimates are unbiased and nearly normal, and may lie outside. `stddev` is
    their standard deviation; it may be a function of the parameter, as in a score test.
    """
    from scipy.special import ndtri

    x = np.atleast_1d(np.asarray(estimate, dtype=np.float64))
    if not callable(stddev):
        reach = float(ndtri(0.5 + confidence / 2.0)) * np.asarray(stddev, dtype=np.float64)
        if (x - 2.0 * reach >= low).all() and (x + 2.0 * reach <= high).all():
            return x - reach, x + reach  # Both ends of the range are too far to matter.
    # Both ends are searched at once: the first row downwards from the best m, the second upwards.
    best = np.clip(x, low, high)
    inside = np.stack([best, best])
    outside = np.stack([np.full_like(best, low), np.full_like(best, high)])

    def accepted(m: Vector) -> Mask:
        sigma = stddev(m) if callable(stddev) else np.asarray(stddev)
        return _tail_probability(x, m, np.maximum(sigma, 1e-200), low, high) >= 1.0 - confidence

    steps = np.linspace(0.0, 1.0, _STEPS + 1)[:, None, None]
    with np.errstate(over="ignore"):  # Far outside the range the distance may be infinite.
        for _ in range(_STAGES):
            points = inside + (outside - inside) * steps
            taken = accepted(points)
            taken[0] = True  # This point was accepted in the stage before.
            last = np.where(taken.all(axis=0), _STEPS, np.argmin(taken, axis=0) - 1)
            inside = np.take_along_axis(points, last[None], axis=0)[0]
            beyond = np.minimum(last + 1, _STEPS)[None]
            outside = np.take_along_axis(points, beyond, axis=0)[0]
    return inside[0], inside[1]


def _tail_probability(x: Vector, m: Vector, sigma: Vector, low: float, high: float) -> Vector:
    """Return P(d(X) > d(x)) for X normal around m."""
    from scipy.special import ndtr

    distance = np.maximum((x - m) ** 2 - (x - np.minimum(np.maximum(x, low), high)) ** 2, 0.0)
    above, below = _reach(distance, high - m), _reach(distance, m - low)
    return np.asarray(ndtr(-above / sigma) + ndtr(-below / sigma))


def _reach(distance: Vector, margin: Vector) -> Vector:
    """Return how far X may lie from m on one side such that d(X) is at most `distance`.

    `margin` is the distance from m to the end of the range on that side; beyond it d grows
    linearly.
    """
    root = np.sqrt(distance)
    beyond = margin / 2.0 + distance / np.maximum(2.0 * margin, 1e-300)
    return np.where(root <= margin, root, beyond)
