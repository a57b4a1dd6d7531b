"""Taylor series of the tail of a noise law, for kernels that decide codes by tails.

A kernel has a draw of the tail v, and a threshold m: the noise exceeds m if and only if v is below
P(X > m). In units u of the law, P(X > u (n + y)/32) is a polynomial in y in [-1/2, 1/2] for each n.
With S(z) = P(X > u z) its coefficients are S^(k)(n/32)/(k! 32^k), rounded to float64.

The remainder after degree 10 is at most max|S^(11)| 64^-11/11!, below 2^-91 max|S^(11)|. The law of
Laplace has |S^(11)| = S. For N(0, 1) it is |He_10| phi, where He_10(z) = E (z + i N)^10, so that
|He_10(z)| <= (|z| + 2)^10 < 2^32 for |z| < 7; phi < (z + 1) S. Over half a cell S changes by less
than a factor of 1.2. So the remainder is below 2^-55 S.
"""

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.mechanisms.noise.laws import Noise, ScalarGaussian, ScalarLaplace, pi

PER_UNIT: Final = 32
DEGREE: Final = 10
_DIGITS = 34
_GAUSSIAN_NODES, _LAPLACE_NODES = 208, 704  # Until the tail is below 2^-32.


class TailSeries(NamedTuple):
    """The series of a law's tail.

    Attributes:
        unit: The unit u of the law, in which its hazard rate at z >= 0 is at most z + 1.
        rows: The coefficients of 2^32 P(X > u (n + y)/32) in row n, that of y^0 first.
    """

    unit: float
    rows: Vector


@lru_cache(maxsize=8)
def tail_series(noise: Noise) -> TailSeries | None:
    """Return the series of a law's tail; None for a law that is not smooth."""
    match noise:
        case ScalarGaussian():
            return TailSeries(noise.stddev, _rows(_gaussian, _GAUSSIAN_NODES))
        case ScalarLaplace():
            return TailSeries(noise.scale, _rows(_laplace, _LAPLACE_NODES))
        case _:
            return None


def _rows(derivatives: Callable[[int], list[Decimal]], count: int) -> Vector:
    rows = np.empty((count, DEGREE + 1))
    with localcontext(prec=_DIGITS):
        for n in range(count):
            factor = Decimal(2**32)
            for k, derivative in enumerate(derivatives(n)):
                rows[n, k] = float(derivative * factor)
                factor /= PER_UNIT * (k + 1)
    rows.flags.writeable = False
    return rows


def _gaussian(n: int) -> list[Decimal]:
    """Return the derivatives 0 to 10 of the tail of N(0, 1) at n/32: -phi, z phi, ..."""
    z = Decimal(n) / PER_UNIT
    density = (-z * z / 2).exp() / (2 * pi(_DIGITS)).sqrt()
    found = [ScalarGaussian(stddev=1.0).survival(Fraction(n, PER_UNIT), _DIGITS)]
    before, hermite = Decimal(0), Decimal(1)  # He_(k-2) and He_(k-1)
    for k in range(1, DEGREE + 1):
        found.append(-density * hermite if k % 2 else density * hermite)
        before, hermite = hermite, z * hermite - (k - 1) * before
    return found


def _laplace(n: int) -> list[Decimal]:
    tail = (-Decimal(n) / PER_UNIT).exp() / 2
    return [-tail if k % 2 else tail for k in range(DEGREE + 1)]
