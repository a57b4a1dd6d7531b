"""Codes of several levels on a CUDA device, by the ladders of `sottovoce.kernels.ladder`.

A draw w of 16 bits has surely passed the thresholds up to w, and none beyond w + gap: that gives
the code, or leaves the coordinate to the CPU, where the numbers that define the law decide. One
kernel draws, another climbs: thresholds ascend, so they are searched by halving.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from sottovoce import parameters
from sottovoce.errors import ParameterError
from sottovoce.kernels.cuda.chacha import main_block, prepare, prepared_words
from sottovoce.kernels.cuda.place import checked, on_device, placed
from sottovoce.kernels.ladder import Affine, Ladder
from sottovoce.randomness import Keystream

TILE = 1024
_TOGETHER = 512  # coordinates of a program
_FAR = 4.0  # lengths of the ladder by which the margins let x be shifted


@triton.jit
def _pair(draws, word, j: tl.constexpr, left):
    """Stores the two draws of word j."""
    tl.store(draws + 64 * j, word.to(tl.uint16), mask=left > 64 * j)
    tl.store(draws + 64 * j + 32, (word >> 16).to(tl.uint16), mask=left > 64 * j + 32)


@triton.jit(do_not_specialize=["dimension"])
def _draw(key, draws, dimension, warps: tl.constexpr):
    """The draw of every coordinate; a tile for each warp."""
    block = tl.program_id(0).to(tl.int64) * (32 * warps) + tl.arange(0, 32 * warps)
    first = block // 32 * 1024 + block % 32
    left = dimension - first
    here = draws + first
    counter = block.to(tl.uint32)
    k0, k1, k2, k3, k4, k5, k6, k7, a1, b1, c1, d1, a2, b2, c2, d2, a3, b3, c3, d3 = prepared_words(
        key, counter
    )
    w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = main_block(
        counter, k0, k1, k2, k3, k4, k5, k6, k7,
        a1, b1, c1, d1, a2, b2, c2, d2, a3, b3, c3, d3, counter, 0,
    )  # fmt: skip
    _pair(here, w0, 0, left)
    _pair(here, w1, 1, left)
    _pair(here, w2, 2, left)
    _pair(here, w3, 3, left)
    _pair(here, w4, 4, left)
    _pair(here, w5, 5, left)
    _pair(here, w6, 6, left)
    _pair(here, w7, 7, left)
    _pair(here, w8, 8, left)
    _pair(here, w9, 9, left)
    _pair(here, w10, 10, left)
    _pair(here, w11, 11, left)
    _pair(here, w12, 12, left)
    _pair(here, w13, 13, left)
    _pair(here, w14, 14, left)
    _pair(here, w15, 15, left)


@triton.jit
def _threshold(cell, j, fraction, width: tl.constexpr):
    """Threshold j of each lane's cell, at a fraction of it."""
    return tl.load(cell + j) + fraction * tl.load(cell + width + j)


