"""Unbiased randomized response on a dithered number, or on a category.

Generalized randomized response keeps the level or sends any other one; the bitwise mechanism
randomizes each bit by itself.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Categories, Floats
from sottovoce.mechanisms.design.channel import IntegerTable, round_pure
from sottovoce.mechanisms.design.randomized_response import bitwise, k_ary
from sottovoce.mechanisms.design.store import EPSILON_RANGE, MAX_BITS, table_epsilon
from sottovoce.mechanisms.finite_channel import IntervalTable
from sottovoce.mechanisms.kernels.ladder import Affine
from sottovoce.mechanisms.kernels.table import MAX_LEVELS
from sottovoce.mechanisms.registry import CalibratedParameter, register
from sottovoce.privacy.events import PureDp, Repeated


@lru_cache(maxsize=64)
def _generalized_table(epsilon: float, levels: int) -> IntegerTable:
    return round_pure(k_ary(epsilon, levels), epsilon)


@register(
    "generalized_rr",
    summary="unbiased randomized response on the level of a number in an interval",
    examples=[{"epsilon": 1.0, "bits": 3}, {"epsilon": 3.0, "bits": 1}],
    example_domain=Box(dimension=8, lower=-1.0, upper=1.0),
    calibrated_parameter=CalibratedParameter(
        parameter="epsilon", more_private="smaller", ends=EPSILON_RANGE[::-1]
    ),
    settings=[{"bits": bits} for bits in range(1, 5)],
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralizedRandomizedResponse(IntervalTable):
    """Randomized response on the level of a dithered number, or on a category; unbiased, pure DP.

    A number x in [0, 1] is dithered to one of B = 2^bits levels i, which is kept with odds
    e^epsilon to 1 against each other level. Code i decodes to

        a_i = 1/2 + (i/(B - 1) - 1/2)(B + e^epsilon - 1)/(e^epsilon - 1),

    which makes the mechanism unbiased; other intervals are mapped onto [0, 1].

    On `Categories` the levels are the categories, up to 256 of them, and `bits` must be the number
    of bits that the number of a category takes.
    Nothing is dithered, and codes decode to an unbiased estimate of the category's number.
    Histogram and quantile questions use this; with two categories it is Warner's randomized
    response.

    Privacy: each coordinate is epsilon-DP over its whole interval; the epsilons of d coordinates
    compose. Sampling is exact.

    Cost: `bits` bits per coordinate.

    References: Chaudhuri, Guo and Rabbat 2022, section 3.3 and theorem 9; Warner 1965; Kairouz,
    Bonawitz and Ramage 2016 (categories).

    Attributes:
        input_domain: The box with the interval of each coordinate, or the categories.
        epsilon: The pure epsilon of one coordinate, from 0.001 to 60.
        bits: The number of bits per coordinate, from 1 to 8.

    Examples:
        >>> from sottovoce import Box
        >>> box = Box(dimension=1, lower=0.0, upper=1.0)
        >>> mechanism = GeneralizedRandomizedResponse(input_domain=box, epsilon=1.0, bits=1)
        >>> mechanism.points.round(3).tolist()
        [-0.582, 1.582]
    """

    input_domain: Box | Categories
    epsilon: float
    bits: int

    def __post_init__(self) -> None:
        least, most, remedy, domain = 1, MAX_BITS, "", self.input_domain
        if isinstance(domain, Categories):
            table_epsilon(self.epsilon)
            parameter_rules.integer("num_categories", domain.num_categories, low=2, high=MAX_LEVELS)
            least, most, remedy = (
                domain.bits,
                domain.bits,
                "use the number of bits that a category takes",
            )
        else:
            self.check()
        parameter_rules.integer("bits", self.bits, low=least, high=most, remedy=remedy)

    @property
    def table(self) -> IntegerTable:
        return _generalized_table(float(self.epsilon), self.levels)

    @property
    def levels(self) -> int:
        domain = self.input_domain
        return domain.num_categories if isinstance(domain, Categories) else 1 << self.bits

    @property
    def ends(self) -> tuple[float, float]:
        """The lower and the upper end of a box, or 0 and the number of the last category."""
        domain = self.input_domain
        if isinstance(domain, Categories):
            return 0.0, domain.num_categories - 1.0
        return domain.lower, domain.upper

    def places(self, row: Floats) -> tuple[Floats, Affine]:
        """Return a row as it is sampled, and the map from it to positions on the table.

        Args:
            row: A vector of the domain.

        Returns:
            The row and its map. A category is placed on its knot, whose row is its exact law.
        """
        if isinstance(self.input_domain, Categories):
            return self.table.knots[row.astype(np.intp)], Affine()
        return row, self.affine

    def privacy(self, adjacency: Adjacency) -> PureDp | Repeated:
        # Every table is checked against epsilon when it is made, so none is needed here.
        domain, event = self.input_domain, PureDp(epsilon=self.epsilon, adjacency=adjacency)
        if isinstance(domain, Categories) and domain.dimension == 1:
            return event  # the form in which ledgers store one person's answer
        return Repeated(event=event, count=domain.dimension)


@lru_cache(maxsize=64)
def _bitwise_table(epsilon: float, bits: int) -> IntegerTable:
    return round_pure(bitwise(epsilon, bits), epsilon)


@register(
    "bitwise_rr",
    summary="unbiased randomized response on each bit of a number in an interval",
    examples=[{"epsilon": 1.0, "bits": 3}, {"epsilon": 3.0, "bits": 1}],
    example_domain=Box(dimension=8, lower=-1.0, upper=1.0),
    calibrated_parameter=CalibratedParameter(
        parameter="epsilon", more_private="smaller", ends=EPSILON_RANGE[::-1]
    ),
    settings=[{"bits": bits} for bits in range(1, 5)],
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class BitwiseRandomizedResponse(IntervalTable):
    """Randomized response with epsilon/bits on each bit of a dithered number; unbiased, pure DP.

    A number x in [0, 1] is dithered to one of 2^bits levels, and each bit z_j of the level is sent
    through randomized response with epsilon/bits. The decoded bits t_j have E[t_j] = z_j, so
    sum_j 2^j t_j/(2^bits - 1) is unbiased; other intervals are mapped onto [0, 1].

    Privacy: each coordinate is epsilon-DP over its whole interval; the epsilons of d coordinates
    compose. Sampling is exact.

    Cost: `bits` bits per coordinate.

    Reference: Chaudhuri, Guo and Rabbat 2022, section 3.2 and theorem 8.

    Attributes:
        input_domain: The box with the interval of each coordinate.
        epsilon: The pure epsilon of one coordinate, from 0.001 to 60.
        bits: The number of bits per coordinate, from 1 to 8.
    """

    input_domain: Box
    epsilon: float
    bits: int

    def __post_init__(self) -> None:
        self.check()
        parameter_rules.integer("bits", self.bits, low=1, high=MAX_BITS)

    @property
    def table(self) -> IntegerTable:
        return _bitwise_table(float(self.epsilon), self.bits)

    @property
    def levels(self) -> int:
        return 1 << self.bits
