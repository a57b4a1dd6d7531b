"""Scalar noise laws with tails of arbitrary precision: Gaussian, Laplace and staircase.

Staircase noise is the additive noise of least variance that is epsilon-DP for shifts of one step.

With b = e^-epsilon, nu in (0, 1), in units of the step, and c = (1 - b)/(2 (nu + b (1 - nu))):

    f(x) = c b^k        for |x| in [k, k + nu)
    f(x) = c b^(k+1)    for |x| in [k + nu, k + 1),        k = 0, 1, 2, ...

The formulas below are sums of positive terms, so that nothing cancels for any epsilon.

Reference: Geng and Viswanath 2016, "The optimal noise-adding mechanism in differential privacy".
"""

import decimal
import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector


def nu_for_mean_absolute(epsilon: float) -> float:
    """Return the nu of staircase noise with the least mean absolute value.

        nu = 1/(1 + e^(epsilon/2))        (Geng and Viswanath 2016, theorem 4)

    Args:
        epsilon: The privacy loss of one step of the staircase.

    Returns:
        The fraction of a step that lies on its higher level.

    Raises:
        ParameterError: Epsilon is not between 1e-12 and 500.

    Examples:
        >>> round(nu_for_mean_absolute(1.0), 4)
        0.3775
    """
    return 1.0 / (1.0 + math.exp(parameter_rules.step_epsilon("epsilon", epsilon) / 2.0))


