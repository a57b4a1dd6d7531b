"""Rounded noise on a CUDA device: round((x + noise)/step) from 32 random bits, packed.

The bits are a sign and 31 bits h of a tail probability. The noise at the tail
v = (h + something in [0, 1)) 2^-32 lies between chord(h + 1) - error and chord(h), where
`mechanisms/noise/rounded.py` gives the chords over cells of h. If both ends, with x added, round to
the same grid point, that point is the code. All is computed in float64.

A warp takes a tile: 32 blocks of the keystream, one for each lane, for 512 coordinates. Draw k of
lane l is for coordinate 32 k + l. What a draw does not decide is decided by a second kernel from 20
further bits of the coordinate's own stream and a table of finer cells. If two grid points are left,
and the law is smooth, it compares 64 further bits with the tail at the middle between them, by the
`series` of the law; the rest, about one in 10^10, goes to the CPU.

The errors of this comparison, with z = |m|/u for the middle m and the unit u of the law. The middle
is k step - x, where k has no error. The product, the difference, 32/u and the product with it are
each rounded once, so z is off by at most (|x|/u + 4 z) 2^-53. The hazard rate is at most z + 1, so
the tail is off by (z + 1) times that, relatively. The series (10 products and sums, coefficients,
remainder) and the two roundings of the draw add less than 8 2^-51. The margin is twice the sum.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.kernels.cuda.batch import (
    SETTLER_LANES,
    SETTLERS,
    Batch,
    Scales,
    leave_open,
    list_blocks,
)
from sottovoce.mechanisms.kernels.cuda.chacha import extension, load_key, main_block
from sottovoce.mechanisms.kernels.cuda.lanes import place_of, word_at
from sottovoce.mechanisms.kernels.cuda.launcher import launched
from sottovoce.mechanisms.kernels.cuda.one_bit import (
    Options,
    launches,
    real_draws,
)
from sottovoce.mechanisms.kernels.cuda.packing import pack
from sottovoce.mechanisms.kernels.cuda.place import on_device
from sottovoce.mechanisms.noise import rounded
from sottovoce.mechanisms.noise.laws import Noise
from sottovoce.mechanisms.noise.series import PER_UNIT, tail_series

TILE = 512
_MOST = 2**34  # The number of coordinates for which one keystream has draws.
_FINE_BITS, _FINE_OCTAVES = 13, range(31)
_REGISTERS = 48  # More would leave fewer warps on a multiprocessor.


class Clip(NamedTuple):
    """The map min(max(x, lower), upper) - middle, rounded to float64."""

    lower: float = -np.inf
    upper: float = np.inf
    middle: float = 0.0


@triton.jit
def _centered(x, scale, floats, boxed: tl.constexpr):
    """Return a value times its factor, clipped, less the middle."""
    x = x.to(tl.float64) * scale
    if boxed:
        lower, upper = tl.load(floats + 3), tl.load(floats + 4)
        x = tl.where(x > lower, tl.where(x < upper, x, upper), lower) - tl.load(floats + 5)
    return x


@triton.jit
def _two_words(pointer, asm: tl.constexpr):
    """Load two int64 numbers in one access of 16 bytes."""
    if asm:
        first, second = tl.inline_asm_elementwise(
            "ld.global.nc.v2.b64 {$0, $1}, [$2];",
            "=l,=l,l",
            [pointer.to(tl.int64)],
            dtype=(tl.int64, tl.int64),
            is_pure=True,
            pack=1,
        )
    else:
        first, second = tl.load(pointer), tl.load(pointer + 1)
    return first, second


@triton.jit
def _ends(
    x, negative, tail, unit, slack, per_unit, chords,
    cell_bits: tl.constexpr, least: tl.constexpr, asm: tl.constexpr,
):  # fmt: skip
    """Return the grid points between which noise lies whose tail is in [tail, tail + unit).

    They have 1.5 2^52 added, and are mirrored if the noise is negative. There are 2^cell_bits cells
    in each octave from 2^least, found in the bits of a float64. Each has a value in float64, and
    slope and error in float32.
    """
    spelled = tail.to(tl.int64, bitcast=True)
    cell = (spelled >> (52 - cell_bits)) - ((1023 + least) << cell_bits)
    start = ((spelled >> (52 - cell_bits)) << (52 - cell_bits)).to(tl.float64, bitcast=True)
    value, rest = _two_words(chords + 2 * cell, asm)
    slope = rest.to(tl.int32).to(tl.float32, bitcast=True).to(tl.float64)
    error = (rest >> 32).to(tl.int32).to(tl.float32, bitcast=True).to(tl.float64)
    far = tl.fma(slope, tail - start, value.to(tl.float64, bitcast=True))
    near = tl.fma(slope, unit, far) - error
    # Negative noise at x is positive noise at -x, mirrored.
    place = tl.where(negative, -x, x) * per_unit
    # Adding 1.5 2^52 rounds to an integer, to even at ties, and leaves it in the lowest bits.
    low = (place + near - slack) + 6755399441055744.0
    high = (place + far + slack) + 6755399441055744.0
    return low, high


@triton.jit
def _code_at(point, negative):
    """Return the code of a grid point that `_ends` returns."""
    code = point.to(tl.int64, bitcast=True).to(tl.int32)
    return tl.where(negative, -code, code)


@triton.jit
def _passes(x, negative, low, tail, floats, series, nodes, degree: tl.constexpr):
    """Return whether noise at a tail passes the middle above a grid point, and whether it is sure.

    The point is one that `_ends` returns. `series` has rows of `degree` + 1 coefficients.
    """
    step, per_unit, farthest = tl.load(floats + 7), tl.load(floats + 8), tl.load(floats + 9)
    middle = (low - 6755399441055744.0 + 0.5) * step - tl.where(negative, -x, x)
    place = middle * per_unit
    node = (place + 6755399441055744.0) - 6755399441055744.0
    inside = (node >= 0.0) & (node < nodes)
    coefficients = series + tl.where(inside, node, 0.0).to(tl.int64) * (degree + 1)
    rest = place - node
    value = tl.load(coefficients + degree)
    for k in tl.static_range(1, degree + 1):
        value = value * rest + tl.load(coefficients + (degree - k))
    z = tl.abs(place) * 0.03125
    # times 2^-51
    margin = value * ((16.0 + (z + 1.0) * (farthest + 4.0 * z)) * 4.440892098500626e-16)
    distance = value - tail
    return distance > 0.0, inside & (tl.abs(distance) > margin)


@triton.jit
def _first_code(
    x, word, slack, per_unit, chords,
    cell_bits: tl.constexpr, least: tl.constexpr, asm: tl.constexpr,
):  # fmt: skip
    """Return the code of a draw, and whether it is sure."""
    tail = word >> 1
    large = tail >= (1 << least)
    safe = tl.where(large, tail, 1 << least).to(tl.int64)
    # The bits of 2^52 + tail.
    wide = (safe | 0x4330000000000000).to(tl.float64, bitcast=True) - 4503599627370496.0
    negative = (word & 1) == 1
    low, high = _ends(x, negative, wide, 1.0, slack, per_unit, chords, cell_bits, least, asm)
    return _code_at(high, negative), (low == high) & large


_COUNTS = [
    "key_at", "dimension", "tiles", "tile_from", "tile_to", "repeat", "capacity", "row_stride",
    "mask",
]  # fmt: skip


@launched(*_COUNTS)
def _encode(
    values, floats, words, scales, chords, codes, lists,
    key_at, dimension, tiles, tile_from, tile_to, repeat, capacity, row_stride, mask,
    cell_bits: tl.constexpr, least: tl.constexpr, boxed: tl.constexpr, scaled: tl.constexpr,
    warps: tl.constexpr, tail: tl.constexpr, asm: tl.constexpr,
):  # fmt: skip
    """Encode, in program (p, r), `repeat` times `warps` tiles of row r.

    Beyond the last tile, a warp repeats the last one, and lists nothing.
    """
    row = tl.program_id(1).to(tl.int64)
    index = tl.arange(0, 32 * warps)
    lane = index % 32
    key = load_key(words + key_at + row * 8, tl.zeros((32 * warps,), tl.uint32))
    per_unit, slack = tl.load(floats + 1), tl.load(floats + 2)
    scale = per_unit * 0.0 + 1.0
    if scaled:
        scale = tl.load(scales + row)
    for again in range(repeat):
        wanted = tile_from + (tl.program_id(0) * repeat + again) * warps + index // 32
        tile = tl.minimum(wanted, tile_to - 1).to(tl.int64)
        first = tile * 512 + lane
        here = values + row * row_stride + first
        target = codes + row * tiles * 512 + first
        left = tl.minimum(dimension - first, 1024).to(tl.int32)
        draws = main_block((tile * 32 + lane).to(tl.uint32), key)
        open_ = tl.zeros((32 * warps,), tl.uint32)
        # Four times, to keep the program small.
        for fourth in range(4):
            unsure = tl.zeros((32 * warps,), tl.uint32)
            for j in tl.static_range(4):
                at = 128 * fourth + 32 * j
                if tail:
                    x = tl.load(here + at, mask=left > at, other=0.0)
                else:
                    x = tl.load(here + at, cache_modifier=".cg")  # L1 is for the chords.
                code, sure = _first_code(
                    _centered(x, scale, floats, boxed), draws[j], slack, per_unit, chords,
                    cell_bits, least, asm,
                )  # fmt: skip
                tl.store(target + at, (code & mask).to(codes.dtype.element_ty))
                unsure = unsure | tl.where(sure, 0, 1 << j).to(tl.uint32)
            open_ = (open_ >> 4) | (unsure << 12)
            draws = draws[4:16] + draws[0:4]
        if tail:
            open_ = open_ & real_draws(left)
        block = (row * tiles + tile) * 32 + lane
        list_blocks(words, lists, capacity, block, tl.where(wanted < tile_to, open_, 0))


@launched("key_at", "tiles", "capacity", "row_stride", "mask", "nodes")
def _settle(
    values, floats, words, scales, chords, series, codes, lists,
    key_at, tiles, capacity, row_stride, mask, nodes,
    cell_bits: tl.constexpr, degree: tl.constexpr, boxed: tl.constexpr, scaled: tl.constexpr,
    programs: tl.constexpr, width: tl.constexpr, asm: tl.constexpr,
):  # fmt: skip
    """Decide the listed coordinates by 20 further bits and the fine chords, or by the series."""
    per_unit, slack = tl.load(floats + 1), tl.load(floats + 6)
    listed = tl.minimum(tl.load(words), capacity)
    for start in range(tl.program_id(0) * width, listed, programs * width):
        slot = start + tl.arange(0, width)
        valid = slot < listed
        place = tl.load(lists + slot, mask=valid, other=0)
        open_ = tl.load(lists + capacity + slot, mask=valid, other=0).to(tl.uint32)
        row, block = place // (tiles * 32), place % (tiles * 32)
        key_words = words + key_at + row * 8
        draws = main_block(block.to(tl.uint32), load_key(key_words, block.to(tl.uint32)))
        scale = per_unit * 0.0 + 1.0
        if scaled:
            scale = tl.load(scales + row)
        while tl.max((open_ != 0).to(tl.int32), axis=0) > 0:
            lowest = open_ & (0 - open_)
            active = open_ != 0
            draw = place_of(lowest)
            word = word_at(draws, draw)
            coordinate = (block // 32) * 512 + draw * 32 + block % 32
            x = tl.load(values + row * row_stride + coordinate, mask=active, other=0.0)
            x = _centered(x, scale, floats, boxed)
            further = extension(key_words, coordinate)
            rest = (further >> 44).to(tl.float64) * 9.5367431640625e-07  # 2^-20
            whole = (word >> 1).to(tl.float64)
            large = whole >= 1.0
            negative = (word & 1) == 1
            low, high = _ends(
                x, negative, tl.where(large, whole + rest, 1.0), 9.5367431640625e-07, slack,
                per_unit, chords, cell_bits, 0, asm,
            )  # fmt: skip
            sure = low == high
            if degree:
                share = further.to(tl.float64) * 5.421010862427522e-20  # 2^-64
                passes, decided = _passes(
                    x, negative, low, whole + share, floats, series, nodes, degree
                )
                sure = sure | (decided & (high - low == 1.0))
                high = tl.where(passes, high, low)
            target = codes + row * tiles * 512 + coordinate
            code = _code_at(high, negative)
            tl.store(target, (code & mask).to(codes.dtype.element_ty), mask=active)
            close = active & ~(sure & large)
            leave_open(words, lists, capacity, row, coordinate, word, further, x, close)
            open_ = open_ ^ lowest


def sample_rows(
    rows: torch.Tensor,
    keystreams: Sequence[Keystream],
    scales: Scales = None,
    *,
    clip: Clip,
    noise: Noise,
    step: float,
    farthest: float,
    bits: int,
    options: Options | None = None,
) -> torch.Tensor:
    """Return round((clip(x scale) + noise)/step) modulo 2^bits, packed: a matrix of bytes.

    Args:
        rows: A matrix of finite numbers x with a row for each client.
        keystreams: The randomness of each row; they are used up.
        scales: The factor of each row, as a tuple or as a float64 tensor on the device; None if
            all are 1.
        clip: The clipping of x.
        noise: The law of the noise.
        step: The distance of grid points.
        farthest: A bound on |clip(x scale)|.
        bits: The number of bits of a code.
        options: The launch options.

    Raises:
        ParameterError: The kernels cannot read the rows, or there are too many of them.
        RandomnessError: A keystream was used before.
    """
    table, fine, series, numbers = _tables(clip, noise, step, farthest, rows.device)
    batch = Batch(rows, keystreams, scales, numbers, most=_MOST, listed=rows.numel() // 512)
    clients, dimension = rows.shape
    tiles = -(-dimension // TILE)
    dtype = torch.uint8 if bits <= 8 else torch.int16 if bits == 16 else torch.int32
    codes = torch.empty((clients, TILE * tiles), dtype=dtype, device=rows.device)
    warps, repeat = options or Options(warps=4)
    boxed, mask, asm = clip != Clip(), (1 << bits) - 1, rows.is_cuda
    programs = SETTLERS if rows.is_cuda else 1
    if not rows.numel():
        size = (dimension * bits + 7) // 8
        return torch.empty((clients, size), dtype=torch.uint8, device=rows.device)
    payloads = codes

    def launch() -> None:
        nonlocal payloads
        given = batch.floats, batch.words, batch.scales
        for tail, start, stop, again in launches(clients, dimension, TILE, repeat):
            _encode[(-(-(stop - start) // (warps * again)), clients)](
                rows, *given, table, codes, batch.lists, batch.key_at, dimension, tiles, start,
                stop, again, batch.capacity, rows.stride(0), mask, cell_bits=rounded.CELL_BITS,
                least=rounded.LEAST_BITS, boxed=boxed, scaled=batch.scaled, warps=warps, tail=tail,
                asm=asm, num_warps=warps, maxnreg=_REGISTERS, enable_fp_fusion=False,
            )  # fmt: skip
        _settle[(programs,)](
            rows, *given, fine, series, codes, batch.lists, batch.key_at, tiles, batch.capacity,
            rows.stride(0), mask, len(series), cell_bits=_FINE_BITS, degree=series.shape[1] - 1,
            boxed=boxed, scaled=batch.scaled, programs=programs, width=SETTLER_LANES, asm=asm,
            num_warps=SETTLER_LANES // 32, enable_fp_fusion=False,
        )  # fmt: skip
        if bits in (8, 16):  # Now, while the kernels run.
            payloads = codes.view(torch.uint8)[:, : dimension * bits // 8]

    with on_device(rows):
        for rest in batch.run(launch):
            keystream = keystreams[rest.row]
            settled = rounded.settle_codes(rest.values, noise, step, rest.spelled, keystream)
            places = torch.from_numpy(rest.spelled.coordinates).to(rows.device)
            codes[rest.row, places] = torch.from_numpy(settled & mask).to(rows.device, dtype)
        return payloads if bits in (8, 16) else pack(codes[:, :dimension], bits)


@lru_cache(maxsize=32)
def _tables(
    clip: Clip, noise: Noise, step: float, farthest: float, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[float, ...]]:
    """Return the chords, the fine ones, the series, and the numbers of a batch."""
    table, slack = _placed(noise, step, device, rounded.CELL_BITS, rounded.OCTAVES)
    fine, fine_slack = _placed(noise, step, device, _FINE_BITS, _FINE_OCTAVES)
    beyond = rounded.slack_of_values(step, farthest)
    series, unit = _placed_series(noise, device)
    numbers = (
        1.0 / step, slack + beyond, *clip, fine_slack + beyond, step, PER_UNIT / unit,
        farthest / unit,
    )  # fmt: skip
    return table, fine, series, numbers


def _placed(
    noise: Noise, step: float, device: torch.device, cell_bits: int, octaves: range
) -> tuple[torch.Tensor, float]:
    """Return a table of chords for the kernel, and a bound on its rounding errors.

    Slopes and errors are in float32. With d a bound on what the rounding of a slope makes over its
    cell, values are larger by d, and errors by 2 d, so that the bounds on the noise still hold.
    """
    table = rounded.chords(noise, step, cell_bits, octaves)
    ends = 2.0 ** (np.array(octaves) - cell_bits)
    widths = np.repeat(ends, 1 << cell_bits)
    slack = rounded.slack_of_chords(noise, step, table)
    extra = np.abs(table[:, 1]) * widths * 2.0**-24
    pairs = np.empty((len(table), 2))
    pairs[:, 0] = table[:, 0] + extra
    floats = pairs[:, 1:].view(np.float32)
    floats[:, 0] = table[:, 1]
    floats[:, 1] = np.nextafter((table[:, 2] + 2.0 * extra).astype(np.float32), np.float32(np.inf))
    return torch.from_numpy(pairs.view(np.int64)).to(device), slack


def _placed_series(noise: Noise, device: torch.device) -> tuple[torch.Tensor, float]:
    """Return the series of a law's tail and its unit; a series of degree 0 if it has none."""
    found = tail_series(noise)
    if found is None:
        return torch.zeros((1, 1), dtype=torch.float64, device=device), 1.0
    return torch.tensor(found.rows, device=device), found.unit
