"""Laplace and staircase noise: exact divergences, and which shift of a vector is worst.

Laplace. One coordinate that moves by s scales, k = 2a - 1:

    e^((a-1) D_a(s)) = (a e^((a-1) s) + (a-1) e^(-a s))/k                 (Mironov 2017, table II)

L1. (a-1) D_a is convex in s (a logarithm of a sum of exponentials) and 0 at 0, so
D_a(s) + D_a(t) <= D_a(s + t): all of the shift in one coordinate is worst. The same holds for the
whole privacy profile: with G_s(x) = 1 - H_s(x) = min(1, x, sqrt(x e^-s)) and t <= s, the pair of
both coordinates has, for x >= 1 and r = (s + t - log x)/2 >= 0,

    G(x) = sqrt(x e^-(s+t)) (1 + min(r, t)/2) >= G_(s+t)(x),

where each of the two cases r <= t and r >= t is an elementary integral over the loss of the second
coordinate; for r < 0 both are 1, and for x < 1 it follows from H(x) = 1 - x + x H(1/x), which
symmetric pairs obey. So one coordinate dominates in every composition, sampled or not.

L2. F = (a-1) D_a has F'(s) = a (a-1) (E - 1)/(a E + a - 1), E = e^(k s), whose derivative
a (a-1) k^2 E/(a E + a - 1)^2 falls for E >= 1: F' is concave and 0 at 0, F'(s)/s falls, and F is
concave in s^2. So by Jensen the equal split is worst, d D_a(S/sqrt d), which is at most a S^2/2
(F'(s)/s <= F''(0) = a (a-1)) and tends to it with d.

Staircase. The density at x is c b^l, b = e^-L, where the level l counts the steps down, at
distances nu, 1 + nu, 2 + nu, ... from 0 (in units of the step). A shift by s <= 1 passes at most
one of them, so the loss is L, 0 or -L. It is L on the stretches of length s before each step down
(for the first one: min(s, nu) on the far side, and min(nu, s - nu) on the near side if s > nu), so
with g = nu + b (1 - nu) and c = (1 - b)/(2 g)

    P(loss = L) = m(s) = c (min(s, 2 nu) + s b/(1 - b)) = ((1 - b) min(s, 2 nu) + b s)/(2 g).

By symmetry P(loss = -L) = Q(loss = L) = b m, and both directions are alike:

    P = (m, 1 - m (1 + b), b m),   Q = (b m, 1 - m (1 + b), m)   on the losses (L, 0, -L)
    D_a = log(1 + m (e^((a-1) L) - 1) (1 - e^(-a L)))/(a - 1).

m(1) = 1/(1 + b) at nu = 1/2: randomised response. m is the least of two lines through or above 0,
so it is nondecreasing and concave. A smaller m is dominated by a larger one: with probability
m/m' show the larger pair, else the outcome 0, whoever is true. So the largest shift is the worst.

Under an L2 clip: t -> log(1 + k t) and u -> m(sqrt u) are nondecreasing and concave, so D_a is
concave in u = s^2, and over d coordinates with sum s_i^2 <= S^2 the equal split is worst:
d D_a(S/sqrt d). But m is linear near 0, so that grows like sqrt d: with steps as wide as the clip
the variance that keeps a budget is some 2 sqrt d times the Gaussian's, 66 times at d = 1000 and
2000 times at d = 10^6.

Reference: Geng and Viswanath 2016 (the noise). The proofs are in docs/privacy.md.
"""

import math
from functools import lru_cache
from typing import assert_never

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, L1Ball, L2Ball
from sottovoce.core.errors import ParameterError
from sottovoce.privacy.envelope import renyi_curve
from sottovoce.privacy.events import FinitePair, LaplaceNoise, PureDp, RenyiCurve, Repeated

_STAIRCASE_ROUNDING = 2.0**-48
_LOG_ROUNDING = 2.0**-40  # logarithms of up to some thousand are added


def lost_mass(epsilon: float, nu: float, shift: float) -> float:
    """m: how likely one step's whole loss is, `shift` steps apart; rounded up, a few ulps."""
    parameter_rules.step_epsilon("epsilon", epsilon)
    parameter_rules.inner_fraction("nu", nu)
    if not 0.0 <= shift <= 1.0:
        raise ParameterError(
            f"shift must lie between 0 and 1 step, got {shift!r}; beyond one step use "
            "PureDp(ceil(shift) * epsilon), or a wider step"
        )
    b, gap = math.exp(-epsilon), -math.expm1(-epsilon)
    exact = (gap * min(shift, 2.0 * nu) + b * shift) / (2.0 * (nu + b * (1.0 - nu)))
    return min(exact * (1.0 + _STAIRCASE_ROUNDING), 1.0 / (1.0 + b) + 2.0**-52, 1.0)


