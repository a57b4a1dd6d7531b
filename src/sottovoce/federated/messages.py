"""Decoded messages as rows, as robust aggregation takes them."""

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError


def checked_rows(rows: Vector) -> Vector:
    """A matrix with a finite row for each of at least one client."""
    found = np.asarray(rows, dtype=np.float64)
    if found.ndim != 2 or not len(found):
        raise ParameterError(
            f"expected messages as rows, got an array of shape {found.shape}; stack at least one"
        )
    if not np.isfinite(found).all():
        raise ParameterError("a message is not finite; leave it out")
    return found
