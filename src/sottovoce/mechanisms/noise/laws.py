"""What a scalar noise law can tell about itself."""

import decimal
from decimal import Decimal
from fractions import Fraction
from typing import Protocol

from sottovoce.core.domains import Vector


class Noise(Protocol):
    """A law symmetric about 0 whose density nowhere rises away from it.

    Implementations are frozen dataclasses.
    """

    def __hash__(self) -> int: ...

    @property
    def variance(self) -> float: ...

    @property
    def mean_absolute(self) -> float:
        """E|X|."""
        ...

    @property
    def quantile_slope(self) -> float:
        """The largest P(X > t)/density(t): the quantile moves no faster with the tail's log."""
        ...

    def quantile(self, tail: Vector) -> Vector:
        """t >= 0 with P(X > t) = tail, for tails in (0, 1/2].

        Wrong by less than 2^-40 of t and of `quantile_slope` together.
        """
        ...

    def tail(self, threshold: Vector) -> Vector:
        """P(X > t) for t >= 0, in float64."""
        ...

    def survival(self, threshold: Fraction, digits: int) -> Decimal:
        """P(X > t) for t >= 0, wrong by at most 10^-digits: for the exact sampler."""
        ...

    def characteristic(self, frequency: Vector) -> Vector:
        """E cos(frequency X)."""
        ...


def precise(digits: int) -> decimal.Context:
    """Decimal arithmetic of relative error 10^-digits, in which nothing overflows or traps."""
    return decimal.Context(prec=digits, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=[])
