"""The second decision of one-bit codes on a CUDA device, with a lane for each listed block.

The block's draws are computed again; each undecided coordinate reads 64 bits more of its own stream
and compares them with q = 1/(1 + e^(2z)) in float64. Coordinates within `margin` even then are
listed for the CPU.
"""

import triton
import triton.language as tl

from sottovoce.mechanisms.kernels.cuda.chacha import extension, main_block, prepared_words


@triton.jit(do_not_specialize=["tiles", "capacity", "row_stride"])
def settle(
    values, keys, scales, words, count, blocks, undecided, hard,
    tiles, capacity, row_stride,
    prepared: tl.constexpr, programs: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Decide the listed coordinates by 64 further random bits, compared in float64.

    A bit is 1 if the uniform number is above q = 1/(1 + e^(2z)), z = x scale/stddev. It is set in
    `words`; coordinates too close to q go to the list `hard` as (row, coordinate, draw).
    """
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
        k0, k1, k2, k3, k4, k5, k6, k7, a1, b1, c1, d1, a2, b2, c2, d2, a3, b3, c3, d3 = (
            prepared_words(key, counter)
        )
        w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = main_block(
            counter, k0, k1, k2, k3, k4, k5, k6, k7,
            a1, b1, c1, d1, a2, b2, c2, d2, a3, b3, c3, d3,
        )  # fmt: skip
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
    """Return the position of the only bit that is set."""
    found = ((lowest & 0xAAAAAAAA) != 0).to(tl.int64)
    found += 2 * ((lowest & 0xCCCCCCCC) != 0).to(tl.int64)
    found += 4 * ((lowest & 0xF0F0F0F0) != 0).to(tl.int64)
    found += 8 * ((lowest & 0xFF00FF00) != 0).to(tl.int64)
    return found + 16 * ((lowest & 0xFFFF0000) != 0).to(tl.int64)
