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
    """Return the order of a Hadamard matrix for `columns` columns: a power of two.

    It is the least one that is at least `columns`, and at least 2.
    """
    return max(2, 1 << (columns - 1).bit_length())


def is_negative(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 1 where the entry [row, column] of Sylvester's Hadamard matrix is -1, else 0.

    Rows and columns are below 2^32 and are taken elementwise.
    """
    common = rows & columns
    for shift in (16, 8, 4, 2, 1):  # This computes the parity of up to 32 bits.
        common = common ^ (common >> shift)
    return common & 1


def transform(values: Vector) -> Vector:
    """Return the product of Sylvester's Hadamard matrix and `values`, along the last axis.

    The length n of this axis must be a power of two. The product takes n log n steps; `values` is
    not changed.
    """
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
    """An unbiased estimate of a distribution function F at evenly spaced edges of [0, 1].

    Attributes:
        values: The estimate of F at each edge; it need not increase.
        covariance: The covariance of `values`; 0 at both ends, where F is known.
        is_rough: Whether the noise of adjacent edges differs by as much as the noise itself.
    """

    values: Vector
    covariance: Vector
    is_rough: bool


def nodes(cells: Integers, levels: Integers, depth: int) -> Integers:
    """Return the number of the node that contains each cell, at the cell's level.

    Level l divides the 2^depth cells into 2^l nodes of adjacent cells.
    """
    return cells >> (depth - levels)


def is_right(cells: Integers, levels: Integers, depth: int) -> Integers:
    """Return 1 where a cell lies in the right half of its node at the cell's level, else 0.

    Level l divides the 2^depth cells into 2^l nodes of adjacent cells.
    """
    return (cells >> (depth - 1 - levels)) & 1


@lru_cache(maxsize=16)
def overlaps(depth: int, level: int) -> Vector:
    """Return how much each node's coefficient adds to the distribution function at each edge.

    Rows are the 2^depth + 1 edges of the cells, columns the 2^level nodes. An entry is min(u, 1 -
    u) for an edge at the share u of the node, and 0 outside it. The array cannot be written to.
    """
    edges = np.linspace(0.0, 1.0, (1 << depth) + 1)
    places = edges[:, None] * (1 << level) - np.arange(1 << level)
    found = np.maximum(np.minimum(places, 1.0 - places), 0.0)
    found.flags.writeable = False
    return found


def cdf_of(coefficients: list[Vector], people: list[int], magnitude: float) -> EstimatedCdf:
    """Return the distribution function that follows from each level's estimated coefficients.

    A node's coefficient theta is the mass of its left half minus that of its right half. Each of
    the n `people` of a level contributes +-c, the `magnitude`, to each of its coefficients, so
    their covariance is (c^2 I - theta theta')/n.
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
