"""Finite exponential families, a certified bound on their Fisher information, and Gauss-Hermite.

    P(j | z) = w_j e^(y_j z) / sum_k w_k e^(y_k z)        log-partition A(z) = log sum w_k e^(y_k z)

The Fisher information about z is A''(z) = Var_z(y). For two members at z and z',

    D_a(z || z') = [A(a z + (1-a) z') - a A(z) - (1-a) A(z')] / (a - 1) <= a M (z - z')^2 / 2

with M = sup A'' (Taylor along the line through z and z'; a unit Gaussian has the same bound with
M = 1). For a product over coordinates the divergences add, so the Euclidean distance of the tilts
matters.

The distribution that runs is *defined* by the float64 values of y_j and w_j, and M is certified for
exactly those values, so the guarantee does not depend on how accurately they were computed.

The Gauss-Hermite family is a finite set of outputs that approximates a unit Gaussian. With the
B-point Gauss-Hermite nodes y_j and weights w_j of N(0, 1),

    P(j | z) = w_j e^(y_j z) / sum_k w_k e^(y_k z)

has a Fisher information about z that is certified to be at most 1, up to 2e-6: that is the privacy
of the Gaussian, as above.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector

# This covers the float64 rounding of the sums below, of at most 256 terms each: 1e-9 of a variance
# for exponents up to 1e6. Cancellation does not increase it, because the largest variance is not
# small: where the tilt leaves half the mass on either side of the widest gap g it is at least
# g^2/4.
_ARITHMETIC_SLACK = 1e-8
_TOLERANCE = 1e-6  # Cells are halved until the bound is this close to a variance that occurs.
_WIDTH = 2.0**-5  # A power of two, so that centers are exact and cells leave no gaps.
_CHUNK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialFamily:
    """A finite exponential family with a certified bound on its Fisher information.

    Output j has probability w_j e^(y_j z) / sum_k w_k e^(y_k z) at the tilt z.

    Attributes:
        points: The points y_j.
        weights: The weights w_j.
        fisher_bound: A number that is at least the Fisher information about z, for every z.
    """

    points: Vector
    weights: Vector
    fisher_bound: float


def exponential_family(points: Vector, weights: Vector) -> ExponentialFamily:
    """Return the family of these points and weights, with a certified Fisher bound.

    The bound is that of `certified_fisher_bound`, which asserts that points and weights are
    symmetric. Both arrays become read-only.
    """
    points.flags.writeable = weights.flags.writeable = False
    bound = certified_fisher_bound(points, weights)
    return ExponentialFamily(points=points, weights=weights, fisher_bound=bound)


def tilted_law(family: ExponentialFamily, tilts: Vector) -> Vector:
    """Return the probabilities P(j | z): a row for each tilt z, a column for each output j."""
    return _laws(family.points, np.log(family.weights), tilts)


def _laws(points: Vector, log_weights: Vector, tilts: Vector) -> Vector:
    logits = log_weights + np.outer(tilts, points)
    law = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(law / law.sum(axis=1, keepdims=True))


def certified_fisher_bound(points: Vector, weights: Vector) -> float:
    """Return a number that is at least sup_z Var_z(y), for symmetric points and weights.

    Var_z(y) is the variance of y_j if j has probability w_j e^(y_j z) / sum_k w_k e^(y_k z): the
    Fisher information about z. Symmetric: y_j = -y_(B-1-j) and w_j = w_(B-1-j), which is asserted;
    points may come in any order and coincide.

    If all |y_j| = t, then Var = t^2 sech^2(t z) <= t^2. Otherwise on z >= 0 (the family is
    symmetric) cover [0, Z] by cells of width h around centers c. In a cell the likelihood ratio to
    the center is at most q = e^(h y_max), so with the central moments m2, k3, m4 at c, Taylor's
    theorem gives

        A''(z) <= m2 + |k3| h/2 + K h^2/8,
        K = sup |A''''| <= max(m4', 3 m2'^2),   m2' = q m2,   m4' = ((q m4)^(1/4) + m2' h/2)^4

    where m2' h/2 bounds how far the mean moves; a cell whose bound is well above every variance
    found so far is halved. Beyond Z, Var <= E(y_max - y)^2. That decreases as z grows, because the
    distribution moves up and (y_max - y)^2 decreases in y, to 0 however many points coincide at
    y_max. Z is where it is below the bound found so far.

    Args:
        points: The points y_j.
        weights: The positive weights w_j.

    Returns:
        The bound, rounded up.
    """
    assert np.array_equal(points, -points[::-1])
    assert np.array_equal(weights, weights[::-1])
    assert weights.min() > 0.0
    largest = float(points.max())
    if (np.abs(points) == largest).all():
        return math.nextafter(largest * largest, math.inf)
    scale = 2.0 ** math.frexp(largest)[1]  # Dividing by a power of two is exact.
    return _scaled_bound(points / scale, np.log(weights)) * (1.0 + _ARITHMETIC_SLACK) * scale**2


def _scaled_bound(points: Vector, log_weights: Vector) -> float:
    """Return the bound for points whose largest lies between 1/2 and 1."""
    seen = bound = 0.0
    start = 0
    while True:
        centers = np.asarray((np.arange(start, start + _CHUNK) + 0.5) * _WIDTH, dtype=np.float64)
        seen, covered = _cover(points, log_weights, centers, seen)
        bound = max(bound, covered)
        start += _CHUNK
        (edge,) = _laws(points, log_weights, np.array([start * _WIDTH]))
        if float(edge @ (points.max() - points) ** 2) <= bound:
            return bound


def _cover(
    points: Vector, log_weights: Vector, centers: Vector, seen: float
) -> tuple[float, float]:
    """Return the largest variance found, and a bound over cells of width _WIDTH."""
    bound, width = 0.0, _WIDTH
    while len(centers):
        rough = []
        for part in np.array_split(centers, math.ceil(len(centers) / _CHUNK)):
            variances, bounds = _cell_bounds(points, log_weights, part, width)
            seen = max(seen, float(variances.max()))
            close = bounds <= seen * (1.0 + _TOLERANCE)
            bound = max(bound, float(bounds[close].max(initial=0.0)))
            rough.append(part[~close])
        width /= 2.0
        halved = np.concatenate(rough)
        centers = np.concatenate([halved - width / 2.0, halved + width / 2.0])
    return seen, bound


def _cell_bounds(
    points: Vector, log_weights: Vector, centers: Vector, width: float
) -> tuple[Vector, Vector]:
    """Return the variance at each center, and a bound on it over the cell."""
    law = _laws(points, log_weights, centers)
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
    """Return the Gauss-Hermite family with `levels` outputs; its arrays are read-only and shared.

    Its points and weights are the nodes and weights of Gauss-Hermite quadrature for N(0, 1).

    Raises:
        ParameterError: `levels` is not from 2 to 256.
    """
    parameter_rules.integer("levels", levels, low=2, high=MAX_LEVELS)
    points, weights = hermegauss(levels)
    points, weights = (points - points[::-1]) / 2.0, (weights + weights[::-1]) / 2.0
    weights = weights / weights.sum()
    return exponential_family(points, weights)


def excess_error(design: ExponentialFamily, tilts: Vector, clients: float) -> Vector:
    """Return, for each tilt z, the excess squared error of a mean over that with Gaussian noise.

    The excess is a fraction of the Gaussian's error, sigma^2/n, and negative if the error is
    smaller. The mean is that of the points y sent by n clients (`clients`) that all have tilt z:
    n E(mean - z)^2 = n (E[y] - z)^2 + Var(y), in units of sigma^2; a Gaussian has 1.
    """
    law = tilted_law(design, tilts)
    mean = law @ design.points
    variance = law @ design.points**2 - mean**2
    return np.asarray(clients * (mean - tilts) ** 2 + variance - 1.0)


def levels_covering(reach: float, spread: float, *, clients: float, excess: float) -> int:
    """Return the smallest power of two of Gauss-Hermite levels whose error is near the Gaussian's.

    A tilt is a coordinate divided by the noise's standard deviation. The squared error of the mean
    may exceed the Gaussian's by at most `excess`, either on average over tilts from N(0, spread^2),
    or for every tilt up to `reach`, which matters in few dimensions.

    Args:
        reach: The largest tilt.
        spread: The standard deviation of the tilts.
        clients: The number of clients that are averaged.
        excess: The allowed excess, as a fraction of the Gaussian's error.

    Returns:
        The number of levels; 256 if no smaller one is enough.
    """
    normal = np.linspace(0.0, 10.0, 301)
    weights = np.exp(-(normal**2) / 2.0)
    weights[0] /= 2.0  # The grid is one half of a symmetric sum.
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
