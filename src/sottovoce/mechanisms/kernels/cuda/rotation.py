"""The rotation of many rows on a CUDA device, with the bits of `mechanisms.rotation`.

A pass takes a block of 2^k coordinates through k levels of butterflies, from neighbors up, all in
float64. The first kernel loads the rows in their own type, multiplies them by clipping factors and
signs, and does up to ten levels: five between the lanes of a warp and five between the registers of
a lane. Each further kernel does up to five levels between registers, on columns that are far apart
in the row, and the last one normalizes. Many short rows are rotated by one kernel instead: a
program takes a row through all levels, so that the row stays in the cache. No multiplication is
fused with an addition.
"""

import math
from functools import lru_cache

import numpy as np
import torch
import triton
import triton.language as tl

from sottovoce.mechanisms.kernels.cuda.place import check_values, on_device
from sottovoce.mechanisms.rotation import Rotation, block_size

_LANE_LEVELS = 5
_REGISTER_LEVELS = 5  # 2^5 numbers of each lane
_WARPS = 4
_ROW_WARPS = 8  # The warps of a program that takes whole rows,
_ROW_LEVELS = 15  # of at most this many levels,
_LEAST_ROWS = 132  # if there are at least so many rows.
_MOST_ROWS = 65535


@triton.jit
def _between_registers(x, levels: tl.constexpr):
    """Do the levels between the numbers of a tuple, the lowest first."""
    for level in tl.static_range(levels):
        y = ()
        for i in tl.static_range(len(x)):
            if (i >> level) & 1 == 0:
                y = y + (x[i] + x[i + (1 << level)],)
            else:
                y = y + (x[i - (1 << level)] - x[i],)
        x = y
    return x


