"""Unbiased randomized response on a dithered input, or on a category.

Bitwise, each bit by itself; generalized, keep the level or send any other.
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
from sottovoce.mechanisms.registry import Knob, register
from sottovoce.privacy.events import PureDp, Repeated


@lru_cache(maxsize=64)
def _generalized_table(epsilon: float, levels: int) -> IntegerTable:
    return round_pure(k_ary(epsilon, levels), epsilon)


@register(
    "generalized_rr",
    summary="unbiased randomised response on the level of a number in an interval",
    examples=[{"epsilon": 1.0, "bits": 3}, {"epsilon": 3.0, "bits": 1}],
    example_domain=Box(dimension=8, lower=-1.0, upper=1.0),
    knob=Knob(parameter="epsilon", more_private="smaller", ends=EPSILON_RANGE[::-1]),
    settings=[{"bits": bits} for bits in range(1, 5)],
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralisedRandomisedResponse(IntervalTable):
    """Dither x to B = 2^bits levels, keep the level with odds e^epsilon to 1 against each other.

    Decoded to a_i = 1/2 + (i/(B - 1) - 1/2)(B + e^eps - 1)/(e^eps - 1) on [0, 1], which is
    unbiased. Each coordinate is epsilon-DP over its whole interval; d of them compose.

    On `Categories` the levels are the categories, B of any number up to 256, and `bits` is what
    one takes: nothing is dithered, and a code decodes to an unbiased number of the category. So
    people answer questions about histograms and quantiles; two categories are Warner's response.

    Reference: Chaudhuri, Guo and Rabbat 2022, section 3.3 and theorem 9; Warner 1965; Kairouz,
    Bonawitz and Ramage 2016 (categories).
    """

    input_domain: Box | Categories
    epsilon: float
    bits: int

    def __post_init__(self) -> None:
        least, most, remedy, domain = 1, MAX_BITS, "", self.input_domain
        if isinstance(domain, Categories):
            table_epsilon(self.epsilon)
            parameter_rules.integer("num_categories", domain.num_categories, low=2, high=MAX_LEVELS)
            least, most, remedy = domain.bits, domain.bits, "that is what a category takes"
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
        """The interval, or the first category and the last."""
        domain = self.input_domain
        if isinstance(domain, Categories):
            return 0.0, domain.num_categories - 1.0
        return domain.lower, domain.upper

    def places(self, row: Floats) -> tuple[Floats, Affine]:
        """Return a row as it is sampled: a category on its knot, whose row is its law exactly."""
        if isinstance(self.input_domain, Categories):
            return self.table.knots[row.astype(np.intp)], Affine()
        return row, self.affine

    def privacy(self, adjacency: Adjacency) -> PureDp | Repeated:
        # No table exceeds epsilon (its rounding is checked), so none need be made here.
        domain, event = self.input_domain, PureDp(epsilon=self.epsilon, adjacency=adjacency)
        if isinstance(domain, Categories) and domain.dimension == 1:
            return event  # as ledgers hold one person's answer
        return Repeated(event=event, count=domain.dimension)


@lru_cache(maxsize=64)
def _bitwise_table(epsilon: float, bits: int) -> IntegerTable:
    return round_pure(bitwise(epsilon, bits), epsilon)


@register(
    "bitwise_rr",
    summary="unbiased randomised response on each bit of a number in an interval",
    examples=[{"epsilon": 1.0, "bits": 3}, {"epsilon": 3.0, "bits": 1}],
    example_domain=Box(dimension=8, lower=-1.0, upper=1.0),
    knob=Knob(parameter="epsilon", more_private="smaller", ends=EPSILON_RANGE[::-1]),
    settings=[{"bits": bits} for bits in range(1, 5)],
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class BitwiseRandomisedResponse(IntervalTable):
    """Dither x to 2^bits levels and send each bit through randomised response with epsilon/bits.

    The decoded bits t_j have E[t_j] = z_j, so sum_j 2^j t_j/(2^bits - 1) is unbiased. Each
    coordinate is epsilon-DP over its whole interval; d of them compose.

    Reference: Chaudhuri, Guo and Rabbat 2022, section 3.2 and theorem 8.
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
