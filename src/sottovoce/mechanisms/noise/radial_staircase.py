"""Staircase noise on vectors: its density falls by e^-epsilon with each step of the L1 norm.

In units of the step the density at x is that of the scalar staircase at |x|_1, up to a constant.
Where neighbours lie at most one step apart in L1 so do their norms, the level changes by at most
one, and the release is epsilon-DP. A density that falls with the norm is a mixture of uniform laws
on balls: with K = k of probability proportional to e^(-epsilon k) (k + nu)^d,

    X is uniform on the L1 ball of radius K + nu,

for the levels' edges are at k + nu and the volumes grow like their power d. So |X|_1 is
(K + nu) U^(1/d), and E|X|_1^p = d/(d + p) E(K + nu)^p.

With Poisson's summation formula, for p > 0,

    sum_k e^(-epsilon (k + nu)) (k + nu)^p
        = p!/epsilon^(p+1) (1 + 2 Re e^(2 pi i nu) z^(p+1) + ...),    z = 1/(1 + 2 pi i/epsilon):

up to terms of size (1 + 4 pi^2/epsilon^2)^(-(d+1)/2) the moments are those of Laplace noise of
scale step/epsilon on every coordinate. What the staircase gains dies exponentially with d.

Reference: Geng, Kairouz, Oh and Viswanath 2015, "The staircase mechanism in differential privacy".
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.domains import MAX_DIMENSION, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.noise.laws import nu_for_variance

_LOG_LEFT_OUT = 45.0  # what is this far below the largest probability, in logarithms
_MAX_BALLS = 2**20
_NEGLIGIBLE = 1e-9  # a part of the variance that is not worth a search


def _reach(dimension: int) -> tuple[float, float]:
    """How far below and above its mode (d/epsilon) epsilon K may lie: a Gamma(d + 1) tail."""
    below = math.sqrt(2.0 * _LOG_LEFT_OUT * (dimension + 1.0))
    return below, below + _LOG_LEFT_OUT


def least_epsilon(dimension: int) -> float:
    """The least epsilon of a step with few enough balls to hold."""
    return sum(_reach(dimension)) / (_MAX_BALLS - 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class RadialStaircase:
    """Noise on `dimension` coordinates at once, `step` wide in L1 norm."""

    step: float
    epsilon: float
    nu: float
    dimension: int

    def __post_init__(self) -> None:
        parameter_rules.positive("step", self.step, at_most=1e300)
        parameter_rules.step_epsilon("epsilon", self.epsilon)
        parameter_rules.inner_fraction("nu", self.nu)
        parameter_rules.integer("dimension", self.dimension, low=1, high=MAX_DIMENSION)
        if self.epsilon < least_epsilon(self.dimension):
            raise ParameterError(
                f"a step of epsilon {self.epsilon:g} is too small for a staircase in "
                f"{self.dimension} dimensions (at least {least_epsilon(self.dimension):.3g}), "
                "where it would be Laplace noise: use the mechanism 'laplace'"
            )

    def _moment(self, power: int) -> float:
        """E|X|_1^p, in steps."""
        radii, pmf = _balls(self.epsilon, self.nu, self.dimension)
        share = self.dimension / (self.dimension + power)
        return share * float(pmf @ radii**power)

    @property
    def mean_absolute(self) -> float:
        """E|X_i| of each coordinate."""
        return self.step * self._moment(1) / self.dimension

    @property
    def variance(self) -> float:
        """E X_i^2 of each coordinate: a share of |X|_1 has second moment 2/(d (d + 1))."""
        d = float(self.dimension)
        return self.step**2 * self._moment(2) * 2.0 / (d * (d + 1.0))

    def sample(self, uniforms: Vector) -> Vector:
        """Noise from d + 2 numbers in (0, 1).

        Signed exponentials over their total and one exponential more are uniform on the unit ball.
        """
        centred = uniforms[:-2] - 0.5
        directions = -np.log1p(-2.0 * np.abs(centred))
        total = float(np.sum(directions)) - math.log(uniforms[-2])
        radii, pmf = _balls(self.epsilon, self.nu, self.dimension)
        chosen = min(int(np.searchsorted(np.cumsum(pmf), uniforms[-1])), len(radii) - 1)
        return np.asarray(np.copysign(directions, centred) * (self.step * radii[chosen] / total))


@lru_cache(maxsize=4)
def _balls(epsilon: float, nu: float, dimension: int) -> tuple[Vector, Vector]:
    """The radii k + nu that count, in steps, and their probabilities.

    Logarithms relative to a middle one: of d log(k + nu) alone, for large d, little would be right.
    """
    below, above = _reach(dimension)
    mode = dimension / epsilon
    first = max(0.0, math.floor(mode - below / epsilon - 1.0))
    radii = np.arange(first, math.ceil(mode + above / epsilon + 2.0)) + nu
    middle = radii[min(len(radii) - 1, max(0, round(mode - nu - first)))]
    away = radii - middle
    logs = dimension * np.log1p(away / middle) - epsilon * away
    weights = np.exp(logs - logs.max())
    pmf = weights / weights.sum()
    radii.flags.writeable = pmf.flags.writeable = False  # kept for the next call
    return radii, pmf


@lru_cache(maxsize=256)
def radial_nu_for_variance(epsilon: float, dimension: int) -> float:
    """The nu of least variance in `dimension` dimensions; 1/2 where it makes no difference.

    By a grid (the variance is periodic in nu, with one dent) and a search around its best point.
    """
    if dimension == 1:
        return nu_for_variance(epsilon)
    from scipy.optimize import minimize_scalar

    wave = -0.5 * (dimension + 1.0) * math.log1p((2.0 * math.pi / epsilon) ** 2)
    if wave < math.log(_NEGLIGIBLE):
        return 0.5

    def variance(log_nu: float) -> float:
        nu = math.exp(log_nu)
        return RadialStaircase(step=1.0, epsilon=epsilon, nu=nu, dimension=dimension).variance

    # For large epsilon the best is about e^(-epsilon/(d+2)).
    low = min(math.log(0.01), -epsilon / (dimension + 2.0) - 3.0)
    grid = np.linspace(low, math.log(0.999), 96)
    best = int(np.argmin([variance(float(at)) for at in grid]))
    ends = float(grid[max(0, best - 1)]), float(grid[min(len(grid) - 1, best + 1)])
    return math.exp(float(minimize_scalar(variance, bounds=ends, method="bounded").x))
