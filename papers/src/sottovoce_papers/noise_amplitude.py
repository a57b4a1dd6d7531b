"""The distance that noise moves a model: expected absolute sums of independent noise.

After T rounds a coordinate has accumulated X_1 + ... + X_T, so that the expected L1 distance of a
model of m coordinates from the noiseless model is

    m E|X_1 + ... + X_T| = m (2/pi) integral_0^inf (1 - phi(t)^T)/t^2 dt,   phi(t) = E cos(t X).

The formula holds for every symmetric law with a mean: |x| = (2/pi) integral (1 - cos(t x))/t^2 dt,
and the expectation is taken inside. For Gaussian noise the distance is m sigma sqrt(2 T/pi), and
for any noise it is about m sqrt(2 T Var/pi) for large T. m T E|X| is only an upper bound, by the
triangle inequality, because noise of both signs cancels.
"""

import math

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.mechanisms.noise.laws import Noise

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
# In units of 1/(standard deviation of the sum): below it the integrand is nearly constant.
_START = 1e-3
_GROWTH = 1.15  # Factor between the widths of successive panels, up to the widest.
_WIDEST = 0.4  # In units of 1/(standard deviation of one summand).
_PRECISION = 1e-10
_PANELS_AT_ONCE = 4096
_MAX_ROUNDS = 10**9


def mean_absolute_sum(noise: Noise, rounds: int) -> float:
    """Return E|X_1 + ... + X_T| with a relative error of about 1e-8."""
    parameter_rules.integer("rounds", rounds, low=1, high=_MAX_ROUNDS)
    if rounds == 1:
        return noise.mean_absolute
    spread = math.sqrt(noise.variance)
    start = _START / (spread * math.sqrt(rounds))
    # (1 - phi^T)/t^2 = T Var/2 (1 - O(T Var t^2)): the omitted term is 1e-10 of the total.
    total = start * rounds * noise.variance / 2.0
    at, width = start, (_GROWTH - 1.0) * start
    while True:
        edges = [at]
        for _ in range(_PANELS_AT_ONCE):
            edges.append(edges[-1] + width)
            width = min(width * _GROWTH, _WIDEST / spread)
        left = _remainder(noise, rounds, np.asarray(edges))
        total += 1.0 / at - 1.0 / edges[-1] - left  # The integral of 1/t^2 minus that of phi^T/t^2.
        at = edges[-1]
        # phi falls at least like 1/t for a law of bounded variation, so phi^T/t^2 like 1/t^4.
        if abs(left) < _PRECISION * total:
            return 2.0 / math.pi * (total + 1.0 / at)


def _remainder(noise: Noise, rounds: int, edges: np.ndarray) -> float:
    """Return the integral of phi^T/t^2 between the first and the last edge."""
    middles, halves = (edges[1:] + edges[:-1]) / 2.0, np.diff(edges) / 2.0
    places = middles[:, None] + halves[:, None] * _NODES
    values = noise.characteristic(places.ravel()).reshape(places.shape) ** rounds / places**2
    return float(np.sum(values @ _WEIGHTS * halves))


def expected_distance(noise: Noise, rounds: int, dimension: int) -> float:
    """Return the expected L1 distance of a noisy model of `dimension` coordinates.

    It is the distance from the noiseless model after `rounds` rounds.
    """
    return dimension * mean_absolute_sum(noise, rounds)


def distance_bound(noise: Noise, rounds: int, dimension: int) -> float:
    """Return T m E|X|, an upper bound of the distance that is far above it after many rounds."""
    return rounds * dimension * noise.mean_absolute
