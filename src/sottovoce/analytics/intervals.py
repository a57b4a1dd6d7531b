"""Confidence intervals for a number that is known to lie in a range.

An unbiased private estimate x of m in [low, high] may itself lie outside. Cutting x +- z sigma to
the range would cover m = low with 97.5% and could leave nothing; so m is accepted where

    d(x) = (x - m)^2 - (x - cut(x))^2,    cut(x) = min(max(x, low), high)

(minus twice the log of the likelihood ratio against the best m of the range) is no larger than all
but a share 1 - confidence of its values would be: P(d(X) > d(x) | m) >= 1 - confidence. The d(X)
below a bound are an interval of X, so that probability is a difference of normal ones. Far from
both ends the accepted m are x +- z sigma; the interval is never empty and covers as often as it
says at the ends, too.

Reference: Feldman and Cousins 1998, section IV.B.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError

Mask = NDArray[np.bool_]
Stddev = Callable[[Vector], Vector]  # of the estimate, if m is the truth

LEAST_CONFIDENCE, MOST_CONFIDENCE = 0.5, 0.9999
_STEPS, _STAGES = 16, 6  # to 16^-6 of the range


def check_confidence(confidence: float) -> float:
    number = parameter_rules.inner_fraction("confidence", confidence)
    low, high = LEAST_CONFIDENCE, MOST_CONFIDENCE
    if not low <= number <= high:
        raise ParameterError(
            f"confidence must lie between {low:g} and {high:g}, got {confidence!r}; such as 0.95"
        )
    return number


def student_factor(degrees: float, confidence: float) -> float:
    """Student's quantile over the normal one: what a standard error from few people is worth."""
    from scipy.special import ndtri, stdtrit

    tail = 0.5 + confidence / 2.0
    return float(stdtrit(degrees, tail) / ndtri(tail))


def within(
    estimate: ArrayLike, stddev: Vector | float | Stddev, low: float, high: float, confidence: float
) -> tuple[Vector, Vector]:
    """The accepted range of each estimate's m; `stddev` may depend on m, as a score test's does."""
    from scipy.special import ndtri

    x = np.atleast_1d(np.asarray(estimate, dtype=np.float64))
    if not callable(stddev):
        reach = float(ndtri(0.5 + confidence / 2.0)) * np.asarray(stddev, dtype=np.float64)
        if (x - 2.0 * reach >= low).all() and (x + 2.0 * reach <= high).all():
            return x - reach, x + reach  # neither end is felt
    # Both edges at once: the first row looks down from the best m, the second up.
    best = np.clip(x, low, high)
    inside = np.stack([best, best])
    outside = np.stack([np.full_like(best, low), np.full_like(best, high)])

    def accepted(m: Vector) -> Mask:
        sigma = stddev(m) if callable(stddev) else np.asarray(stddev)
        return _chance(x, m, np.maximum(sigma, 1e-200), low, high) >= 1.0 - confidence

    steps = np.linspace(0.0, 1.0, _STEPS + 1)[:, None, None]
    with np.errstate(over="ignore"):  # far beyond an end the distance may be infinite
        for _ in range(_STAGES):
            points = inside + (outside - inside) * steps
            taken = accepted(points)
            taken[0] = True  # what was accepted before
            last = np.where(taken.all(axis=0), _STEPS, np.argmin(taken, axis=0) - 1)
            inside = np.take_along_axis(points, last[None], axis=0)[0]
            beyond = np.minimum(last + 1, _STEPS)[None]
            outside = np.take_along_axis(points, beyond, axis=0)[0]
    return inside[0], inside[1]


def _chance(x: Vector, m: Vector, sigma: Vector, low: float, high: float) -> Vector:
    """P(d(X) > d(x)) for X normal around m."""
    from scipy.special import ndtr

    distance = np.maximum((x - m) ** 2 - (x - np.minimum(np.maximum(x, low), high)) ** 2, 0.0)
    above, below = _reach(distance, high - m), _reach(distance, m - low)
    return np.asarray(ndtr(-above / sigma) + ndtr(-below / sigma))


def _reach(distance: Vector, room: Vector) -> Vector:
    """How far X may lie to one side, with `room` to the end there: beyond it d grows linearly."""
    root = np.sqrt(distance)
    beyond = room / 2.0 + distance / np.maximum(2.0 * room, 1e-300)
    return np.where(root <= room, root, beyond)
