"""Codes of 2 to 256 levels on a CUDA device, by the ladders of `mechanisms.kernels.ladder`, packed.

A warp takes a tile of 1024 coordinates, as in `one_bit`. A draw w of 16 bits has surely passed the
thresholds up to w, and none beyond w + gap. A binary search finds the last threshold that is passed
and the next one; these two are enough, since the exact thresholds ascend. If they do not decide,
`settling` compares 64 further bits with the exact thresholds. `lanes` packs the codes.

Thresholds are linear over a cell, and counted from its middle: a position p = number + 1/2 + rest,
with rest in [-1/2, 1/2], is rounded to the number by adding 1.5 2^23. At an edge it does not matter
which of the two cells is taken. The position and the middle are each rounded once more than in C,
and the product with the rest once less, so the margins of the ladder hold here, too.

Long vectors of small norm need one cell only. Then the position is the rest, and the lines between
which the first two steps of the search choose stay in registers.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.kernels import family, table
from sottovoce.mechanisms.kernels.cuda.batch import (
    Batch,
    Scales,
    encode_on_cpu,
    list_blocks,
    write_code,
)
from sottovoce.mechanisms.kernels.cuda.chacha import load_key, main_block
from sottovoce.mechanisms.kernels.cuda.lanes import store_packed, transposed
from sottovoce.mechanisms.kernels.cuda.launcher import launched
from sottovoce.mechanisms.kernels.cuda.one_bit import (
    MOST,
    REGISTERS,
    TILE,
    Options,
    launches,
    real_draws,
)
from sottovoce.mechanisms.kernels.cuda.place import on_device
from sottovoce.mechanisms.kernels.cuda.settling import launch_settling
from sottovoce.mechanisms.kernels.ladder import Affine, Ladder, Law, is_far
from sottovoce.mechanisms.kernels.reference import family as exact_family
from sottovoce.mechanisms.kernels.reference import table as exact_table

_MORE_REGISTERS = 80  # For 16 levels and more, whose search is longer; measured on an H200.
# Gives the packed codes of rows, each with a keystream and a factor. It should be kept: the device
# waits while it is made.
Sampler = Callable[[torch.Tensor, Sequence[Keystream], Scales], torch.Tensor]
_EVEN = 1.25  # Up to this ratio of gaps the largest one serves for all cells.


@triton.jit
def _line(pairs, number):
    """Return a threshold's value at the middle of the cell, and its rise."""
    pair = tl.load(pairs + number)
    middle = pair.to(tl.int32).to(tl.float32, bitcast=True)
    rise = (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return middle, rise


@triton.jit
def _threshold(pairs, number, rest):
    middle, rise = _line(pairs, number)
    return tl.fma(rise, rest, middle)


@triton.jit
def _first_lines(pairs, bits: tl.constexpr):
    """Return the lines of the only cell between which the first two steps of a search choose."""
    half: tl.constexpr = 1 << (bits - 1)
    low, rise_low = _line(pairs, half // 2 - 1)
    middle, rise_middle = _line(pairs, half - 1)
    high, rise_high = _line(pairs, half + half // 2 - 1)
    return low, rise_low, middle, rise_middle, high, rise_high


@triton.jit
def _steps(w, code, above, cell, rest, pairs, first: tl.constexpr, bits: tl.constexpr):
    """Return the code after the further steps of a binary search, and the threshold above it."""
    for step in tl.static_range(first, bits):
        half = 1 << (bits - 1 - step)
        found = _threshold(pairs, cell + code + (half - 1), rest)
        passed = found <= w
        code = tl.where(passed, code + half, code)
        above = tl.where(passed, above, found)
    return code, above


@triton.jit
def _search(x, draw, pairs, lines, scale, shift, per_x, origin, limit, gap,
    bits: tl.constexpr, is_table: tl.constexpr, wide: tl.constexpr, even: tl.constexpr,
    single: tl.constexpr,
):  # fmt: skip
    """Return the code of a draw, and whether it is sure."""
    if wide:
        moved = (x.to(tl.float64) * scale - shift).to(tl.float32)
    elif is_table:
        moved = x.to(tl.float32) - shift.to(tl.float32)
    else:
        moved = x.to(tl.float32)
    p = tl.fma(moved, per_x, origin)
    w = (draw | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0
    if single:
        low, rise_low, middle, rise_middle, high, rise_high = lines
        found = tl.fma(rise_middle, p, middle)
        passed = found <= w
        code = tl.where(passed, 1 << (bits - 1), 0)
        above = tl.where(passed, float("inf"), found)
        found = tl.where(passed, tl.fma(rise_high, p, high), tl.fma(rise_low, p, low))
        passed = found <= w
        code = tl.where(passed, code + (1 << (bits - 2)), code)
        above = tl.where(passed, above, found)
        code, above = _steps(w, code, above, code * 0, p, pairs, 2, bits)
        return code, (above > w + gap) & (tl.abs(p) <= 0.5)
    place = tl.where(p > -0.5, p, -0.5)  # NaN is moved, too.
    place = tl.where(place < limit, place, limit)
    moved_up = place + 12582912.0
    cell = (moved_up.to(tl.int32, bitcast=True) - 0x4B400000) << bits
    rest = place - (moved_up - 12582912.0)
    code = tl.zeros_like(cell)
    above = tl.full(w.shape, float("inf"), tl.float32)
    code, above = _steps(w, code, above, cell, rest, pairs, 0, bits)
    last = (1 << bits) - 1
    high = w + gap if even else w + _threshold(pairs, cell + last, 0.0)
    sure = above > high
    if not is_table:
        sure = sure & (p == place)
    return code, sure


@triton.jit
def _add_code(
    codes, open_, draw, k: tl.constexpr, values, left, pairs, lines, scale, shift, per_x, origin,
    limit, gap, bits: tl.constexpr, width: tl.constexpr, is_table: tl.constexpr, wide: tl.constexpr,
    even: tl.constexpr, single: tl.constexpr, tail: tl.constexpr,
):  # fmt: skip
    """Add the code of draw k of eight to the others, and bit k to `open_` if it is not sure."""
    if tail:
        x = tl.load(values + 32 * k, mask=left > 32 * k, other=0.0)
    else:
        x = tl.load(values + 32 * k)
    code, sure = _search(
        x, draw, pairs, lines, scale, shift, per_x, origin, limit, gap, bits, is_table, wide, even,
        single,
    )  # fmt: skip
    if tail:
        sure = sure & (left > 32 * k)
    code = tl.where(sure, code, 0)
    codes = codes | (code.to(tl.uint32) << (width * (k % (32 // width))))
    return codes, open_ | tl.where(sure, 0, 1 << k).to(tl.uint32)


@triton.jit
def _eight_codes(
    words, registers, open_, values, left, pairs, lines, scale, shift, per_x, origin, limit, gap,
    bits: tl.constexpr, width: tl.constexpr, is_table: tl.constexpr, wide: tl.constexpr,
    even: tl.constexpr, single: tl.constexpr, tail: tl.constexpr,
):  # fmt: skip
    """Append the codes of the draws in the first four words to the registers, and to `open_`."""
    unsure = tl.zeros_like(open_)
    first, second = tl.zeros_like(open_), tl.zeros_like(open_)
    for j in tl.static_range(4):
        for half in tl.static_range(2):
            codes = second if width == 8 and j >= 2 else first
            codes, unsure = _add_code(
                codes, unsure, (words[j] >> (16 * half)) & 0xFFFF, 2 * j + half, values, left,
                pairs, lines, scale, shift, per_x, origin, limit, gap, bits, width, is_table, wide,
                even, single, tail,
            )  # fmt: skip
            if width == 8 and j >= 2:
                second = codes
            else:
                first = codes
    return _appended(registers, first, second, width), (open_ >> 8) | (unsure << 24)


@triton.jit
def _appended(r, first, second, width: tl.constexpr):
    """Return the registers, as one number, shifted by eight codes, with these at the upper end."""
    if width == 1:
        return ((r[0] >> 8) | (first << 24),)
    elif width == 2:  # noqa: RET505
        return (r[0] >> 16) | (r[1] << 16), (r[1] >> 16) | (first << 16)
    elif width == 4:
        return r[1], r[2], r[3], first
    else:
        return r[2], r[3], r[4], r[5], r[6], r[7], first, second


_COUNTS = [
    "key_at", "dimension", "tiles", "tile_from", "tile_to", "repeat", "capacity", "row_stride",
]  # fmt: skip


@launched(*_COUNTS)
def _encode(
    values, floats, words, scales, pairs, codes, lists,
    key_at, dimension, tiles, tile_from, tile_to, repeat, capacity, row_stride,
    bits: tl.constexpr, width: tl.constexpr, is_table: tl.constexpr, wide: tl.constexpr,
    even: tl.constexpr, single: tl.constexpr, scaled: tl.constexpr, warps: tl.constexpr,
    tail: tl.constexpr, asm: tl.constexpr,
):  # fmt: skip
    """Encode, in program (p, r), `repeat` times `warps` tiles of row r.

    Beyond the last tile, a warp repeats the last one, and lists nothing. The codes of listed
    coordinates are 0.
    """
    row = tl.program_id(1).to(tl.int64)
    index = tl.arange(0, 32 * warps)
    lane = index % 32
    key = load_key(words + key_at + row * 8, tl.zeros((32 * warps,), tl.uint32))
    shift, factor, divisor = tl.load(floats + 1), tl.load(floats + 2), tl.load(floats + 3)
    per_unit, origin = tl.load(floats + 4), tl.load(floats + 5).to(tl.float32)
    limit, gap = tl.load(floats + 6).to(tl.float32), tl.load(floats + 7).to(tl.float32)
    scale = divisor * 0.0 + 1.0
    if scaled:
        scale = tl.load(scales + row)
    slope = factor / divisor
    if not is_table:
        slope = slope * scale
    moderate = (tl.abs(slope) >= 7.888609052210118e-31) & (tl.abs(slope) <= 1.2676506002282294e30)
    # In a row of a family whose slope does not fit into float32, every place is outside.
    per_x = tl.where(moderate, slope * per_unit, float("nan")).to(tl.float32)
    lines = (0.0,)
    if single:
        lines = _first_lines(pairs, bits)
    for again in range(repeat):
        wanted = tile_from + (tl.program_id(0) * repeat + again) * warps + index // 32
        tile = tl.minimum(wanted, tile_to - 1).to(tl.int64)
        first = tile * 1024 + lane
        here = values + row * row_stride + first
        left = tl.minimum(dimension - first, 2048).to(tl.int32)
        draws = main_block((tile * 32 + lane).to(tl.uint32), key)
        open_ = tl.zeros((32 * warps,), tl.uint32)
        registers = (tl.zeros((32 * warps,), tl.uint32),) * width
        # Four times, to keep the program small; then all words are back in their places.
        for fourth in range(4):
            registers, open_ = _eight_codes(
                draws, registers, open_, here + 256 * fourth, left - 256 * fourth, pairs, lines,
                scale, shift, per_x, origin, limit, gap, bits, width, is_table, wide, even, single,
                tail,
            )  # fmt: skip
            draws = draws[4:16] + draws[0:4]
        if tail:
            open_ = open_ & real_draws(left)
        block = (row * tiles + tile) * 32 + lane
        list_blocks(words, lists, capacity, block, tl.where(wanted < tile_to, open_, 0))
        packed = transposed(registers, lane, width, asm)
        store_packed(codes + block * bits, packed, bits, width)


def sample_rows(
    rows: torch.Tensor,
    keystreams: Sequence[Keystream],
    scales: Scales = None,
    *,
    affine: Affine,
    ladder: Ladder,
    law: Law,
    exact: Callable[[float, int, int, Keystream], int],
    options: Options | None = None,
) -> torch.Tensor:
    """Return the packed codes of rows [clients, d] of values x, as a matrix of bytes.

    Args:
        rows: The values, a row for each client.
        keystreams: The randomness of each row; they are used up.
        scales: The factor of each row, as a tuple or as a float64 tensor on the device; None if
            all are 1.
        affine: The map u = (x * scale of the row - shift) scale/divisor.
        ladder: A ladder over u.
        law: The distribution, for coordinates that the ladder leaves undecided.
        exact: Returns the code of (u, draw, coordinate, keystream) in arbitrary precision.
        options: The launch options.

    Raises:
        ParameterError: The kernels cannot read the rows, there are too many of them, or the ladder
            has more than 256 levels.
        RandomnessError: A keystream was used before.
    """
    parameter_rules.integer("levels", ladder.levels, low=2, high=256)
    bits = (ladder.levels - 1).bit_length()
    width = 1 << (bits - 1).bit_length()
    pairs, cells, numbers, even, far = _placed(ladder, affine, rows.device)
    # Up to one block in four, unless very many coordinates lie outside of the ladder.
    batch = Batch(rows, keystreams, scales, numbers, most=MOST, listed=rows.numel() // 128)
    clients, dimension = rows.shape
    tiles = -(-dimension // TILE)
    codes = torch.empty((clients, 32 * bits * tiles), dtype=torch.int32, device=rows.device)
    wide = law.is_table and (batch.scaled or rows.dtype == torch.float64 or far)
    warps, repeat = options or Options(warps=2 if law.is_table else 1)
    registers = _MORE_REGISTERS if bits >= 4 and not law.is_table else REGISTERS

    size = (dimension * bits + 7) // 8
    if not rows.numel():
        return codes.view(torch.uint8)[:, :size]
    payloads = codes

    def launch() -> None:
        nonlocal payloads
        given = batch.floats, batch.words, batch.scales
        for tail, start, stop, again in launches(clients, dimension, TILE, repeat):
            _encode[(-(-(stop - start) // (warps * again)), clients)](
                rows, *given, pairs, codes, batch.lists, batch.key_at, dimension, tiles, start,
                stop, again, batch.capacity, rows.stride(0), bits=bits, width=width,
                is_table=law.is_table, wide=wide, even=even,
                single=cells == 1 and not law.is_table and bits > 1, scaled=batch.scaled,
                warps=warps, tail=tail, asm=rows.is_cuda, num_warps=warps, maxnreg=registers,
                enable_fp_fusion=False,
            )  # fmt: skip
        launch_settling(batch, codes, tiles, law, bits=bits)
        payloads = codes.view(torch.uint8)[:, :size]  # Now, while the kernels run.

    with on_device(rows):
        for rest in batch.run(launch):
            for u, i, draw in zip(*rest.places(), strict=True):
                code = exact(u, draw, i, keystreams[rest.row])
                write_code(payloads, rest.row, i, code, bits)
    return payloads


class _Placed(NamedTuple):
    """A ladder for the kernel.

    Attributes:
        pairs: A row of 2^bits pairs of float32 numbers for each cell. A pair holds a threshold at
            the middle of the cell and its rise over the cell. Rows are padded with thresholds that
            no draw passes; the last pair begins with the gap.
        cells: The number of cells.
        numbers: The numbers of a batch: the map to u, then that to positions, the largest position
            and the largest gap.
        even: Whether this gap serves for all cells.
        far: Whether `is_far` is true.
    """

    pairs: torch.Tensor
    cells: int
    numbers: tuple[float, ...]
    even: bool
    far: bool


@lru_cache(maxsize=64)
def _placed(ladder: Ladder, affine: Affine, device: torch.device) -> _Placed:
    count, cells = ladder.levels - 1, len(ladder.gaps) - 1
    gaps = ladder.gaps[:cells]
    pairs = np.zeros((cells, 1 << count.bit_length(), 2), dtype=np.float32)
    pairs[:, :, 0] = np.inf
    starts, rises = ladder.rows[:cells, 0, :count], ladder.rows[:cells, 1, :count]
    pairs[:, :count, 0] = starts.astype(np.float64) + rises / 2.0
    pairs[:, :count, 1] = rises
    pairs[:, -1, 0] = gaps
    gap = float(gaps.max())
    limit = float(np.nextafter(np.float32(cells - 0.5), np.float32(0.0)))
    numbers = (
        affine.shift, affine.scale, affine.divisor, ladder.cells_per_unit, ladder.origin - 0.5,
        limit, gap,
    )  # fmt: skip
    return _Placed(
        pairs=torch.from_numpy(pairs.view(np.int64)).to(device),
        cells=cells,
        numbers=numbers,
        even=gap <= _EVEN * float(gaps.min()),
        far=is_far(affine, ladder),
    )


def family_sampler(
    affine: Affine,
    points: Vector,
    weights: Vector,
    *,
    reach: float,
    fisher_bound: float,
    dimension: int,
) -> Sampler:
    """Return what gives the codes of `mechanisms.kernels.family.sample_exponential_family`.

    The arguments are those of that function, and the dimension of the rows. Values must be finite,
    which is not checked.
    """
    if not family.has_ladder(affine, points, reach):

        def encoded(row: Vector, keystream: Keystream) -> family.Codes:
            return family.sample_exponential_family(
                row, affine, points, weights, keystream, reach=reach, fisher_bound=fisher_bound
            )

        return partial(encode_on_cpu, encoded=encoded, bits=(len(points) - 1).bit_length())
    usual = family.usual_reach(reach, dimension)
    ladder = family.ladder_of(points, weights, fisher_bound, usual, fewest=1)

    def exact(u: float, draw: int, i: int, keystream: Keystream) -> int:
        return exact_family.exact_code(u, points, weights, draw, i, keystream)

    law = Law(is_table=False, first=points, second=weights)
    return partial(sample_rows, affine=affine, ladder=ladder, law=law, exact=exact)


def table_sampler(given: table.ThresholdTable, affine: Affine) -> Sampler:
    """Return what gives the codes of `mechanisms.kernels.table.sample_table` with `clamp`.

    The arguments are those of that function: an input outside the table counts as the nearer end.
    Values must be finite; the caller must check that.
    """
    knots, cumulative = given.knots, given.cumulative
    if not table.has_ladder(affine, given):

        def encoded(row: Vector, keystream: Keystream) -> family.Codes:
            return table.sample_table(row, given, keystream, affine, clamp=True)

        levels = given.thresholds.shape[1]
        return partial(encode_on_cpu, encoded=encoded, bits=(levels - 1).bit_length())

    def exact(u: float, draw: int, i: int, keystream: Keystream) -> int:
        place = min(max(u, float(knots[0])), float(knots[-1]))
        return exact_table.exact_code(place, knots, cumulative, draw, i, keystream)

    law = Law(is_table=True, first=knots, second=given.thresholds)
    ladder, _ = table.cached_ladders(given)
    return partial(sample_rows, affine=affine, ladder=ladder, law=law, exact=exact)
