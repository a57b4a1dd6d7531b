"""Rounded noise on a CUDA device: round((x + noise)/step) from 32 random bits, packed.

The bits are a sign and 31 bits h of a tail probability. The noise at the tail
v = (h + something in [0, 1)) 2^-32 lies between chord(h + 1) - error and chord(h), where
`mechanisms/noise/rounded.py` gives the chords over cells of h. If both ends, with x added, round to
the same grid point, that point is the code. All is computed in float64.

A warp takes a tile: 32 blocks of the keystream, one for each lane, for 512 coordinates. Draw k of
lane l is for coordinate 32 k + l. What a draw does not decide is decided at once by 20 further bits
of the coordinate's own stream and a table of finer cells; the rest goes to the CPU.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.kernels.cuda.batch import Batch, Scales, leave_open
from sottovoce.mechanisms.kernels.cuda.chacha import extension, load_key, main_block
from sottovoce.mechanisms.kernels.cuda.lanes import place_of, word_at
from sottovoce.mechanisms.kernels.cuda.one_bit import Options, launches
from sottovoce.mechanisms.kernels.cuda.packing import pack
from sottovoce.mechanisms.kernels.cuda.place import on_device
from sottovoce.mechanisms.noise import rounded
from sottovoce.mechanisms.noise.laws import Noise

TILE = 512
_MOST = 2**34  # The number of coordinates for which one keystream has draws.
_FINE_BITS, _FINE_OCTAVES = 13, range(31)


class Clip(NamedTuple):
    """The map min(max(x, lower), upper) - middle, rounded to float64."""

    lower: float = -np.inf
    upper: float = np.inf
    middle: float = 0.0

    def __call__(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.clip(x, self.lower, self.upper) - self.middle


@triton.jit
def _centered(x, scale, numbers, boxed: tl.constexpr):
    """Return a value times its factor, clipped, less the middle."""
    x = x.to(tl.float64) * scale
    if boxed:
        lower, upper = tl.load(numbers + 2), tl.load(numbers + 3)
        x = tl.where(x > lower, tl.where(x < upper, x, upper), lower) - tl.load(numbers + 4)
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
def _code(
    x, negative, tail, unit, slack, per_unit, chords,
    cell_bits: tl.constexpr, least: tl.constexpr, asm: tl.constexpr,
):  # fmt: skip
    """Return the code of a tail between `tail` and `tail` + `unit`, and whether it is sure.

    There are 2^cell_bits cells in each octave from 2^least, found in the bits of a float64. Each
    has a value in float64, and slope and error in float32.
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
    code = high.to(tl.int64, bitcast=True).to(tl.int32)
    return tl.where(negative, -code, code), low == high


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
    code, sure = _code(
        x, (word & 1) == 1, wide, 1.0, slack, per_unit, chords, cell_bits, least, asm
    )
    return code, sure & large


_COUNTS = ["dimension", "width", "tile_from", "tile_to", "repeat", "capacity", "row_stride"]


@triton.jit(do_not_specialize=_COUNTS)
def _encode(
    values, keys, numbers, scales, chords, fine, codes, count, listed,
    dimension, width, tile_from, tile_to, repeat, capacity, row_stride, mask,
    cell_bits: tl.constexpr, least: tl.constexpr, fine_bits: tl.constexpr, boxed: tl.constexpr,
    scaled: tl.constexpr, warps: tl.constexpr, tail: tl.constexpr,
    asm: tl.constexpr,
):  # fmt: skip
    """Encode, in program (p, r), `repeat` times `warps` tiles of row r.

    Beyond the last tile, a warp repeats the last one. Rows of codes have the length `width`.
    """
    row = tl.program_id(1).to(tl.int64)
    index = tl.arange(0, 32 * warps)
    lane = index % 32
    key = load_key(keys + row * 8, tl.zeros((32 * warps,), tl.uint32))
    per_unit, slack, fine_slack = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 5)
    scale = slack * 0.0 + 1.0
    if scaled:
        scale = tl.load(scales + row)
    for again in range(repeat):
        wanted = tile_from + (tl.program_id(0) * repeat + again) * warps + index // 32
        tile = tl.minimum(wanted, tile_to - 1).to(tl.int64)
        first = tile * 512 + lane
        here = values + row * row_stride + first
        target = codes + row * width + first
        left = tl.minimum(dimension - first, 1024).to(tl.int32)
        draws = main_block((tile * 32 + lane).to(tl.uint32), key)
        open_ = tl.zeros((32 * warps,), tl.uint32)
        # Four times, to keep the program small; then all words are back in their places.
        for fourth in range(4):
            unsure = tl.zeros((32 * warps,), tl.uint32)
            for j in tl.static_range(4):
                at = 128 * fourth + 32 * j
                real = left > at
                if tail:
                    x = tl.load(here + at, mask=real, other=0.0)
                else:
                    x = tl.load(here + at)
                x = _centered(x, scale, numbers, boxed)
                code, sure = _first_code(
                    x, draws[j], slack, per_unit, chords, cell_bits, least, asm
                )
                stored = (code & mask).to(codes.dtype.element_ty)
                if tail:
                    tl.store(target + at, stored, mask=real)
                    sure = sure | (left <= at)
                else:
                    tl.store(target + at, stored)
                unsure = unsure | tl.where(sure, 0, 1 << j).to(tl.uint32)
            open_ = (open_ >> 4) | (unsure << 12)
            draws = draws[4:16] + draws[0:4]
        while tl.max((open_ != 0).to(tl.int32), axis=0) > 0:
            lowest = open_ & (0 - open_)
            active = open_ != 0
            draw = place_of(lowest)
            word = word_at(draws, draw)
            coordinate = first + draw * 32
            x = tl.load(values + row * row_stride + coordinate, mask=active, other=0.0)
            further = (extension(keys + row * 8, coordinate) >> 44).to(tl.float64)
            whole = (word >> 1).to(tl.float64)
            spelled = tl.where(whole >= 1.0, whole + further * 9.5367431640625e-07, 1.0)
            code, sure = _code(
                _centered(x, scale, numbers, boxed), (word & 1) == 1, spelled,
                9.5367431640625e-07, fine_slack, per_unit, fine, fine_bits, 0, asm,
            )  # fmt: skip
            tl.store(
                codes + row * width + coordinate, (code & mask).to(codes.dtype.element_ty),
                mask=active,
            )  # fmt: skip
            close = active & ~(sure & (whole >= 1.0))
            leave_open(count, listed, capacity, row, coordinate, word, close)
            open_ = open_ ^ lowest


