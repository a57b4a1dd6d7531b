"""Codes of 2 to 256 levels on a CUDA device, by the ladders of `mechanisms.kernels.ladder`.

A draw w of 16 bits has surely passed the thresholds up to w, and none beyond w + gap: that gives
the code, or leaves the coordinate to the CPU, where the numbers that define the distribution
decide. One kernel draws, another finds the code by binary search: it needs only the last threshold
that it found passed and the next one, since the exact thresholds ascend.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.kernels import family, table
from sottovoce.mechanisms.kernels.cuda.chacha import prepare
from sottovoce.mechanisms.kernels.cuda.draws import compute_draws
from sottovoce.mechanisms.kernels.cuda.place import check_values, on_device
from sottovoce.mechanisms.kernels.cuda.undecided import (
    UndecidedBuffer,
    UndecidedCoordinates,
    list_undecided,
)
from sottovoce.mechanisms.kernels.ladder import Affine, Ladder, is_far
from sottovoce.mechanisms.kernels.reference import family as exact_family
from sottovoce.mechanisms.kernels.reference import table as exact_table

_TOGETHER = 512  # The number of coordinates of a program.
_MOST = 2**35  # The number of coordinates for which one keystream has draws.


@triton.jit
def _threshold(cell, j, fraction, width: tl.constexpr):
    """Return threshold j of each lane's cell, at a fraction of the cell."""
    return tl.load(cell + j) + fraction * tl.load(cell + width + j)


