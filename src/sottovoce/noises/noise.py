"""What a scalar noise law is."""

from decimal import Decimal
from fractions import Fraction
from typing import Protocol

from sottovoce.domains import Vector


class Noise(Protocol):
    """A law that is symmetric about 0. Implementations are frozen dataclasses."""

    @property
    def variance(self) -> float: ...

    @property
    def mean_absolute(self) -> float:
        """E|X|."""
        ...

    def quantile(self, tail: Vector) -> Vector:
        """t >= 0 with P(X > t) = tail, for tails in (0, 1/2]; relative error below 2^-40."""
        ...

    def survival(self, threshold: Fraction, digits: int) -> Decimal:
        """P(X > t) for t >= 0, wrong by at most 10^-digits: for the exact sampler."""
        ...

    def characteristic(self, frequency: Vector) -> Vector:
        """E cos(frequency X)."""
        ...