@triton.jit
def _between_lanes(x, index, level: tl.constexpr, asm: tl.constexpr):
    """Do one level between the lanes of a warp: the higher one of a pair gets the difference."""
    high = (index >> level) & 1
    if asm:
        found = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 low, high;
            .reg .f64 other, mine;
            mov.b64 {low, high}, $1;
            xor.b32 high, high, $3;
            mov.b64 mine, {low, high};
            mov.b64 {low, high}, $1;
            shfl.sync.bfly.b32 low, low, $2, 0x1f, 0xffffffff;
            shfl.sync.bfly.b32 high, high, $2, 0x1f, 0xffffffff;
            mov.b64 other, {low, high};
            add.rn.f64 $0, other, mine;
            }
            """,
            "=d,d,r,r",
            [x, tl.full(x.shape, 1 << level, tl.int32), high << 31],
            dtype=tl.float64,
            is_pure=False,
            pack=1,
        )
    else:
        other = tl.gather(x, index ^ (1 << level), axis=0)
        found = tl.where(high == 0, x + other, other - x)
    return found


@triton.jit
def _low_levels(
    source, out, words, tile, index, scale, start,
    k: tl.constexpr, registers: tl.constexpr, factor: tl.constexpr, mixed: tl.constexpr,
    before: tl.constexpr, after: tl.constexpr, asm: tl.constexpr,
):  # fmt: skip
    """Do the lowest levels of a block of a row, for one tile of 32 * 2^registers in each warp.

    `source` and `out` point to the row, whose block begins at coordinate `start`. With `mixed` the
    numbers up to the first 2^k of the row are read from `out`, where they are scaled already.
    """
    lane = index % 32
    tile = tile + index // 32
    first = tile.to(tl.int64) * (32 << registers) + lane
    real = first < (1 << k)
    x = ()
    for j in tl.static_range(1 << registers):
        p = start + first + 32 * j
        if mixed:
            old = tl.load(out + p, mask=real & (p < (1 << k)), other=0.0)
            new = tl.load(source + p, mask=real & (p >= (1 << k)), other=0.0).to(tl.float64)
            number = tl.where(p < (1 << k), old, new * scale)
        else:
            number = tl.load(source + p, mask=real, other=0.0).to(tl.float64) * scale
        if before:
            at = (tile << registers) + j
            word = tl.load(words + at, mask=real, other=0)
            number = tl.where((word >> lane) & 1 == 0, number, number * -1.0)
        for level in tl.static_range(min(k, 5)):
            number = _between_lanes(number, index, level, asm)
        x = x + (number,)
    x = _between_registers(x, registers)
    for j in tl.static_range(1 << registers):
        number = x[j]
        if k == min(k, 5) + registers:
            number = number * tl.full((), factor, tl.float64)
            if after:
                word = tl.load(words + (tile << registers) + j, mask=real, other=0)
                number = tl.where((word >> lane) & 1 == 0, number, number * -1.0)
        tl.store(out + start + first + 32 * j, number, mask=real)


@triton.jit
def _high_levels(
    out, words, unit,
    k: tl.constexpr, below: tl.constexpr, levels: tl.constexpr, factor: tl.constexpr,
    after: tl.constexpr,
):  # fmt: skip
    """Do `levels` levels of a block from level `below` on, in each lane for one unit of 2^levels.

    `out` points to the block.
    """
    column = unit & ((1 << below) - 1)
    first = ((unit >> below).to(tl.int64) << (below + levels)) + column
    real = unit < (1 << (k - levels))
    x = ()
    for j in tl.static_range(1 << levels):
        x = x + (tl.load(out + first + (j << below), mask=real, other=0.0),)
    x = _between_registers(x, levels)
    for j in tl.static_range(1 << levels):
        number = x[j]
        if below + levels == k:
            number = number * tl.full((), factor, tl.float64)
            if after:
                at = (first >> 5) + (j << (below - 5))
                word = tl.load(words + at, mask=real, other=0)
                number = tl.where((word >> (column & 31)) & 1 == 0, number, number * -1.0)
        tl.store(out + first + (j << below), number, mask=real)


_RUN_TIME = ["dimension", "stride", "start"]


@triton.jit(do_not_specialize=_RUN_TIME)
def _low(
    source, out, words, scales, dimension, stride, start,
    k: tl.constexpr, registers: tl.constexpr, factor: tl.constexpr, scaled: tl.constexpr,
    mixed: tl.constexpr, before: tl.constexpr, after: tl.constexpr, warps: tl.constexpr, asm: tl.constexpr,
):  # fmt: skip
    """Do the lowest levels of row r in the programs (p, r)."""
    row = tl.program_id(1).to(tl.int64)
    index = tl.arange(0, 32 * warps)
    scale = tl.load(scales + row) if scaled else 1.0
    _low_levels(
        source + row * stride, out + row * dimension, words, tl.program_id(0) * warps, index,
        scale, start, k, registers, factor, mixed, before, after, asm,
    )  # fmt: skip


@triton.jit(do_not_specialize=_RUN_TIME)
def _high(
    out, words, dimension, start,
    k: tl.constexpr, below: tl.constexpr, levels: tl.constexpr, factor: tl.constexpr,
    after: tl.constexpr, warps: tl.constexpr,
):  # fmt: skip
    """Do higher levels of row r in the programs (p, r)."""
    row = tl.program_id(1).to(tl.int64)
    unit = tl.program_id(0) * (32 * warps) + tl.arange(0, 32 * warps)
    _high_levels(out + row * dimension + start, words, unit, k, below, levels, factor, after)


@triton.jit(do_not_specialize=_RUN_TIME)
def _whole_rows(
    source, out, words, more_words, scales, dimension, stride, start,
    k: tl.constexpr, registers: tl.constexpr, factor: tl.constexpr, scaled: tl.constexpr,
    warps: tl.constexpr, asm: tl.constexpr,
):  # fmt: skip
    """Rotate row r in program r: one pass, and with `start` > 0 another one, which begins there."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, 32 * warps)
    scale = tl.load(scales + row) if scaled else 1.0
    here, target = source + row * stride, out + row * dimension
    low: tl.constexpr = min(k, 5) + registers
    for tile in range(0, 1 << (k - low), warps):
        _low_levels(
            here, target, words, tile, index, scale, 0,
            k, registers, factor, False, True, False, asm,
        )  # fmt: skip
    if k > low:
        tl.debug_barrier()
        for unit in range(0, 1 << low, 32 * warps):
            _high_levels(target, words, unit + index, k, low, k - low, factor, False)
    if start > 0:
        tl.debug_barrier()
        for tile in range(0, 1 << (k - low), warps):
            _low_levels(
                here, target, more_words, tile, index, scale, start,
                k, registers, factor, True, True, False, asm,
            )  # fmt: skip
        if k > low:
            tl.debug_barrier()
            for unit in range(0, 1 << low, 32 * warps):
                _high_levels(
                    target + start, more_words, unit + index, k, low, k - low, factor, False
                )


