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

The rest, about 3 of 2^16 coordinates, goes to a list of blocks and is decided by a second kernel
(`one_bit_settling`): 64 further bits of the coordinate's own stream are compared with q in float64.
Coordinates within 2^-49 even then go to the CPU, to `exact_bit`.
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
from sottovoce.mechanisms.kernels.cuda.chacha import PREPARED, main_block, prepare, prepared_words
from sottovoce.mechanisms.kernels.cuda.one_bit_settling import settle
from sottovoce.mechanisms.kernels.cuda.place import check_values, on_device
from sottovoce.mechanisms.kernels.reference.one_bit import exact_bit

TILE = 1024
_SLOPES = 2.0**-100, 2.0**100  # The range of the slope of t/64 in x, far inside float32.
_SCALES = 2.0**-200, 2.0**200  # In this range no product overflows or underflows in float64.
_SECOND_MARGIN = 2.0**-49
_MOST = 2**35  # The most coordinates of a row.
_MOST_ROWS = 65535
_SETTLERS, _WIDTH = 264, 128  # The programs of the second kernel, and their lanes.


class Options(NamedTuple):
    """The launch options of the first kernel; all give the same bits.

    Attributes:
        warps: The number of warps of a program.
        repeat: The number of tiles that a warp takes, one after the other.
    """

    warps: int = 4
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
def _exponent(x, slope, scale, stddev, wide: tl.constexpr, asm: tl.constexpr):
    """Return 2 log2(e) z, limited to [-32, 32], in float32."""
    if wide:
        t = x.to(tl.float64) * scale / stddev * 2.8853900817779268
        t = tl.minimum(tl.maximum(t, -32.0), 32.0).to(tl.float32)
    else:
        t = tl.fma(_saturated(x.to(tl.float32), slope, asm), 64.0, -32.0)
    return t


@triton.jit
def _judge(x, draw, slope, scale, stddev, wide: tl.constexpr, asm: tl.constexpr):
    """Return two margins: if the first is not negative, the bit is 1; if the second is, it is 0.

    The bits of a draw w are those of the float w 2^-149, so it needs no conversion. All is in units
    of 2^-55, with 1 + E in units of 2^94.
    """
    e = _power(_exponent(x, slope, scale, stddev, wide, asm), asm)
    f = tl.fma(e, 1.9807040628566084e28, 1.9807040628566084e28)
    return _margins(draw.to(tl.float32, bitcast=True), f, asm)


@triton.jit
def _both(
    surely, perhaps, word, j: tl.constexpr, values, left, slope, scale, stddev,
    tail: tl.constexpr, wide: tl.constexpr, asm: tl.constexpr,
):  # fmt: skip
    """Add the decisions of the two draws in word j."""
    if tail:
        late = tl.load(values + 32 * (2 * j + 1), mask=left > 32 * (2 * j + 1), other=0.0)
        early = tl.load(values + 32 * (2 * j), mask=left > 32 * (2 * j), other=0.0)
    else:
        late = tl.load(values + 32 * (2 * j + 1))
        early = tl.load(values + 32 * (2 * j))
    above1, below1 = _judge(late, word >> 16, slope, scale, stddev, wide, asm)
    above0, below0 = _judge(early, word & 0xFFFF, slope, scale, stddev, wide, asm)
    # The last bit shifted in is the lowest; a sign bit is the opposite of the decision.
    surely = (surely << 1) | (above1.to(tl.uint32, bitcast=True) >> 31)
    perhaps = (perhaps << 1) | (below1.to(tl.uint32, bitcast=True) >> 31)
    surely = (surely << 1) | (above0.to(tl.uint32, bitcast=True) >> 31)
    perhaps = (perhaps << 1) | (below0.to(tl.uint32, bitcast=True) >> 31)
    return surely, perhaps


@triton.jit
def _eight_words(
    w0, w1, w2, w3, w4, w5, w6, w7, j: tl.constexpr, a, b, values, left, slope, scale, stddev,
    tail: tl.constexpr, wide: tl.constexpr, asm: tl.constexpr,
):  # fmt: skip
    """Add the decisions of sixteen draws, from the highest."""
    a, b = _both(a, b, w7, j + 7, values, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w6, j + 6, values, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w5, j + 5, values, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w4, j + 4, values, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w3, j + 3, values, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w2, j + 2, values, left, slope, scale, stddev, tail, wide, asm)
    a, b = _both(a, b, w1, j + 1, values, left, slope, scale, stddev, tail, wide, asm)
    return _both(a, b, w0, j, values, left, slope, scale, stddev, tail, wide, asm)


