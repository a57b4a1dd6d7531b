"""The part that all table mechanisms share: each coordinate through one finite channel.

A table mechanism names its design; sampling, decoding, law and digest follow from it.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.design.channel import IntegerTable
from sottovoce.domains import Box, Domain, L1Ball, L2Ball, Vector
from sottovoce.errors import ParameterError
from sottovoce.kernels.table import sample_table
from sottovoce.mechanisms.mechanism import Codes, FiniteLaw
from sottovoce.randomness import Keystream


def interval(domain: Domain) -> tuple[float, float]:
    """The interval that every coordinate of the domain lies in; it is mapped onto [0, 1]."""
    match domain:
        case Box():
            return domain.lower, domain.upper
        case L1Ball() | L2Ball():
            return -domain.radius, domain.radius
        case _:
            raise ParameterError(
                f"a table mechanism needs a Box, an L1Ball or an L2Ball, got "
                f"{type(domain).__name__}"
            )


def require_box(domain: Domain) -> Box:
    """`domain` if it is a box: a guarantee for each coordinate by itself."""
    if not isinstance(domain, Box):
        raise ParameterError(
            f"input_domain must be a Box, got {type(domain).__name__}; this mechanism protects "
            "each coordinate over its whole interval: for vectors in a ball use 'metric_mvu' "
            "or 'gauss_hermite'"
        )
    return domain


def positions(domain: Domain, values: ArrayLike) -> Vector:
    """Checked values on [0, 1]."""
    low, high = interval(domain)
    return np.clip((domain.check(values) - low) / (high - low), 0.0, 1.0)


def encode(
    table: IntegerTable, domain: Domain, values: ArrayLike, keystream: Keystream
) -> NDArray[np.uint8]:
    return sample_table(
        positions(domain, values), table.knots, table.thresholds, table.cumulative, keystream
    )


def points(table: IntegerTable, domain: Domain) -> Vector:
    """The letters in the domain's units."""
    low, high = interval(domain)
    return np.asarray(low + (high - low) * table.letters)


def decode(table: IntegerTable, domain: Domain, codes: Codes) -> Vector:
    return points(table, domain)[codes.astype(np.intp)]


def law(table: IntegerTable, domain: Domain, values: ArrayLike) -> FiniteLaw:
    rows = table.channel().at(positions(domain, values))
    return FiniteLaw(points=points(table, domain), table=rows)
