"""Exchanges between the lanes of a warp: codes go from the order of draws to that of coordinates.

Draw k of lane l is for coordinate 32 k + l of a tile. A lane collects its 32 codes in registers,
`width` bits for each (1, 2, 4 or 8), so that draw k = per r + q, per = 32/width, is element q of
register r. After the transpose lane k has the codes of coordinates 32 k to 32 k + 31, in order.
"""

import triton
import triton.language as tl


@triton.jit
def exchanged(x, by: tl.constexpr, asm: tl.constexpr):
    """Return x (uint32) of lane ^ by. Without `asm`, the interpreter can compute it."""
    if asm:
        other = tl.inline_asm_elementwise(
            "shfl.sync.bfly.b32 $0, $1, $2, 0x1f, 0xffffffff;",
            "=r,r,r",
            [x, tl.full(x.shape, by, tl.uint32)],
            dtype=tl.uint32,
            is_pure=False,
            pack=1,
        )
    else:
        pairs = tl.reshape(x, (x.shape[0] // (2 * by), 2, by))
        both = tl.sum(pairs.to(tl.uint64), axis=1)[:, None, :] - pairs.to(tl.uint64)
        other = tl.reshape(both.to(tl.uint32), x.shape)
    return other


@triton.jit
def _inside(x, lane, by: tl.constexpr, width: tl.constexpr, asm: tl.constexpr):
    """Exchange elements of a register whose numbers differ by `by` with those of lane ^ by."""
    shift: tl.constexpr = width * by
    mask: tl.constexpr = 0xFFFFFFFF // ((1 << shift) + 1)
    other = exchanged(x, by, asm)
    low = (lane & by) == 0
    kept = tl.where(low, mask, mask << shift).to(tl.uint32)
    moved = tl.where(low, other << shift, other >> shift)
    return moved ^ ((x ^ moved) & kept)


@triton.jit
def _between(a, b, lane, by: tl.constexpr, asm: tl.constexpr):
    """Exchange the second register of the lower lane with the first of lane ^ by."""
    low = (lane & by) == 0
    got = exchanged(tl.where(low, b, a), by, asm)
    return tl.where(low, a, got), tl.where(low, got, b)


@triton.jit
def _inside_all(x, lane, width: tl.constexpr, asm: tl.constexpr):
    if width == 1:
        x = _inside(x, lane, 16, width, asm)
    if width <= 2:
        x = _inside(x, lane, 8, width, asm)
    if width <= 4:
        x = _inside(x, lane, 4, width, asm)
    x = _inside(x, lane, 2, width, asm)
    return _inside(x, lane, 1, width, asm)


@triton.jit
def _two(r, lane, by: tl.constexpr, asm: tl.constexpr):
    a, b = _between(r[0], r[1], lane, by, asm)
    return a, b


@triton.jit
def _four(r, lane, by: tl.constexpr, asm: tl.constexpr):
    a, b = _between(r[0], r[1], lane, by, asm)
    c, d = _between(r[2], r[3], lane, by, asm)
    a, c = _between(a, c, lane, 2 * by, asm)
    b, d = _between(b, d, lane, 2 * by, asm)
    return a, b, c, d


@triton.jit
def _eight(r, lane, by: tl.constexpr, asm: tl.constexpr):
    a, b, c, d = _four((r[0], r[1], r[2], r[3]), lane, by, asm)
    e, f, g, h = _four((r[4], r[5], r[6], r[7]), lane, by, asm)
    a, e = _between(a, e, lane, 4 * by, asm)
    b, f = _between(b, f, lane, 4 * by, asm)
    c, g = _between(c, g, lane, 4 * by, asm)
    d, h = _between(d, h, lane, 4 * by, asm)
    return a, b, c, d, e, f, g, h


@triton.jit
def transposed(registers, lane, width: tl.constexpr, asm: tl.constexpr):
    """Transpose the codes of each warp, `width` bits each, in a tuple of `width` registers."""
    moved = ()
    for r in tl.static_range(width):
        moved = moved + (_inside_all(registers[r], lane, width, asm),)
    if width == 2:
        moved = _two(moved, lane, 16, asm)
    if width == 4:
        moved = _four(moved, lane, 8, asm)
    if width == 8:
        moved = _eight(moved, lane, 4, asm)
    return moved


@triton.jit
def _joined(x, size: tl.constexpr, used: tl.constexpr):
    """Join adjacent fields of `size` bits, of which `used` are used, into fields of twice the size."""
    low: tl.constexpr = ((1 << used) - 1) * (0xFFFFFFFF // ((1 << (2 * size)) - 1))
    return (x & low) | ((x >> (size - used)) & (low << used))


@triton.jit
def _squeezed(x, bits: tl.constexpr, width: tl.constexpr):
    """Move the elements of a register together, of which only `bits` bits are used."""
    if bits < width:
        for step in tl.static_range(5):
            if (width << step) < 32:
                x = _joined(x, width << step, bits << step)
    return x


@triton.jit
def _shifted(x, by: tl.constexpr):
    """Return x shifted to the left, or to the right if `by` is negative; 0 if nothing is left."""
    if by <= -32 or by >= 32:
        found = tl.zeros_like(x)
    elif by >= 0:
        found = x << by
    else:
        found = x >> (-by)
    return found


@triton.jit
def store_packed(target, registers, bits: tl.constexpr, width: tl.constexpr):
    """Store 32 codes of `bits` bits, held in elements of `width` bits, as `bits` words at `target`.

    Args:
        target: The pointer of each lane.
        registers: What `transposed` returns.
        bits: The number of bits of a code, at most `width`.
        width: The number of bits of an element.
    """
    for m in tl.static_range(bits):
        word = tl.zeros_like(registers[0])
        for r in tl.static_range(width):
            squeezed = _squeezed(registers[r], bits, width)
            word = word | _shifted(squeezed, r * (32 // width * bits) - 32 * m)
        tl.store(target + m, word.to(tl.int32, bitcast=True))


@triton.jit
def place_of(lowest):
    """Return the position of the only bit that is set in a uint32; 0 if none is."""
    found = ((lowest & 0xAAAAAAAA) != 0).to(tl.int64)
    found += 2 * ((lowest & 0xCCCCCCCC) != 0).to(tl.int64)
    found += 4 * ((lowest & 0xF0F0F0F0) != 0).to(tl.int64)
    found += 8 * ((lowest & 0xFF00FF00) != 0).to(tl.int64)
    return found + 16 * ((lowest & 0xFFFF0000) != 0).to(tl.int64)


@triton.jit
def word_at(words, number):
    """Return words[number] of a tuple of sixteen, where each lane has a number of its own."""
    found = words[0]
    for j in tl.static_range(1, 16):
        found = tl.where(number == j, words[j], found)
    return found
