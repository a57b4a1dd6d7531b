"""Laplace noise, its tail to any number of digits."""

import decimal
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.mechanisms.noise.laws import precise

_GUARD_DIGITS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Laplace:
    """Density e^(-|t|/scale)/(2 scale)."""

    scale: float

    def __post_init__(self) -> None:
        parameter_rules.positive("scale", self.scale, at_most=1e30)

    @property
    def variance(self) -> float:
        return 2.0 * self.scale**2

    @property
    def mean_absolute(self) -> float:
        return self.scale

    @property
    def quantile_slope(self) -> float:
        """The same at every t: the Laplace hazard is constant."""
        return self.scale

    def quantile(self, tail: Vector) -> Vector:
        found = np.log(2.0 * tail)
        found *= -self.scale
        return np.asarray(found)

    def tail(self, threshold: Vector) -> Vector:
        return np.asarray(0.5 * np.exp(threshold / -self.scale))

    def survival(self, threshold: Fraction, digits: int) -> Decimal:
        """e^(-t/scale)/2: the exponent u is rounded by u 10^-prec, and u e^-u < 1."""
        exponent = threshold / Fraction(self.scale)
        with decimal.localcontext(precise(digits + _GUARD_DIGITS)):
            rounded = Decimal(exponent.numerator) / Decimal(exponent.denominator)
            return (-rounded).exp() / 2

    def characteristic(self, frequency: Vector) -> Vector:
        return np.asarray(1.0 / (1.0 + (self.scale * frequency) ** 2))
