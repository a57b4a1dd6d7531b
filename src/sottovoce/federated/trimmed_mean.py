"""The mean of each coordinate without its largest and smallest values.

It holds as long as no more clients lie than are trimmed at one end. What is trimmed of honest
messages is lost: with Gaussian noise the variance grows from that of the mean (fraction 0) to
pi/2 times it (towards 1/2, the median). Messages of a few letters lose letters, and with them the
mean's unbiasedness. Nothing is weighted: a weight is a client's own word for how far it may move
the result.

Reference: Yin, Chen, Kannan and Bartlett 2018, definition 2 and algorithm 1, option II.
"""

from dataclasses import dataclass

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.federated.messages import checked_rows


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
