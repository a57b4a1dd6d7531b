"""Bits with logistic probabilities: the exact worst Renyi divergence over all logits.

For one bit with logits z and z + s, A(z) = log(1 + e^z),

    (a - 1) D_a = A(z + a s) - a A(z + s) + (a - 1) A(z)        (both directions, as z ranges)

has exactly one stationary point in z, its largest value:

    e^z = (e^(as) - a e^s + a - 1) / (e^s ((a-1) e^(as) - a e^((a-1)s) + 1))

That maximum g_a, as a function of u = s^2, is concave, so over d bits with sum s_i^2 <= S^2 the
equal split is the worst: D_a <= d g_a(S^2/d) <= a S^2/8, and both ends are attained. The proofs
are in docs/privacy.md.
"""

import math

# Where a s is below this, a s^2/8 is within a few 1e-6 of g_a and better conditioned.
_SMALL = 1e-2
_LARGE_STEP = 300.0  # from here on D_a <= s says as much
_ROUNDING = 2.0**-44


def one_bit_renyi(shift: float, dimension: int, order: float) -> float:
    """D_a of `dimension` bits whose logits move by at most `shift` (Euclidean), the worst case."""
    step = shift / math.sqrt(dimension)
    gaussian = order * shift**2 / 8.0
    if order * step < _SMALL:
        return gaussian
    worst = step if step > _LARGE_STEP else _largest(step, order)
    return min(gaussian, dimension * worst * (1.0 + _ROUNDING))


def _largest(step: float, order: float) -> float:
    """g_a(step^2): D_a of one bit at the worst logit."""
    # Numerator and denominator over e^(as), in differences that do not cancel for small steps.
    growth = order * step
    far = math.exp(-growth)
    above = -math.expm1(-growth) - order * math.expm1(step) * far
    below = math.expm1(-growth) - order * math.expm1(-step)
    logit = math.log(above) - math.log(below) - step
    largest, middle, least = (_softplus(logit + move) for move in (growth, step, 0.0))
    excess = largest - order * middle + (order - 1.0) * least
    slack = 2.0**-50 * (largest + order * (middle + least))  # of rounding, on the private side
    return (excess + slack) / (order - 1.0)


def _softplus(value: float) -> float:
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))
