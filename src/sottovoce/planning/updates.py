"""Updates of full norm, drawn at random: what errors are averaged over.

    l2     a uniform direction, which is what a random rotation makes of any update.
    l1     a uniform point of the sphere: exponential magnitudes over their sum, random signs.
    linf   uniform in the box.

One coordinate is +-r t with density, up to a factor,

    l2     cos^(d-2) theta, t = sin theta          l1     (1 - t)^(d-2)          linf     1

and a single number is uniform in its interval in any geometry.
"""

import math

import numpy as np

from sottovoce.core.domains import Vector

_NODES = 24
# Beyond that many standard deviations (l2) or means (l1) lies less than 1e-17 of the mass.
_L2_REACH, _L1_REACH = 9.0, 40.0
# A plan is the same whenever it is asked for.
_SEED = 1


def coordinate_nodes(geometry: str, dimension: int) -> tuple[Vector, Vector]:
    """Points and weights whose sums are means over one coordinate, in units of the clip norm.

    Gauss-Legendre in theta or t, both signs.
    """
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    unit = (nodes + 1.0) / 2.0
    match geometry:
        case _ if geometry == "linf" or dimension == 1:
            points = unit
        case "l1":
            points = unit * min(1.0, _L1_REACH / (dimension - 1))
            weights = weights * np.exp((dimension - 2) * np.log1p(-points))
        case _:
            angles = unit * min(math.pi / 2.0, _L2_REACH / math.sqrt(dimension))
            points = np.sin(angles)
            weights = weights * np.exp((dimension - 2) * np.log(np.cos(angles)))
    half = weights / weights.sum() / 2.0
    return np.concatenate([-points, points]), np.concatenate([half, half])


def typical_updates(geometry: str, dimension: int, count: int) -> Vector:
    """`count` updates, one a row, in units of the clip norm.

    Each coordinate takes every stratum of its law once (a Latin hypercube), so that few will do.
    """
    from scipy.special import ndtri

    generator = np.random.default_rng(_SEED)
    strata = np.tile(np.arange(count, dtype=np.float64)[:, None], (1, dimension))
    uniforms = (generator.permuted(strata, axis=0) + generator.random(strata.shape)) / count
    match geometry:
        case _ if geometry == "linf" or dimension == 1:
            return 2.0 * uniforms - 1.0
        case "l1":
            signs = np.where(uniforms < 0.5, -1.0, 1.0)
            sizes = -np.log1p(-np.abs(2.0 * uniforms - 1.0))
            return np.asarray(signs * sizes / sizes.sum(axis=1, keepdims=True))
        case _:
            normal = ndtri(uniforms)
            return np.asarray(normal / np.linalg.norm(normal, axis=1, keepdims=True))
