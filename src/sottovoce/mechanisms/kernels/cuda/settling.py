"""The second decision of codes from draws of 16 bits, with a lane for each listed block.

The block's draws are computed again; each open coordinate reads 64 bits more of its own stream and
compares them with the exact thresholds in float64.
"""

import torch
import triton
import triton.language as tl

from sottovoce.mechanisms.kernels.cuda.batch import SETTLER_LANES, SETTLERS, Batch, leave_open
from sottovoce.mechanisms.kernels.cuda.chacha import extension, load_key, main_block
from sottovoce.mechanisms.kernels.cuda.lanes import place_of, word_at
from sottovoce.mechanisms.kernels.cuda.launcher import launched
from sottovoce.mechanisms.kernels.cuda.laws import family_code, table_code
from sottovoce.mechanisms.kernels.cuda.place import numbers_on
from sottovoce.mechanisms.kernels.ladder import Law


@triton.jit
def _add_bits(codes, row_bits, coordinate, code, active, bits: tl.constexpr):
    """Set the bits of a code, which are 0 in the packed words."""
    at = coordinate * bits
    word, into = row_bits // 32 + at // 32, (at % 32).to(tl.uint32)
    low = (code.to(tl.uint32) << into).to(tl.int32, bitcast=True)
    tl.atomic_or(codes + word, low, mask=active, sem="relaxed")
    if 32 % bits != 0:
        beyond = active & (into + bits > 32)
        high = (code.to(tl.uint32) >> (32 - tl.where(beyond, into, 1))).to(tl.int32, bitcast=True)
        tl.atomic_or(codes + word + 1, high, mask=beyond, sem="relaxed")


@launched("key_at", "tiles", "capacity", "row_stride", "levels", "knots")
def settle(
    values, floats, words, scales, first_law, second_law, codes, lists,
    key_at, tiles, capacity, row_stride, levels, knots,
    bits: tl.constexpr, is_table: tl.constexpr, scaled: tl.constexpr, programs: tl.constexpr,
    width: tl.constexpr,
):  # fmt: skip
    """Decide the listed coordinates at u = (x scale - shift) factor/divisor, by their law."""
    shift, factor, divisor = tl.load(floats + 1), tl.load(floats + 2), tl.load(floats + 3)
    listed = tl.minimum(tl.load(words), capacity)
    for start in range(tl.program_id(0) * width, listed, programs * width):
        slot = start + tl.arange(0, width)
        valid = slot < listed
        place = tl.load(lists + slot, mask=valid, other=0)
        open_ = tl.load(lists + capacity + slot, mask=valid, other=0).to(tl.uint32)
        row, block = place // (tiles * 32), place % (tiles * 32)
        key_words = words + key_at + row * 8
        draws = main_block(block.to(tl.uint32), load_key(key_words, block.to(tl.uint32)))
        scale = divisor * 0.0 + 1.0
        if scaled:
            scale = tl.load(scales + row)
        while tl.max((open_ != 0).to(tl.int32), axis=0) > 0:
            lowest = open_ & (0 - open_)
            active = open_ != 0
            draw = place_of(lowest)
            word = word_at(draws, draw // 2)
            word = tl.where(draw % 2 == 1, word >> 16, word & 0xFFFF)
            coordinate = (block // 32) * 1024 + draw * 32 + block % 32
            x = tl.load(values + row * row_stride + coordinate, mask=active, other=0.0)
            u = (x.to(tl.float64) * scale - shift) * factor / divisor
            further = extension(key_words, coordinate)
            share = further.to(tl.float64) * 5.421010862427522e-20  # 2^-64
            uniform = (word.to(tl.float64) + share) * 1.52587890625e-05  # 2^-16
            if is_table:
                code, decided = table_code(u, uniform, first_law, second_law, knots, levels)
            else:
                code, decided = family_code(u, uniform, first_law, second_law, levels)
            _add_bits(codes, row * tiles * 1024 * bits, coordinate, code, active & decided, bits)
            leave_open(
                words, lists, capacity, row, coordinate, word, further, u, active & ~decided
            )  # fmt: skip
            open_ = open_ ^ lowest


def launch_settling(batch: Batch, codes: torch.Tensor, tiles: int, law: Law, *, bits: int) -> None:
    """Decide the listed coordinates by a law; their bits in `codes` must be 0.

    Args:
        batch: The rows and the lists; the first three numbers are shift, factor and divisor.
        codes: The packed codes.
        tiles: The number of tiles in a row.
        law: The distribution.
        bits: The number of bits of a code.
    """
    programs = SETTLERS if batch.rows.is_cuda else 1
    device = batch.rows.device
    first, second = (
        numbers_on(law.first.tobytes(), device),
        numbers_on(law.second.tobytes(), device),
    )
    levels = len(law.second) if not law.is_table else law.second.shape[1]
    settle[(programs,)](
        batch.rows, batch.floats, batch.words, batch.scales, first, second, codes, batch.lists,
        batch.key_at, tiles, batch.capacity, batch.rows.stride(0), levels, len(law.first),
        bits=bits, is_table=law.is_table, scaled=batch.scaled, programs=programs,
        width=SETTLER_LANES, num_warps=SETTLER_LANES // 32, enable_fp_fusion=False,
    )  # fmt: skip
