"""How far noise carries a model: expected absolute sums of independent noise.

After T rounds a coordinate has gathered X_1 + ... + X_T, so m coordinates lie

    m E|X_1 + ... + X_T| = m (2/pi) integral_0^inf (1 - phi(t)^T)/t^2 dt,   phi(t) = E cos(t X),

from the noiseless model in L1 distance (the formula holds for every symmetric law with a mean: it
is the integral of (1 - cos(t x))/t^2 under the expectation). For Gaussian noise that is
m sigma sqrt(2 T/pi), and for any noise about m sqrt(2 T Var/pi) for large T. m T E|X| is only an
upper bound, by the triangle inequality: noise of both signs cancels.
"""

import math

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.mechanisms.noise.laws import Noise

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_START = 1e-3  # in units of 1/(standard deviation of the sum): below, the integrand is a parabola
_GROWTH = 1.15  # of the panels, until they are as wide as the law's own waves
_WIDEST = 0.4  # in units of 1/(standard deviation of one)
_PRECISION = 1e-10
_PANELS_AT_ONCE = 4096
_MAX_ROUNDS = 10**9


def mean_absolute_sum(noise: Noise, rounds: int) -> float:
    """E|X_1 + ... + X_T|, to about 1e-8 of itself."""
    parameter_rules.integer("rounds", rounds, low=1, high=_MAX_ROUNDS)
    if rounds == 1:
        return noise.mean_absolute
    spread = math.sqrt(noise.variance)
    start = _START / (spread * math.sqrt(rounds))
    # (1 - phi^T)/t^2 = T Var/2 (1 - O(T Var t^2)): what is left out is 1e-10 of the whole.
    total = start * rounds * noise.variance / 2.0
    at, width = start, (_GROWTH - 1.0) * start
    while True:
        edges = [at]
        for _ in range(_PANELS_AT_ONCE):
            edges.append(edges[-1] + width)
            width = min(width * _GROWTH, _WIDEST / spread)
        left = _remainder(noise, rounds, np.asarray(edges))
        total += 1.0 / at - 1.0 / edges[-1] - left  # of 1/t^2 alone, less what phi^T takes away
        at = edges[-1]
        # phi falls at least like 1/t for a law of bounded variation, so phi^T/t^2 like 1/t^4.
        if abs(left) < _PRECISION * total:
            return 2.0 / math.pi * (total + 1.0 / at)


def _remainder(noise: Noise, rounds: int, edges: np.ndarray) -> float:
    """The integral of phi^T/t^2 between the first and the last edge."""
    middles, halves = (edges[1:] + edges[:-1]) / 2.0, np.diff(edges) / 2.0
    places = middles[:, None] + halves[:, None] * _NODES
    values = noise.characteristic(places.ravel()).reshape(places.shape) ** rounds / places**2
    return float(np.sum(values @ _WEIGHTS * halves))


def expected_distance(noise: Noise, rounds: int, dimension: int) -> float:
    """The expected L1 distance of a model of `dimension` coordinates from the noiseless one."""
    return dimension * mean_absolute_sum(noise, rounds)


def distance_bound(noise: Noise, rounds: int, dimension: int) -> float:
    """T m E|X|: never below the distance, and far above it after many rounds."""
    return rounds * dimension * noise.mean_absolute
