"""Sums of squares of rows on a CUDA device, each as one tree of additions in a fixed order.

Padded with zeros to a power of two, a node is the sum of its left and right child. The leaves of a
tile of 1024 coordinates are in the order 32 l + k for coordinate 32 k + l: each lane adds its own
32 by adjacent pairs, then the lanes are added by adjacent pairs, then the tiles. So a CPU and a
device agree in every bit. The square of a float32 is exact in float64; that of a float64 is rounded
before it is added (no fused multiply-add).
"""

import struct

import torch
import triton
import triton.language as tl

from sottovoce.core.domains import LEAST_SQUARES, MOST_SQUARES
from sottovoce.mechanisms.kernels.cuda.launcher import launched
from sottovoce.mechanisms.kernels.cuda.place import check_values, on_device

TILE = 1024
_WARPS = 4
_LAST = 128  # The most numbers of a row that the last kernel adds; more take long to compile.
_MOST_ROWS = 65535
_LEAST, _MOST = tl.constexpr(LEAST_SQUARES), tl.constexpr(MOST_SQUARES)


@triton.jit
def _square(values, k: tl.constexpr, left):
    x = tl.load(values + 32 * k, mask=left > 32 * k, other=0.0).to(tl.float64)
    return x * x


@triton.jit
def _two(values, k: tl.constexpr, left):
    return _square(values, k, left) + _square(values, k + 1, left)


@triton.jit
def _four(values, k: tl.constexpr, left):
    return _two(values, k, left) + _two(values, k + 2, left)


@triton.jit
def _eight(values, k: tl.constexpr, left):
    return _four(values, k, left) + _four(values, k + 4, left)


@triton.jit
def _sixteen(values, k: tl.constexpr, left):
    return _eight(values, k, left) + _eight(values, k + 8, left)


@triton.jit
def _with_adjacent(x, by: tl.constexpr):
    """Return x of this lane plus that of lane ^ by: the same in both, since a + b = b + a."""
    other = tl.inline_asm_elementwise(
        """
        {
        .reg .b32 low, high;
        mov.b64 {low, high}, $1;
        shfl.sync.bfly.b32 low, low, $2, 0x1f, 0xffffffff;
        shfl.sync.bfly.b32 high, high, $2, 0x1f, 0xffffffff;
        mov.b64 $0, {low, high};
        }
        """,
        "=d,d,r",
        [x, tl.full(x.shape, by, tl.uint32)],
        dtype=tl.float64,
        is_pure=False,
        pack=1,
    )
    return x + other


@triton.jit
def _add_lanes(x, groups: tl.constexpr, asm: tl.constexpr):
    """Add the 32 numbers of each group by adjacent pairs; the sum is in every lane."""
    if asm:
        x = _with_adjacent(x, 1)
        x = _with_adjacent(x, 2)
        x = _with_adjacent(x, 4)
        x = _with_adjacent(x, 8)
        x = _with_adjacent(x, 16)
    else:
        sums = tl.sum(tl.reshape(x, (groups * 16, 2)), axis=1)
        sums = tl.sum(tl.reshape(sums, (groups * 8, 2)), axis=1)
        sums = tl.sum(tl.reshape(sums, (groups * 4, 2)), axis=1)
        sums = tl.sum(tl.reshape(sums, (groups * 2, 2)), axis=1)
        sums = tl.sum(tl.reshape(sums, (groups, 2)), axis=1)
        x = tl.reshape(tl.broadcast_to(sums[:, None], (groups, 32)), (groups * 32,))
    return x


@launched("dimension", "stride", "tiles")
def _tile_sums(values, sums, dimension, stride, tiles, warps: tl.constexpr, asm: tl.constexpr):
    """Store the sum of squares of each tile of row r, one for each warp of the programs (p, r)."""
    row = tl.program_id(1).to(tl.int64)
    index = tl.arange(0, 32 * warps)
    lane = index % 32
    wanted = tl.program_id(0) * warps + index // 32
    tile = tl.minimum(wanted, tiles - 1).to(tl.int64)
    first = tile * 1024 + lane
    here = values + row * stride + first
    left = tl.minimum(dimension - first, 1024).to(tl.int32)
    total = _sixteen(here, 0, left) + _sixteen(here, 16, left)
    total = _add_lanes(total, warps, asm)
    tl.store(sums + row * tiles + tile, total, mask=(lane == 0) & (wanted < tiles))


