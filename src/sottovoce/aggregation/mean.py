"""The weighted mean, streamed: O(d) memory for any number of clients."""

import numpy as np

from sottovoce.domains import Vector


class StreamingMean:
    """sum_k weight_k x_k / sum_k weight_k, one vector at a time."""

    def __init__(self, dimension: int) -> None:
        self._sum = np.zeros(dimension)
        self._weight = 0.0

    def add(self, values: Vector, weight: float) -> None:
        self._sum += weight * values
        self._weight += weight

    def result(self) -> Vector | None:
        """The mean, or None if nothing was added."""
        return self._sum / self._weight if self._weight > 0.0 else None