def staircase_pair(epsilon: float, nu: float, shift: float, adjacency: Adjacency) -> FinitePair:
    """The dominating pair of scalar staircase noise with neighbours at most `shift` steps apart.

    Rounded toward privacy: m up, and the quotient of the outer atoms up, so that the curve
    sup P - x Q, m (1 - x b) for 1 <= x <= 1/b and symmetric, is nowhere lower.
    """
    mass = lost_mass(epsilon, nu, shift)
    least = mass * math.exp(-epsilon) * (1.0 - _STAIRCASE_ROUNDING)
    first = (mass, max(0.0, 1.0 - mass - least), least)
    return FinitePair(first=first, second=first[::-1], adjacency=adjacency)


def staircase_renyi(order: float, epsilon: float, nu: float, shift: float) -> float:
    """D_a of scalar staircase noise, `shift` steps apart: exact, rounded up."""
    mass = lost_mass(epsilon, nu, shift)
    if mass == 0.0:
        return 0.0
    growth = (order - 1.0) * epsilon
    log_excess = (
        growth
        + math.log(-math.expm1(-growth))
        + math.log(-math.expm1(-order * epsilon))
        + math.log(mass)
    )
    exact = float(np.logaddexp(0.0, log_excess)) / (order - 1.0)
    return min(epsilon, exact * (1.0 + _LOG_ROUNDING))


def product_staircase_renyi_l2(
    order: float, epsilon: float, nu: float, shift: float, dimension: int
) -> float:
    """D_a of independent staircase noise on every coordinate, `shift` <= 1 steps apart in L2.

    d D_a(shift/sqrt d), the worst case and attained; about sqrt d times D_a(shift).
    """
    if not 0.0 <= shift <= 1.0:
        raise ParameterError(f"shift must lie between 0 and 1 step, got {shift!r}; widen the step")
    each = staircase_renyi(order, epsilon, nu, shift / math.sqrt(dimension))
    return dimension * each * (1.0 + _STAIRCASE_ROUNDING)


@lru_cache(maxsize=256)
def l2_staircase_event(
    epsilon: float, nu: float, shift: float, dimension: int, adjacency: Adjacency
) -> RenyiCurve | PureDp:
    """Independent staircase noise on every coordinate, neighbours `shift` steps apart in L2.

    Within one step the Renyi curve of the worst split. Beyond it that split is not known, and each
    step begun is charged: sum ceil(s_i) <= sum (1 + s_i) <= d + sqrt d shift of them. So steps as
    wide as neighbours are apart are the ones to use.
    """
    if shift > 1.0:
        steps = dimension + math.ceil(math.sqrt(dimension) * shift * (1.0 + _STAIRCASE_ROUNDING))
        return PureDp(epsilon=steps * epsilon, adjacency=adjacency)

    def bound(order: float) -> float:
        return product_staircase_renyi_l2(order, epsilon, nu, shift, dimension)

    return renyi_curve(bound, adjacency)


_ROUNDING = 2.0**-50


def laplace_renyi(shift: float, dimension: int, order: float) -> float:
    """D_a of `dimension` coordinates whose shifts have Euclidean norm `shift`, in scales.

    Rounded up; never above a S^2/2 and S sqrt d, which hold too.
    """
    each = shift / math.sqrt(dimension)
    zero_concentrated = order * shift * shift / 2.0
    if (order - 1.0) * each > 600.0:  # e^((a-1) s) would overflow
        rest = (order - 1.0) / order * math.exp(-min(700.0, (2.0 * order - 1.0) * each))
        share = math.log(order / (2.0 * order - 1.0)) + math.log1p(rest)
        one = each * (1.0 + _ROUNDING) + share / (order - 1.0)
    else:
        up = order * math.expm1((order - 1.0) * each)
        down = (order - 1.0) * -math.expm1(-order * each)
        # Near 0 the two cancel; what that rounds is added.
        excess = (up - down + _ROUNDING * (up + down)) / (2.0 * order - 1.0)
        one = math.log1p(max(0.0, excess)) / (order - 1.0)
    return min(dimension * one, dimension * each, zero_concentrated) * (1.0 + _ROUNDING)


def laplace_event(
    domain: L1Ball | L2Ball | Box,
    noise_multiplier: float,
    adjacency: Adjacency,
    *,
    headroom: float = 0.0,
) -> LaplaceNoise | Repeated:
    """What Laplace noise on every coordinate is charged with, neighbours in `domain`.

    The scale is noise_multiplier times radius/records of a ball, or upper - lower of a box;
    neighbours count as a fraction `headroom` farther apart than they are.
    """
    match domain:
        case L1Ball() | L2Ball():
            shift = domain.relative_sensitivity(adjacency) / noise_multiplier
            return LaplaceNoise(
                shift=shift * (1.0 + headroom),
                # In L1 a shift of a single coordinate is worst, whatever the dimension.
                dimension=1 if isinstance(domain, L1Ball) else domain.dimension,
                adjacency=adjacency,
            )
        case Box():
            scale = noise_multiplier * (domain.upper - domain.lower)
            shift = domain.sensitivity(adjacency) / scale
            event = LaplaceNoise(shift=shift * (1.0 + headroom), dimension=1, adjacency=adjacency)
            return Repeated(event=event, count=domain.dimension)
        case _:
            assert_never(domain)
