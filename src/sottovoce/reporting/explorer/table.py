"""The table of a finite law as a picture needs it: few rows, few columns, nothing lost in sum."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.mechanisms.mechanism import FiniteLaw, Law

MOST_COLUMNS = 64
_NEGLIGIBLE = 1e-4  # of probability, outside of what is drawn


def table_of(inputs: Vector, laws: Sequence[Law]) -> dict[str, Any] | None:
    """P(letter | input) for each input; None where a coordinate is not one of finitely many.

    Letters at both ends that hardly ever come are left out, and of too many letters neighbours are
    drawn as one: its probability is the sum, and its letter their middle.
    """
    rows = [law.table[0] for law in laws if isinstance(law, FiniteLaw)]
    first = laws[0]
    if len(rows) < len(inputs) or not isinstance(first, FiniteLaw):
        return None
    matrix, letters = np.stack(rows), first.points
    order = np.argsort(letters)
    matrix, letters = matrix[:, order], letters[order]
    low, high = _drawn(matrix)
    together = -(-(high - low) // MOST_COLUMNS)
    groups = np.arange(low, high, together)
    return {
        "letters": [float(letters[g : min(g + together, high)].mean()) for g in groups],
        "matrix": np.add.reduceat(matrix[:, :high], groups, axis=1).tolist(),
        "all_letters": len(letters),
        "drawn_letters": int(high - low),
        "letters_together": int(together),
        "lowest": float(letters[0]),
        "highest": float(letters[-1]),
    }


def _drawn(matrix: Vector) -> tuple[int, int]:
    """The columns between which all but a negligible share lies, whatever the input."""
    if matrix.shape[1] <= MOST_COLUMNS:
        return 0, matrix.shape[1]
    below = np.cumsum(matrix, axis=1).max(axis=0)
    above = np.cumsum(matrix[:, ::-1], axis=1).max(axis=0)[::-1]
    low = int(np.searchsorted(below, _NEGLIGIBLE))
    high = matrix.shape[1] - int(np.searchsorted(above[::-1], _NEGLIGIBLE))
    return low, max(high, low + 1)