def nu_for_variance(epsilon: float) -> float:
    """Return the nu of staircase noise with the least variance: the share of a step's higher level.

        nu = ((b (1 + b)/2)^(1/3) - b)/(1 - b),        b = e^-epsilon

    The derivative of the variance with respect to nu vanishes where (b + (1 - b) nu)^3 = b (1 +
    b)/2, and nowhere else (Geng and Viswanath 2016, theorem 7, in another form). The result falls
    from 1/2 to 0 as epsilon, the privacy loss of one step, grows.

    Raises:
        ParameterError: Epsilon is not between 1e-12 and 500.
    """
    if parameter_rules.step_epsilon("epsilon", epsilon) > 1.0:
        b = math.exp(-epsilon)
        # b^(1/3) is computed separately because b itself may underflow.
        return (math.exp(-epsilon / 3.0) * math.cbrt((1.0 + b) / 2.0) - b) / (1.0 - b)
    # The same formula, divided by b and written so that no difference cancels.
    growth = math.expm1(epsilon)
    return math.expm1((epsilon + math.log1p(growth / 2.0)) / 3.0) / growth


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarStaircase:
    """Staircase noise X, whose density falls by the factor e^-epsilon with each step from 0.

    Attributes:
        step: The width of a step, in the units of the noise.
        epsilon: The privacy loss of a shift by one step.
        nu: The fraction of each step, on the side of 0, on which the density is at the step's
            higher level; in the rest it is e^-epsilon times that level.
    """

    step: float
    epsilon: float
    nu: float

    def __post_init__(self) -> None:
        parameter_rules.positive("step", self.step, at_most=1e300)
        parameter_rules.step_epsilon("epsilon", self.epsilon)
        parameter_rules.inner_fraction("nu", self.nu)

    @property
    def _decay(self) -> float:
        """The factor b = e^-epsilon."""
        return math.exp(-self.epsilon)

    def _mixed(self, power: int) -> float:
        """Return nu^p + b (1 - nu^p), p = 1, 2, 3: p times an integral over the first step."""
        raised = self.nu**power
        return raised + self._decay * (1.0 - raised)

    @property
    def _twice_density(self) -> float:
        """The density 2 c of |X| at 0, in units of the step."""
        return -math.expm1(-self.epsilon) / self._mixed(1)

    @property
    def mean_absolute(self) -> float:
        """The mean absolute value E|X|, in the units of `step`.

        It is step (b/(1-b) + (nu^2 + b (1 - nu^2))/(2 (nu + b (1 - nu)))) with b = e^-epsilon. K,
        the number of whole steps in |X|, has P(K = k) = (1-b) b^k and is independent of the
        position within the step.
        """
        return self.step * (_mean_steps(self.epsilon) + self._mixed(2) / (2.0 * self._mixed(1)))

    @property
    def variance(self) -> float:
        """The variance E X^2, in the squared units of `step`.

        It is step^2 (b (1+b)/(1-b)^2 + b/(1-b) h/g + w/(3 g)) with b = e^-epsilon and
        g, h, w = nu^p + b (1 - nu^p) for p = 1, 2, 3.
        """
        steps = _mean_steps(self.epsilon)
        g, h, w = (self._mixed(power) for power in (1, 2, 3))
        return self.step**2 * (steps * (1.0 + 2.0 * steps) + steps * h / g + w / (3.0 * g))

    def quantile(self, tail: Vector) -> Vector:
        # P(|X| > k + r) = b^k (1 - 2 c r) for r <= nu and b^(k+1) (1 + 2 c (1 - r)) beyond.
        # Just beyond a tiny nu the error is small compared with a step, but not with t.
        depth = -np.log(2.0 * tail)  # -log P(|X| > t); 2 tail is exact, also near 1
        whole = np.floor(depth / self.epsilon)
        rest = np.clip(depth - whole * self.epsilon, 0.0, self.epsilon)
        inner = -np.expm1(-rest) / self._twice_density
        # Beyond 700 the place is certainly an inner one, and the exponential would overflow.
        outer = 1.0 - np.expm1(np.minimum(self.epsilon - rest, 700.0)) / self._twice_density
        return np.asarray(self.step * (whole + np.where(inner <= self.nu, inner, outer)))

    @property
    def quantile_slope(self) -> float:
        """The largest P(X > t)/density(t): step/(1 - e^-epsilon), where a lower level begins."""
        return self.step / -math.expm1(-self.epsilon)

    def tail(self, threshold: Vector) -> Vector:
        places = threshold / self.step
        whole = np.floor(places)
        part = places - whole
        inside = 1.0 - self._twice_density * part
        beyond = self._decay * (1.0 + self._twice_density * (1.0 - part))
        level = 0.5 * np.exp(-self.epsilon * whole)
        return np.asarray(level * np.where(part <= self.nu, inside, beyond))

    def survival(self, threshold: Fraction, digits: int) -> Decimal:
        place = threshold / Fraction(self.step)
        whole = place.numerator // place.denominator
        part = place - whole
        with localcontext() as context:
            # 1 - b loses as many digits as epsilon has leading zeros, and k epsilon loses as many
            # as its integer part has.
            lost = 24 + len(str(int(whole * Fraction(self.epsilon))))
            context.prec = digits + lost - min(0, math.floor(math.log10(self.epsilon)))
            b, nu = (-Decimal(self.epsilon)).exp(), Decimal(self.nu)
            density = (1 - b) / (2 * (nu + b * (1 - nu)))
            r = Decimal(part.numerator) / Decimal(part.denominator)
            inside = Decimal("0.5") - density * r
            beyond = b * (Decimal("0.5") + density * (1 - r))
            left = inside if part <= Fraction(self.nu) else beyond
            return (-Decimal(self.epsilon) * whole).exp() * left

    def characteristic(self, frequency: Vector) -> Vector:
        # For t in units of 1/step the integral over the levels is a geometric series in b e^(it):
        #
        #     E cos(t X) = (1-b)^2/g (sin(nu t) + b sin((1-nu) t)) / (t ((1-b)^2 + 4 b sin(t/2)^2)).
        t = np.asarray(frequency, dtype=np.float64) * self.step
        b, nu, gap = self._decay, self.nu, -math.expm1(-self.epsilon)
        # numpy's sinc(x) is sin(pi x)/(pi x), and 1 at 0.
        waves = nu * np.sinc(nu * t / np.pi) + b * (1.0 - nu) * np.sinc((1.0 - nu) * t / np.pi)
        resonance = 1.0 + 4.0 * b * (np.sin(t / 2.0) / gap) ** 2
        return np.asarray(waves / (self._mixed(1) * resonance))


def _mean_steps(epsilon: float) -> float:
    """Return b/(1-b), the mean of the number of whole steps."""
    return math.exp(-epsilon) / -math.expm1(-epsilon)


