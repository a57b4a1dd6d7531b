"""What a kernel reads in addition to the rows, in one copy, and what it leaves open.

A first kernel decides nearly all coordinates and lists the blocks of the keystream with others; a
second one decides those by further random bits, and lists the few, about one in 2^40, that float64
does not decide. These the CPU decides.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import ExtendedDraws, Keystream, spend_all
from sottovoce.mechanisms.kernels.cuda.packing import pack
from sottovoce.mechanisms.kernels.cuda.place import check_values

Scales = tuple[float, ...] | torch.Tensor | None

SETTLERS, SETTLER_LANES = 264, 128  # The programs of a second kernel, and their lanes.
_MOST_ROWS = 65535
_LEAST_CAPACITY = 256
_COLUMNS = 5  # Of the list for the CPU: row, coordinate, draw, 64 further bits, value.


class Batch:
    """Rows with their keys and factors, and the lists of what kernels leave open.

    Attributes:
        rows: A matrix with a vector in each row.
        floats: Numbers in float64, the first of them in the second place.
        words: The same memory in int32: two counters (listed blocks, coordinates for the CPU), the
            numbers, and from `key_at` on the keys.
        key_at: The place of the first key.
        scales: The factor of each row in float64; any float64 tensor if all are 1.
        scaled: Whether there are factors.
        capacity: The number of blocks, and of coordinates, that fit into the lists.
        blocks: The listed blocks: the number of each.
        masks: The draws of these blocks that are open.
    """

    def __init__(
        self,
        rows: torch.Tensor,
        keystreams: Sequence[Keystream],
        scales: Scales,
        numbers: Sequence[float],
        *,
        most: int,
        listed: int,
    ) -> None:
        """Check the rows, use up the keystreams and copy keys, factors and numbers to the device.

        Args:
            rows: The rows.
            keystreams: One for each row.
            scales: The factor of each row, or None if all are 1.
            numbers: The numbers for the kernels.
            most: The largest number of coordinates of a row for which a key has draws.
            listed: The number of blocks that the list should hold.
        """
        check_values(rows, dimensions=2)
        clients, dimension = rows.shape
        if len(keystreams) != clients:
            raise ParameterError(
                f"there are {clients} rows and {len(keystreams)} keystreams; give one for each row"
            )
        if clients > _MOST_ROWS or dimension > most:
            raise ParameterError(
                f"rows must be at most {_MOST_ROWS} of at most {most} coordinates, got {clients} "
                f"of {dimension}; split them"
            )
        self.rows = rows
        self.scaled, given = scales is not None, list(numbers)
        if scales is not None and not isinstance(scales, torch.Tensor):
            given += scales
        content = bytearray(array("d", (0.0, *given)))
        self.key_at = len(content) // 4
        content += spend_all(keystreams).tobytes()
        placed = torch.frombuffer(content, dtype=torch.float64)
        self.floats = placed.to(rows.device, non_blocking=True)
        self.words = self.floats.view(torch.int32)
        self.scales = scales if isinstance(scales, torch.Tensor) else self.floats
        if isinstance(scales, tuple):
            self.scales = self.floats[1 + len(numbers) :]
        self._make_lists(_LEAST_CAPACITY + listed)

    def _make_lists(self, capacity: int) -> None:
        self.capacity = capacity
        self._lists = torch.empty(
            (_COLUMNS + 2, capacity), dtype=torch.int64, device=self.rows.device
        )

    @property
    def lists(self) -> torch.Tensor:
        """Columns of the length `capacity`: blocks, their open draws, and those for the CPU."""
        return self._lists

    def run(self, launch: Callable[[], None]) -> list["Rest"]:
        """Launch kernels, wait, and return what they leave to the CPU, for each row that has some.

        `launch` writes all codes and the lists from scratch; if a list is too short, it is called
        again with longer ones. Within `reading_later` it does not wait, and returns nothing.
        """
        later = _later.get()
        if later is not None:
            launch()
            later.add(self.words, self.capacity)
            return []
        while True:
            launch()
            listed, found = _listed(self.words)
            if max(listed, found) <= self.capacity:
                break
            self._make_lists(max(listed, found))
            self.words[:2] = 0
        if not found:
            return []
        left = self._lists[2:, :found].cpu().numpy()
        return [Rest(left[:, left[0] == row]) for row in np.unique(left[0])]


def _listed(words: torch.Tensor) -> tuple[int, int]:
    """Wait, and return how many blocks were listed, and how many coordinates for the CPU."""
    both = int(words[:2].view(torch.int64))
    return both & 0xFFFFFFFF, both >> 32


class Unread:
    """The counters of batches that are still to be read; see `reading_later`."""

    def __init__(self) -> None:
        self._batches: list[tuple[torch.Tensor, int]] = []

    def add(self, words: torch.Tensor, capacity: int) -> None:
        """Keep the counters of a batch with lists of that length."""
        self._batches.append((words, capacity))

    def all_decided(self) -> bool:
        """Wait, and return whether the kernels decided all codes, so that all are right."""
        listed = [(*_listed(words), capacity) for words, capacity in self._batches]
        return all(blocks <= capacity and not rest for blocks, rest, capacity in listed)


_later: ContextVar[Unread | None] = ContextVar("later", default=None)


@contextmanager
def reading_later() -> Iterator[Unread]:
    """Encode without waiting for the device, within a `with` block, for sums that can be repeated.

    The codes are right only if `all_decided` of what is yielded is true afterwards, as it nearly
    always is. Otherwise the caller must discard them, and encode the same inputs again outside.
    """
    unread = Unread()
    token = _later.set(unread)
    try:
        yield unread
    finally:
        _later.reset(token)


class Rest:
    """The coordinates of a row that are left to the CPU.

    Attributes:
        row: The row.
        values: What the last kernel compared with thresholds: the value times its factor, mapped.
        spelled: The coordinates, their draws, and 64 further random bits of each.
    """

    def __init__(self, columns: NDArray[np.int64]) -> None:
        """Take the columns of the list, all of one row."""
        self.row = int(columns[0, 0])
        self.values: Vector = columns[4].view(np.float64)
        words, further = columns[2].astype(np.uint32), columns[3].view(np.uint64)
        self.spelled = ExtendedDraws(columns[1], words, further)

    def places(self) -> tuple[list[float], list[int], list[int]]:
        """Return values, coordinates and draws."""
        coordinates, words, _ = self.spelled
        return self.values.tolist(), coordinates.tolist(), words.tolist()


@triton.jit
def list_blocks(words, lists, capacity, block, open_):
    """List blocks with the mask of their open draws, where that is not 0."""
    listed = open_ != 0
    slot = tl.atomic_add(words + (block * 0).to(tl.int32), 1, mask=listed, sem="relaxed")
    fits = listed & (slot < capacity)
    tl.store(lists + slot, block, mask=fits)
    tl.store(lists + capacity + slot, open_.to(tl.int64), mask=fits)


@triton.jit
def leave_open(words, lists, capacity, row, coordinate, draw, further, value, open_):
    """List coordinates for the CPU, with draw, 64 further bits and value, where `open_`."""
    slot = tl.atomic_add(words + 1 + (draw * 0).to(tl.int32), 1, mask=open_, sem="relaxed")
    fits = open_ & (slot < capacity)
    place = lists + 2 * capacity + slot
    tl.store(place, row + coordinate * 0, mask=fits)
    tl.store(place + capacity, coordinate, mask=fits)
    tl.store(place + 2 * capacity, draw.to(tl.int64), mask=fits)
    tl.store(place + 3 * capacity, further.to(tl.int64, bitcast=True), mask=fits)
    tl.store(place + 4 * capacity, value.to(tl.int64, bitcast=True), mask=fits)


def write_code(payloads: torch.Tensor, row: int, coordinate: int, code: int, bits: int) -> None:
    """Replace the code of one coordinate in packed rows (uint8)."""
    for k in range(bits):
        at = coordinate * bits + k
        rest = int(payloads[row, at // 8]) & ~(1 << at % 8)
        payloads[row, at // 8] = rest | ((code >> k) & 1) << at % 8


def encode_on_cpu(
    rows: torch.Tensor,
    keystreams: Sequence[Keystream],
    scales: Scales,
    encoded: Callable[[Vector, Keystream], NDArray[np.uint8]],
    bits: int,
) -> torch.Tensor:
    """Return the packed codes that `encoded` returns for each row on the CPU, on the device."""
    wide = rows.double()
    if scales is not None:
        factors = torch.as_tensor(scales, dtype=torch.float64, device=rows.device)
        wide = wide * factors[:, None]
    packed = [
        pack(torch.from_numpy(encoded(row, keystream)).to(rows.device), bits)
        for row, keystream in zip(wide.cpu().numpy(), keystreams, strict=True)
    ]
    return torch.stack(packed)
