"""Staircase noise on vectors: its density falls by e^-epsilon with each step of the L1 norm.

In units of the step the density at x is that of the scalar staircase at |x|_1, up to a constant.
If neighbors are at most one step apart in L1, so are their norms. Then the level changes by at most
one, and the release is epsilon-DP. A density that decreases with the norm is a mixture of uniform
laws on balls: with K = k of probability proportional to e^(-epsilon k) (k + nu)^d,

    X is uniform on the L1 ball of radius K + nu,

because the levels end at k + nu and volumes grow like the d-th power of the radius. So |X|_1 is
distributed as (K + nu) U^(1/d), and E|X|_1^p = d/(d + p) E(K + nu)^p.

By Poisson's summation formula, for p > 0,

    sum_k e^(-epsilon (k + nu)) (k + nu)^p
        = p!/epsilon^(p+1) (1 + 2 Re e^(2 pi i nu) z^(p+1) + ...),    z = 1/(1 + 2 pi i/epsilon):

up to terms of size (1 + 4 pi^2/epsilon^2)^(-(d+1)/2) the moments are those of Laplace noise of
scale step/epsilon on every coordinate. The gain of the staircase vanishes exponentially with d.

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

# Radii whose log probability is this far below the largest one are left out.
_LOG_LEFT_OUT = 45.0
_MAX_BALLS = 2**20
_NEGLIGIBLE = 1e-9  # a fraction of the variance that is not worth a search


def _reach(dimension: int) -> tuple[float, float]:
    """Return how far epsilon K may lie below and above its mode d: the tails of Gamma(d + 1)."""
    below = math.sqrt(2.0 * _LOG_LEFT_OUT * (dimension + 1.0))
    return below, below + _LOG_LEFT_OUT


def least_epsilon(dimension: int) -> float:
    """Return the least epsilon of a step that `RadialStaircase` accepts in `dimension` dimensions.

    The noise is computed as a mixture of balls of the L1 norm; a smaller epsilon would take more
    than about 2^20 of them, and would hardly differ from Laplace noise.
    """
    return sum(_reach(dimension)) / (_MAX_BALLS - 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class RadialStaircase:
    """Staircase noise X on vectors, whose density falls by e^-epsilon with each step of |X|_1.

    Attributes:
        step: The width of a step of the L1 norm, in the units of the noise.
        epsilon: The privacy loss of a shift by one step: at least `least_epsilon(dimension)`, else
            ParameterError.
        nu: The fraction of each step, on the side of 0, on which the density is at the step's
            higher level.
        dimension: The number d of coordinates.
    """

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
        """Return E|X|_1^p, in steps."""
        radii, pmf = _balls(self.epsilon, self.nu, self.dimension)
        share = self.dimension / (self.dimension + power)
        return share * float(pmf @ radii**power)

    @property
    def mean_absolute(self) -> float:
        """The mean absolute value E|X_i| of each coordinate, in the units of `step`."""
        return self.step * self._moment(1) / self.dimension

    @property
    def variance(self) -> float:
        """The variance E X_i^2 of each coordinate, in the squared units of `step`.

        The share |X_i|/|X|_1 of a coordinate has second moment 2/(d (d + 1)).
        """
        d = float(self.dimension)
        return self.step**2 * self._moment(2) * 2.0 / (d * (d + 1.0))

    def sample(self, uniforms: Vector) -> Vector:
        """Return one draw of the noise, d numbers, from d + 2 uniform numbers in (0, 1).

        It is computed in float64, so the law is exact up to rounding only.

        Signed exponential variables, divided by their total plus one more exponential variable, are
        uniform on the unit ball of the L1 norm.
        """
        centered = uniforms[:-2] - 0.5
        directions = -np.log1p(-2.0 * np.abs(centered))
        total = float(np.sum(directions)) - math.log(uniforms[-2])
        radii, pmf = _balls(self.epsilon, self.nu, self.dimension)
        chosen = min(int(np.searchsorted(np.cumsum(pmf), uniforms[-1])), len(radii) - 1)
        return np.asarray(np.copysign(directions, centered) * (self.step * radii[chosen] / total))


@lru_cache(maxsize=4)
def _balls(epsilon: float, nu: float, dimension: int) -> tuple[Vector, Vector]:
    """Return the radii k + nu of the balls that matter, in steps, and their probabilities.

    Logarithms are relative to a middle radius: for large d, d log(k + nu) alone would have few
    correct digits.
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
    radii.flags.writeable = pmf.flags.writeable = False  # the cache returns them again
    return radii, pmf


@lru_cache(maxsize=256)
def radial_nu_for_variance(epsilon: float, dimension: int) -> float:
    """Return the nu of `RadialStaircase` with the least variance in `dimension` dimensions.

    It is 1/2 if the choice changes the variance by less than a fraction of about 1e-9. The
    variance is periodic in nu with one minimum: a grid search and a local search find it.
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
