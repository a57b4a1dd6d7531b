"""What the kernels for codes and grid noise share: draws of 16 or 32 bits, and what is left open.

What a kernel leaves open, the CPU decides.
"""

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from sottovoce.core.randomness import Spelled
from sottovoce.mechanisms.kernels.cuda.chacha import extension, main_block, prepared_words

_BLOCK = 128


class Left(NamedTuple):
    """The coordinates left open: their values, exactly, and their uniform numbers."""

    values: NDArray[np.float64]
    spelled: Spelled


class Room:
    """Where a kernel lists coordinates and their draws, as many as fit, and counts all."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.capacity = capacity
        self.count = torch.zeros(1, dtype=torch.int32, device=device)
        self.coordinates = torch.empty(capacity, dtype=torch.int64, device=device)
        self.words = torch.empty(capacity, dtype=torch.int32, device=device)

    def left(self, values: torch.Tensor, key: torch.Tensor) -> Left | None:
        """What was listed; None if it did not fit. Waits for the kernel."""
        found = int(self.count)
        if found > self.capacity:
            return None
        coordinates, words = self.coordinates[:found], self.words[:found]
        further = torch.empty(found, dtype=torch.int64, device=values.device)
        if found:
            _read_on[(-(-found // _BLOCK),)](
                key, coordinates, further, found, block=_BLOCK, num_warps=4
            )
        return Left(
            values[coordinates].double().cpu().numpy(),
            Spelled(
                coordinates.cpu().numpy(),
                words.cpu().numpy().view(np.uint32),
                further.cpu().numpy().view(np.uint64),
            ),
        )


@triton.jit
def listed(count, coordinates, words, capacity, i, word, unsure):
    """Lists coordinates i and their draws where they are unsure."""
    slot = tl.atomic_add(count + (i * 0).to(tl.int32), 1, mask=unsure, sem="relaxed")
    fits = unsure & (slot < capacity)
    tl.store(coordinates + slot, i, mask=fits)
    tl.store(words + slot, word.to(tl.int32, bitcast=True), mask=fits)


@triton.jit(do_not_specialize=["count"])
def _read_on(key, coordinates, further, count, block: tl.constexpr):
    """The 64 bits that each of these coordinates reads on with."""
    slot = tl.program_id(0) * block + tl.arange(0, block)
    real = slot < count
    at = tl.load(coordinates + slot, mask=real, other=0)
    tl.store(further + slot, extension(key, at).to(tl.int64, bitcast=True), mask=real)


_TYPES = {16: torch.int16, 32: torch.int32}
_WARPS = 4


@triton.jit
def _store(draws, word, j: tl.constexpr, left, bits: tl.constexpr):
    """The draws of word j: two of 16 bits, or one of 32."""
    if bits == 16:
        low = word.to(tl.uint16).to(tl.int16, bitcast=True)
        high = (word >> 16).to(tl.uint16).to(tl.int16, bitcast=True)
        tl.store(draws + 64 * j, low, mask=left > 64 * j)
        tl.store(draws + 64 * j + 32, high, mask=left > 64 * j + 32)
    else:
        tl.store(draws + 32 * j, word.to(tl.int32, bitcast=True), mask=left > 32 * j)


@triton.jit(do_not_specialize=["dimension"])
def _draw(key, draws, dimension, bits: tl.constexpr, warps: tl.constexpr):
    """A tile for each warp, a block for each lane."""
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


def drawn(key: torch.Tensor, count: int, bits: int) -> torch.Tensor:
    """The draws of coordinates 0 to count - 1 from a prepared key, as signed integers."""
    draws = torch.empty(count, dtype=_TYPES[bits], device=key.device)
    blocks = 32 * -(-count // (32 * 512 // bits))
    _draw[(-(-blocks // (32 * _WARPS)),)](
        key, draws, count, bits=bits, warps=_WARPS, num_warps=_WARPS
    )
    return draws
