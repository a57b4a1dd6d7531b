"""What a scalar noise law can tell about itself.

Gaussian noise, its tail to any number of digits.

Laplace noise, its tail to any number of digits.
"""

import decimal
import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

import numpy as np

from sottovoce.core import parameter_rules
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


_GUARD_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian:
    """N(0, stddev^2)."""

    stddev: float

    def __post_init__(self) -> None:
        parameter_rules.positive("stddev", self.stddev, at_most=1e30)

    @property
    def variance(self) -> float:
        return self.stddev**2

    @property
    def mean_absolute(self) -> float:
        return self.stddev * math.sqrt(2.0 / math.pi)

    @property
    def quantile_slope(self) -> float:
        """At t = 0, for the Gaussian hazard grows: (1/2)/density(0)."""
        return self.stddev * math.sqrt(math.pi / 2.0)

    def quantile(self, tail: Vector) -> Vector:
        from scipy.special import ndtri

        found = ndtri(tail)
        found *= -self.stddev
        return np.asarray(found)

    def tail(self, threshold: Vector) -> Vector:
        from scipy.special import ndtr

        return np.asarray(ndtr(threshold / -self.stddev))

    def survival(self, threshold: Fraction, digits: int) -> Decimal:
        """P(X > t) = 1/2 - phi(z) (z + z^3/3 + z^5/(3 5) + z^7/(3 5 7) + ...), z = t/stddev.

        All terms are positive, so the sum has the relative precision of its terms. Term n has
        suffered 3 n + 3 roundings, the density the relative error of z^2/2 times z^2/2; the series
        ends where a further term is below half the last, and so the rest below the last. With
        z^2 < 5 digits there are fewer than 20 (digits + 10) terms: far below 10^12 roundings.
        (Abramowitz and Stegun 1964, 26.2.11.)
        """
        square = (threshold / Fraction(self.stddev)) ** 2
        if square >= 5 * digits:  # P(X > t) <= e^(-z^2/2)/2, and e^-2.5 < 1/10
            return Decimal(0)
        with decimal.localcontext(precise(digits + _GUARD_DIGITS)):
            z_squared = Decimal(square.numerator) / Decimal(square.denominator)
            term = total = z_squared.sqrt()
            smallest = Decimal(10) ** -(digits + _GUARD_DIGITS)
            odd = 3
            while term > smallest or 2 * z_squared > odd:
                term = term * z_squared / odd
                total += term
                odd += 2
            density = (-z_squared / 2).exp() / (2 * pi(digits + _GUARD_DIGITS)).sqrt()
            return max(Decimal("0.5") - density * total, Decimal(0))

    def characteristic(self, frequency: Vector) -> Vector:
        return np.asarray(np.exp(-0.5 * (self.stddev * frequency) ** 2))


@lru_cache(maxsize=64)
def pi(digits: int) -> Decimal:
    """pi = 16 arctan(1/5) - 4 arctan(1/239), in integers (Machin 1706), to `digits` digits."""
    places = digits + 10  # for one unit lost in each of the terms

    def inverse_tangent(denominator: int) -> int:
        power: int = 10**places // denominator
        total, odd, sign = power, 1, 1
        while power:
            power //= denominator**2
            odd, sign = odd + 2, -sign
            total += sign * (power // odd)
        return total

    units = 16 * inverse_tangent(5) - 4 * inverse_tangent(239)
    with decimal.localcontext(precise(places + 5)):
        return Decimal(units).scaleb(-places)


_laplace_GUARD_DIGITS = 5


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
        with decimal.localcontext(precise(digits + _laplace_GUARD_DIGITS)):
            rounded = Decimal(exponent.numerator) / Decimal(exponent.denominator)
            return (-rounded).exp() / 2

    def characteristic(self, frequency: Vector) -> Vector:
        return np.asarray(1.0 / (1.0 + (self.scale * frequency) ** 2))
