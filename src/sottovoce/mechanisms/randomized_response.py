"""Unbiased randomised response on a dithered input.

Bitwise, each bit by itself; generalised, keep the level or send any other.
"""

from dataclasses import dataclass
from functools import lru_cache

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Box
from sottovoce.mechanisms.design import randomized_response
from sottovoce.mechanisms.design.channel import IntegerTable, round_pure
from sottovoce.mechanisms.design.store import EPSILON_RANGE, MAX_BITS
from sottovoce.mechanisms.finite_channel import IntervalTable
from sottovoce.mechanisms.registry import Knob, register


@lru_cache(maxsize=64)
def _generalized_table(epsilon: float, bits: int) -> IntegerTable:
    return round_pure(randomized_response.generalised(epsilon, bits), epsilon)


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

    Reference: Chaudhuri, Guo and Rabbat 2022, section 3.3 and theorem 9.
    """

    input_domain: Box
    epsilon: float
    bits: int

    def __post_init__(self) -> None:
        self.check()
        parameter_rules.integer("bits", self.bits, low=1, high=MAX_BITS)

    @property
    def table(self) -> IntegerTable:
        return _generalized_table(float(self.epsilon), self.bits)

    @property
    def levels(self) -> int:
        return 1 << self.bits


@lru_cache(maxsize=64)
def _bitwise_table(epsilon: float, bits: int) -> IntegerTable:
    return round_pure(randomized_response.bitwise(epsilon, bits), epsilon)


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