def rotate_rows(
    rows: torch.Tensor, rotation: Rotation, scales: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the rows, each times its factor, rotated, as a new float64 matrix.

    Args:
        rows: A matrix with a vector of finite numbers in each row.
        rotation: The rotation, of the dimension of the rows.
        scales: A float64 factor for each row, on the device of the rows; None if all are 1.

    Returns:
        The numbers that `Rotation.rotate_rows` gives on the CPU, bit for bit.

    Raises:
        ParameterError: The kernels cannot read the rows.
    """
    check_values(rows, dimensions=2)
    out = torch.empty(rows.shape, dtype=torch.float64, device=rows.device)
    signs = _signs_on(rotation, rows.device)
    whole = block_size(rotation.dimension).bit_length() - 1 <= _ROW_LEVELS
    with on_device(rows):
        for first in range(0, len(rows), _MOST_ROWS):
            part = slice(first, first + _MOST_ROWS)
            own = None if scales is None else scales[part]
            if whole and len(rows) >= _LEAST_ROWS:
                _rotate_whole(rows[part], out[part], signs, own)
            else:
                _rotate_by_levels(rows[part], out[part], signs, own)
    return out


def rotate_back(vector: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Return a float64 vector on a device, rotated back, as `Rotation.inverse` gives it.

    Raises:
        ParameterError: The kernels cannot read the vector.
    """
    check_values(vector, dimensions=1)
    out = vector.to(torch.float64, copy=True)[None]
    with on_device(vector):
        for start, words in reversed(_signs_on(rotation, vector.device)):
            _pass(out, out, words, None, start, mixed=False, inverse=True)
    return out[0]


@lru_cache(maxsize=2)
def _signs_on(rotation: Rotation, device: torch.device) -> list[tuple[int, torch.Tensor]]:
    """Return the first coordinate of each pass and its packed signs, in words on the device."""
    found = []
    for start, octets in rotation.packed_passes():
        padded = np.zeros(-(-len(octets) // 4) * 4, dtype=np.uint8)
        padded[: len(octets)] = octets
        found.append((start, torch.from_numpy(padded.view("<i4").astype(np.int32)).to(device)))
    return found


def _split(k: int) -> tuple[int, list[int]]:
    """Return the register levels of the first kernel, and the levels of each further kernel."""
    registers = max(0, min(_REGISTER_LEVELS, k - _LANE_LEVELS))
    left = max(0, k - _LANE_LEVELS - registers)
    kernels = -(-left // _REGISTER_LEVELS)
    return registers, [(left + i) // kernels for i in range(kernels)]


def _rotate_by_levels(
    rows: torch.Tensor,
    out: torch.Tensor,
    signs: list[tuple[int, torch.Tensor]],
    scales: torch.Tensor | None,
) -> None:
    for start, words in signs:
        _pass(rows, out, words, scales, start, mixed=start > 0, inverse=False)


def _pass(
    rows: torch.Tensor,
    out: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor | None,
    start: int,
    *,
    mixed: bool,
    inverse: bool,
) -> None:
    """Do one pass of the rotation: signs, then levels; or levels, then signs for the inverse."""
    count, dimension = rows.shape
    size = block_size(dimension)
    k, factor = size.bit_length() - 1, 1.0 / math.sqrt(size)
    registers, further = _split(k)
    tiles = max(1, size >> (_LANE_LEVELS + registers))
    warps = min(_WARPS, tiles)
    _low[(tiles // warps, count)](
        rows, out, words, out if scales is None else scales, dimension, rows.stride(0), start,
        k=k, registers=registers, factor=factor, scaled=scales is not None, mixed=mixed,
        before=not inverse, after=inverse, warps=warps, asm=rows.is_cuda,
        num_warps=warps, enable_fp_fusion=False,
    )  # fmt: skip
    below = _LANE_LEVELS + registers
    for levels in further:
        _high[(max(1, (size >> levels) // (32 * _WARPS)), count)](
            out, words, dimension, start,
            k=k, below=below, levels=levels, factor=factor, after=inverse, warps=_WARPS,
            num_warps=_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
        below += levels


def _rotate_whole(
    rows: torch.Tensor,
    out: torch.Tensor,
    signs: list[tuple[int, torch.Tensor]],
    scales: torch.Tensor | None,
) -> None:
    count, dimension = rows.shape
    size = block_size(dimension)
    k = size.bit_length() - 1
    registers, _ = _split(k)
    warps = max(1, min(_ROW_WARPS, size >> (_LANE_LEVELS + registers)))
    (_, words), (start, more) = signs[0], signs[-1]
    _whole_rows[(count,)](
        rows, out, words, more, out if scales is None else scales, dimension, rows.stride(0),
        start, k=k, registers=registers, factor=1.0 / math.sqrt(size), scaled=scales is not None,
        warps=warps, asm=rows.is_cuda, num_warps=warps, enable_fp_fusion=False,
    )  # fmt: skip
