"""Finite exponential families, a certified bound on their Fisher information, and Gauss-Hermite.

    P(j | z) = w_j e^(y_j z) / sum_k w_k e^(y_k z)        log-partition A(z) = log sum w_k e^(y_k z)

The Fisher information about z is A''(z) = Var_z(y). For two members at z and z',

    D_a(z || z') = [A(a z + (1-a) z') - a A(z) - (1-a) A(z')] / (a - 1) <= a M (z - z')^2 / 2

with M = sup A'' (Taylor along the line through z and z'; the same bound a unit Gaussian has with
M = 1). A product over coordinates adds up, so the Euclidean distance of the tilts is what counts.

The law that runs is *defined* by the float64 values of y_j and w_j, and M is certified for exactly
those values, so nothing rests on how accurately they were computed.

The Gauss-Hermite family is a finite alphabet that mimics a unit Gaussian. With the B-point
Gauss-Hermite nodes y_j and weights w_j of N(0, 1),

    P(j | z) = w_j e^(y_j z) / sum_k w_k e^(y_k z)

whose Fisher information about z is certified to be at most 1, up to 2e-6: that is the
Gaussian's privacy, as above.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector

# Covers the float64 rounding of the sums below, at most 256 terms each: 1e-9 of a variance for
# exponents up to 1e6. No cancellation makes it worse, for the largest variance is not small: where
# the tilt leaves half the mass on either side of the widest gap g it is at least g^2/4.
_ARITHMETIC_SLACK = 1e-8
_TOLERANCE = 1e-6  # cells are halved until the bound is this close to a variance that occurs
_WIDTH = 2.0**-5  # a power of two: centres are exact, so that cells leave no gaps
_CHUNK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialFamily:
    """Points y_j, weights w_j and a certified bound on the Fisher information."""

    points: Vector
    weights: Vector
    fisher_bound: float


def exponential_family(points: Vector, weights: Vector) -> ExponentialFamily:
    """The certified family; points and weights must be symmetric, and become read-only."""
    points.flags.writeable = weights.flags.writeable = False
    bound = certified_fisher_bound(points, weights)
    return ExponentialFamily(points=points, weights=weights, fisher_bound=bound)


def tilted_law(family: ExponentialFamily, tilts: Vector) -> Vector:
    """P(j | z) as a table with one row per tilt."""
    return _laws(family.points, np.log(family.weights), tilts)


def _laws(points: Vector, log_weights: Vector, tilts: Vector) -> Vector:
    logits = log_weights + np.outer(tilts, points)
    law = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(law / law.sum(axis=1, keepdims=True))


def certified_fisher_bound(points: Vector, weights: Vector) -> float:
    """A number that is at least sup_z Var_z(y), for symmetric points and weights.

    Symmetric: y_j = -y_(B-1-j) and w_j = w_(B-1-j); points may come in any order and coincide.

    Where all |y_j| = t, Var = t^2 sech^2(t z) <= t^2. Otherwise on z >= 0 (the law is symmetric)
    cover [0, Z] by cells of width h around centres c. In a cell the likelihood ratio to the centre
    is at most q = e^(h y_max), so with the central moments m2, k3, m4 at c, Taylor's theorem gives

        A''(z) <= m2 + |k3| h/2 + K h^2/8,
        K = sup |A''''| <= max(m4', 3 m2'^2),   m2' = q m2,   m4' = ((q m4)^(1/4) + m2' h/2)^4

    where m2' h/2 bounds how far the mean moves; a cell whose bound is well above every variance
    found so far is halved. Beyond Z, Var <= E(y_max - y)^2. That falls as z grows, for the law
    moves up and (y_max - y)^2 falls in y, down to 0 however many points coincide at y_max. Z is
    where it is below the bound found so far.
    """
    assert np.array_equal(points, -points[::-1])
    assert np.array_equal(weights, weights[::-1])
    assert weights.min() > 0.0
    largest = float(points.max())
    if (np.abs(points) == largest).all():
        return math.nextafter(largest * largest, math.inf)
    scale = 2.0 ** math.frexp(largest)[1]  # dividing by it is exact
    return _scaled_bound(points / scale, np.log(weights)) * (1.0 + _ARITHMETIC_SLACK) * scale**2


def _scaled_bound(points: Vector, log_weights: Vector) -> float:
    """The bound for points whose largest lies between 1/2 and 1."""
    seen = bound = 0.0
    start = 0
    while True:
        centres = np.asarray((np.arange(start, start + _CHUNK) + 0.5) * _WIDTH, dtype=np.float64)
        seen, covered = _cover(points, log_weights, centres, seen)
        bound = max(bound, covered)
        start += _CHUNK
        (edge,) = _laws(points, log_weights, np.array([start * _WIDTH]))
        if float(edge @ (points.max() - points) ** 2) <= bound:
            return bound


def _cover(
    points: Vector, log_weights: Vector, centres: Vector, seen: float
) -> tuple[float, float]:
    """The largest variance seen, and a bound over cells of width _WIDTH around the centres."""
    bound, width = 0.0, _WIDTH
    while len(centres):
        rough = []
        for part in np.array_split(centres, math.ceil(len(centres) / _CHUNK)):
            variances, bounds = _cell_bounds(points, log_weights, part, width)
            seen = max(seen, float(variances.max()))
            close = bounds <= seen * (1.0 + _TOLERANCE)
            bound = max(bound, float(bounds[close].max(initial=0.0)))
            rough.append(part[~close])
        width /= 2.0
        halved = np.concatenate(rough)
        centres = np.concatenate([halved - width / 2.0, halved + width / 2.0])
    return seen, bound


def _cell_bounds(
    points: Vector, log_weights: Vector, centres: Vector, width: float
) -> tuple[Vector, Vector]:
    """The variance at each centre, and a bound on it over the cell."""
    law = _laws(points, log_weights, centres)
    deviation = points - (law @ points)[:, None]
    square = deviation * deviation
    second = (law * square).sum(axis=1)
    third = (law * square * deviation).sum(axis=1)
    fourth = (law * square * square).sum(axis=1)
    ratio = math.exp(width * float(points.max()))
    second_cell = ratio * second
    fourth_cell = ((ratio * fourth) ** 0.25 + second_cell * width / 2.0) ** 4
    curvature = np.maximum(fourth_cell, 3.0 * second_cell**2)
    return second, second + np.abs(third) * width / 2.0 + curvature * width**2 / 8.0


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
