"""The sum of squares, the same number on every machine.

One binary tree over the coordinates, whose shape depends on their count alone: a node is the sum of
its two children in float64, absent leaves are 0. In a tile of 1024 coordinates, coordinate 32 k + l
is leaf 32 l + k, so that neighbours are added lane by lane; tiles follow in order. The relative
error is below (log2(count) + 2) 2^-53.
"""

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.native import native

_TILE = 1024
_LANES = 32
_CHUNK = 1 << 20  # whole subtrees


def square_sum(values: NDArray[np.float32] | NDArray[np.float64]) -> float:
    """The sum of squares of a vector; what overflows is infinite, NaN stays NaN."""
    kernels = native()
    if kernels is not None and values.flags.c_contiguous and values.flags.aligned:
        wide = values.dtype == np.float64
        return float(kernels.library.square_sum(kernels.level, values, wide))
    with np.errstate(over="ignore", invalid="ignore"):
        chunks = [_subtree(values[at : at + _CHUNK]) for at in range(0, len(values), _CHUNK)]
        return float(_tree(np.array([chunks]))[0]) if chunks else 0.0


def _subtree(values: NDArray[np.floating]) -> float:
    tiles = np.zeros((-(-len(values) // _TILE), _TILE))
    tiles.ravel()[: len(values)] = values
    tiles *= tiles
    leaves = tiles.reshape(len(tiles), _LANES, _LANES).transpose(0, 2, 1).reshape(len(tiles), -1)
    return float(_tree(_tree(leaves)[None])[0])


def _tree(leaves: NDArray[np.float64]) -> NDArray[np.float64]:
    """The roots over each row."""
    while leaves.shape[1] > 1:
        if leaves.shape[1] % 2:
            leaves = np.pad(leaves, ((0, 0), (0, 1)))
        leaves = leaves[:, 0::2] + leaves[:, 1::2]
    return leaves[:, 0]
