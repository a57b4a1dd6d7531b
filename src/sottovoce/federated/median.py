"""The median of each coordinate: one vector for many, which no minority can move at will.

It holds as long as fewer than half of the clients lie, at a price for those who do not. Of n
messages with Gaussian noise the median has pi/2 times the variance of their mean; of messages with
a few letters it is one of the letters, so that of single bits it is a majority vote, which is no
estimate of a mean (a random rotation makes messages look Gaussian again). Nothing is weighted: a
weight is a client's own word for how far it may move the result.

Reference: Yin, Chen, Kannan and Bartlett 2018, definition 1 and algorithm 1, option I.
"""

from dataclasses import dataclass

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.federated.messages import checked_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinateMedian:
    """The middle value of each coordinate, or half-way between two middle values."""

    def combine(self, rows: Vector) -> Vector:
        return np.asarray(np.median(checked_rows(rows), axis=0), dtype=np.float64)