def sample_rows(
    rows: torch.Tensor,
    clip: Clip,
    noise: Noise,
    step: float,
    farthest: float,
    bits: int,
    keystreams: Sequence[Keystream],
    *,
    scales: Scales = None,
    options: Options | None = None,
) -> torch.Tensor:
    """Return round((clip(x scale) + noise)/step) modulo 2^bits, packed: a matrix of bytes.

    Args:
        rows: A matrix of finite numbers x with a row for each client.
        clip: The clipping of x.
        noise: The law of the noise.
        step: The distance of grid points.
        farthest: A bound on |clip(x scale)|.
        bits: The number of bits of a code.
        keystreams: The randomness of each row; they are used up.
        scales: The factor of each row, as a tuple or as a float64 tensor on the device; None if
            all are 1.
        options: The launch options.

    Raises:
        ParameterError: The kernels cannot read the rows, or there are too many of them.
        RandomnessError: A keystream was used before.
    """
    table, slack = _placed(noise, step, rows.device)
    fine, fine_slack = _placed(noise, step, rows.device, _FINE_BITS, _FINE_OCTAVES)
    beyond = rounded.slack_of_values(step, farthest)
    numbers = (1.0 / step, slack + beyond, *clip, fine_slack + beyond)
    batch = Batch(rows, keystreams, scales, numbers, most=_MOST)
    clients, dimension = rows.shape
    tiles = -(-dimension // TILE)
    dtype = torch.uint8 if bits <= 8 else torch.int16 if bits == 16 else torch.int32
    codes = torch.empty((clients, TILE * tiles), dtype=dtype, device=rows.device)
    warps, repeat = options or Options()

    def launch() -> None:
        for tail, start, stop, again in launches(clients, dimension, TILE, repeat):
            _encode[(-(-(stop - start) // (warps * again)), clients)](
                rows, batch.keys, batch.numbers, batch.scales, table, fine, codes, batch.count,
                batch.listed, dimension, TILE * tiles, start, stop, again, batch.capacity,
                rows.stride(0), (1 << bits) - 1, cell_bits=rounded.CELL_BITS,
                least=rounded.LEAST_BITS, fine_bits=_FINE_BITS, boxed=clip != Clip(),
                scaled=batch.scaled, warps=warps, tail=tail, asm=rows.is_cuda,
                num_warps=warps, enable_fp_fusion=False,
            )  # fmt: skip

    with on_device(rows):
        if rows.numel():
            left = batch.run(launch)
            for row in np.unique(left[:, 0]).tolist():
                coordinates = left[left[:, 0] == row, 1]
                values = clip(batch.values(row, coordinates))
                keystream = keystreams[row]
                spelled = keystream.spelled(32, coordinates)
                settled = rounded.settle_codes(values, noise, step, spelled, keystream)
                settled &= (1 << bits) - 1
                places = torch.from_numpy(coordinates).to(rows.device)
                codes[row, places] = torch.from_numpy(settled).to(rows.device).to(dtype)
        if bits in (8, 16):
            return codes.view(torch.uint8)[:, : dimension * bits // 8]
        return pack(codes[:, :dimension], bits)


@lru_cache(maxsize=32)
def _placed(
    noise: Noise,
    step: float,
    device: torch.device,
    cell_bits: int = rounded.CELL_BITS,
    octaves: range = rounded.OCTAVES,
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
