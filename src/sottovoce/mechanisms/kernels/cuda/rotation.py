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
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from sottovoce.mechanisms.kernels.cuda.launcher import launched
from sottovoce.mechanisms.kernels.cuda.place import check_values, on_device
from sottovoce.mechanisms.rotation import Rotation, block_size

_LANE_LEVELS = 5
_REGISTER_LEVELS = 5  # 2^5 numbers of each lane
_WARPS = 4
_ROW_WARPS = 8  # The warps of a program that takes whole rows,
_ROW_LEVELS = 15  # of at most this many levels,
_LEAST_ROWS = 132  # if there are at least so many rows.
_MOST_ROWS = 65535


def _lane_levels() -> str:
    """Return the assembler for five levels between lanes, of number $1 in lane $2."""
    lines = [".reg .b32 low, high, sign;", ".reg .f64 other, mine;", "mov.f64 $0, $1;"]
    for level in range(_LANE_LEVELS):
        lines += [
            "mov.b64 {low, high}, $0;",
            f"shl.b32 sign, $2, {31 - level};",
            "and.b32 sign, sign, 0x80000000;",
            "xor.b32 sign, sign, high;",
            "mov.b64 mine, {low, sign};",
            f"shfl.sync.bfly.b32 low, low, {1 << level}, 0x1f, 0xffffffff;",
            f"shfl.sync.bfly.b32 high, high, {1 << level}, 0x1f, 0xffffffff;",
            "mov.b64 other, {low, high};",
            "add.rn.f64 $0, other, mine;",
        ]
    return "{ " + " ".join(lines) + " }"


_ALL_LANES = tl.constexpr(_lane_levels())


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
def _between_lanes(x, index, levels: tl.constexpr, asm: tl.constexpr):
    """Do the levels between the lanes of a warp: the higher one of a pair gets the difference."""
    if asm and levels == 5:
        x = tl.inline_asm_elementwise(_ALL_LANES, "=d,d,r", [x, index], tl.float64, False, 1)
    else:
        for level in tl.static_range(levels):
            other = tl.gather(x, index ^ (1 << level), axis=0)
            x = tl.where((index >> level) & 1 == 0, x + other, other - x)
    return x


@triton.jit
def _signed(number, words, at, place, real):
    """Return a number, or its negative where the bit at `place` of the word is 1."""
    word = tl.load(words + at, mask=real, other=0)
    return tl.where((word >> place) & 1 == 0, number, number * -1.0)


@triton.jit
def _low_levels(
    source, out, words, tile, index, scale, start, done,
    k: tl.constexpr, registers: tl.constexpr, factor: tl.constexpr, inverse: tl.constexpr,
    asm: tl.constexpr,
):  # fmt: skip
    """Do the lowest levels of a block of a row, for one tile of 32 * 2^registers in each warp.

    `source` and `out` point to the row, whose block begins at coordinate `start`. The numbers up to
    the first `done` of the row are read from `out`, where they are scaled already.
    """
    lane = index % 32
    tile = tile + index // 32
    first = tile.to(tl.int64) * (32 << registers) + lane
    real = first < (1 << k)
    p = start + first
    x = ()
    for j in tl.static_range(1 << registers):
        old = tl.load(out + p + 32 * j, mask=real & (p + 32 * j < done), other=0.0)
        new = tl.load(source + p + 32 * j, mask=real & (p + 32 * j >= done), other=0.0)
        x = x + (tl.where(p + 32 * j < done, old, new.to(tl.float64) * scale),)
    y = ()
    for j in tl.static_range(1 << registers):
        if inverse:
            y = y + (_between_lanes(x[j], index, min(k, 5), asm),)
        else:
            signed = _signed(x[j], words, (tile << registers) + j, lane, real)
            y = y + (_between_lanes(signed, index, min(k, 5), asm),)
    y = _between_registers(y, registers)
    for j in tl.static_range(1 << registers):
        number = y[j]
        if k == min(k, 5) + registers:
            number = number * tl.full((), factor, tl.float64)
            if inverse:
                number = _signed(number, words, (tile << registers) + j, lane, real)
        tl.store(out + p + 32 * j, number, mask=real)


