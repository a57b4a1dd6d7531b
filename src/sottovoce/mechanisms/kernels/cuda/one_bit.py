"""One bit for each coordinate on a CUDA device: the bits of `mechanisms.kernels.one_bit`, packed.

A warp takes a tile: 32 blocks of the keystream, one for each lane, for 1024 coordinates. Draw k of
lane l is for coordinate 32 k + l, so loads are coalesced, and each lane collects the bits of its
draws in a register. A transpose of 32 by 32 bits across the warp then gives lane k the packed bits
of coordinates 32 k to 32 k + 31.

First decision, in float32. With t = 2 log2(e) z and E = 2^t, w a draw of 16 bits,

    surely 1   if  w (1 + E) >= 2^16 (1 + 2^-16),
    surely 0   if  (w + 3) (1 + E) < 2^16 (1 + 2^-16).

The first gives w >= 2^16 q, q = 1/(1 + E), and the second, for 1 + E >= 1, also
(w + 1) (1 + E) < 2^16 (1 - 2^-16), so w + 1 <= 2^16 q; if E is right to 2^-17 relative, the
roundings of both sides, 2^-24 each, fit into the rest. The exponent is limited to [-32, 32]: beyond
it all draws but the lowest or the highest three are decided in either case. It is t = 64 y - 32,
y = x c + 1/2, c = t/(64 x): the roundings of c and x (where x had more than 24 bits) move t by
32 * 2^-24 each, that of y by 64 * 2^-25 and that of t by 2^-20; ex2.approx adds 2^-22 to E.
Together (3.5 * 2^-19 ln 2) + 2^-22 < 2^-17.6.

The rest, about 3 of 2^16 coordinates, is decided by 64 further bits of the coordinate's own stream,
compared with q in float64: in a second kernel (`settling`), or, if there are few coordinates, at
once, which saves a launch. Coordinates within the margin even then go to the CPU, to `exact_bit`.
A row whose slope does not fit into float32 is decided in float64 as a whole.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.kernels.cuda.batch import (
    Batch,
    Scales,
    leave_open,
    list_blocks,
    write_code,
)
from sottovoce.mechanisms.kernels.cuda.chacha import extension, load_key, main_block
from sottovoce.mechanisms.kernels.cuda.lanes import place_of, transposed, word_at
from sottovoce.mechanisms.kernels.cuda.launcher import launched
from sottovoce.mechanisms.kernels.cuda.place import on_device
from sottovoce.mechanisms.kernels.cuda.settling import launch_settling
from sottovoce.mechanisms.kernels.ladder import Law
from sottovoce.mechanisms.kernels.reference.one_bit import exact_bit

TILE = 1024
MOST = 2**35  # The most coordinates of a row.
SMALL = 1 << 23  # Up to so many coordinates, one launch with all checks is faster than two.
REGISTERS = 64  # More would leave fewer warps on a multiprocessor.
_PER_TILT = 2.0 * math.log2(math.e) / 64.0
# The family of two points -1 and 1 with equal weights is the law of one bit.
_LAW = Law(is_table=False, first=np.array([-1.0, 1.0]), second=np.array([0.5, 0.5]))


class Options(NamedTuple):
    """The launch options of the kernel; all give the same bits.

    Attributes:
        warps: The number of warps of a program.
        repeat: The number of tiles that a warp takes, one after the other.
    """

    warps: int = 1
    repeat: int = 4


@triton.jit
def _saturated(x, slope, asm: tl.constexpr):
    """Return x slope + 1/2, limited to [0, 1]."""
    if asm:
        y = tl.inline_asm_elementwise(
            "fma.rn.sat.f32 $0, $1, $2, 0f3F000000;",
            "=r,r,r",
            [x, slope],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        y = tl.minimum(tl.maximum(tl.fma(x, slope, 0.5), 0.0), 1.0)
    return y


@triton.jit
def _power(t, asm: tl.constexpr):
    """Return 2^t, right to 2^-22, for |t| <= 32."""
    if asm:
        found = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=r,r", [t], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        found = tl.exp2(t)
    return found


@triton.jit
def _margins(w, f, asm: tl.constexpr):
    """Return w f - 65537 2^-55, and that plus 3 2^-149 f, with subnormal factors."""
    if asm:
        above, below = tl.inline_asm_elementwise(
            "fma.rn.f32 $0, $2, $3, 0fAC000080; fma.rn.f32 $1, $3, 0f00000003, $0;",
            "=&r,=&r,r,r",
            [w, f],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )
    else:
        above = w * f - 1.819017159121472e-12
        below = f * 4.203895392974451e-45 + above
    return above, below


@triton.jit
def _judge(x, draw, slope, asm: tl.constexpr):
    """Return two margins: if the first is not negative, the bit is 1; if the second is, it is 0.

    The bits of a draw w are those of the float w 2^-149, so it needs no conversion. All is in units
    of 2^-55, with 1 + E in units of 2^94.
    """
    # 2 log2(e) z, limited to [-32, 32].
    t = tl.fma(_saturated(x.to(tl.float32), slope, asm), 64.0, -32.0)
    f = tl.fma(_power(t, asm), 1.9807040628566084e28, 1.9807040628566084e28)
    return _margins(draw.to(tl.float32, bitcast=True), f, asm)


@triton.jit
def _decide(surely, perhaps, draw, k: tl.constexpr, values, left, slope, tail: tl.constexpr,
    asm: tl.constexpr,
):  # fmt: skip
    """Add the decision of draw k; the last bit shifted in is the lowest."""
    if tail:
        x = tl.load(values + 32 * k, mask=left > 32 * k, other=0.0)
    else:
        x = tl.load(values + 32 * k)
    above, below = _judge(x, draw, slope, asm)
    # A sign bit is the opposite of the decision.
    surely = (surely << 1) | (above.to(tl.uint32, bitcast=True) >> 31)
    perhaps = (perhaps << 1) | (below.to(tl.uint32, bitcast=True) >> 31)
    return surely, perhaps


@triton.jit
def real_draws(left):
    """Return a mask of the draws k of a lane that have a coordinate: 32 k < left."""
    draws = tl.minimum(tl.maximum((left + 31) // 32, 0), 32)
    return ((tl.full(draws.shape, 1, tl.int64) << draws) - 1).to(tl.uint32)


_COUNTS = [
    "key_at", "dimension", "tiles", "tile_from", "tile_to", "repeat", "capacity", "row_stride",
]  # fmt: skip


@launched(*_COUNTS)
def _encode(
    values, floats, words, scales, codes, lists,
    key_at, dimension, tiles, tile_from, tile_to, repeat, capacity, row_stride,
    scaled: tl.constexpr, at_once: tl.constexpr, warps: tl.constexpr, tail: tl.constexpr,
    asm: tl.constexpr,
):  # fmt: skip
    """Encode, in program (p, r), `repeat` times `warps` tiles of row r.

    Beyond the last tile, a warp repeats the last one, and lists nothing.
    """
    row = tl.program_id(1).to(tl.int64)
    index = tl.arange(0, 32 * warps)
    lane = index % 32
    key_words = words + key_at + row * 8
    key = load_key(key_words, tl.zeros((32 * warps,), tl.uint32))
    stddev, per_tilt = tl.load(floats + 3), tl.load(floats + 4)
    scale = stddev * 0.0 + 1.0
    if scaled:
        scale = tl.load(scales + row)
    slope64 = scale / stddev * per_tilt
    # Far inside float32, so that products of slopes and numbers that matter are there, too.
    moderate = (slope64 >= 7.888609052210118e-31) & (slope64 <= 1.2676506002282294e30)
    slope = tl.where(moderate, slope64, 0.0).to(tl.float32)
    always = tl.where(moderate, 0, 0xFFFFFFFF).to(tl.uint32)
    for again in range(repeat):
        wanted = tile_from + (tl.program_id(0) * repeat + again) * warps + index // 32
        tile = tl.minimum(wanted, tile_to - 1).to(tl.int64)
        first = tile * 1024 + lane
        here = values + row * row_stride + first
        left = tl.minimum(dimension - first, 2048).to(tl.int32)
        draws = main_block((tile * 32 + lane).to(tl.uint32), key)
        a = tl.zeros((32 * warps,), tl.uint32)
        b = tl.zeros((32 * warps,), tl.uint32)
        for j in tl.static_range(16):
            high, low = draws[15 - j] >> 16, draws[15 - j] & 0xFFFF
            a, b = _decide(a, b, high, 31 - 2 * j, here, left, slope, tail, asm)
            a, b = _decide(a, b, low, 30 - 2 * j, here, left, slope, tail, asm)
        bits = (a | always) ^ 0xFFFFFFFF
        open_ = ((a | b) ^ b) | always
        if tail:
            real = real_draws(left)
            bits = bits & real
            open_ = open_ & real
        if at_once:
            while tl.max((open_ != 0).to(tl.int32), axis=0) > 0:
                lowest = open_ & (0 - open_)
                draw = place_of(lowest)
                word = word_at(draws, draw // 2)
                word = tl.where(draw % 2 == 1, word >> 16, word & 0xFFFF)
                coordinate = first + draw * 32
                x = tl.load(values + row * row_stride + coordinate, mask=open_ != 0, other=0.0)
                z = x.to(tl.float64) * scale / stddev
                further = extension(key_words, coordinate)
                distance = _distance(z, word, further)
                bits = bits | tl.where(distance > 1.7763568394002505e-15, lowest, 0)
                close = (open_ != 0) & ~(tl.abs(distance) > 1.7763568394002505e-15)  # 2^-49
                leave_open(words, lists, capacity, row, coordinate, word, further, z, close)
                open_ = open_ ^ lowest
        else:
            block = (row * tiles + tile) * 32 + lane
            list_blocks(words, lists, capacity, block, tl.where(wanted < tile_to, open_, 0))
        (packed,) = transposed((bits,), lane, 1, asm)
        tl.store(codes + (row * tiles + tile) * 32 + lane, packed.to(tl.int32, bitcast=True))


@triton.jit
def _distance(z, word, further):
    """Return the uniform number of a draw and 64 further bits, less 1/(1 + e^(2z))."""
    share = further.to(tl.float64) * 5.421010862427522e-20  # 2^-64
    uniform = (word.to(tl.float64) + share) * 1.52587890625e-05  # 2^-16
    small = tl.exp(-2.0 * tl.abs(z))
    return uniform - tl.where(z > 0.0, small, 1.0) / (1.0 + small)


def sample_rows(
    rows: torch.Tensor,
    noise_stddev: float,
    keystreams: Sequence[Keystream],
    *,
    scales: Scales = None,
    options: Options | None = None,
) -> torch.Tensor:
    """Return a random bit for each number of rows [clients, d], packed: a matrix [clients, bytes].

    A bit is 1 with probability 1/(1 + e^(-2z)), where z = number * scale / noise_stddev. The bytes
    are those that `mechanisms.kernels.one_bit` gives for the same values and keystreams, the lowest
    bit of a byte first. The caller must clip the values before, and check that they are finite: a
    NaN or an infinite value may get a bit instead of an error.

    Args:
        rows: A matrix of finite numbers with a row for each client.
        noise_stddev: The divisor of the values.
        keystreams: One keystream for each row; they are used up.
        scales: The factor of each row, as a tuple or as a float64 tensor on the device; None if
            all are 1.
        options: The launch options.

    Returns:
        A matrix of bytes with a payload in each row.

    Raises:
        ParameterError: Rows and keystreams differ in number, there are too many, the kernels cannot
            read the rows, or a value that reached the last decision is not finite.
        RandomnessError: A keystream was used before.
    """
    parameter_rules.positive("noise_stddev", noise_stddev)
    numbers = (0.0, 1.0, noise_stddev, _PER_TILT)
    at_once = rows.numel() <= SMALL
    listed = 0 if at_once else rows.numel() // 256
    batch = Batch(rows, keystreams, scales, numbers, most=MOST, listed=listed)
    clients, dimension = rows.shape
    tiles = -(-dimension // TILE)
    codes = torch.empty((clients, 32 * tiles), dtype=torch.int32, device=rows.device)
    warps, repeat = options or Options()

    def launch() -> None:
        given = batch.floats, batch.words, batch.scales
        for tail, start, stop, again in launches(clients, dimension, TILE, repeat):
            _encode[(-(-(stop - start) // (warps * again)), clients)](
                rows, *given, codes, batch.lists, batch.key_at, dimension, tiles, start, stop,
                again, batch.capacity, rows.stride(0), scaled=batch.scaled, at_once=at_once,
                warps=warps, tail=tail, asm=rows.is_cuda, num_warps=warps, maxnreg=REGISTERS,
                enable_fp_fusion=False,
            )  # fmt: skip
        if not at_once:
            launch_settling(batch, codes, tiles, _LAW, bits=1)

    if rows.numel():
        with on_device(rows):
            for rest in batch.run(launch):
                for tilt, i, draw in zip(*rest.places(), strict=True):
                    if not math.isfinite(tilt):
                        raise ParameterError(
                            f"coordinate {i} of row {rest.row} must be a finite number; leave out "
                            "rows with missing values"
                        )
                    bit = exact_bit(tilt, draw, i, keystreams[rest.row])
                    write_code(codes.view(torch.uint8), rest.row, i, bit, 1)
    return codes.view(torch.uint8)[:, : -(-dimension // 8)]


def launches(
    clients: int, dimension: int, tile: int, repeat: int
) -> list[tuple[bool, int, int, int]]:
    """Return (tail, first tile, tile to stop at, tiles for each warp) of the launches of a kernel.

    With `tail` the kernel checks for each coordinate whether it exists. Large rows have a launch
    without it for all whole tiles.
    """
    full, tiles = dimension // tile, -(-dimension // tile)
    small = clients * dimension <= SMALL
    if small and full < tiles:
        return [(True, 0, tiles, 1)]
    return [
        (tail, start, stop, 1 if tail or small else repeat)
        for tail, start, stop in ((False, 0, full), (True, full, tiles))
        if start < stop
    ]