@triton.jit
def _swapped(x, lane, by: tl.constexpr, mask: tl.constexpr):
    """Do one step of the transpose: exchange squares of `by` bits with those of lane ^ by."""
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
    """Transpose the bits of each warp: bit l of lane k comes from bit k of lane l."""
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


_COUNTS = ["dimension", "tiles", "tile_from", "tile_to", "capacity", "row_stride"]


@triton.jit(do_not_specialize=_COUNTS)
def _first(
    values, keys, scales, words, count, blocks, undecided,
    dimension, tiles, tile_from, tile_to, capacity, slope, row_stride,
    prepared: tl.constexpr, warps: tl.constexpr, repeat: tl.constexpr, tail: tl.constexpr,
    wide: tl.constexpr, asm: tl.constexpr,
):  # fmt: skip
    """Make the first decisions, in program (p, r) for `repeat` times `warps` tiles of row r.

    Beyond the last tile, a warp repeats the last one, and lists nothing.
    """
    row = tl.program_id(1).to(tl.int64)
    index = tl.arange(0, 32 * warps)
    lane = index % 32
    k0, k1, k2, k3, k4, k5, k6, k7, a1, b1, c1, d1, a2, b2, c2, d2, a3, b3, c3, d3 = prepared_words(
        keys + row * prepared, tl.zeros((32 * warps,), tl.uint32)
    )
    scale, stddev = tl.load(scales), tl.load(scales + 1)
    for again in range(repeat):
        wanted = tile_from + (tl.program_id(0) * repeat + again) * warps + index // 32
        tile = tl.minimum(wanted, tile_to - 1).to(tl.int64)
        first = tile * 1024 + lane
        here = values + row * row_stride + first
        left = dimension - first  # Draw k is used where 32 k < left.
        w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = main_block(
            (tile * 32 + lane).to(tl.uint32),
            k0, k1, k2, k3, k4, k5, k6, k7, a1, b1, c1, d1, a2, b2, c2, d2, a3, b3, c3, d3,
        )  # fmt: skip
        a = tl.zeros((32 * warps,), tl.uint32)
        b = tl.zeros((32 * warps,), tl.uint32)
        a, b = _eight_words(
            w8, w9, w10, w11, w12, w13, w14, w15, 8, a, b, here, left, slope, scale, stddev,
            tail, wide, asm,
        )  # fmt: skip
        a, b = _eight_words(
            w0, w1, w2, w3, w4, w5, w6, w7, 0, a, b, here, left, slope, scale, stddev,
            tail, wide, asm,
        )  # fmt: skip
        surely = ~a
        open_ = a & ~b
        if tail:
            draws = tl.minimum(tl.maximum((left + 31) // 32, 0), 32)
            real = ((tl.full(draws.shape, 1, tl.int64) << draws) - 1).to(tl.uint32)
            surely = surely & real
            open_ = open_ & real
        listed = (open_ != 0) & (wanted < tile_to)
        slot = tl.atomic_add(count + lane * 0, 1, mask=listed, sem="relaxed")
        listed = listed & (slot < capacity)
        tl.store(blocks + slot, (row * tiles + tile) * 32 + lane, mask=listed)
        tl.store(undecided + slot, open_.to(tl.int32, bitcast=True), mask=listed)
        packed = _transposed(surely, lane, warps, asm)
        tl.store(words + (row * tiles + tile) * 32 + lane, packed.to(tl.int32, bitcast=True))


def sample_rows(
    rows: torch.Tensor,
    noise_stddev: float,
    keystreams: Sequence[Keystream],
    *,
    scale: float = 1.0,
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
        scale: The factor of the values.
        options: The launch options.

    Returns:
        A matrix of bytes with a payload in each row.

    Raises:
        ParameterError: Rows and keystreams differ in number, there are too many, the kernels cannot
            read the rows, or a value that reached the last decision is not finite.
        RandomnessError: A keystream was used before.
    """
    check_values(rows, dimensions=2)
    clients, dimension = rows.shape
    if len(keystreams) != clients:
        raise ParameterError(
            f"there are {clients} rows and {len(keystreams)} keystreams; give one for each row"
        )
    if clients > _MOST_ROWS or dimension > _MOST:
        raise ParameterError(
            f"rows must be at most {_MOST_ROWS} of at most 2^35 coordinates, got {clients} of "
            f"{dimension}; split them"
        )
    parameter_rules.positive("noise_stddev", noise_stddev)
    parameter_rules.positive("scale", scale)
    keys = [one.spend() for one in keystreams]
    if not rows.numel():
        return torch.empty((clients, 0), dtype=torch.uint8, device=rows.device)
    with on_device(rows):
        drawing = Drawing(rows, keys, scale, noise_stddev, options or Options())
        drawing.start()
        while not drawing.complete():
            drawing.enlarge_lists()
            drawing.start()
        words = drawing.words
        for row, coordinate, draw in drawing.left():
            tilt = float(rows[row, coordinate]) * scale / noise_stddev
            if not math.isfinite(tilt):
                raise ParameterError(
                    f"coordinate {coordinate} of row {row} must be a finite number; leave out "
                    "rows with missing values"
                )
            if exact_bit(tilt, draw, coordinate, keystreams[row]):
                place = coordinate % 32
                words[row, coordinate // 32] |= (1 << place) if place < 31 else -(1 << 31)
    return words.view(torch.uint8)[:, : -(-dimension // 8)]


class Drawing:
    """The two kernels that draw one-bit codes, and the buffers that they write to.

    The first kernel decides nearly all bits and lists the others; the second decides those by 64
    further random bits, and lists what is undecided even then. The lists have a limited length.

    Attributes:
        words: The packed bits, 32 in each int32, with a row for each client.
    """

    def __init__(
        self, rows: torch.Tensor, keys: list[bytes], scale: float, stddev: float, options: Options
    ) -> None:
        (clients, dimension), device = rows.shape, rows.device
        self._rows, self._options = rows, options
        self._tiles = -(-dimension // TILE)
        self.words = torch.empty((clients, 32 * self._tiles), dtype=torch.int32, device=device)
        # All in one copy to the device: three numbers in float64, two counters, the keys.
        head = np.array([scale, stddev, _SECOND_MARGIN, 0.0]).view(np.int32)
        given = torch.from_numpy(np.concatenate([head, prepare(keys).reshape(-1)])).to(device)
        self._scales, self._count, self._keys = given[:6].view(torch.float64), given[6:8], given[8:]
        slope = 2.0 * math.log2(math.e) / 64.0 * (scale / stddev)
        self._wide = (
            rows.dtype == torch.float64
            or not _SLOPES[0] <= slope <= _SLOPES[1]
            or not all(_SCALES[0] <= one <= _SCALES[1] for one in (scale, stddev))
        )
        self._slope = 0.0 if self._wide else slope
        self._make_lists(1024 + self.words.numel() // 64)

    def _make_lists(self, capacity: int) -> None:
        device = self._rows.device
        self._capacity = capacity
        self._blocks = torch.empty(capacity, dtype=torch.int64, device=device)
        self._undecided = torch.empty(capacity, dtype=torch.int32, device=device)
        self._hard = torch.empty((capacity, 3), dtype=torch.int64, device=device)

    def start(self) -> None:
        """Launch both kernels without waiting for them; bits and lists are written from scratch."""
        rows, options = self._rows, self._options
        clients, dimension = rows.shape
        self._count.zero_()
        full = dimension // TILE
        for tail, start, stop in ((False, 0, full), (True, full, self._tiles)):
            warps, repeat = (1, 1) if tail else (options.warps, options.repeat)
            if start < stop:
                _first[(-(-(stop - start) // (warps * repeat)), clients)](
                    rows, self._keys, self._scales, self.words, self._count,
                    self._blocks, self._undecided, dimension, self._tiles, start, stop,
                    self._capacity, self._slope, rows.stride(0),
                    prepared=PREPARED, warps=warps, repeat=repeat, tail=tail, wide=self._wide,
                    asm=rows.is_cuda,
                    num_warps=warps, enable_fp_fusion=False,
                )  # fmt: skip
        settlers = _SETTLERS if rows.is_cuda else 1
        settle[(settlers,)](
            rows, self._keys, self._scales, self.words, self._count,
            self._blocks, self._undecided, self._hard, self._tiles, self._capacity, rows.stride(0),
            prepared=PREPARED, programs=settlers, width=_WIDTH,
            num_warps=_WIDTH // 32, enable_fp_fusion=False,
        )  # fmt: skip

    def complete(self) -> bool:
        """Wait for the kernels, and return whether the lists were long enough for all entries.

        If not, enlarge the lists and start again.
        """
        listed, self._left = map(int, self._count.tolist())
        return max(listed, self._left) <= self._capacity

    def enlarge_lists(self) -> None:
        """Replace the lists by ones that can hold all coordinates."""
        self._make_lists(32 * self.words.numel())

    def left(self) -> list[tuple[int, int, int]]:
        """Return (row, coordinate, draw) of each bit that the second kernel left undecided.

        Call it after `complete` has returned True. These bits are 0 in `words`.
        """
        return [(row, i, draw) for row, i, draw in self._hard[: self._left].tolist()]
