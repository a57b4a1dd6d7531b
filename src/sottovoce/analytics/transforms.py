"""Haar coefficients of a distribution function, and Hadamard matrices.

[0, 1] has 2^L cells. Node j of level l, 0 <= l < L, is the interval [j, j + 1]/2^l. Its coefficient
theta_lj is the mass of its left half minus the mass of its right half. All coefficients of the
uniform distribution are 0, and each coefficient adds half of itself to the mass of the left half
and subtracts it from that of the right half, spread evenly. So, exactly at the edges t of the
cells,

    F(t) = t + sum_l c_l(t) theta_l,node(t)      c_l(t) = min(u, 1 - u), u the place in the node

Reference: Cormode, Kulkarni and Srivastava 2019, section 4.4.

Hadamard matrices are Sylvester's, H[r, j] = (-1)^(number of common one-bits of r and j).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector


def order_for(columns: int) -> int:
    """Return the least power of two that is at least `columns`, and at least 2."""
    return max(2, 1 << (columns - 1).bit_length())


def is_negative(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 1 where H[r, j] is -1, else 0."""
    common = rows & columns
    for shift in (16, 8, 4, 2, 1):  # This computes the parity of up to 32 bits.
        common = common ^ (common >> shift)
    return common & 1


def transform(values: Vector) -> Vector:
    """Return H @ values along the last axis, whose length n is a power of two, in n log n steps."""
    result = np.array(values, dtype=np.float64)
    size, half = result.shape[-1], 1
    while half < size:
        pairs = result.reshape(*result.shape[:-1], size // (2 * half), 2, half)
        first, second = pairs[..., 0, :].copy(), pairs[..., 1, :].copy()
        pairs[..., 0, :], pairs[..., 1, :] = first + second, first - second
        half *= 2
    return result


Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EstimatedCdf:
    """An unbiased estimate of F at evenly spaced edges of [0, 1], with its covariance.

    The covariance is 0 at both ends, where F is known. `is_rough` says that the noise of adjacent
    edges differs by as much as the noise itself.
    """

    values: Vector
    covariance: Vector
    is_rough: bool


def nodes(cells: Integers, levels: Integers, depth: int) -> Integers:
    """Return the node of each cell at its level."""
    return cells >> (depth - levels)


def is_right(cells: Integers, levels: Integers, depth: int) -> Integers:
    """Return 1 where the cell lies in the right half of its node, else 0."""
    return (cells >> (depth - 1 - levels)) & 1


@lru_cache(maxsize=16)
def overlaps(depth: int, level: int) -> Vector:
    """Return c_l at each edge (rows) for each node of the level (columns)."""
    edges = np.linspace(0.0, 1.0, (1 << depth) + 1)
    places = edges[:, None] * (1 << level) - np.arange(1 << level)
    found = np.maximum(np.minimum(places, 1.0 - places), 0.0)
    found.flags.writeable = False
    return found


def cdf_of(coefficients: list[Vector], people: list[int], magnitude: float) -> EstimatedCdf:
    """Return F from each level's estimated coefficients.

    Each of the level's n_l `people` contributes +-c, the `magnitude`, to every coefficient, so the
    covariance is (c^2 I - theta theta')/n_l.
    """
    depth = len(coefficients)
    values = np.linspace(0.0, 1.0, (1 << depth) + 1)
    covariance = np.zeros((len(values), len(values)))
    for level, (theta, asked) in enumerate(zip(coefficients, people, strict=True)):
        shape = overlaps(depth, level)
        part = shape @ theta
        values = values + part
        covariance += (magnitude**2 * (shape @ shape.T) - np.outer(part, part)) / asked
    return EstimatedCdf(values=values, covariance=covariance, is_rough=True)
