"""Codes of 2 to 256 levels on a CUDA device, by the ladders of `mechanisms.kernels.ladder`, packed.

A warp takes a tile of 1024 coordinates, as in `one_bit`. A draw w of 16 bits has surely passed the
thresholds up to w, and none beyond w + gap. A binary search finds the last threshold that is passed
and the next one; these two are enough, since the exact thresholds ascend. If they do not decide,
64 further bits are compared with the exact thresholds in float64, with the margins of the C
kernels. What even these do not decide goes to the CPU. `lanes` packs the codes.

Thresholds are linear over a cell, and counted from its middle: a position p = number + 1/2 + rest,
with rest in [-1/2, 1/2], is rounded to the number by adding 1.5 2^23. At an edge it does not matter
which of the two cells is taken. The position and the middle are each rounded once more than in C,
and the product with the rest once less, so the margins of the ladder hold here, too.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

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
    leave_open,
    write_code,
)
from sottovoce.mechanisms.kernels.cuda.chacha import extension, load_key, main_block
from sottovoce.mechanisms.kernels.cuda.lanes import place_of, store_packed, transposed, word_at
from sottovoce.mechanisms.kernels.cuda.laws import family_code, table_code
from sottovoce.mechanisms.kernels.cuda.one_bit import MOST, TILE, Options, launches, real_draws
from sottovoce.mechanisms.kernels.cuda.place import on_device
from sottovoce.mechanisms.kernels.ladder import Affine, Ladder, Law, is_far
from sottovoce.mechanisms.kernels.reference import family as exact_family
from sottovoce.mechanisms.kernels.reference import table as exact_table

_EVEN = 1.25  # Up to this ratio of gaps the largest one serves for all cells.


@triton.jit
def _threshold(pairs, number, rest):
    """Return a threshold: its value at the middle of the cell plus `rest` times its rise."""
    pair = tl.load(pairs + number)
    middle = pair.to(tl.int32).to(tl.float32, bitcast=True)
    rise = (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return tl.fma(rise, rest, middle)


@triton.jit
def _search(x, draw, pairs, scale, shift, per_x, origin, limit, gap,
    bits: tl.constexpr, is_table: tl.constexpr, wide: tl.constexpr, even: tl.constexpr,
):  # fmt: skip
    """Return the code of a draw, and whether it is sure."""
    if wide:
        moved = (x.to(tl.float64) * scale - shift).to(tl.float32)
    elif is_table:
        moved = x.to(tl.float32) - shift.to(tl.float32)
    else:
        moved = x.to(tl.float32)
    p = tl.fma(moved, per_x, origin)
    place = tl.where(p > -0.5, p, -0.5)  # NaN is moved, too.
    place = tl.where(place < limit, place, limit)
    moved_up = place + 12582912.0
    cell = (moved_up.to(tl.int32, bitcast=True) - 0x4B400000) << bits
    rest = place - (moved_up - 12582912.0)
    w = (draw | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0
    code = tl.zeros_like(cell)
    above = tl.full(w.shape, float("inf"), tl.float32)
    for step in tl.static_range(bits):
        half = 1 << (bits - 1 - step)
        found = _threshold(pairs, cell + code + (half - 1), rest)
        passed = found <= w
        code = tl.where(passed, code + half, code)
        above = tl.where(passed, above, found)
    if even:
        high = w + gap
    else:
        high = w + _threshold(pairs, cell + ((1 << bits) - 1), 0.0)
    sure = above > high
    if not is_table:
        sure = sure & (p == place)
    return code, sure


@triton.jit
def _add_code(
    codes, open_, draw, k: tl.constexpr, values, left, pairs, scale, shift, per_x, origin, limit,
    gap, bits: tl.constexpr, width: tl.constexpr, is_table: tl.constexpr, wide: tl.constexpr,
    even: tl.constexpr, tail: tl.constexpr,
):  # fmt: skip
    """Add the code of draw k of eight to the others, and bit k to `open_` if it is not sure."""
    if tail:
        x = tl.load(values + 32 * k, mask=left > 32 * k, other=0.0)
    else:
        x = tl.load(values + 32 * k)
    code, sure = _search(
        x, draw, pairs, scale, shift, per_x, origin, limit, gap, bits, is_table, wide, even
    )
    if tail:
        code = tl.where(left > 32 * k, code, 0)
    codes = codes | (code.to(tl.uint32) << (width * (k % (32 // width))))
    return codes, open_ | tl.where(sure, 0, 1 << k).to(tl.uint32)


@triton.jit
def _eight_codes(
    words, registers, open_, values, left, pairs, scale, shift, per_x, origin, limit, gap,
    bits: tl.constexpr, width: tl.constexpr, is_table: tl.constexpr, wide: tl.constexpr,
    even: tl.constexpr, tail: tl.constexpr,
):  # fmt: skip
    """Append the codes of the draws in the first four words to the registers, and to `open_`."""
    unsure = tl.zeros_like(open_)
    first, second = tl.zeros_like(open_), tl.zeros_like(open_)
    for j in tl.static_range(4):
        for half in tl.static_range(2):
            codes = second if width == 8 and j >= 2 else first
            codes, unsure = _add_code(
                codes, unsure, (words[j] >> (16 * half)) & 0xFFFF, 2 * j + half, values, left,
                pairs, scale, shift, per_x, origin, limit, gap, bits, width, is_table, wide, even,
                tail,
            )  # fmt: skip
            if width == 8 and j >= 2:
                second = codes
            else:
                first = codes
    return _appended(registers, first, second, width), (open_ >> 8) | (unsure << 24)


@triton.jit
def _appended(r, first, second, width: tl.constexpr):
    """Shift the registers, as one number, by eight codes, and put these at the upper end."""
    if width == 1:
        moved = ((r[0] >> 8) | (first << 24),)
    elif width == 2:
        moved = ((r[0] >> 16) | (r[1] << 16), (r[1] >> 16) | (first << 16))
    elif width == 4:
        moved = (r[1], r[2], r[3], first)
    else:
        moved = (r[2], r[3], r[4], r[5], r[6], r[7], first, second)
    return moved


@triton.jit
def _inserted(register, r: tl.constexpr, draw, code, active, width: tl.constexpr):
    """Return register r with the code of a draw, where that is `active` and in this register."""
    here = active & (draw // (32 // width) == r)
    place = ((draw % (32 // width)) * width).to(tl.uint32)
    full: tl.constexpr = (1 << width) - 1
    mask = (tl.zeros_like(register) + full) << place
    return tl.where(here, ((register | mask) ^ mask) | (code.to(tl.uint32) << place), register)


_COUNTS = [
    "dimension", "tiles", "tile_from", "tile_to", "repeat", "capacity", "row_stride", "levels",
    "knots",
]  # fmt: skip


@triton.jit(do_not_specialize=_COUNTS)
def _encode(
    values, keys, numbers, scales, pairs, first_law, second_law, words, count, listed,
    dimension, tiles, tile_from, tile_to, repeat, capacity, row_stride, levels, knots,
    bits: tl.constexpr, width: tl.constexpr, is_table: tl.constexpr, wide: tl.constexpr,
    even: tl.constexpr, scaled: tl.constexpr, warps: tl.constexpr, tail: tl.constexpr,
    asm: tl.constexpr,
):  # fmt: skip
    """Encode, in program (p, r), `repeat` times `warps` tiles of row r.

    Beyond the last tile, a warp repeats the last one.
    """
    row = tl.program_id(1).to(tl.int64)
    index = tl.arange(0, 32 * warps)
    lane = index % 32
    key = load_key(keys + row * 8, tl.zeros((32 * warps,), tl.uint32))
    shift, factor, divisor = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    per_unit, origin = tl.load(numbers + 3), tl.load(numbers + 4).to(tl.float32)
    limit, gap = tl.load(numbers + 5).to(tl.float32), tl.load(numbers + 6).to(tl.float32)
    scale = shift * 0.0 + 1.0
    if scaled:
        scale = tl.load(scales + row)
    slope = factor / divisor
    if not is_table:
        slope = slope * scale
    moderate = (tl.abs(slope) >= 7.888609052210118e-31) & (tl.abs(slope) <= 1.2676506002282294e30)
    # In a row of a family whose slope does not fit into float32, every place is outside.
    per_x = tl.where(moderate, slope * per_unit, float("nan")).to(tl.float32)
    for again in range(repeat):
        wanted = tile_from + (tl.program_id(0) * repeat + again) * warps + index // 32
        tile = tl.minimum(wanted, tile_to - 1).to(tl.int64)
        first = tile * 1024 + lane
        here = values + row * row_stride + first
        left = tl.minimum(dimension - first, 2048).to(tl.int32)
        draws = main_block((tile * 32 + lane).to(tl.uint32), key)
        open_ = tl.zeros((32 * warps,), tl.uint32)
        registers = ()
        for _ in tl.static_range(width):
            registers = registers + (tl.zeros((32 * warps,), tl.uint32),)
        # Four times, to keep the program small; then all words are back in their places.
        for eighth in range(4):
            registers, open_ = _eight_codes(
                draws, registers, open_, here + 256 * eighth, left - 256 * eighth, pairs, scale,
                shift, per_x, origin, limit, gap, bits, width, is_table, wide, even, tail,
            )  # fmt: skip
            draws = draws[4:16] + draws[0:4]
        if tail:
            open_ = open_ & real_draws(left)
        while tl.max((open_ != 0).to(tl.int32), axis=0) > 0:
            lowest = open_ & (0 - open_)
            draw = place_of(lowest)
            word = word_at(draws, draw // 2)
            word = tl.where(draw % 2 == 1, word >> 16, word & 0xFFFF)
            coordinate = first + draw * 32
            x = tl.load(values + row * row_stride + coordinate, mask=open_ != 0, other=0.0)
            u = (x.to(tl.float64) * scale - shift) * factor / divisor
            further = extension(keys + row * 8, coordinate).to(tl.float64) * 5.421010862427522e-20
            uniform = (word.to(tl.float64) + further) * 1.52587890625e-05
            if is_table:
                code, decided = table_code(u, uniform, first_law, second_law, knots, levels)
            else:
                code, decided = family_code(u, uniform, first_law, second_law, levels)
            settled = ()
            for r in tl.static_range(width):
                settled = settled + (_inserted(registers[r], r, draw, code, open_ != 0, width),)
            registers = settled
            leave_open(count, listed, capacity, row, coordinate, word, (open_ != 0) & ~decided)
            open_ = open_ ^ lowest
        packed = transposed(registers, lane, width, asm)
        target = words + ((row * tiles + tile) * 32 + lane) * bits
        store_packed(target, packed, bits, width)


def sample_rows(
    rows: torch.Tensor,
    affine: Affine,
    ladder: Ladder,
    law: Law,
    keystreams: Sequence[Keystream],
    exact: Callable[[float, int, int, Keystream], int],
    *,
    scales: Scales = None,
    options: Options | None = None,
) -> torch.Tensor:
    """Return the packed codes of rows [clients, d] of values x, as a matrix of bytes.

    Args:
        rows: The values, a row for each client.
        affine: The map u = (x * scale of the row - shift) scale/divisor.
        ladder: A ladder over u.
        law: The distribution, for coordinates that the ladder leaves undecided.
        keystreams: The randomness of each row; they are used up.
        exact: Returns the code of (u, draw, coordinate, keystream) in arbitrary precision.
        scales: The factor of each row, as a tuple or as a float64 tensor on the device; None if
            all are 1.
        options: The launch options.

    Raises:
        ParameterError: The kernels cannot read the rows, there are too many of them, or the ladder
            has more than 256 levels.
        RandomnessError: A keystream was used before.
    """
    parameter_rules.integer("levels", ladder.levels, low=2, high=256)
    bits = (ladder.levels - 1).bit_length()
    width = 1 << (bits - 1).bit_length()
    cells, gaps = len(ladder.gaps) - 1, ladder.gaps[:-1]
    limit = np.nextafter(np.float32(cells - 0.5), np.float32(0.0))
    per_unit, gap = ladder.cells_per_unit, float(gaps.max())
    numbers = (
        affine.shift, affine.scale, affine.divisor, per_unit, ladder.origin - 0.5, float(limit), gap
    )  # fmt: skip
    batch = Batch(rows, keystreams, scales, numbers, most=MOST)
    (clients, dimension), device = rows.shape, rows.device
    tiles = -(-dimension // TILE)
    words = torch.empty((clients, 32 * bits * tiles), dtype=torch.int32, device=device)
    pairs = _pairs(ladder, device)
    laws = _numbers(law.first.tobytes(), device), _numbers(law.second.tobytes(), device)
    scaled_table = law.is_table and batch.scaled
    wide = scaled_table or (
        affine.shift != 0.0 and (rows.dtype == torch.float64 or is_far(affine, ladder))
    )
    warps, repeat = options or Options()

    def launch() -> None:
        for tail, start, stop, again in launches(clients, dimension, TILE, repeat):
            _encode[(-(-(stop - start) // (warps * again)), clients)](
                rows, batch.keys, batch.numbers, batch.scales, pairs, *laws, words, batch.count,
                batch.listed, dimension, tiles, start, stop, again, batch.capacity, rows.stride(0),
                ladder.levels, len(law.first), bits=bits, width=width, is_table=law.is_table,
                wide=wide, even=gap <= _EVEN * float(gaps.min()), scaled=batch.scaled, warps=warps,
                tail=tail, asm=rows.is_cuda, num_warps=warps, enable_fp_fusion=False,
            )  # fmt: skip

    payloads = words.view(torch.uint8)
    if rows.numel():
        with on_device(rows):
            for row, i, draw in batch.run(launch).tolist():
                u = (batch.value(row, i) - affine.shift) * affine.scale / affine.divisor
                code = exact(u, draw, i, batch.keystream(row))
                write_code(payloads, row, i, code, bits)
    return payloads[:, : (dimension * bits + 7) // 8]


@lru_cache(maxsize=64)
def _pairs(ladder: Ladder, device: torch.device) -> torch.Tensor:
    """Return a ladder for the kernel: a row of 2^bits pairs of float32 numbers for each cell.

    A pair holds a threshold at the middle of the cell and its rise over the cell. Rows are padded
    with thresholds that no draw passes; the last pair begins with the gap.
    """
    count, cells = ladder.levels - 1, len(ladder.gaps) - 1
    pairs = np.zeros((cells, 1 << count.bit_length(), 2), dtype=np.float32)
    pairs[:, :, 0] = np.inf
    starts, rises = ladder.rows[:cells, 0, :count], ladder.rows[:cells, 1, :count]
    pairs[:, :count, 0] = starts.astype(np.float64) + rises / 2.0
    pairs[:, :count, 1] = rises
    pairs[:, -1, 0] = ladder.gaps[:cells]
    return torch.from_numpy(pairs.view(np.int64)).to(device)


@lru_cache(maxsize=64)
def _numbers(content: bytes, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(content).copy()).to(device)


def sample_exponential_family(
    rows: torch.Tensor,
    affine: Affine,
    points: Vector,
    weights: Vector,
    keystreams: Sequence[Keystream],
    *,
    reach: float,
    fisher_bound: float,
    scales: Scales = None,
) -> torch.Tensor:
    """Return the packed codes that `mechanisms.kernels.family` gives on the CPU, a row for each row.

    The arguments are those of its function of the same name, with rows on a CUDA device, each
    with a keystream and a factor. Values must be finite, which is not checked.
    """
    if not family.has_ladder(affine, points, reach):

        def encoded(row: Vector, keystream: Keystream) -> family.Codes:
            return family.sample_exponential_family(
                row, affine, points, weights, keystream, reach=reach, fisher_bound=fisher_bound
            )

        return encode_on_cpu(rows, scales, keystreams, encoded, (len(points) - 1).bit_length())
    usual = family.usual_reach(reach, rows.shape[1])
    ladder = family.ladder_of(points, weights, fisher_bound, usual)

    def exact(u: float, draw: int, i: int, keystream: Keystream) -> int:
        return exact_family.exact_code(u, points, weights, draw, i, keystream)

    law = Law(is_table=False, first=points, second=weights)
    return sample_rows(rows, affine, ladder, law, keystreams, exact, scales=scales)


def sample_table(
    rows: torch.Tensor,
    given: table.ThresholdTable,
    keystreams: Sequence[Keystream],
    affine: Affine,
    *,
    scales: Scales = None,
) -> torch.Tensor:
    """Return the packed codes that `mechanisms.kernels.table` gives on the CPU, a row for each row.

    The arguments are those of its function of the same name with `clamp`, with rows on a CUDA
    device, each with a keystream and a factor: an input outside the table counts as the nearer
    end. Values must be finite; the caller must check that.
    """
    knots = given.knots
    if not table.has_ladder(affine, given):

        def encoded(row: Vector, keystream: Keystream) -> family.Codes:
            return table.sample_table(row, given, keystream, affine, clamp=True)

        levels = given.thresholds.shape[1]
        return encode_on_cpu(rows, scales, keystreams, encoded, (levels - 1).bit_length())

    def exact(u: float, draw: int, i: int, keystream: Keystream) -> int:
        place = min(max(u, float(knots[0])), float(knots[-1]))
        return exact_table.exact_code(place, knots, given.cumulative, draw, i, keystream)

    law = Law(is_table=True, first=knots, second=given.thresholds)
    ladder, _ = table.cached_ladders(given)
    return sample_rows(rows, affine, ladder, law, keystreams, exact, scales=scales)
