"""Exact one-sided bounds on a probability from counts.

    lower   the p at which k or more hits of n have probability `error`; 0 if k = 0.
    upper   the p at which k or fewer hits of n have probability `error`; 1 if k = n.

Each is wrong with probability at most `error`, for every true p and every n.

Reference: Clopper and Pearson 1934.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainccinv, betaincinv

from sottovoce import parameters
from sottovoce.domains import Vector
from sottovoce.errors import ParameterError


def lower(hits: ArrayLike, trials: ArrayLike, error: float) -> Vector:
    """At or below the true probability, but for a chance of `error`."""
    k, n = _checked(hits, trials, error)
    return np.where(k > 0, betaincinv(np.maximum(k, 1), n - k + 1, error), 0.0)


def upper(hits: ArrayLike, trials: ArrayLike, error: float) -> Vector:
    """At or above the true probability, but for a chance of `error`."""
    k, n = _checked(hits, trials, error)
    return np.where(k < n, betainccinv(k + 1, np.maximum(n - k, 1), error), 1.0)


def _checked(hits: ArrayLike, trials: ArrayLike, error: float) -> tuple[Vector, Vector]:
    k, n = np.asarray(hits, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    if not np.all((k >= 0) & (k <= n) & (n >= 1)):
        raise ParameterError("an interval needs at least one trial, and from 0 to all of them hit")
    parameters.fraction("error of an interval", error)
    return k, n


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """How often draws of two neighbours fell into one set that was fixed before.

    The bounds hold together with probability 1 - error: half of it is for each side.
    """

    first: int
    first_trials: int
    second: int
    second_trials: int

    def delta(self, epsilon: float, error: float) -> float:
        """At or below the true delta at `epsilon`: P(S) - e^eps Q(S).

        At epsilon = 0 it is 2 r - 1, r the share of draws that the set tells right: one bound for
        all of them is closer than two. They are not all right with the same probability, which
        makes their sum's tail no heavier than the binomial's beyond its mean (Hoeffding 1956).
        """
        if epsilon == 0.0 and self.first_trials == self.second_trials:
            right = self.first + self.second_trials - self.second
            share = lower(right, self.first_trials + self.second_trials, error)
            return max(0.0, 2.0 * float(share) - 1.0)
        p, q = self._bounds(error)
        return max(0.0, p - math.exp(min(epsilon + math.log(q), 700.0)))

    def epsilon(self, delta: float, error: float) -> float:
        """At or below the true epsilon at `delta`: log((P(S) - delta)/Q(S))."""
        p, q = self._bounds(error)
        return max(0.0, math.log((p - delta) / q)) if p > delta else 0.0

    def _bounds(self, error: float) -> tuple[float, float]:
        return (
            float(lower(self.first, self.first_trials, error / 2.0)),
            float(upper(self.second, self.second_trials, error / 2.0)),
        )
