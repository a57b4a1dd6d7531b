"""The clipping of rows on a CUDA device, with the results of the CPU, bit for bit."""

import math
from collections.abc import Callable

import numpy as np
import torch

from sottovoce.core.domains import Box, Domain, L2Ball
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.mechanisms.kernels.cuda.norm import clip_factors, square_sums
from sottovoce.mechanisms.kernels.cuda.place import check_values

Scales = torch.Tensor | None


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


def clipped(
    rows: torch.Tensor, domain: Domain, *, zero_nonfinite: bool = False, as_they_are: bool = False
) -> tuple[torch.Tensor, Scales]:
    """Return rows, and a factor for each, whose products are what `domain.project` gives.

    The factors are a float64 tensor on the device, or None if all are 1. Rows that had to be
    clipped without a factor are new, in float64.

    Args:
        rows: A matrix with a vector in each row.
        domain: The domain.
        zero_nonfinite: Whether rows with NaN or infinity count as zeros; such rows may then be
            overwritten. If they are not float64, nothing is read from the device.
        as_they_are: Whether rows for a Box are only checked, and not clipped.

    Raises:
        DomainError: A value is NaN or infinite.
        ParameterError: The domain is neither an L2Ball nor a Box.
    """
    match domain:
        case L2Ball():
            return _in_ball(rows, domain, zero_nonfinite)
        case Box():
            checked = _finite(rows, zero_nonfinite)
            return checked if as_they_are else _in_box(checked, domain), None
        case _:
            raise ParameterError(
                f"{type(domain).__name__} has no projection on CUDA devices; copy the rows to the "
                "CPU with .cpu()"
            )


def scaled(rows: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the rows in float64, each times its scale."""
    return rows.double() * scales[:, None]


def stacked(payload: Callable[[int], torch.Tensor], count: int) -> torch.Tensor:
    """Return a matrix whose row i is payload(i), for i from 0 to count - 1."""
    return torch.stack([payload(i) for i in range(count)])


def _in_ball(rows: torch.Tensor, ball: L2Ball, zero: bool) -> tuple[torch.Tensor, Scales]:
    if zero and rows.dtype != torch.float64:
        return rows, clip_factors(rows, ball.limit, zeros=True)
    factors = clip_factors(rows, ball.limit)
    if len(rows) == 1 and not math.isnan(only := float(factors)):  # Faster than by numpy.
        return rows, None if only == 1.0 else factors
    read = factors.cpu().numpy()
    if not np.isnan(read).any():
        return rows, None if (read == 1.0).all() else factors
    if zero and not torch.isfinite(rows).all():
        return _in_ball(_zeroed(rows), ball, False)
    _check_finite(rows)
    wide = scaled(rows, torch.nan_to_num(factors, nan=1.0))
    for i in np.flatnonzero(np.isnan(read)).tolist():
        unit, largest = _by_largest(rows[i])
        root = math.sqrt(float(square_sums(unit[None])[0])) if largest else 0.0
        scale = ball.scale_for(largest * root)
        wide[i] = unit * (ball.limit / root) if scale is None else rows[i].double() * scale
    return wide, None


def _zeroed(rows: torch.Tensor) -> torch.Tensor:
    """Return the rows with zeros for each row that has an infinite or NaN entry."""
    return torch.where(torch.isfinite(rows).all(dim=1, keepdim=True), rows, 0.0)


def _finite(rows: torch.Tensor, zero: bool) -> torch.Tensor:
    """Return finite rows, after one pass over them."""
    if zero and rows.dtype == torch.float64:
        return _zeroed(rows)
    if zero:
        # Squares of smaller types do not overflow: only rows that are not finite become zeros.
        clip_factors(rows, 1.0, zeros=True)
    else:
        sums = square_sums(rows)
        # The squares of float64 rows may overflow.
        if not math.isfinite(float(sums if len(rows) == 1 else sums.sum())):
            _check_finite(rows)
    return rows


def _in_box(rows: torch.Tensor, box: Box) -> torch.Tensor:
    """Return the projections of finite rows, without a copy if possible."""
    if rows.numel():
        low, high = torch.aminmax(rows)
        if not (box.lower <= float(low) and float(high) <= box.upper):
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
