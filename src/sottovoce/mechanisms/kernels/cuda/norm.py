"""The sum of squares on a CUDA device, as one tree of float64 additions in a fixed order.

Padded with zeros to a power of two, a node is the sum of its left and right child. The leaves of a
tile of 1024 coordinates are in the order 32 l + k for coordinate 32 k + l: each lane adds its own
32 by adjacent pairs, then the lanes are added by adjacent pairs, then the tiles. So a CPU and a
device agree in every bit. The square of a float32 is exact in float64; that of a float64 is rounded
before it is added (no fused multiply-add).
"""

import math

import torch
import triton
import triton.language as tl

from sottovoce.core.domains import LEAST_SQUARES, MOST_SQUARES, L2Ball
from sottovoce.core.errors import DomainError
from sottovoce.mechanisms.kernels.cuda.place import check_values, on_device

TILE = 1024


@triton.jit
def _square(values, k: tl.constexpr, left, tail: tl.constexpr):
    if tail:
        x = tl.load(values + 32 * k, mask=left > 32 * k, other=0.0).to(tl.float64)
    else:
        x = tl.load(values + 32 * k).to(tl.float64)
    return x * x


@triton.jit
def _two(values, k: tl.constexpr, left, tail: tl.constexpr):
    return _square(values, k, left, tail) + _square(values, k + 1, left, tail)


@triton.jit
def _four(values, k: tl.constexpr, left, tail: tl.constexpr):
    return _two(values, k, left, tail) + _two(values, k + 2, left, tail)


@triton.jit
def _eight(values, k: tl.constexpr, left, tail: tl.constexpr):
    return _four(values, k, left, tail) + _four(values, k + 4, left, tail)


@triton.jit
def _sixteen(values, k: tl.constexpr, left, tail: tl.constexpr):
    return _eight(values, k, left, tail) + _eight(values, k + 8, left, tail)


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


@triton.jit(do_not_specialize=["dimension", "tile_from", "tiles"])
def _tile_sums(
    values, sums, dimension, tile_from, tiles,
    warps: tl.constexpr, tail: tl.constexpr, asm: tl.constexpr,
):  # fmt: skip
    """Store the sum of squares of each tile from `tile_from` to `tiles`, one for each warp."""
    index = tl.arange(0, 32 * warps)
    lane = index % 32
    wanted = tile_from + tl.program_id(0) * warps + index // 32
    tile = tl.minimum(wanted, tiles - 1).to(tl.int64)
    first = tile * 1024 + lane
    here = values + first
    left = dimension - first
    total = _sixteen(here, 0, left, tail) + _sixteen(here, 16, left, tail)
    total = _add_lanes(total, warps, asm)
    tl.store(sums + tile, total, mask=(lane == 0) & (wanted < tiles))


@triton.jit(do_not_specialize=["count"])
def _sum_groups(numbers, sums, count, warps: tl.constexpr, asm: tl.constexpr):
    """Store the sums of 32 adjacent numbers, added by adjacent pairs."""
    index = tl.program_id(0).to(tl.int64) * (32 * warps) + tl.arange(0, 32 * warps)
    x = tl.load(numbers + index, mask=index < count, other=0.0)
    x = _add_lanes(x, warps, asm)
    tl.store(sums + index // 32, x, mask=(index % 32 == 0) & (index < count))


def sum_of_squares(values: torch.Tensor, *, warps: int = 4) -> torch.Tensor:
    """Return the sum of squares of a vector as a float64 tensor with one number, on its device.

    It is the number that `core.domains.square_sum` gives on the CPU, bit for bit. `warps` sets only
    how the kernel is launched.
    """
    check_values(values, dimensions=1)
    dimension, device = values.shape[0], values.device
    if dimension == 0:
        return torch.zeros(1, dtype=torch.float64, device=device)
    tiles, full = -(-dimension // TILE), dimension // TILE
    sums = torch.empty(tiles, dtype=torch.float64, device=device)
    asm = values.is_cuda
    with on_device(values):
        for tail, start, stop in ((False, 0, full), (True, full, tiles)):
            if start < stop:
                _tile_sums[(-(-(stop - start) // warps),)](
                    values, sums, dimension, start, stop,
                    warps=warps, tail=tail, asm=asm, num_warps=warps, enable_fp_fusion=False,
                )  # fmt: skip
        while sums.shape[0] > 1:
            groups = -(-sums.shape[0] // 32)
            halved = torch.empty(groups, dtype=torch.float64, device=device)
            _sum_groups[(-(-groups // warps),)](
                sums, halved, sums.shape[0],
                warps=warps, asm=asm, num_warps=warps, enable_fp_fusion=False,
            )  # fmt: skip
            sums = halved
    return sums


def norm(values: torch.Tensor) -> float:
    """Return the Euclidean norm that `L2Ball.norm` gives; not finite if a value is not."""
    total = float(sum_of_squares(values))
    if LEAST_SQUARES <= total <= MOST_SQUARES:
        return math.sqrt(total)
    unit, largest = _scaled(values)
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    return largest * math.sqrt(float(sum_of_squares(unit)))


def _scaled(values: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return the values divided by their largest magnitude, and that magnitude."""
    wide = values.double()
    # A tensor, because torch divides by a Python number less exactly.
    largest = wide.abs().max()
    return wide / largest, float(largest)


def clipped(values: torch.Tensor, ball: L2Ball) -> tuple[torch.Tensor, float]:
    """Return (values, factor), whose product in float64 is what `ball.project` gives.

    The values are those given, and the factor is at most 1; if the values are too large for one
    multiplication, they are returned clipped, in float64, with the factor 1.

    Raises:
        DomainError: A value is NaN or infinite.
    """
    scale = ball.scale_for(norm(values))
    if scale is not None:
        return values, scale
    check_finite(values)
    unit, _ = _scaled(values)
    return unit * (ball.limit / math.sqrt(float(sum_of_squares(unit)))), 1.0


def project(values: torch.Tensor, ball: L2Ball) -> torch.Tensor:
    """Return the clipped vector that `ball.project` gives, on the device.

    Values in the ball are returned as they are, in their own type; others are clipped in float64.

    Raises:
        DomainError: A value is NaN or infinite.
    """
    given, scale = clipped(values, ball)
    return given if scale == 1.0 else given.double() * scale


def check_finite(values: torch.Tensor) -> None:
    """Raise DomainError if a coordinate of a vector is NaN or infinite."""
    if math.isfinite(float(sum_of_squares(values))):
        return
    broken = torch.nonzero(~torch.isfinite(values))
    if len(broken):
        where = int(broken[0])
        raise DomainError(
            f"coordinate {where} is {float(values[where])}; every coordinate must be finite. If "
            "the model has diverged, lower the learning rate; if a value is missing, leave it out"
        )
