"""The MVU mechanism: of all unbiased epsilon-DP tables, one of least variance."""

from dataclasses import dataclass
from typing import Literal

from sottovoce.core.domains import Box
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.design import store
from sottovoce.mechanisms.design.store import DesignSpec
from sottovoce.mechanisms.finite_channel import DesignedTable, IntervalTable
from sottovoce.mechanisms.registry import Knob, register

CONTINUOUS = "continuous"


@register(
    "mvu",
    summary="the unbiased table of least variance for a number in an interval",
    examples=[
        {"epsilon": 1.0, "input_bits": 3, "output_bits": 3},
        {"epsilon": 3.0, "input_bits": "continuous", "output_bits": 2},
        {"epsilon": 1.0, "input_bits": 1, "output_bits": 1},
    ],
    example_domain=Box(dimension=8, lower=-1.0, upper=1.0),
    further_domains=[Box(dimension=8, lower=0.0, upper=1.0)],
    knob=Knob(parameter="epsilon", more_private="smaller", ends=store.EPSILON_RANGE[::-1]),
    settings=[{"input_bits": CONTINUOUS, "output_bits": bits} for bits in (1, 2, 3)],
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Mvu(DesignedTable, IntervalTable):
    """min sum_i sum_j P_ij (a_j - x_i)^2 over letters a and rows P: sums 1, means x_i, epsilon-DP.

    With `input_bits` the x_i are 2^input_bits even points, and inputs are dithered between them.
    With input_bits = "continuous" the variance is averaged over the whole interval and rows are
    optimal for every x: no grid, no dithering. Each coordinate is epsilon-DP over its whole
    interval; d of them compose.

    Reference: Chaudhuri, Guo and Rabbat 2022, problem (2); solved as mechanisms/design/window.py
    says.
    """

    input_domain: Box
    epsilon: float
    input_bits: int | Literal["continuous"]
    output_bits: int

    def __post_init__(self) -> None:
        self.check()
        if isinstance(self.input_bits, str) and self.input_bits != CONTINUOUS:
            raise ParameterError(
                f"input_bits must be an integer or '{CONTINUOUS}', got {self.input_bits!r}"
            )
        self.design_spec()  # refuses parameters that no design has

    def design_spec(self) -> DesignSpec:
        input_bits = None if isinstance(self.input_bits, str) else self.input_bits
        return store.spec_of(self.epsilon, input_bits, self.output_bits)
