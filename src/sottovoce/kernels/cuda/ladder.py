"""Codes of several levels on a CUDA device, by a ladder of thresholds in float32.

A draw w of 16 bits stands for the uniform numbers from w to w + 1, in units of 2^-16. The code is
the number of thresholds that the uniform number reaches, and the thresholds depend on the value:
its place p is measured in cells, and threshold j of cell c is, within `margin` of the cell,

    T_j = start_j + (p - c) increase_j.

So a draw gives code k surely if w >= T_(k-1) + margin and w + 1 <= T_k - margin. Where no k does,
the coordinate is listed, and decided on the CPU by the numbers that define the law. The thresholds
of a cell ascend, so k is searched for by halving.
"""

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from sottovoce import parameters
from sottovoce.errors import ParameterError
from sottovoce.kernels.cuda.chacha import main_block, prepare, prepared_words
from sottovoce.kernels.cuda.place import checked, on_device, placed
from sottovoce.randomness import Keystream

TILE = 1024
_TOGETHER = 512  # coordinates of a program


class Ladder(NamedTuple):
    """Thresholds of every cell, and where a value lies among the cells: p = x slope + offset."""

    rows: NDArray[np.float32]  # [cells, 2, thresholds or more], starts and increases; then +inf
    margins: NDArray[np.float32]  # [cells]
    slope: float
    offset: float
    levels: int


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
    values, draws, codes, rows, margins, count, listed, dimension, capacity, slope, offset,
    cells: tl.constexpr, width: tl.constexpr, bits: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Codes, and the coordinates whose draws do not decide."""
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    real = i < dimension
    x = tl.load(values + i, mask=real, other=0.0).to(tl.float32)
    w = tl.load(draws + i, mask=real, other=0).to(tl.float32)
    p = tl.minimum(tl.maximum(x * slope + offset, 0.0), cells * 1.0)
    number = tl.minimum(p.to(tl.int32), cells - 1)
    fraction = p - number.to(tl.float32)
    cell = rows + number * (2 * width)
    margin = tl.load(margins + number)
    code = tl.zeros_like(number)
    for step in tl.static_range(bits):
        higher = code + (1 << (bits - 1 - step))
        reached = w >= _threshold(cell, higher - 1, fraction, width) + margin
        code = tl.where(reached, higher, code)
    above = _threshold(cell, tl.minimum(code, (1 << bits) - 2), fraction, width)
    sure = (code == (1 << bits) - 1) | (w + 1.0 <= above - margin)
    tl.store(codes + i, code.to(tl.uint8), mask=real)
    unsure = real & ~sure
    slot = tl.atomic_add(count + number * 0, 1, mask=unsure, sem="relaxed")
    tl.store(listed + slot, i, mask=unsure & (slot < capacity))


def sample_codes(
    values: torch.Tensor, ladder: Ladder, keystream: Keystream, *, warps: int = 4
) -> tuple[torch.Tensor, NDArray[np.int64]]:
    """Codes (uint8, on the device), and the coordinates that the caller must decide.

    The codes of those are to be replaced; a float64 is rounded to float32 first, which the margins
    must allow for. At most 256 levels.
    """
    checked(values, dimensions=1)
    parameters.integer("levels", ladder.levels, low=2, high=256)
    bits = (ladder.levels - 1).bit_length()
    dimension, device = values.shape[0], values.device
    key = keystream.spend()
    codes = torch.empty(dimension, dtype=torch.uint8, device=device)
    if not dimension:
        return codes, np.empty(0, dtype=np.int64)
    with on_device(values):
        rows = torch.from_numpy(_padded(ladder, (1 << bits) - 1)).to(device)
        margins = torch.from_numpy(ladder.margins).to(device)
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
                values, draws, codes, rows, margins, count, listed, dimension, capacity,
                float(np.float32(ladder.slope)), float(np.float32(ladder.offset)),
                cells=rows.shape[0], width=rows.shape[2], bits=bits, block=_TOGETHER,
                num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip
            found = int(count)
            if found <= capacity:
                return codes, np.sort(listed[:found].cpu().numpy())
            capacity = dimension


def _padded(ladder: Ladder, thresholds: int) -> NDArray[np.float32]:
    """At least so many thresholds; those at infinity stay there in the whole cell."""
    cells, pair, given = ladder.rows.shape
    if pair != 2 or ladder.margins.shape != (cells,) or given < ladder.levels - 1:
        raise ParameterError("a ladder has rows [cells, 2, levels - 1 or more] and margins [cells]")
    rows = np.full((cells, 2, max(given, thresholds)), np.inf, dtype=np.float32)
    rows[:, :, : ladder.levels - 1] = ladder.rows[:, :, : ladder.levels - 1]
    rows[:, 1][np.isinf(rows[:, 0])] = 0.0
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
