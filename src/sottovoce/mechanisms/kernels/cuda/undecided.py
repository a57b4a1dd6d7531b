"""What a kernel leaves open, and what the CPU needs to decide it."""

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from sottovoce.core.randomness import Spelled
from sottovoce.mechanisms.kernels.cuda.chacha import extension

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
