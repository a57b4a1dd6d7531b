"""Sylvester's Hadamard matrices, H[r, j] = (-1)^(number of common one-bits of r and j)."""

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector


def order_for(columns: int) -> int:
    """The least power of two that has so many columns, at least 2."""
    return max(2, 1 << (columns - 1).bit_length())


def is_negative(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """1 where H[r, j] is -1, else 0."""
    common = rows & columns
    for shift in (16, 8, 4, 2, 1):  # the parity of up to 32 bits
        common = common ^ (common >> shift)
    return common & 1


def transform(values: Vector) -> Vector:
    """H @ values along the last axis, of a power of two, in n log n steps."""
    result = np.array(values, dtype=np.float64)
    size, half = result.shape[-1], 1
    while half < size:
        pairs = result.reshape(*result.shape[:-1], size // (2 * half), 2, half)
        first, second = pairs[..., 0, :].copy(), pairs[..., 1, :].copy()
        pairs[..., 0, :], pairs[..., 1, :] = first + second, first - second
        half *= 2
    return result
