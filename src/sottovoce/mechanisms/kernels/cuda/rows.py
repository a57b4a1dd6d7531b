"""The clipping and rotation of rows on a CUDA device, with the results of the CPU, bit for bit.

These are plain torch operations, one after the other, so that every product and every sum is
rounded once, in the order of `core.domains.square_sum` and of `mechanisms.rotation`. The norm of a
single row comes from a Triton kernel (`norm`), which is faster and gives the same number.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.core.domains import LEAST_SQUARES, MOST_SQUARES, Box, Domain, L2Ball
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.mechanisms.kernels.cuda.place import check_values

_LANES = 32
_TILE = _LANES * _LANES
_TOGETHER = 1 << 24  # The number of coordinates whose squares are in memory at once.

Scales = tuple[float, ...] | None


def matrix(values: torch.Tensor, dimension: int) -> torch.Tensor:
    """Return a vector or a matrix as kernels read it: contiguous rows without a gradient.

    Args:
        values: A vector, or a matrix with a vector in each row.
        dimension: The dimension that vectors must have.

    Returns:
        A matrix with a vector in each row, of the same type and on the same device.

    Raises:
        DomainError: The rows have another dimension.
        ParameterError: The values are not floating-point numbers on a CUDA device.
    """
    if values.ndim not in (1, 2) or values.shape[-1] != dimension:
        raise DomainError(
            f"expected a vector of dimension {dimension}, or rows of that dimension, got shape "
            f"{tuple(values.shape)}; flatten each contribution"
        )
    rows = values.detach().reshape(-1, dimension).contiguous()
    check_values(rows, dimensions=2)
    return rows


def clipped(rows: torch.Tensor, domain: Domain) -> tuple[torch.Tensor, Scales]:
    """Return rows, and a factor for each, whose products are what `domain.project` gives.

    The factors are None if all are 1: the rows that are returned are then clipped already. Rows
    that had to be clipped without a factor are new, in float64.

    Raises:
        DomainError: A value is NaN or infinite.
        ParameterError: The domain is neither an L2Ball nor a Box.
    """
    match domain:
        case L2Ball():
            return _in_ball(rows, domain)
        case Box():
            return _in_box(rows, domain), None
        case _:
            raise ParameterError(
                f"{type(domain).__name__} has no projection on CUDA devices; copy the rows to the "
                "CPU with .cpu()"
            )


def rotate_rows(
    rows: torch.Tensor, scales: Scales, passes: Sequence[tuple[int, NDArray[np.float64]]]
) -> torch.Tensor:
    """Return the rows, each times its factor, rotated, as a new float64 matrix.

    Args:
        rows: A matrix with a vector in each row.
        scales: A factor for each row, or None if all are 1.
        passes: The passes of a `Rotation`, in order: each multiplies the coordinates from a start
            by signs and applies a Hadamard transform to them.
    """
    wide = rows.to(torch.float64, copy=True) if scales is None else scaled(rows, scales)
    for start, signs in passes:
        size = len(signs)
        block = wide[:, start : start + size] * torch.from_numpy(signs).to(rows.device)
        wide[:, start : start + size] = _hadamard(block)
    return wide


def scaled(rows: torch.Tensor, scales: tuple[float, ...]) -> torch.Tensor:
    """Return the rows in float64, each times its scale."""
    factors = torch.tensor(scales, dtype=torch.float64, device=rows.device)
    return rows.double() * factors[:, None]


def stacked(payload: Callable[[int], torch.Tensor], count: int) -> torch.Tensor:
    """Return a matrix whose row i is payload(i), for i from 0 to count - 1."""
    return torch.stack([payload(i) for i in range(count)])


def square_sums(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares of each row in float64, as `core.domains.square_sum` gives it."""
    count, dimension = rows.shape
    together = max(1, _TOGETHER // max(1, dimension))
    if count > together:
        return torch.cat([square_sums(part) for part in torch.split(rows, together)])
    tiles = max(1, -(-dimension // _TILE))
    squares = rows.new_zeros((count, tiles * _TILE), dtype=torch.float64)
    squares[:, :dimension] = rows
    squares *= squares
    # In a tile, coordinate 32 k + l is leaf 32 l + k: first over k for each lane l, then over l.
    lanes = squares.view(count, tiles, _LANES, _LANES)
    for _ in range(5):
        lanes = lanes[:, :, 0::2] + lanes[:, :, 1::2]
    sums = lanes[:, :, 0]
    while sums.shape[2] > 1:
        sums = sums[:, :, 0::2] + sums[:, :, 1::2]
    totals = sums[:, :, 0]
    while totals.shape[1] > 1:
        if totals.shape[1] % 2:
            totals = torch.nn.functional.pad(totals, (0, 1))
        totals = totals[:, 0::2] + totals[:, 1::2]
    return totals[:, 0]


def norms(rows: torch.Tensor) -> list[float]:
    """Return the Euclidean norm of each row, the same number that `L2Ball.norm` gives.

    It is NaN for a row with a NaN. It is infinity for another row with an infinite value, or with a
    norm beyond the range of float64; that squares overflow does not matter.
    """
    found: list[float] = []
    for row, total in zip(rows, square_sums(rows).tolist(), strict=True):
        if LEAST_SQUARES <= total <= MOST_SQUARES:
            found.append(math.sqrt(total))
            continue
        unit, largest = _by_largest(row)
        if largest == 0.0 or not math.isfinite(largest):
            found.append(largest)
        else:
            found.append(largest * math.sqrt(float(square_sums(unit[None])[0])))
    return found


def _in_ball(rows: torch.Tensor, ball: L2Ball) -> tuple[torch.Tensor, Scales]:
    if len(rows) == 1:
        from sottovoce.mechanisms.kernels.cuda import norm

        row, scale = norm.clipped(rows[0], ball)
        return row[None], None if scale == 1.0 else (scale,)
    found = [ball.scale_for(one) for one in norms(rows)]
    scales = tuple(scale for scale in found if scale is not None)
    if len(scales) == len(rows):
        return rows, None if all(scale == 1.0 for scale in scales) else scales
    _check_finite(rows)
    wide = scaled(rows, tuple(1.0 if scale is None else scale for scale in found))
    for i in (i for i, scale in enumerate(found) if scale is None):
        unit, _ = _by_largest(rows[i])
        wide[i] = unit * (ball.limit / math.sqrt(float(square_sums(unit[None])[0])))
    return wide, None


def _in_box(rows: torch.Tensor, box: Box) -> torch.Tensor:
    if rows.numel():
        low, high = torch.aminmax(rows)
        # The negated condition also catches NaN.
        if not (box.lower <= float(low) and float(high) <= box.upper):
            _check_finite(rows)
            return rows.double().clamp(box.lower, box.upper)
    return rows


def _check_finite(rows: torch.Tensor) -> None:
    broken = torch.nonzero(~torch.isfinite(rows))
    if len(broken):
        row, where = broken[0].tolist()
        raise DomainError(
            f"coordinate {where} is {float(rows[row, where])}; every coordinate must be finite. "
            "If the model has diverged, lower the learning rate; if a value is missing, leave it "
            "out"
        )


def _by_largest(row: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return a row divided by its largest magnitude, and that magnitude."""
    wide = row.double()
    # A tensor, because torch divides by a Python number less exactly.
    largest = wide.abs().max()
    return wide / largest, float(largest)


def _hadamard(rows: torch.Tensor) -> torch.Tensor:
    """Return H v for each row, with butterflies in the order of `mechanisms.rotation`."""
    count, size = rows.shape
    half = 1
    while half < size:
        pairs = rows.view(count, -1, 2, half)
        below, above = pairs[:, :, 0], pairs[:, :, 1]
        rows = torch.stack((below + above, below - above), dim=2).view(count, size)
        half *= 2
    return rows * (1.0 / math.sqrt(size))