@launched("count", "groups")
def _sum_groups(numbers, sums, count, groups, warps: tl.constexpr, asm: tl.constexpr):
    """Store the sums of 32 adjacent numbers of row r, added by adjacent pairs."""
    row = tl.program_id(1).to(tl.int64)
    index = tl.program_id(0).to(tl.int64) * (32 * warps) + tl.arange(0, 32 * warps)
    x = tl.load(numbers + row * count + index, mask=index < count, other=0.0)
    x = _add_lanes(x, warps, asm)
    tl.store(sums + row * groups + index // 32, x, mask=(index % 32 == 0) & (index < count))


@triton.jit
def _factor(total, limit, one_below):
    """Return the factor that clips a row with this sum of squares; NaN if one does not do it."""
    factor = limit / tl.maximum(tl.sqrt(total), limit)
    small = total < tl.full((), _LEAST, tl.float64)
    factor = tl.where(small & (one_below == 0), float("nan"), tl.where(small, 1.0, factor))
    return tl.where(total <= tl.full((), _MOST, tl.float64), factor, float("nan"))


@launched("count", "dimension", "stride", "limit", "one_below")
def _finish(
    numbers, found, rows, count, dimension, stride, limit, one_below,
    block: tl.constexpr, levels: tl.constexpr, clips: tl.constexpr, zeros: tl.constexpr,
):  # fmt: skip
    """Store the sum of the numbers of row r, or the factor that clips the row.

    `limit` has the bits of a float64. With `zeros` a row that no factor clips becomes 0.
    """
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, block)
    x = tl.load(numbers + row * count + index, mask=index < count, other=0.0)
    for level in tl.static_range(levels):
        left, right = tl.split(tl.reshape(x, (block >> (level + 1), 2)))
        x = left + right
    total = tl.sum(x, axis=0)
    if clips:
        total = _factor(total, limit.to(tl.float64, bitcast=True), one_below)
        if zeros:
            if total != total:
                for start in range(0, dimension, block):
                    here = start + index
                    nothing = tl.zeros((block,), rows.dtype.element_ty)
                    tl.store(rows + row * stride + here, nothing, mask=here < dimension)
                total = tl.full((), 1.0, tl.float64)
    tl.store(found + row, total)


def square_sums(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares of each row in float64, on the device.

    Args:
        rows: A matrix with a vector in each row.

    Returns:
        The numbers that `core.domains.square_sum` gives on the CPU, bit for bit.

    Raises:
        ParameterError: The kernels cannot read the rows.
    """
    return _reduced(rows, None, zeros=False)


def clip_factors(rows: torch.Tensor, limit: float, *, zeros: bool = False) -> torch.Tensor:
    """Return the factor that clips each row to a Euclidean norm, in float64 on the device.

    Args:
        rows: A matrix with a vector in each row.
        limit: The largest norm, at least 1e-101.
        zeros: Whether to overwrite rows with zeros if no factor clips them: those that are not
            finite, and float64 rows with a norm above 1e100.

    Returns:
        1 for a row whose norm is at most `limit`, else limit/norm; NaN if no factor clips the row.

    Raises:
        ParameterError: The kernels cannot read the rows.
    """
    return _reduced(rows, limit, zeros=zeros)


def _reduced(rows: torch.Tensor, limit: float | None, *, zeros: bool) -> torch.Tensor:
    check_values(rows, dimensions=2)
    if len(rows) > _MOST_ROWS:
        parts = torch.split(rows, _MOST_ROWS)
        return torch.cat([_reduced(part, limit, zeros=zeros) for part in parts])
    count, dimension = rows.shape
    asm, tiles = rows.is_cuda, max(1, -(-dimension // TILE))
    sums = torch.empty((count, tiles), dtype=torch.float64, device=rows.device)
    found = torch.empty(count, dtype=torch.float64, device=rows.device)
    if not count:
        return found
    with on_device(rows):
        _tile_sums[(-(-tiles // _WARPS), count)](
            rows, sums, dimension, rows.stride(0), tiles,
            warps=_WARPS, asm=asm, num_warps=_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
        while sums.shape[1] > _LAST:
            groups = -(-sums.shape[1] // 32)
            fewer = torch.empty((count, groups), dtype=torch.float64, device=rows.device)
            _sum_groups[(-(-groups // _WARPS), count)](
                sums, fewer, sums.shape[1], groups,
                warps=_WARPS, asm=asm, num_warps=_WARPS, enable_fp_fusion=False,
            )  # fmt: skip
            sums = fewer
        levels = (sums.shape[1] - 1).bit_length()
        # The squares of float32 numbers do not underflow, so a smaller sum is that of zeros.
        one_below = rows.dtype != torch.float64 or (limit or 0.0) >= 1e-99
        _finish[(count,)](
            sums, found, rows, sums.shape[1], dimension, rows.stride(0), _bits(limit or 0.0),
            int(one_below), block=1 << levels, levels=levels, clips=limit is not None, zeros=zeros,
            num_warps=1 if levels < 8 else 4, enable_fp_fusion=False,
        )  # fmt: skip
    return found


def _bits(value: float) -> int:
    """Return the bits of a float64 as an integer, since kernels take numbers as float32."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])
