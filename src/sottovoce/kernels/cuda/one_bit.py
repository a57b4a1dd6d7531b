"""One bit a coordinate on a CUDA device: the bits of `sottovoce.kernels.one_bit`, packed.

A warp takes a tile: 32 blocks of the keystream, one a lane, for 1024 coordinates. Draw k of lane l
is for coordinate 32 k + l, so loads are coalesced, and each lane gathers the bits of its draws in a
register. A transpose of 32 by 32 bits across the warp then gives lane k the word of coordinates
32 k to 32 k + 31.

First decision, in float32. With t = 2 log2(e) z and E = 2^t, w a draw of 16 bits,

    surely 1   if  w (1 + E) >= 2^16 (1 + 2^-16),
    surely 0   if  (w + 1) (1 + E) <= 2^16 (1 - 2^-16),

which are w >= 2^16 q and w + 1 <= 2^16 q, q = 1/(1 + E), where E is right to 2^-17 relative and the
roundings of the two sides, 2^-24 each, fit into the rest. The exponent is held to [-32, 32]: beyond
it all draws but the lowest or the highest are decided in either case. It is
t = 64 y - 32, y = x c + 1/2, c = t/(64 x): the roundings of c and x (where x had more than 24 bits)
move t by 32 * 2^-24 each, that of y by 64 * 2^-25 and that of t by 2^-20; ex2.approx adds 2^-22 to
E. Together (3.5 * 2^-19 ln 2) + 2^-22 < 2^-17.6.

What is left, about 2 of 2^16 coordinates, goes to a list of blocks and is settled by a second
kernel: 64 further bits of the coordinate's own stream against q in float64, as `decide` does on the
CPU. What lies within 2^-49 even then goes to the CPU, to `exact_bit`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from sottovoce import parameters
from sottovoce.errors import ParameterError
from sottovoce.kernels.cuda.chacha import PREPARED, extension, main_block, prepare
from sottovoce.kernels.cuda.place import checked, on_device
from sottovoce.kernels.one_bit import exact_bit
from sottovoce.randomness import Keystream

TILE = 1024
_SLOPES = 2.0**-100, 2.0**100  # of t/64 in x: far inside float32
_SCALES = 2.0**-200, 2.0**200  # so that no product leaves float64
_SECOND_MARGIN = 2.0**-49
_MOST = 2**37  # coordinates: a stream has 2^32 blocks of 32 draws
_MOST_ROWS = 65535
_SETTLERS, _WIDTH = 264, 128  # programs that settle, and their lanes


class Options(NamedTuple):
    """Ways to run the first kernel; all give the same bits."""

    warps: int = 4
    adds: int = 0
    turns: int = 0


@triton.jit
def _saturated(x, slope, asm: tl.constexpr):
    """x slope + 1/2, held to [0, 1]."""
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
    """2^t, right to 2^-22, for |t| <= 32."""
    if asm:
        found = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=r,r", [t], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        found = tl.exp2(t)
    return found


@triton.jit
def _margins(w, f, asm: tl.constexpr):
    """w f - 65537 2^-55, and that plus 3 2^-149 f; with subnormal factors."""
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
def _exponent(x, slope, scale, stddev, wide: tl.constexpr, asm: tl.constexpr):
    """2 log2(e) z, held to [-32, 32], in float32."""
    if wide:
        t = x.to(tl.float64) * scale / stddev * 2.8853900817779268
        t = tl.minimum(tl.maximum(t, -32.0), 32.0).to(tl.float32)
    else:
        t = tl.fma(_saturated(x.to(tl.float32), slope, asm), 64.0, -32.0)
    return t


@triton.jit
def _judge(refused, excluded, x, draw, slope, scale, stddev, wide: tl.constexpr, asm: tl.constexpr):
    """Shifts one bit into each: whether the draw is not surely a 1, and whether surely a 0.

    The bits of a draw w are those of the float w 2^-149: no conversion. So all is in units of
    2^-55, with 1 + E in units of 2^94.
    """
    e = _power(_exponent(x, slope, scale, stddev, wide, asm), asm)
    f = tl.fma(e, 1.9807040628566084e28, 1.9807040628566084e28)
    w = draw.to(tl.float32, bitcast=True)
    above, below = _margins(w, f, asm)
    refused = (refused << 1) | (above.to(tl.uint32, bitcast=True) >> 31)
    excluded = (excluded << 1) | (below.to(tl.uint32, bitcast=True) >> 31)
    return refused, excluded


@triton.jit
def _both(
    refused, excluded, word, j: tl.constexpr, values, left, slope, scale, stddev,
    tail: tl.constexpr, wide: tl.constexpr, asm: tl.constexpr,
):  # fmt: skip
    """The two draws of word j, the later one first: the last bit shifted in is the lowest."""
    if tail:
        late = tl.load(values + 32 * (2 * j + 1), mask=left > 32 * (2 * j + 1), other=0.0)
        early = tl.load(values + 32 * (2 * j), mask=left > 32 * (2 * j), other=0.0)
    else:
        late = tl.load(values + 32 * (2 * j + 1))
        early = tl.load(values + 32 * (2 * j))
    refused, excluded = _judge(
        refused, excluded, late, word >> 16, slope, scale, stddev, wide, asm
    )
    return _judge(refused, excluded, early, word & 0xFFFF, slope, scale, stddev, wide, asm)


@triton.jit
def _swapped(x, lane, by: tl.constexpr, mask: tl.constexpr):
    """One step of the transpose: squares of `by` bits change places with those of lane ^ by."""
    other = tl.inline_asm_elementwise(
        "shfl.sync.bfly.b32 $0, $1, $2, 0x1f, 0xffffffff;",
        "=r,r,r",
        [x, tl.full(x.shape, by, tl.uint32)],
        dtype=tl.uint32,
        is_pure=False,
        pack=1,
    )
    kept = tl.where((lane & by) == 0, mask, mask << by).to(tl.uint32)
    moved = tl.where((lane & by) == 0, other << by, other >> by)
    return (x & kept) | (moved & ~kept)


@triton.jit
def _transposed(x, lane, warps: tl.constexpr, asm: tl.constexpr):
    """Bit l of lane k from bit k of lane l, in each warp."""
    if asm:
        x = _swapped(x, lane, 16, 0x0000FFFF)
        x = _swapped(x, lane, 8, 0x00FF00FF)
        x = _swapped(x, lane, 4, 0x0F0F0F0F)
        x = _swapped(x, lane, 2, 0x33333333)
        x = _swapped(x, lane, 1, 0x55555555)
    else:
        place = tl.arange(0, 32)
        bits = (tl.reshape(x, (warps, 32, 1)) >> place[None, None, :].to(tl.uint32)) & 1
        x = tl.sum(bits << place[None, :, None].to(tl.uint32), axis=1)
        x = tl.reshape(x, (warps * 32,))
    return x


@triton.jit(do_not_specialize=["dimension", "tiles", "tile_from", "capacity", "one"])
def _first(
    values, keys, scales, words, count, blocks, undecided,
    dimension, tiles, tile_from, capacity, slope, one,
    row_stride, prepared: tl.constexpr, warps: tl.constexpr,
    tail: tl.constexpr, wide: tl.constexpr, adds: tl.constexpr, turns: tl.constexpr,
    asm: tl.constexpr,
):  # fmt: skip
    """First decisions. Program (p, r) takes tiles tile_from + warps p, ... of row r.

    Beyond the last tile that is whole, a warp does that one again, and lists nothing.
    """
    row = tl.program_id(1).to(tl.int64)
    index = tl.arange(0, 32 * warps)
    lane = index % 32
    wanted = tile_from + tl.program_id(0) * warps + index // 32
    last = tiles - 1 if tail else dimension // 1024 - 1
    tile = tl.minimum(wanted, last).to(tl.int64)
    key = keys + row * prepared
    first = tile * 1024 + lane
    here = values + row * row_stride + first
    left = dimension - first  # draw k counts where 32 k < left
    scale, stddev = tl.load(scales), tl.load(scales + 1)
    counter = (tile * 32 + lane).to(tl.uint32)
    unit = tl.zeros_like(counter) + one.to(tl.uint32)
    w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = main_block(
        key, counter, unit, adds, turns
    )
    a = tl.zeros_like(counter)
    b = tl.zeros_like(counter)
    a, b = _both(a, b, w15, 15, here, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w14, 14, here, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w13, 13, here, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w12, 12, here, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w11, 11, here, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w10, 10, here, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w9, 9, here, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w8, 8, here, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w7, 7, here, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w6, 6, here, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w5, 5, here, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w4, 4, here, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w3, 3, here, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w2, 2, here, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w1, 1, here, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w0, 0, here, left, slope, scale, stddev, tail, wide, asm)
    surely, open_ = ~a, a & ~b
    if tail:
        draws = tl.minimum(tl.maximum((left + 31) // 32, 0), 32)
        real = ((tl.full(draws.shape, 1, tl.int64) << draws) - 1).to(tl.uint32)
        surely, open_ = surely & real, open_ & real
    listed = (open_ != 0) & (wanted <= last)
    slot = tl.atomic_add(count + lane * 0, 1, mask=listed, sem="relaxed")
    listed = listed & (slot < capacity)
    tl.store(blocks + slot, row * tiles * 32 + tile * 32 + lane, mask=listed)
    tl.store(undecided + slot, open_.to(tl.int32, bitcast=True), mask=listed)
    packed = _transposed(surely, lane, warps, asm)
    tl.store(words + (row * tiles + tile) * 32 + lane, packed.to(tl.int32, bitcast=True))


@triton.jit(do_not_specialize=["tiles", "capacity"])
def _second(
    values, keys, scales, words, count, blocks, undecided, hard,
    tiles, capacity, row_stride,
    prepared: tl.constexpr, programs: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Settles what is listed, 64 further random bits against q in float64."""
    scale, stddev, margin = tl.load(scales), tl.load(scales + 1), tl.load(scales + 2)
    listed = tl.minimum(tl.load(count), capacity)
    for start in range(tl.program_id(0) * width, listed, programs * width):
        slot = start + tl.arange(0, width)
        valid = slot < listed
        place = tl.load(blocks + slot, mask=valid, other=0)
        bits = tl.load(undecided + slot, mask=valid, other=0).to(tl.uint32, bitcast=True)
        row, block = place // (tiles * 32), place % (tiles * 32)
        key = keys + row * prepared
        counter = block.to(tl.uint32)
        w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = main_block(
            key, counter, counter, 0, 0
        )
        while tl.max((bits != 0).to(tl.int32), axis=0) > 0:
            lowest = bits & (~bits + 1)
            draw = _place(lowest)
            half = draw // 2
            word = w0
            word = tl.where(half == 1, w1, word)
            word = tl.where(half == 2, w2, word)
            word = tl.where(half == 3, w3, word)
            word = tl.where(half == 4, w4, word)
            word = tl.where(half == 5, w5, word)
            word = tl.where(half == 6, w6, word)
            word = tl.where(half == 7, w7, word)
            word = tl.where(half == 8, w8, word)
            word = tl.where(half == 9, w9, word)
            word = tl.where(half == 10, w10, word)
            word = tl.where(half == 11, w11, word)
            word = tl.where(half == 12, w12, word)
            word = tl.where(half == 13, w13, word)
            word = tl.where(half == 14, w14, word)
            word = tl.where(half == 15, w15, word)
            word = tl.where(draw % 2 == 1, word >> 16, word & 0xFFFF)
            coordinate = (block // 32) * 1024 + draw * 32 + block % 32
            active = bits != 0
            x = tl.load(values + row * row_stride + coordinate, mask=active, other=0.0)
            z = x.to(tl.float64) * scale / stddev
            further = extension(key, coordinate).to(tl.float64) * 5.421010862427522e-20
            uniform = (word.to(tl.float64) + further) * 1.52587890625e-05
            small = tl.exp(-2.0 * tl.abs(z))
            distance = uniform - tl.where(z > 0.0, small, 1.0) / (1.0 + small)
            one = active & (distance > margin)
            target = (row * tiles * 32) + coordinate // 32
            mark = (tl.full(word.shape, 1, tl.uint32) << (coordinate % 32).to(tl.uint32)).to(
                tl.int32, bitcast=True
            )
            tl.atomic_or(words + target, mark, mask=one, sem="relaxed")
            close = active & ~(tl.abs(distance) > margin)
            slot_hard = tl.atomic_add(count + 1 + draw * 0, 1, mask=close, sem="relaxed")
            kept = close & (slot_hard < capacity)
            tl.store(hard + 3 * slot_hard, row, mask=kept)
            tl.store(hard + 3 * slot_hard + 1, coordinate, mask=kept)
            tl.store(hard + 3 * slot_hard + 2, word.to(tl.int64), mask=kept)
            bits = bits ^ lowest


@triton.jit
def _place(lowest):
    """The number of the one bit that is set."""
    found = ((lowest & 0xAAAAAAAA) != 0).to(tl.int64)
    found += 2 * ((lowest & 0xCCCCCCCC) != 0).to(tl.int64)
    found += 4 * ((lowest & 0xF0F0F0F0) != 0).to(tl.int64)
    found += 8 * ((lowest & 0xFF00FF00) != 0).to(tl.int64)
    return found + 16 * ((lowest & 0xFFFF0000) != 0).to(tl.int64)


def sample_rows(
    rows: torch.Tensor,
    noise_stddev: float,
    keystreams: Sequence[Keystream],
    *,
    scale: float = 1.0,
    options: Options | None = None,
) -> torch.Tensor:
    """Packed bits [clients, bytes] of rows [clients, d], for tilts (row * scale)/noise_stddev.

    Each row has its own keystream. The bytes are those that `sottovoce.kernels.one_bit` gives for
    the same values and keystreams, the lowest bit of a byte first. The values are taken as they
    are: bounding them is the caller's part.
    """
    checked(rows, dimensions=2)
    clients, dimension = rows.shape
    if len(keystreams) != clients:
        raise ParameterError(
            f"{clients} rows and {len(keystreams)} keystreams: give one keystream for each row"
        )
    if clients > _MOST_ROWS or dimension > _MOST:
        raise ParameterError(f"at most {_MOST_ROWS} rows of 2^37 coordinates at once")
    parameters.positive("noise_stddev", noise_stddev)
    parameters.positive("scale", scale)
    keys = [one.spend() for one in keystreams]
    with on_device(rows):
        tiles = -(-dimension // TILE)
        words = torch.zeros((clients, 32 * tiles), dtype=torch.int32, device=rows.device)
        if words.numel():
            _fill(words, rows, keys, keystreams, (scale, noise_stddev), options or Options())
        return words.view(torch.uint8)[:, : -(-dimension // 8)]


def _fill(
    words: torch.Tensor,
    rows: torch.Tensor,
    keys: list[bytes],
    keystreams: Sequence[Keystream],
    scaling: tuple[float, float],
    options: Options,
) -> None:
    """Sets the bits of `words`, where all are 0."""
    scale, stddev = scaling
    prepared = torch.from_numpy(prepare(keys)).to(rows.device)
    scales = torch.tensor([scale, stddev, _SECOND_MARGIN], dtype=torch.float64, device=rows.device)
    capacity = 1024 + words.numel() // 64
    while True:
        found = _decide(words, rows, prepared, scales, scaling, capacity, options)
        if found is not None:
            break
        # More were undecided than is likely: again, with room for all of them.
        words.zero_()
        capacity = 32 * words.numel()
    for row, coordinate, word in found:
        tilt = float(rows[row, coordinate]) * scale / stddev
        if not math.isfinite(tilt):
            raise ParameterError(
                f"coordinate {coordinate} of row {row} is not a finite number: clean the rows first"
            )
        if exact_bit(tilt, word, coordinate, keystreams[row]):
            bit = coordinate % 32
            words[row, coordinate // 32] |= (1 << bit) if bit < 31 else -(1 << 31)


def _decide(
    words: torch.Tensor,
    rows: torch.Tensor,
    prepared: torch.Tensor,
    scales: torch.Tensor,
    scaling: tuple[float, float],
    capacity: int,
    options: Options,
) -> list[list[int]] | None:
    """Both kernels. What they leave: row, coordinate, draw; None where the lists were too short."""
    (clients, dimension), device = rows.shape, rows.device
    tiles = words.shape[1] // 32
    count = torch.zeros(2, dtype=torch.int32, device=device)
    blocks = torch.empty(capacity, dtype=torch.int64, device=device)
    undecided = torch.empty(capacity, dtype=torch.int32, device=device)
    hard = torch.empty((capacity, 3), dtype=torch.int64, device=device)
    slope = 2.0 * math.log2(math.e) / 64.0 * (scaling[0] / scaling[1])
    wide = (
        rows.dtype == torch.float64
        or not _SLOPES[0] <= slope <= _SLOPES[1]
        or not all(_SCALES[0] <= one <= _SCALES[1] for one in scaling)
    )
    full = dimension // TILE
    for tail, start, stop in ((False, 0, full), (True, full, tiles)):
        warps = 1 if tail else options.warps
        if start < stop:
            _first[(-(-(stop - start) // warps), clients)](
                rows, prepared, scales, words, count, blocks, undecided,
                dimension, tiles, start, capacity, 0.0 if wide else slope, 1, rows.stride(0),
                prepared=PREPARED, warps=warps, tail=tail, wide=wide,
                adds=options.adds, turns=options.turns, asm=rows.is_cuda,
                num_warps=warps, enable_fp_fusion=False,
            )  # fmt: skip
    _second[(_SETTLERS if rows.is_cuda else 1,)](
        rows, prepared, scales, words, count, blocks, undecided, hard,
        tiles, capacity, rows.stride(0),
        prepared=PREPARED, programs=_SETTLERS if rows.is_cuda else 1, width=_WIDTH,
        num_warps=_WIDTH // 32, enable_fp_fusion=False,
    )  # fmt: skip
    listed, left = count.tolist()
    if max(listed, left) > capacity:
        return None
    return [list(map(int, entry)) for entry in hard[:left].tolist()]
