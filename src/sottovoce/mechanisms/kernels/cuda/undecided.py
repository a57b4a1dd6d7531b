"""The coordinates that a kernel leaves undecided, with what the CPU needs to decide them."""

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from sottovoce.core.randomness import ExtendedDraws
from sottovoce.mechanisms.kernels.cuda.chacha import extension

_BLOCK = 128


class UndecidedCoordinates(NamedTuple):
    """The undecided coordinates of a kernel, in the CPU's memory.

    Attributes:
        values: The inputs of the kernel at these coordinates, which float64 holds exactly.
        spelled: The coordinates, their draws, and 64 further random bits of each.
    """

    values: NDArray[np.float64]
    spelled: ExtendedDraws


class UndecidedBuffer:
    """A buffer in which a kernel lists undecided coordinates and their draws, and counts them all.

    If there are more than `capacity`, only the count is complete.

    Attributes:
        capacity: The number of coordinates that fit.
        count: The number of undecided coordinates, in a tensor.
        coordinates: The listed coordinates, in any order.
        words: The draw of each listed coordinate.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.capacity = capacity
        self.count = torch.zeros(1, dtype=torch.int32, device=device)
        self.coordinates = torch.empty(capacity, dtype=torch.int64, device=device)
        self.words = torch.empty(capacity, dtype=torch.int32, device=device)

    def left(self, values: torch.Tensor, key: torch.Tensor) -> UndecidedCoordinates | None:
        """Wait for the kernel, and return the listed coordinates, or None if they did not fit.

        Args:
            values: The inputs of the kernel.
            key: The words that `chacha.prepare` returns for the key, from which 64 further bits of
                each coordinate are computed.
        """
        found = int(self.count)
        if found > self.capacity:
            return None
        coordinates, words = self.coordinates[:found], self.words[:found]
        further = torch.empty(found, dtype=torch.int64, device=values.device)
        if found:
            _read_on[(-(-found // _BLOCK),)](
                key, coordinates, further, found, block=_BLOCK, num_warps=4
            )
        return UndecidedCoordinates(
            values[coordinates].double().cpu().numpy(),
            ExtendedDraws(
                coordinates.cpu().numpy(),
                words.cpu().numpy().view(np.uint32),
                further.cpu().numpy().view(np.uint64),
            ),
        )


@triton.jit
def list_undecided(count, coordinates, words, capacity, i, word, unsure):
    """Append coordinates i and their draws `word`, where `unsure`, to the lists of a buffer.

    `count` grows by all of them; those beyond `capacity` are not stored.
    """
    slot = tl.atomic_add(count + (i * 0).to(tl.int32), 1, mask=unsure, sem="relaxed")
    fits = unsure & (slot < capacity)
    tl.store(coordinates + slot, i, mask=fits)
    tl.store(words + slot, word.to(tl.int32, bitcast=True), mask=fits)


@triton.jit(do_not_specialize=["count"])
def _read_on(key, coordinates, further, count, block: tl.constexpr):
    """Store the first 64 bits of the extension of each of these coordinates."""
    slot = tl.program_id(0) * block + tl.arange(0, block)
    real = slot < count
    at = tl.load(coordinates + slot, mask=real, other=0)
    tl.store(further + slot, extension(key, at).to(tl.int64, bitcast=True), mask=real)
