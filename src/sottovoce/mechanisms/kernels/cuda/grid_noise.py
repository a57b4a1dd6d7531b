"""Rounded noise on a CUDA device: round((x + noise)/step) from 32 random bits.

The bits are a sign and 31 bits h of a tail probability. The noise at the tail
v = (h + something in [0, 1)) 2^-32 lies between chord(h + 1) - error and chord(h), where
`mechanisms/noise/rounded.py` gives the chords over cells of h. If both ends, with x added, round to
the same grid point, that point is the code. All is computed in float64, with the operations of the
C kernel.
"""

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.kernels.cuda.chacha import prepare
from sottovoce.mechanisms.kernels.cuda.draws import compute_draws
from sottovoce.mechanisms.kernels.cuda.place import check_values, on_device
from sottovoce.mechanisms.kernels.cuda.undecided import (
    UndecidedBuffer,
    UndecidedCoordinates,
    list_undecided,
)

_TOGETHER = 512
_MOST = 2**34  # The number of coordinates for which one keystream has draws.
_COLUMNS = 4  # The columns of the chords: value, slope, error, and one that is not used.


class Clip(NamedTuple):
    """The map min(max(x scale, lower), upper) - middle, rounded to float64 after each step."""

    scale: float = 1.0
    lower: float = -np.inf
    upper: float = np.inf
    middle: float = 0.0

    def __call__(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.clip(x * self.scale, self.lower, self.upper) - self.middle


@triton.jit
def _rounded(x):
    """Return x rounded to an integer, to even at ties, by adding 1.5 2^52."""
    return (x + 6755399441055744.0) - 6755399441055744.0


@triton.jit(do_not_specialize=["dimension", "capacity"])
def _add_noise(
    values, draws, codes, chords, numbers, count, coordinates, words, dimension, capacity,
    cell_bits: tl.constexpr, least_bits: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Store the codes, and list the coordinates whose draws do not decide.

    There are 2^cell_bits cells in each octave of h, found in the bits of h as a float64; an h below
    2^least_bits decides nothing.
    """
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    real = i < dimension
    scale, lower, upper = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    middle, per_unit, slack = tl.load(numbers + 3), tl.load(numbers + 4), tl.load(numbers + 5)
    x = tl.load(values + i, mask=real, other=0.0).to(tl.float64) * scale
    x = tl.where(x > lower, tl.where(x < upper, x, upper), lower) - middle
    word = tl.load(draws + i, mask=real, other=0).to(tl.uint32, bitcast=True)
    tail = (word >> 1).to(tl.int32)
    large = tail >= (1 << least_bits)
    h = tl.where(large, tail, 1 << least_bits).to(tl.float64)
    spelled = h.to(tl.int64, bitcast=True)
    cell = (spelled >> (52 - cell_bits)) - ((1023 + least_bits) << cell_bits)
    start = ((spelled >> (52 - cell_bits)) << (52 - cell_bits)).to(tl.float64, bitcast=True)
    chord = chords + 4 * cell
    slope = tl.load(chord + 1)
    far = tl.load(chord) + slope * (h - start)
    near = far + slope - tl.load(chord + 2)
    # Negative noise at x is positive noise at -x, mirrored.
    negative = (word & 1) == 1
    place = tl.where(negative, -x, x) * per_unit
    low = _rounded(place + near - slack)
    high = _rounded(place + far + slack)
    code = tl.where(negative, -high, high)
    tl.store(codes + i, code.to(tl.int32), mask=real)
    sure = (low == high) & large
    list_undecided(count, coordinates, words, capacity, i, word, real & ~sure)


def sample_grid(
    values: torch.Tensor,
    clip: Clip,
    chords: NDArray[np.float64],
    cell_bits: int,
    least_bits: int,
    step: float,
    slack: float,
    keystream: Keystream,
) -> tuple[torch.Tensor, UndecidedCoordinates]:
    """Return round((clip(x) + noise)/step), and the coordinates that the caller must decide.

    Args:
        values: The vector x.
        clip: The clipping of x.
        chords: The table of noise quantiles that `mechanisms.noise.rounded.chords` returns.
        cell_bits: The binary logarithm of the number of cells in each octave of that table.
        least_bits: The binary logarithm of the smallest 31-bit tail that decides.
        step: The distance of grid points.
        slack: A bound on the rounding errors of float64, in steps.
        keystream: The randomness; it is used up.

    Returns:
        The codes (int32, on the device), and the undecided coordinates, whose codes the caller must
        replace.

    Raises:
        ParameterError: The values are no vector that the kernels can read, or there are none or
            more than 2^34 of them.
        RandomnessError: The keystream was used before.
    """
    check_values(values, dimensions=1)
    dimension, device = values.shape[0], values.device
    if not 0 < dimension <= _MOST:
        raise ParameterError(f"a vector must have 1 to {_MOST} coordinates, got {dimension}")
    with on_device(values):
        key = torch.from_numpy(prepare([keystream.spend()])).to(device)
        draws = compute_draws(key, dimension, 32)
        table = torch.from_numpy(np.array(chords, dtype=np.float64).reshape(-1, _COLUMNS)).to(
            device
        )
        numbers = torch.tensor([*clip, 1.0 / step, slack], dtype=torch.float64, device=device)
        codes = torch.empty(dimension, dtype=torch.int32, device=device)
        capacity = min(dimension, 1024 + dimension // 1024)
        while True:
            undecided = UndecidedBuffer(capacity, device)
            _add_noise[(-(-dimension // _TOGETHER),)](
                values, draws, codes, table, numbers, undecided.count, undecided.coordinates,
                undecided.words, dimension, capacity, cell_bits=cell_bits, least_bits=least_bits,
                block=_TOGETHER, num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip
            left = undecided.left(values, key)
            if left is not None:
                return codes, left
            capacity = dimension