@triton.jit
def _high_levels(
    out, words, unit,
    k: tl.constexpr, below: tl.constexpr, levels: tl.constexpr, factor: tl.constexpr,
    inverse: tl.constexpr,
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
            if inverse:
                at = (first >> 5) + (j << (below - 5))
                number = _signed(number, words, at, column & 31, real)
        tl.store(out + first + (j << below), number, mask=real)


@launched("dimension", "stride", "start", "done")
def _low(
    source, out, words, scales, dimension, stride, start, done,
    k: tl.constexpr, registers: tl.constexpr, factor: tl.constexpr, scaled: tl.constexpr,
    inverse: tl.constexpr, warps: tl.constexpr, asm: tl.constexpr,
):  # fmt: skip
    """Do the lowest levels of row r in the programs (p, r)."""
    row = tl.program_id(1).to(tl.int64)
    scale = tl.load(scales + row) if scaled else 1.0
    _low_levels(
        source + row * stride, out + row * dimension, words, tl.program_id(0) * warps,
        tl.arange(0, 32 * warps), scale, start, done, k, registers, factor, inverse, asm,
    )  # fmt: skip


@launched("dimension", "start")
def _high(
    out, words, dimension, start,
    k: tl.constexpr, below: tl.constexpr, levels: tl.constexpr, factor: tl.constexpr,
    inverse: tl.constexpr, warps: tl.constexpr,
):  # fmt: skip
    """Do higher levels of row r in the programs (p, r)."""
    row = tl.program_id(1).to(tl.int64)
    unit = tl.program_id(0) * (32 * warps) + tl.arange(0, 32 * warps)
    _high_levels(out + row * dimension + start, words, unit, k, below, levels, factor, inverse)


@launched("dimension", "stride")
def _whole_rows(
    source, out, words, scales, dimension, stride,
    k: tl.constexpr, registers: tl.constexpr, factor: tl.constexpr, scaled: tl.constexpr,
    warps: tl.constexpr, asm: tl.constexpr,
):  # fmt: skip
    """Rotate row r in program r: a pass from the first coordinate, and one up to the last."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, 32 * warps)
    scale = tl.load(scales + row) if scaled else 1.0
    here, target = source + row * stride, out + row * dimension
    low: tl.constexpr = min(k, 5) + registers
    size: tl.constexpr = 1 << k
    done = dimension * 0
    for start in range(0, dimension - size + 1, tl.maximum(dimension - size, 1)):
        for tile in range(0, 1 << (k - low), warps):
            _low_levels(
                here, target, words, tile, index, scale, start, done,
                k, registers, factor, False, asm,
            )  # fmt: skip
        tl.debug_barrier()
        if k > low:
            for unit in range(0, 1 << low, 32 * warps):
                _high_levels(target + start, words, unit + index, k, low, k - low, factor, False)
            tl.debug_barrier()
        done += size
        words += (size + 31) // 32


class _Signs(NamedTuple):
    """The passes of a rotation on a device.

    Attributes:
        starts: The first coordinate of the block of each pass.
        words: The packed signs of all passes, 32 in each word, each pass from a new word on.
    """

    starts: tuple[int, ...]
    words: torch.Tensor

    def of(self, number: int) -> torch.Tensor:
        """Return the words of one pass."""
        each = len(self.words) // len(self.starts)
        return self.words[number * each :]


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
    short = block_size(rotation.dimension).bit_length() - 1 <= _ROW_LEVELS
    with on_device(rows):
        if short and _LEAST_ROWS <= len(rows) <= _MOST_ROWS:
            _rotate_whole(rows, out, signs, scales)
            return out
        for first in range(0, len(rows), _MOST_ROWS):
            part = slice(first, first + _MOST_ROWS)
            own = None if scales is None else scales[part]
            if short and len(rows) >= _LEAST_ROWS:
                _rotate_whole(rows[part], out[part], signs, own)
            else:
                for number in range(len(signs.starts)):
                    _pass(rows[part], out[part], signs, number, own, inverse=False)
    return out


def rotate_back(vector: torch.Tensor, rotation: Rotation) -> None:
    """Rotate a float64 vector back, in place, to what `Rotation.inverse` gives.

    Raises:
        ParameterError: The kernels cannot read the vector.
    """
    check_values(vector, dimensions=1)
    signs = _signs_on(rotation, vector.device)
    with on_device(vector):
        for number in reversed(range(len(signs.starts))):
            _pass(vector[None], vector[None], signs, number, None, inverse=True)


@lru_cache(maxsize=2)
def _signs_on(rotation: Rotation, device: torch.device) -> _Signs:
    passes = rotation.packed_passes()
    short = -len(passes[0][1]) % 4
    octets = rotation.packed_signs()
    if short:  # A pass of less than a word.
        octets = np.pad(octets.reshape(len(passes), -1), ((0, 0), (0, short))).reshape(-1)
    words = torch.from_numpy(octets.view("<i4").astype(np.int32, copy=False))
    return _Signs(tuple(start for start, _ in passes), words.to(device, non_blocking=True))


def _split(k: int) -> tuple[int, list[int]]:
    """Return the register levels of the first kernel, and the levels of each further kernel."""
    registers = max(0, min(_REGISTER_LEVELS, k - _LANE_LEVELS))
    left = max(0, k - _LANE_LEVELS - registers)
    kernels = -(-left // _REGISTER_LEVELS)
    return registers, [(left + i) // kernels for i in range(kernels)]


def _pass(
    rows: torch.Tensor,
    out: torch.Tensor,
    signs: _Signs,
    number: int,
    scales: torch.Tensor | None,
    *,
    inverse: bool,
) -> None:
    """Do one pass: signs, then levels; for the inverse in place, levels, then signs."""
    count, dimension = rows.shape
    size = block_size(dimension)
    k, factor = size.bit_length() - 1, 1.0 / math.sqrt(size)
    start, words = signs.starts[number], signs.of(number)
    registers, further = _split(k)
    tiles = max(1, size >> (_LANE_LEVELS + registers))
    warps = min(_WARPS, tiles)
    _low[(tiles // warps, count)](
        rows, out, words, out if scales is None else scales, dimension, rows.stride(0), start,
        0 if inverse else number * size,
        k=k, registers=registers, factor=factor, scaled=scales is not None, inverse=inverse,
        warps=warps, asm=rows.is_cuda, num_warps=warps, enable_fp_fusion=False,
    )  # fmt: skip
    below = _LANE_LEVELS + registers
    for levels in further:
        _high[(max(1, (size >> levels) // (32 * _WARPS)), count)](
            out, words, dimension, start,
            k=k, below=below, levels=levels, factor=factor, inverse=inverse, warps=_WARPS,
            num_warps=_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
        below += levels


def _rotate_whole(
    rows: torch.Tensor, out: torch.Tensor, signs: _Signs, scales: torch.Tensor | None
) -> None:
    count, dimension = rows.shape
    size = block_size(dimension)
    k = size.bit_length() - 1
    registers, _ = _split(k)
    warps = max(1, min(_ROW_WARPS, size >> (_LANE_LEVELS + registers)))
    _whole_rows[(count,)](
        rows, out, signs.words, out if scales is None else scales, dimension, rows.stride(0),
        k=k, registers=registers, factor=1.0 / math.sqrt(size), scaled=scales is not None,
        warps=warps, asm=rows.is_cuda, num_warps=warps, enable_fp_fusion=False,
    )  # fmt: skip
