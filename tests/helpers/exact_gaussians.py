"""What Gaussian noise gives away, exactly."""

from typing import Any

import mpmath


def exact_gaussian_delta(mu: float, epsilon: float, digits: int = 60) -> Any:
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), with digits to spare for the difference."""
    with mpmath.workdps(digits):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        upper, lower = mpmath.ncdf(m / 2 - e / m), mpmath.ncdf(-m / 2 - e / m)
        return upper - mpmath.exp(e) * lower
