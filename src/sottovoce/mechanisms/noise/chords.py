"""Quantiles of noise by chords over cells of the tail: the table that kernels read.

A draw's 31 bits h stand for a tail v = (h + something in [0, 1)) 2^-32. The quantile Q(v) is convex
where the density falls away from 0, and it does for every noise here. So over a cell of h the chord
between the cell's ends lies above Q, and the gap g between them is concave, with g <= 2 g(middle):
g(middle) is at least the mean of g(x) and of g at x mirrored. Hence

    chord(h + 1) - 2 g(middle)  <=  noise  <=  chord(h).

Cells are relatively 2^-10 wide: the gap is some 1e-7 of the noise's width.
"""

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.native import Native
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.noise.laws import Noise

CELL_BITS: Final = 10  # the binary logarithm of the cells in an octave
_OCTAVES: Final = range(12, 31)
LEAST_BITS: Final = _OCTAVES[0]
LEAST_TAIL: Final = 1 << LEAST_BITS  # of 2^32: smaller ones read on
_UNIT = 2.0**-32
_ROOM = 1024


@lru_cache(maxsize=16)
def chords(noise: Noise, step: float) -> NDArray[np.float64]:
    """For each cell, in steps: the chord's value at its start, its slope, and twice the gap."""
    within = np.arange(1 << CELL_BITS) * 2.0**-CELL_BITS
    starts = np.concatenate([2.0**octave * (1.0 + within) for octave in _OCTAVES])
    ends = np.append(starts[1:], 2.0 ** (_OCTAVES[-1] + 1))
    at_edges = noise.quantile(np.append(starts, ends[-1]) * _UNIT) / step
    at_middles = noise.quantile((starts + ends) / 2.0 * _UNIT) / step
    gaps = (at_edges[:-1] + at_edges[1:]) / 2.0 - at_middles
    table = np.zeros((len(starts), 4))
    table[:, 0] = at_edges[:-1]
    table[:, 1] = np.diff(at_edges) / (ends - starts)
    table[:, 2] = 2.0 * np.maximum(gaps, 0.0)
    table.flags.writeable = False
    return table


def slack_of(noise: Noise, step: float, farthest: float) -> float:
    """By how much a chord and x, at most `farthest` from 0, may be wrong, in steps.

    Five times `quantile`'s error at the three places that make a chord and its gap; the roundings
    of x, of the chord and of the sum are smaller still.
    """
    largest = float(chords(noise, step)[0, 0])
    relative = 8.0 * (largest + noise.quantile_slope / step) * 2.0**-40
    return relative + (farthest / step) * 2.0**-50


def codes_by_chords(
    values: Vector,
    noise: Noise,
    step: float,
    farthest: float,
    keystream: Keystream,
    kernels: Native,
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """round((x + noise)/step), and the coordinates for which the chords cannot tell."""
    table = chords(noise, step)
    slack = slack_of(noise, step, farthest)
    centres = np.require(values, np.float64, ["C", "A"])
    codes = np.empty(len(values), dtype=np.int32)
    key, room = keystream.spend(), _ROOM
    while True:
        left = np.empty(room, dtype=np.int64)
        room = kernels.library.grid_noise(
            kernels.level, key, 0, 1.0 / step, slack, table, centres, codes, left
        )
        if room <= len(left):
            return codes, left[:room]