class Noise(Protocol):
    """A law of noise X, symmetric about 0, with a density that does not increase away from 0.

    Implementations are frozen dataclasses.
    """

    def __hash__(self) -> int: ...

    @property
    def variance(self) -> float:
        """The variance of the noise."""
        ...

    @property
    def mean_absolute(self) -> float:
        """The mean absolute value E|X|."""
        ...

    @property
    def quantile_slope(self) -> float:
        """The largest P(X > t)/density(t) for t >= 0: a bound on |dt/d log P(X > t)|.

        It is in the units of the noise, and a measure of its width.
        """
        ...

    def quantile(self, tail: Vector) -> Vector:
        """Return the t >= 0 with P(X > t) = tail, for tails in (0, 1/2].

        The error is below 2^-40 of t plus 2^-40 of `quantile_slope`.
        """
        ...

    def tail(self, threshold: Vector) -> Vector:
        """Return P(X > t) in float64 for each threshold t >= 0."""
        ...

    def survival(self, threshold: Fraction, digits: int) -> Decimal:
        """Return P(X > t) for a threshold t >= 0, with an absolute error of at most 10^-digits.

        The exact sampler uses it where float64 does not decide.
        """
        ...

    def characteristic(self, frequency: Vector) -> Vector:
        """Return the characteristic function E cos(frequency X)."""
        ...


def decimal_context(digits: int) -> decimal.Context:
    """Return a decimal context that rounds to `digits` digits and in which nothing traps.

    It has the largest range of exponents that `decimal` allows.
    """
    return decimal.Context(prec=digits, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=[])


_GUARD_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarGaussian:
    """The law N(0, stddev^2)."""

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
        """The largest P(X > t)/density(t): (1/2)/density(0), since the hazard rate grows with t."""
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
        # With z = t/stddev (Abramowitz and Stegun 1964, 26.2.11),
        #
        #     P(X > t) = 1/2 - phi(z) (z + z^3/3 + z^5/(3 5) + z^7/(3 5 7) + ...).
        #
        # All terms are positive, so the sum has the relative precision of its terms. Term n has
        # suffered 3 n + 3 roundings, and the density has the relative error of z^2/2 times z^2/2.
        # The series ends where a further term is below half of the last one, so that the rest is
        # below the last term. With z^2 < 5 * digits there are fewer than 20 (digits + 10) terms,
        # which is far below 10^12 roundings.
        square = (threshold / Fraction(self.stddev)) ** 2
        if square >= 5 * digits:  # P(X > t) <= e^(-z^2/2)/2, and e^-2.5 < 1/10
            return Decimal(0)
        with decimal.localcontext(decimal_context(digits + _GUARD_DIGITS)):
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
    """Return pi to `digits` digits after the decimal point (or more), by integer arithmetic."""
    # pi = 16 arctan(1/5) - 4 arctan(1/239) (Machin 1706); each term loses up to one unit.
    places = digits + 10

    def inverse_tangent(denominator: int) -> int:
        power: int = 10**places // denominator
        total, odd, sign = power, 1, 1
        while power:
            power //= denominator**2
            odd, sign = odd + 2, -sign
            total += sign * (power // odd)
        return total

    units = 16 * inverse_tangent(5) - 4 * inverse_tangent(239)
    with decimal.localcontext(decimal_context(places + 5)):
        return Decimal(units).scaleb(-places)


_LAPLACE_GUARD_DIGITS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarLaplace:
    """The Laplace law, with density e^(-|t|/scale)/(2 scale)."""

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
        """The largest P(X > t)/density(t): the scale, since the hazard rate is constant."""
        return self.scale

    def quantile(self, tail: Vector) -> Vector:
        found = np.log(2.0 * tail)
        found *= -self.scale
        return np.asarray(found)

    def tail(self, threshold: Vector) -> Vector:
        return np.asarray(0.5 * np.exp(threshold / -self.scale))

    def survival(self, threshold: Fraction, digits: int) -> Decimal:
        # e^(-u)/2 with u = t/scale: u is rounded by at most u 10^-prec, and u e^-u < 1.
        exponent = threshold / Fraction(self.scale)
        with decimal.localcontext(decimal_context(digits + _LAPLACE_GUARD_DIGITS)):
            rounded = Decimal(exponent.numerator) / Decimal(exponent.denominator)
            return (-rounded).exp() / 2

    def characteristic(self, frequency: Vector) -> Vector:
        return np.asarray(1.0 / (1.0 + (self.scale * frequency) ** 2))
