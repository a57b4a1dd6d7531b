"""The Gauss-Hermite exponential family: a finite alphabet that mimics a unit Gaussian.

With the B-point Gauss-Hermite nodes y_j and weights w_j of N(0, 1),

    P(j | z) = w_j e^(y_j z) / sum_k w_k e^(y_k z)        log-partition A(z) = log sum w_k e^(y_k z)

The Fisher information about z is A''(z) = Var_z(y). For two members at z and z',

    D_a(z || z') = [A(a z + (1-a) z') - a A(z) - (1-a) A(z')] / (a - 1) <= a M (z - z')^2 / 2

with M = sup A'' (Taylor along the line through z and z'; the same bound a unit Gaussian has with
M = 1). A product over coordinates adds up, so the Euclidean distance of the tilts is what counts.

The law that runs is *defined* by the float64 values of y_j and w_j, and M is certified for exactly
those values, so nothing rests on how accurately the quadrature was computed.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from sottovoce import parameters
from sottovoce.domains import Vector

MAX_LEVELS = 256

# Covers the rounding of the float64 sums in the certificate: at most 256 positive terms each.
_ARITHMETIC_SLACK = 1e-10
_CHUNK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class HermiteDesign:
    """Nodes, weights and the certified supremum of the Fisher information."""

    points: Vector
    weights: Vector
    fisher_bound: float


@lru_cache(maxsize=64)
def gauss_hermite(levels: int) -> HermiteDesign:
    """The design with `levels` nodes; arrays are read-only and shared."""
    parameters.integer("levels", levels, low=2, high=MAX_LEVELS)
    points, weights = hermegauss(levels)
    points, weights = (points - points[::-1]) / 2.0, (weights + weights[::-1]) / 2.0
    weights = weights / weights.sum()
    points.flags.writeable = weights.flags.writeable = False
    bound = certified_fisher_bound(points, weights)
    return HermiteDesign(points=points, weights=weights, fisher_bound=bound)


def certified_fisher_bound(points: Vector, weights: Vector) -> float:
    """A number that is at least sup_z Var_z(y), for symmetric points and weights.

    On z >= 0 (the law is symmetric) cover [0, Z] by cells of width h around centres c. In a cell
    the likelihood ratio to the centre is at most q = e^(h y_max), so with the central moments m2,
    k3, m4 at c, Taylor's theorem gives

        A''(z) <= m2 + |k3| h/2 + K h^2/8,
        K = sup |A''''| <= max(m4', 3 m2'^2),   m2' = q m2,   m4' = ((q m4)^(1/4) + m2' h/2)^4

    where m2' h/2 bounds how far the mean moves. Beyond Z, Var <= E(y_max - y)^2, which falls as z
    grows because the law moves up; Z is where that is below the bound found so far.
    """
    assert np.array_equal(points, -points[::-1])
    assert np.array_equal(weights, weights[::-1])
    largest = float(points[-1])
    log_weights = np.log(weights)
    width = min(1e-3, 2e-2 / largest)
    ratio = math.exp(width * largest)
    bound, start = 0.0, 0
    while True:
        centres = (np.arange(start, start + _CHUNK) + 0.5) * width
        logits = log_weights + np.outer(centres, points)
        law = np.exp(logits - logits.max(axis=1, keepdims=True))
        law /= law.sum(axis=1, keepdims=True)
        deviation = points - (law @ points)[:, None]
        square = deviation * deviation
        second = (law * square).sum(axis=1)
        third = (law * square * deviation).sum(axis=1)
        fourth = (law * square * square).sum(axis=1)
        second_cell = ratio * second
        fourth_cell = ((ratio * fourth) ** 0.25 + second_cell * width / 2.0) ** 4
        curvature = np.maximum(fourth_cell, 3.0 * second_cell**2)
        cells = second + np.abs(third) * width / 2.0 + curvature * width**2 / 8.0
        bound = max(bound, float(cells.max()))
        start += _CHUNK
        edge = log_weights + start * width * points
        tail = np.exp(edge - edge.max())
        if float(tail @ (largest - points) ** 2 / tail.sum()) <= bound:
            return bound + _ARITHMETIC_SLACK


def mean_of_tilt(design: HermiteDesign, tilts: Vector) -> Vector:
    """E[y_j] under P(. | z), the value that z decodes to on average: A'(z)."""
    return tilted_law(design, tilts) @ design.points


def tilted_law(design: HermiteDesign, tilts: Vector) -> Vector:
    """P(j | z) as a table with one row per tilt."""
    logits = np.log(design.weights) + np.outer(tilts, design.points)
    law = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(law / law.sum(axis=1, keepdims=True))


@lru_cache(maxsize=64)
def unbiased_range(levels: int, relative_bias: float = 0.01) -> float:
    """The largest tilt up to which |E[y] - z| <= relative_bias z."""
    design = gauss_hermite(levels)
    tilts = np.linspace(0.0, float(design.points[-1]) + 1.0, 20001)[1:]
    outside = np.abs(mean_of_tilt(design, tilts) - tilts) > relative_bias * tilts
    return float(tilts[max(0, int(np.argmax(outside)) - 1)] if outside.any() else tilts[-1])


def excess_error(design: HermiteDesign, tilts: Vector, clients: float) -> Vector:
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
