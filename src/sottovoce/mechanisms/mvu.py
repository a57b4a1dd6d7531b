"""The minimum variance unbiased (MVU) mechanism for numbers in an interval."""

from dataclasses import dataclass
from typing import Literal

from sottovoce.core.domains import Box
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.design import store
from sottovoce.mechanisms.design.store import DesignSpec
from sottovoce.mechanisms.finite_channel import DesignedTable, IntervalTable
from sottovoce.mechanisms.registry import CalibratedParameter, register

CONTINUOUS = "continuous"


@register(
    "mvu",
    summary="the unbiased table of least variance for numbers in an interval",
    examples=[
        {"epsilon": 1.0, "input_bits": 3, "output_bits": 3},
        {"epsilon": 3.0, "input_bits": "continuous", "output_bits": 2},
        {"epsilon": 1.0, "input_bits": 1, "output_bits": 1},
    ],
    example_domain=Box(dimension=8, lower=-1.0, upper=1.0),
    further_domains=[Box(dimension=8, lower=0.0, upper=1.0)],
    calibrated_parameter=CalibratedParameter(
        parameter="epsilon", more_private="smaller", ends=store.EPSILON_RANGE[::-1]
    ),
    settings=[{"input_bits": CONTINUOUS, "output_bits": bits} for bits in (1, 2, 3)],
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Mvu(DesignedTable, IntervalTable):
    """The minimum variance unbiased mechanism: a few bits per number in an interval, under pure DP.

    Each coordinate x, mapped onto [0, 1], is sent as code j with probability P_ij and decodes to
    a_j. Output values a and probabilities P solve

        minimize    sum_i sum_j P_ij (a_j - x_i)^2
        subject to  sum_j P_ij = 1,    sum_j P_ij a_j = x_i,    P_ij <= e^epsilon P_kj.

    With an integer `input_bits` the x_i are 2^input_bits equally spaced points, and inputs are
    dithered between them. With input_bits = "continuous" the variance is averaged over the whole
    interval, and the probabilities are optimal for every x: there is no grid and no dithering.
    Common designs are shipped with the package; others are solved on first use and cached.

    Privacy: each coordinate is epsilon-DP over its whole interval; the epsilons of d coordinates
    compose. The probabilities are integers that are checked against epsilon, and sampling is exact.

    Cost: `output_bits` bits per coordinate.

    Reference: Chaudhuri, Guo and Rabbat 2022, problem (2); mechanisms/design/window.py describes
    the solver.

    Attributes:
        input_domain: The box with the interval of each coordinate.
        epsilon: The pure epsilon of one coordinate, from 0.001 to 60.
        input_bits: The binary logarithm of the number of input points, from 1 to 10, or
            "continuous".
        output_bits: The number of bits per coordinate, from 1 to 8.

    Examples:
        >>> from sottovoce import Box
        >>> box = Box(dimension=1, lower=0.0, upper=1.0)
        >>> mechanism = Mvu(input_domain=box, epsilon=1.0, input_bits=1, output_bits=1)
        >>> mechanism.points.round(3).tolist()  # 1/2 +- (e + 1)/(2 (e - 1))
        [-0.582, 1.582]
        >>> round(float(mechanism.law([0.25]).mean()[0]), 9)
        0.25
    """

    input_domain: Box
    epsilon: float
    input_bits: int | Literal["continuous"]
    output_bits: int

    def __post_init__(self) -> None:
        self.check()
        if isinstance(self.input_bits, str) and self.input_bits != CONTINUOUS:
            raise ParameterError(
                f"input_bits must be an integer from 1 to {store.MAX_INPUT_BITS} or "
                f"'{CONTINUOUS}', got {self.input_bits!r}"
            )
        self.design_spec()  # raises for parameters that no design can have

    def design_spec(self) -> DesignSpec:
        """Return the specification under which the table is solved for, shipped and cached.

        Returns:
            Epsilon, the number of inputs (None for "continuous") and the number of codes.
        """
        input_bits = None if isinstance(self.input_bits, str) else self.input_bits
        return store.spec_of(self.epsilon, input_bits, self.output_bits)
