"""The exact privacy loss of many randomized responses together."""

import math
from typing import Any

import mpmath

DIGITS = 50
SPARE = 10  # for the roundings of products and sums: a delta of 1 is 1


def exact_response_delta(epsilon_each: float, count: int, epsilon: float) -> Any:
    """Return the least delta of `count` randomized responses, by enumerating the outcomes."""
    with mpmath.workdps(DIGITS):
        truth = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon_each)))
        return binomial_delta(truth, 1 - truth, count, epsilon)


def binomial_delta(p: Any, q: Any, count: int, epsilon: float) -> Any:
    """The hockey-stick divergence of Binomial(count, p) from Binomial(count, q) at e^epsilon."""
    with mpmath.workdps(DIGITS + SPARE):
        factor = mpmath.exp(mpmath.mpf(epsilon))
        pairs = zip(binomial_law(p, count), binomial_law(q, count), strict=True)
        excesses = (one - factor * other for one, other in pairs)
        total = mpmath.fsum(excess for excess in excesses if excess > 0)
    with mpmath.workdps(DIGITS):
        return +total


def binomial_law(chance: Any, count: int) -> list[Any]:
    """Its probabilities of 0 to `count`."""
    with mpmath.workdps(DIGITS + SPARE):
        ones, zeros = _powers(chance, count), _powers(1 - chance, count)
        return [math.comb(count, k) * ones[k] * zeros[count - k] for k in range(count + 1)]


def _powers(base: Any, count: int) -> list[Any]:
    """base^0 to base^count, each by one product: a relative error of `count` roundings at most."""
    powers = [mpmath.mpf(1)]
    for _ in range(count):
        powers.append(powers[-1] * base)
    return powers
