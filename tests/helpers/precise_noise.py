"""Noise in mpmath, from the densities and not from the code under test."""

from fractions import Fraction

import mpmath
import numpy as np

from sottovoce.mechanisms.noise.laws import Noise, ScalarGaussian, ScalarLaplace, ScalarStaircase


def precise_tail(noise: Noise, threshold: Fraction) -> mpmath.mpf:
    """P(X > t) for t >= 0 to as many digits as mpmath works with."""
    place = mpmath.mpf(threshold.numerator) / threshold.denominator
    if isinstance(noise, ScalarGaussian):
        return mpmath.erfc(place / mpmath.mpf(noise.stddev) / mpmath.sqrt(2)) / 2
    if isinstance(noise, ScalarLaplace):
        return mpmath.exp(-place / mpmath.mpf(noise.scale)) / 2
    assert isinstance(noise, ScalarStaircase)
    b, nu = mpmath.exp(-mpmath.mpf(noise.epsilon)), mpmath.mpf(noise.nu)
    height = (1 - b) / (2 * (nu + b * (1 - nu)))
    steps = place / mpmath.mpf(noise.step)
    level = int(mpmath.floor(steps))
    part = steps - level
    in_this_step = max(nu - part, 0) + b * (1 - max(nu, part))
    return b**level * height * (in_this_step + b / (1 - b) * (nu + b * (1 - nu)))


def precise_quantile(noise: Noise, tail: mpmath.mpf) -> mpmath.mpf:
    """t with P(X > t) = tail: Newton's method from what float64 says, until it meets the tail.

    At a kink the slope on one side may mislead it once.
    """
    place = mpmath.mpf(float(noise.quantile(np.array([float(tail)]))[0]))
    slope = mpmath.mpf(noise.quantile_slope)
    for _ in range(20):
        at = _tail_at(noise, place)
        if abs(at - tail) < mpmath.mpf(10) ** -30 * tail:
            return place
        width = slope * mpmath.mpf(10) ** -25
        density = (_tail_at(noise, place) - _tail_at(noise, place + width)) / width
        place = max(place + (at - tail) / density, mpmath.mpf(0))
    raise AssertionError(f"no quantile found for a tail of {tail}")


def _tail_at(noise: Noise, place: mpmath.mpf) -> mpmath.mpf:
    mantissa, exponent = mpmath.frexp(place)
    bits = mpmath.mp.prec
    return precise_tail(
        noise, Fraction(int(mpmath.ldexp(mantissa, bits))) * Fraction(2) ** (int(exponent) - bits)
    )