@triton.jit(do_not_specialize=["dimension", "capacity"])
def _climb(
    values, draws, codes, rows, gaps, count, listed, dimension, capacity, shift, per_x, origin,
    cells: tl.constexpr, width: tl.constexpr, bits: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Codes, and the coordinates whose draws do not decide."""
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    real = i < dimension
    x = tl.load(values + i, mask=real, other=0.0).to(tl.float32)
    w = tl.load(draws + i, mask=real, other=0).to(tl.float32)
    p = (x - shift) * per_x + origin
    inside = (p >= 0.0) & (p < cells * 1.0)  # not so for NaN
    p = tl.where(inside, p, 0.0)
    number = tl.where(inside, p.to(tl.int32), cells)
    fraction = tl.where(inside, p - number.to(tl.float32), 0.0)
    cell = rows + number * (2 * width)
    code = tl.zeros_like(number)
    for step in tl.static_range(bits):
        higher = code + (1 << (bits - 1 - step))
        code = tl.where(_threshold(cell, higher - 1, fraction, width) <= w, higher, code)
    gap = tl.load(gaps + number)
    above = _threshold(cell, tl.minimum(code, (1 << bits) - 2), fraction, width)
    sure = (above > w + gap) | (inside & (code == (1 << bits) - 1))
    tl.store(codes + i, code.to(tl.uint8), mask=real)
    unsure = real & ~sure
    slot = tl.atomic_add(count + number * 0, 1, mask=unsure, sem="relaxed")
    tl.store(listed + slot, i, mask=unsure & (slot < capacity))


def sample_codes(
    values: torch.Tensor, affine: Affine, ladder: Ladder, keystream: Keystream, *, warps: int = 4
) -> tuple[torch.Tensor, NDArray[np.int64]]:
    """Codes (uint8, on the device) of values x at u, and the coordinates left to the caller.

    u = (x - shift) scale/divisor, as `affine` says. What is left has no code yet: its draw decides
    nothing, or it lies beyond the ladder. At most 256 levels.
    """
    checked(values, dimensions=1)
    parameters.integer("levels", ladder.levels, low=2, high=256)
    per_unit = affine.scale / affine.divisor
    if abs(affine.shift * per_unit) > _FAR * ladder.length:
        raise ParameterError(
            "the values are shifted too far for float32: subtract the shift first, in float64"
        )
    bits = (ladder.levels - 1).bit_length()
    dimension, device = values.shape[0], values.device
    key = keystream.spend()
    codes = torch.empty(dimension, dtype=torch.uint8, device=device)
    if not dimension:
        return codes, np.empty(0, dtype=np.int64)
    with on_device(values):
        rows = torch.from_numpy(_padded(ladder, (1 << bits) - 1)).to(device)
        gaps = torch.from_numpy(ladder.gaps).to(device)
        prepared = torch.from_numpy(prepare([key])).to(device)
        draws = torch.empty(dimension, dtype=torch.uint16, device=device)
        _draw[(-(-dimension // (TILE * warps)),)](
            prepared, draws, dimension, warps=warps, num_warps=warps
        )
        capacity = 1024 + dimension // 256
        while True:
            count = torch.zeros(1, dtype=torch.int32, device=device)
            listed = torch.empty(capacity, dtype=torch.int64, device=device)
            _climb[(-(-dimension // _TOGETHER),)](
                values, draws, codes, rows, gaps, count, listed, dimension, capacity,
                affine.shift, ladder.cells_per_unit * per_unit, ladder.origin,
                cells=len(ladder.gaps) - 1, width=rows.shape[2], bits=bits, block=_TOGETHER,
                num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip
            found = int(count)
            if found <= capacity:
                return codes, np.sort(listed[:found].cpu().numpy())
            capacity = dimension


def _padded(ladder: Ladder, thresholds: int) -> NDArray[np.float32]:
    """At least so many thresholds: the search by halving looks at 2^bits - 1 of them."""
    missing = max(0, thresholds - ladder.rows.shape[2])
    rows = np.pad(ladder.rows, ((0, 0), (0, 0), (0, missing)))
    rows[:, 0, ladder.rows.shape[2] :] = np.inf
    return rows


@triton.jit(do_not_specialize=["count", "size"])
def _pack(codes, packed, count, size, bits: tl.constexpr, block: tl.constexpr):
    """Eight codes into `bits` bytes, a lane."""
    group = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    joined = tl.zeros((block,), tl.uint64)
    for j in tl.static_range(8):
        at = group * 8 + j
        code = tl.load(codes + at, mask=at < count, other=0).to(tl.uint64)
        joined = joined | ((code & ((1 << bits) - 1)) << (bits * j))
    for j in tl.static_range(bits):
        at = group * bits + j
        tl.store(packed + at, (joined >> (8 * j)).to(tl.uint8), mask=at < size)


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes below 2^bits, bits i bits ... of the payload for code i, the lowest of a byte first."""
    parameters.integer("bits", bits, low=1, high=8)
    placed(codes)
    if codes.dtype != torch.uint8 or codes.ndim != 1 or not codes.is_contiguous():
        raise ParameterError("codes must be a vector of bytes (uint8): use .to(torch.uint8)")
    count = codes.shape[0]
    packed = torch.empty(-(-count * bits // 8), dtype=torch.uint8, device=codes.device)
    if count:
        with on_device(codes):
            _pack[(-(-count // (8 * 256)),)](
                codes, packed, count, packed.shape[0], bits=bits, block=256, num_warps=4
            )
    return packed
