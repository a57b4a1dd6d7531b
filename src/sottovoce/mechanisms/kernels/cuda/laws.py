"""The exact thresholds in float64, for draws with 64 further bits: the decisions of the C kernels.

Both functions return codes, and whether they are decided: whether no threshold is within the margin
that `native/extension.c` has, too.
"""

import triton
import triton.language as tl


@triton.jit
def family_code(tilt, uniform, points, weights, levels):
    """Decide by the masses w_j e^(y_j z) of an exponential family at each tilt z."""
    top = tilt * tl.load(points)
    largest = tl.abs(top)
    for j in range(1, levels):
        exponent = tilt * tl.load(points + j)
        top = tl.maximum(top, exponent)
        largest = tl.maximum(largest, tl.abs(exponent))
    total = tl.zeros_like(tilt)
    for j in range(levels):
        total += tl.load(weights + j) * tl.exp(tilt * tl.load(points + j) - top)
    unit = 8.881784197001252e-16  # 2^-50
    margin = (2.0 * largest + (levels.to(tl.float64) / 2.0 + 4.0)) * unit * total
    place = uniform * total
    below = tl.zeros_like(tilt)
    code = tl.zeros(tilt.shape, tl.int32)
    decided = code == 0
    for j in range(levels - 1):
        below += tl.load(weights + j) * tl.exp(tilt * tl.load(points + j) - top)
        distance = place - below
        code += (distance >= 0.0).to(tl.int32)
        decided = decided & (tl.abs(distance) > margin)
    return code, decided


@triton.jit
def table_code(u, uniform, knots, thresholds, num_knots, levels):
    """Decide by the thresholds of a table, interpolated between its knots at u."""
    first, last = tl.load(knots), tl.load(knots + num_knots - 1)
    x = tl.where(u < first, first, tl.where(u > last, last, u))
    k = tl.zeros(u.shape, tl.int32)
    for m in range(1, num_knots - 1):
        k += (x >= tl.load(knots + m)).to(tl.int32)
    start = tl.load(knots + k)
    share = (x - start) / (tl.load(knots + k + 1) - start)
    rest = 1.0 - share
    row = thresholds + k * levels
    code = tl.zeros(u.shape, tl.int32)
    decided = code == 0
    for j in range(levels - 1):
        threshold = rest * tl.load(row + j) + share * tl.load(row + levels + j)
        distance = uniform - threshold
        code += (distance >= 0.0).to(tl.int32)
        decided = decided & (tl.abs(distance) > 3.552713678800501e-15)  # 2^-48
    return code, decided
