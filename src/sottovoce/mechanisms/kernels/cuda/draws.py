"""The draws of all coordinates, of 16 or 32 bits, in memory, for kernels that do little else."""

import torch
import triton
import triton.language as tl

from sottovoce.mechanisms.kernels.cuda.chacha import main_block, prepared_words

_TYPES = {16: torch.int16, 32: torch.int32}
_WARPS = 4


@triton.jit
def _store(draws, word, j: tl.constexpr, left, bits: tl.constexpr):
    """Store the draws in word j: two of 16 bits, or one of 32."""
    if bits == 16:
        low = word.to(tl.uint16).to(tl.int16, bitcast=True)
        high = (word >> 16).to(tl.uint16).to(tl.int16, bitcast=True)
        tl.store(draws + 64 * j, low, mask=left > 64 * j)
        tl.store(draws + 64 * j + 32, high, mask=left > 64 * j + 32)
    else:
        tl.store(draws + 32 * j, word.to(tl.int32, bitcast=True), mask=left > 32 * j)


@triton.jit(do_not_specialize=["dimension"])
def _draw(key, draws, dimension, bits: tl.constexpr, warps: tl.constexpr):
    """Compute a tile in each warp, with a block in each lane."""
    block = tl.program_id(0).to(tl.int64) * (32 * warps) + tl.arange(0, 32 * warps)
    first = block // 32 * (32 * 512 // bits) + block % 32
    left = dimension - first
    here = draws + first
    counter = block.to(tl.uint32)
    k0, k1, k2, k3, k4, k5, k6, k7, a1, b1, c1, d1, a2, b2, c2, d2, a3, b3, c3, d3 = prepared_words(
        key, counter
    )
    w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = main_block(
        counter, k0, k1, k2, k3, k4, k5, k6, k7,
        a1, b1, c1, d1, a2, b2, c2, d2, a3, b3, c3, d3,
    )  # fmt: skip
    _store(here, w0, 0, left, bits)
    _store(here, w1, 1, left, bits)
    _store(here, w2, 2, left, bits)
    _store(here, w3, 3, left, bits)
    _store(here, w4, 4, left, bits)
    _store(here, w5, 5, left, bits)
    _store(here, w6, 6, left, bits)
    _store(here, w7, 7, left, bits)
    _store(here, w8, 8, left, bits)
    _store(here, w9, 9, left, bits)
    _store(here, w10, 10, left, bits)
    _store(here, w11, 11, left, bits)
    _store(here, w12, 12, left, bits)
    _store(here, w13, 13, left, bits)
    _store(here, w14, 14, left, bits)
    _store(here, w15, 15, left, bits)


def compute_draws(key: torch.Tensor, count: int, bits: int) -> torch.Tensor:
    """Return the draws (the first random bits) of coordinates 0 to count - 1.

    Args:
        key: The words that `chacha.prepare` returns for one key, on the device.
        count: The number of coordinates.
        bits: The size of a draw, 16 or 32 bits.

    Returns:
        The bits that `Keystream.draws` returns for that key, as int16 or int32 on the device.
    """
    draws = torch.empty(count, dtype=_TYPES[bits], device=key.device)
    blocks = 32 * -(-count // (32 * 512 // bits))
    _draw[(-(-blocks // (32 * _WARPS)),)](
        key, draws, count, bits=bits, warps=_WARPS, num_warps=_WARPS
    )
    return draws
