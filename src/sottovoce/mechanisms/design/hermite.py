"""The Gauss-Hermite exponential family: a finite alphabet that mimics a unit Gaussian.

With the B-point Gauss-Hermite nodes y_j and weights w_j of N(0, 1),

    P(j | z) = w_j e^(y_j z) / sum_k w_k e^(y_k z)

whose Fisher information about z is certified to be at most 1, up to 2e-6: see
mechanisms/design/families.py, which also says why that is the Gaussian's privacy.
"""

from functools import lru_cache

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.mechanisms.design.families import ExponentialFamily, exponential_family, tilted_law

MAX_LEVELS = 256


@lru_cache(maxsize=64)
def gauss_hermite(levels: int) -> ExponentialFamily:
    """The design with `levels` nodes; arrays are read-only and shared."""
    parameter_rules.integer("levels", levels, low=2, high=MAX_LEVELS)
    points, weights = hermegauss(levels)
    points, weights = (points - points[::-1]) / 2.0, (weights + weights[::-1]) / 2.0
    weights = weights / weights.sum()
    return exponential_family(points, weights)


def excess_error(design: ExponentialFamily, tilts: Vector, clients: float) -> Vector:
    """By what fraction of sigma^2/n the error of n clients with the same tilt exceeds that.

    n E(mean - z)^2 = n (E[y] - z)^2 + Var(y), in units of sigma^2; a Gaussian has 1.
    """
    law = tilted_law(design, tilts)
    mean = law @ design.points
    variance = law @ design.points**2 - mean**2
    return np.asarray(clients * (mean - tilts) ** 2 + variance - 1.0)


def levels_covering(reach: float, spread: float, *, clients: float, excess: float) -> int:
    """The smallest power of two whose error is at most `excess` above the Gaussian's.

    On average over tilts from N(0, spread^2), or else for every tilt up to `reach`, which is what
    counts in few dimensions. The largest number of levels if none is enough.
    """
    normal = np.linspace(0.0, 10.0, 301)
    weights = np.exp(-(normal**2) / 2.0)
    weights[0] /= 2.0  # one half of a symmetric sum
    weights /= weights.sum()
    levels = 2
    while levels < MAX_LEVELS:
        design = gauss_hermite(levels)
        typical = float(weights @ excess_error(design, spread * normal, clients))
        largest = excess_error(design, np.linspace(0.0, reach, 301), clients).max()
        if min(typical, largest) <= excess:
            break
        levels *= 2
    return levels