@triton.jit(do_not_specialize=["dimension", "capacity", "cells"])
def _search(
    values, draws, codes, rows, gaps, shifts, count, coordinates, words,
    dimension, capacity, cells, shift, per_x, origin,
    width: tl.constexpr, bits: tl.constexpr, clamp: tl.constexpr, wide: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """Store the codes, and list the coordinates whose draws do not decide.

    With `wide` the shift is subtracted from x in float64. With `clamp` an x outside the ladder
    counts as the nearer end; otherwise it is in the cell after the last, whose gap is infinite.
    """
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    real = i < dimension
    x = tl.load(values + i, mask=real, other=0.0)
    word = tl.load(draws + i, mask=real, other=0).to(tl.uint16, bitcast=True).to(tl.uint32)
    w = word.to(tl.float32)
    if wide:
        moved = (x.to(tl.float64) - tl.load(shifts)).to(tl.float32)
    else:
        moved = x.to(tl.float32) - shift
    p = moved * per_x + origin
    end = cells.to(tl.float32)
    if clamp:
        p = tl.where(p > 0.0, tl.where(p < end, p, end), 0.0)
        number = tl.minimum(p.to(tl.int32), cells - 1)
        fraction = p - number.to(tl.float32)
    else:
        inside = (p >= 0.0) & (p < end)  # False for NaN.
        p = tl.where(inside, p, 0.0)
        number = tl.where(inside, p.to(tl.int32), cells)
        fraction = tl.where(inside, p - number.to(tl.float32), 0.0)
    cell = rows + number.to(tl.int64) * (2 * width)
    code = tl.zeros_like(number)
    for step in tl.static_range(bits):
        higher = code + (1 << (bits - 1 - step))
        code = tl.where(_threshold(cell, higher - 1, fraction, width) <= w, higher, code)
    above = _threshold(cell, tl.minimum(code, (1 << bits) - 2), fraction, width)
    sure = (above > w + tl.load(gaps + number)) | (code == (1 << bits) - 1)
    tl.store(codes + i, code.to(tl.uint8), mask=real)
    list_undecided(count, coordinates, words, capacity, i, word, real & ~sure)


def sample_codes(
    values: torch.Tensor, affine: Affine, ladder: Ladder, keystream: Keystream, *, clamp: bool
) -> tuple[torch.Tensor, UndecidedCoordinates]:
    """Return codes (uint8, on the device) of values x, and the undecided coordinates.

    Args:
        values: The vector x.
        affine: The map u = (x - shift) scale/divisor.
        ladder: The ladder over u.
        keystream: The randomness; it is used up.
        clamp: Whether an x outside the ladder counts as the nearer end; otherwise it is undecided.

    Returns:
        The codes, and the coordinates that are undecided: the caller must replace their codes.

    Raises:
        ParameterError: The values are no vector that the kernels can read, there are none or more
            than 2^35 of them, or the ladder has more than 256 levels.
        RandomnessError: The keystream was used before.
    """
    check_values(values, dimensions=1)
    parameter_rules.integer("levels", ladder.levels, low=2, high=256)
    bits = (ladder.levels - 1).bit_length()
    dimension, device = values.shape[0], values.device
    if not 0 < dimension <= _MOST:
        raise ParameterError(f"a vector must have 1 to {_MOST} coordinates, got {dimension}")
    wide = values.dtype == torch.float64 or is_far(affine, ladder)
    with on_device(values):
        key = torch.from_numpy(prepare([keystream.spend()])).to(device)
        draws = compute_draws(key, dimension, 16)
        rows = torch.from_numpy(_padded(ladder, (1 << bits) - 1)).to(device)
        gaps = torch.from_numpy(ladder.gaps).to(device)
        shifts = torch.tensor([affine.shift], dtype=torch.float64, device=device)
        codes = torch.empty(dimension, dtype=torch.uint8, device=device)
        # About levels/2^16 of the coordinates are undecided, unless many lie outside.
        capacity = min(dimension, 1024 + dimension * ladder.levels // 2**14)
        while True:
            undecided = UndecidedBuffer(capacity, device)
            _search[(-(-dimension // _TOGETHER),)](
                values, draws, codes, rows, gaps, shifts, undecided.count, undecided.coordinates,
                undecided.words, dimension, capacity, len(ladder.gaps) - 1, affine.shift,
                ladder.cells_per_unit * (affine.scale / affine.divisor), ladder.origin,
                width=rows.shape[2], bits=bits, clamp=clamp, wide=wide, block=_TOGETHER,
                num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip
            left = undecided.left(values, key)
            if left is not None:
                return codes, left
            capacity = dimension


def _padded(ladder: Ladder, thresholds: int) -> NDArray[np.float32]:
    """Pad the rows to at least `thresholds` thresholds, as many as the binary search may read."""
    missing = max(0, thresholds - ladder.rows.shape[2])
    rows = np.pad(ladder.rows, ((0, 0), (0, 0), (0, missing)))
    rows[:, 0, ladder.rows.shape[2] :] = np.inf
    return rows


def sample_exponential_family(
    values: torch.Tensor,
    affine: Affine,
    points: Vector,
    weights: Vector,
    keystream: Keystream,
    *,
    reach: float,
    fisher_bound: float,
) -> torch.Tensor:
    """Return, as uint8 on the device, the codes that `mechanisms.kernels.family` gives on the CPU.

    The arguments are those of its function of the same name, with values on a CUDA device. Values
    must be finite, which is not checked.
    """
    if not family.has_ladder(affine, points, reach):
        codes = family.sample_exponential_family(
            values.double().cpu().numpy(), affine, points, weights, keystream,
            reach=reach, fisher_bound=fisher_bound,
        )  # fmt: skip
        return torch.from_numpy(codes).to(values.device)
    ladder = family.ladder_of(points, weights, fisher_bound, reach)
    found, left = sample_codes(values, affine, ladder, keystream, clamp=False)
    tilts = affine(left.values)
    settled = exact_family.decide_codes(tilts, points, weights, left.spelled, keystream)
    return insert_codes(found, left, settled)


def sample_table(
    values: torch.Tensor, given: table.ThresholdTable, keystream: Keystream, affine: Affine
) -> torch.Tensor:
    """Return, as uint8 on the device, the codes that `mechanisms.kernels.table` gives on the CPU.

    The arguments are those of its function of the same name with `clamp`, with values on a CUDA
    device: an input outside the table counts as the nearer end. Values must be finite; the caller
    must check that.
    """
    if not table.has_ladder(affine, given):
        host = values.double().cpu().numpy()
        codes = table.sample_table(host, given, keystream, affine, clamp=True)
        return torch.from_numpy(codes).to(values.device)
    ladder, _ = table.cached_ladders(given)
    found, left = sample_codes(values, affine, ladder, keystream, clamp=True)
    knots = given.knots
    places = np.clip(affine(left.values), knots[0], knots[-1])
    settled = exact_table.decide_codes(
        places, knots, given.thresholds, given.cumulative, left.spelled, keystream
    )
    return insert_codes(found, left, settled)


def insert_codes(
    codes: torch.Tensor, left: UndecidedCoordinates, settled: NDArray[np.integer]
) -> torch.Tensor:
    """Write the codes that the CPU has decided into `codes`, in place, and return `codes`.

    Args:
        codes: The codes of all coordinates, on the device.
        left: The coordinates that the kernel left undecided.
        settled: Their codes, in the same order.
    """
    if len(settled):
        at = torch.from_numpy(left.spelled.coordinates).to(codes.device)
        codes[at] = torch.from_numpy(settled).to(codes.device, codes.dtype)
    return codes
