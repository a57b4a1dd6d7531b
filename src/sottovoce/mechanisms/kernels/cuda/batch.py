"""The inputs of a kernel besides the rows, copied to the device at once, and its list of the rest.

The rest: coordinates so close to a threshold that float64 does not decide them. A kernel lists
them, about one in 2^40, and the CPU decides.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Keystream, spend_all
from sottovoce.mechanisms.kernels.cuda.chacha import key_words
from sottovoce.mechanisms.kernels.cuda.packing import pack
from sottovoce.mechanisms.kernels.cuda.place import check_values

Scales = tuple[float, ...] | torch.Tensor | None

_LISTED = 1024  # The number of coordinates for which the list has space at first.
_MOST_ROWS = 65535
_NOTHING = np.empty((0, 3), dtype=np.int64)


class Batch:
    """Rows with their keys and factors, and the list of coordinates that a kernel leaves to the CPU.

    Attributes:
        rows: A matrix with a vector in each row.
        keys: The words of the key of each row.
        scales: The factor of each row in float64; any float64 tensor if all are 1.
        scaled: Whether there are factors.
        numbers: The numbers for the kernel, in float64.
        count: The number of coordinates that the kernel leaves to the CPU, in a tensor.
        listed: Row, coordinate and draw of each of them, as far as they fit.
    """

    def __init__(
        self,
        rows: torch.Tensor,
        keystreams: Sequence[Keystream],
        scales: Scales,
        numbers: Sequence[float],
        *,
        most: int,
    ) -> None:
        """Check the rows, use up the keystreams and copy keys, factors and numbers to the device.

        `most` is the largest number of coordinates of a row for which a key has draws.
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
        self.rows, self._keystreams = rows, keystreams
        given = () if scales is None or isinstance(scales, torch.Tensor) else scales
        floats = np.array([*numbers, *given, 0.0])  # The last one holds the count.
        words = np.concatenate(
            [floats.view(np.int32), key_words(spend_all(keystreams)).reshape(-1)]
        )
        placed = torch.from_numpy(words).to(rows.device, non_blocking=True)
        wide = placed[: 2 * len(floats)].view(torch.float64)
        self.numbers, self.count = wide, placed[2 * len(floats) - 2 : 2 * len(floats)]
        self.keys = placed[2 * len(floats) :]
        self.scaled = scales is not None
        self.scales = scales if isinstance(scales, torch.Tensor) else wide[len(numbers) :]
        self._make_list(_LISTED)

    def _make_list(self, capacity: int) -> None:
        self.capacity = capacity
        self.listed = torch.empty((capacity, 3), dtype=torch.int64, device=self.rows.device)

    def run(self, launch: Callable[[], None]) -> NDArray[np.int64]:
        """Launch kernels and wait; return rows (row, coordinate, draw) of what they leave undecided.

        `launch` writes all codes and the list from scratch; if the list is too short, it is
        called again with a longer one.
        """
        while True:
            launch()
            found = int(self.count[0])
            if found <= self.capacity:
                break
            self._make_list(found)
            self.count.zero_()
        left: NDArray[np.int64] = self.listed[:found].cpu().numpy() if found else _NOTHING
        return left

    def values(self, row: int, coordinates: NDArray[np.int64]) -> Vector:
        """Return values times the factor of their row, in float64, on the CPU."""
        places = torch.from_numpy(coordinates).to(self.rows.device)
        values: Vector = self.rows[row, places].double().cpu().numpy()
        return values * float(self.scales[row]) if self.scaled else values

    def value(self, row: int, coordinate: int) -> float:
        """Return a value times the factor of its row, in float64."""
        return float(self.values(row, np.array([coordinate]))[0])

    def keystream(self, row: int) -> Keystream:
        return self._keystreams[row]


@triton.jit
def leave_open(count, listed, capacity, row, coordinate, word, open_):
    """List coordinates and their draws where `open_`; `count` grows by all of them."""
    slot = tl.atomic_add(count + (word * 0).to(tl.int32), 1, mask=open_, sem="relaxed")
    fits = open_ & (slot < capacity)
    tl.store(listed + 3 * slot, row + coordinate * 0, mask=fits)
    tl.store(listed + 3 * slot + 1, coordinate, mask=fits)
    tl.store(listed + 3 * slot + 2, word.to(tl.int64), mask=fits)


def write_code(payloads: torch.Tensor, row: int, coordinate: int, code: int, bits: int) -> None:
    """Replace the code of one coordinate in packed rows (uint8)."""
    for k in range(bits):
        at = coordinate * bits + k
        rest = int(payloads[row, at // 8]) & ~(1 << at % 8)
        payloads[row, at // 8] = rest | ((code >> k) & 1) << at % 8


def encode_on_cpu(
    rows: torch.Tensor,
    scales: Scales,
    keystreams: Sequence[Keystream],
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
