"""Sums of clipped gradients that are exact in any order, so that one record moves them by its own.

Clipped gradients are rounded to multiples of 2^-40 times the clipping norm and added as integers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from sottovoce.learning.clients import STABILITY, Rows
from sottovoce.learning.task import Task

# Clipped gradients are rounded to multiples of this fraction of the clipping norm; the sum of
# MAX_RECORDS of them fits an int64.
GRID = 2.0**-40
_COLUMNS = 1 << 20  # The number of coordinates that are converted at once.
Geometry = Literal["l2", "l1"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSums:
    """The sums of the clipped gradients of some clients.

    A gradient that is not finite counts as zero.

    Attributes:
        clients: Number of clients.
        task: The model.
        limit: The norm that gradients are clipped to.
        grid: The length of a step; the totals are multiples of it.
        geometry: The norm: "l2" or "l1".
        normalizes: Whether gradients are normalized instead of clipped.
        totals: The sums in steps, as int64, one row for each client.
    """

    clients: int
    task: Task
    limit: float
    grid: float
    geometry: Geometry = "l2"
    normalizes: bool = False
    totals: Tensor = field(init=False)

    def __post_init__(self) -> None:
        shape = (self.clients, self.task.dimension)
        totals = torch.zeros(shape, dtype=torch.int64, device=self.task.device)
        object.__setattr__(self, "totals", totals)

    def add(self, owners: Tensor, rows: Rows, chosen: Tensor | None = None) -> None:
        """Add gradients to the sums of their clients.

        Args:
            owners: The position of each gradient's client.
            rows: The gradients, unclipped.
            chosen: Which of them count; None for all.
        """
        for gradients in rows.blocks(len(rows)):
            norms = _norms(gradients, self.geometry)
            # Float32 entries cannot overflow a float64 norm, so it is finite if they are.
            left_out = ~torch.isfinite(norms[:, 0])
            if chosen is not None:
                left_out |= ~chosen.to(left_out.device)
            divisors = norms + STABILITY if self.normalizes else norms.clamp(min=self.limit)
            factors = (self.limit / self.grid) / divisors
            for part in pieces(self.task.dimension):
                steps = gradients[:, part] * factors
                steps[left_out] = 0.0
                self.totals[:, part].index_add_(0, owners, steps.round_().to(torch.int64))
            del gradients  # Before the next ones are made.


def pieces(dimension: int) -> Iterator[slice]:
    """Yield slices of the coordinates, small enough that a converted copy takes little memory."""
    for start in range(0, dimension, _COLUMNS):
        yield slice(start, start + _COLUMNS)


def _norms(rows: Tensor, geometry: Geometry) -> Tensor:
    """Return the norms of float32 rows as a column in float64."""
    order = 2 if geometry == "l2" else 1
    norms: list[Tensor] = [
        torch.linalg.vector_norm(rows[:, part].to(torch.float64), ord=order, dim=1, keepdim=True)
        for part in pieces(rows.shape[1])
    ]
    if len(norms) > 1:
        norms = [torch.linalg.vector_norm(torch.cat(norms, dim=1), ord=order, dim=1, keepdim=True)]
    return norms[0]
