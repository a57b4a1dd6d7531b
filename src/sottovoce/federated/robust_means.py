"""The median of each coordinate: one vector for many, which no minority can move at will.

It holds as long as fewer than half of the clients lie, at a price for those who do not. Of n
messages with Gaussian noise the median has pi/2 times the variance of their mean; of messages with
a few letters it is one of the letters, so that of single bits it is a majority vote, which is no
estimate of a mean (a random rotation makes messages look Gaussian again). Nothing is weighted: a
weight is a client's own word for how far it may move the result.

Reference: Yin, Chen, Kannan and Bartlett 2018, definition 1 and algorithm 1, option I.

The mean of each coordinate without its largest and smallest values.

It holds as long as no more clients lie than are trimmed at one end. What is trimmed of honest
messages is lost: with Gaussian noise the variance grows from that of the mean (fraction 0) to
pi/2 times it (towards 1/2, the median). Messages of a few letters lose letters, and with them the
mean's unbiasedness. Nothing is weighted: a weight is a client's own word for how far it may move
the result.

Reference: Yin, Chen, Kannan and Bartlett 2018, definition 2 and algorithm 1, option II.

Decoded messages as rows, as robust aggregation takes them.
"""

from dataclasses import dataclass

import numpy as np

from sottovoce.core import parameter_rules
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimmedMean:
    """floor(fraction n) values are dropped at either end of each coordinate."""

    fraction: float

    def __post_init__(self) -> None:
        if not 0.0 <= parameter_rules.finite("fraction", self.fraction) < 0.5:
            raise ParameterError(
                f"the fraction to trim at each end must lie in [0, 1/2), got {self.fraction}; "
                "use the median to trim all but the middle"
            )

    def trimmed(self, clients: int) -> int:
        """How many values are dropped at each end of a coordinate."""
        return int(self.fraction * clients)

    def combine(self, rows: Vector) -> Vector:
        checked = checked_rows(rows)
        drop = self.trimmed(len(checked))
        if not drop:
            return np.asarray(checked.mean(axis=0))
        # Two partitions, not a sort: what lies between the ends needs no order.
        inner = np.partition(checked, (drop, len(checked) - drop - 1), axis=0)
        return np.asarray(inner[drop : len(checked) - drop].mean(axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinateMedian:
    """The middle value of each coordinate, or half-way between two middle values."""

    def combine(self, rows: Vector) -> Vector:
        return np.asarray(np.median(checked_rows(rows), axis=0), dtype=np.float64)
