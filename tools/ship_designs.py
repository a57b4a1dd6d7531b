"""Solve the designs that come with the package: `make designs`. Takes some minutes.

The set is what people ask for first: three bits at round epsilons, with and without an input grid,
and metric designs for balls of radius 1 (epsilon per unit times the width, 2) and unit intervals.
"""

from collections.abc import Iterator
from pathlib import Path

import sottovoce.mechanisms.design
from sottovoce.mechanisms.design.store import DesignSpec, ship, spec_of

EPSILONS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 10.0)
STRICT_BITS = ((2, 2), (3, 2), (3, 3), (4, 4), (5, 3), (None, 2), (None, 3), (None, 4))
METRIC_EPSILONS = (0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0)
METRIC_BITS = ((5, 2), (6, 2), (6, 3), (7, 3))
BALL_EPSILONS = (2.0, 4.0, 6.0, 8.0, 10.0)  # 1 to 5 zero-out in an L1 ball, at the finest grid


def common_specs() -> Iterator[DesignSpec]:
    for epsilon in EPSILONS:
        for input_bits, output_bits in STRICT_BITS:
            yield spec_of(epsilon, input_bits, output_bits)
    for epsilon in METRIC_EPSILONS:
        for input_bits, output_bits in METRIC_BITS:
            yield spec_of(epsilon, input_bits, output_bits, "l1")
    for epsilon in BALL_EPSILONS:
        yield spec_of(epsilon, 9, 3, "l1")


if __name__ == "__main__":
    ship(common_specs(), Path(sottovoce.mechanisms.design.__file__).parent)
