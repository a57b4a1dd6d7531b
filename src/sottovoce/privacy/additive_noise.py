"""Laplace and staircase noise: exact Renyi divergences, and the worst shift of a vector.

Notation: D_a(s) is the Renyi divergence of order a between the noise and the noise shifted by s, in
units of the scale (Laplace) or of the step (staircase). The proofs are in
docs/explanation/privacy.md, sections 9 and 20.

Laplace noise, one coordinate. With k = 2a - 1,

    e^((a-1) D_a(s)) = (a e^((a-1) s) + (a-1) e^(-a s))/k                 (Mironov 2017, table II)

Laplace noise, L1 sensitivity. (a-1) D_a is convex in s (the logarithm of a sum of exponentials) and
0 at 0, so D_a(s) + D_a(t) <= D_a(s + t): the worst case has all of the shift in one coordinate. The
same holds for the whole privacy profile. With G_s(x) = 1 - H_s(x) = min(1, x, sqrt(x e^-s)) and
t <= s, the pair of both coordinates has, for x >= 1 and r = (s + t - log x)/2 >= 0,

    G(x) = sqrt(x e^-(s+t)) (1 + min(r, t)/2) >= G_(s+t)(x),

where each of the two cases r <= t and r >= t is an elementary integral over the loss of the second
coordinate. For r < 0 both sides are 1, and for x < 1 the inequality follows from
H(x) = 1 - x + x H(1/x), which symmetric pairs satisfy. So a single coordinate with the whole shift
dominates in every composition, sampled or not.

Laplace noise, L2 sensitivity. F = (a-1) D_a has F'(s) = a (a-1) (E - 1)/(a E + a - 1), E = e^(k s),
whose derivative a (a-1) k^2 E/(a E + a - 1)^2 decreases for E >= 1. So F' is concave and 0 at 0,
F'(s)/s decreases, and F is concave in s^2. By Jensen's inequality the equal split over d
coordinates is the worst: D_a <= d D_a(S/sqrt d). That is at most a S^2/2, because
F'(s)/s <= F''(0) = a (a-1), and tends to it as d grows.

Staircase noise. The density at x is c b^l, b = e^-L, where the level l counts the steps down, at
distances nu, 1 + nu, 2 + nu, ... from 0 (in units of the step). A shift by s <= 1 passes at most
one of these steps, so the privacy loss is L, 0 or -L. It is L on the intervals of length s before
each step down (for the first one: min(s, nu) on the far side, and min(nu, s - nu) on the near side
if s > nu), so with g = nu + b (1 - nu) and c = (1 - b)/(2 g)

    P(loss = L) = m(s) = c (min(s, 2 nu) + s b/(1 - b)) = ((1 - b) min(s, 2 nu) + b s)/(2 g).

By symmetry P(loss = -L) = Q(loss = L) = b m, and both directions are the same:

    P = (m, 1 - m (1 + b), b m),   Q = (b m, 1 - m (1 + b), m)   on the losses (L, 0, -L)
    D_a = log(1 + m (e^((a-1) L) - 1) (1 - e^(-a L)))/(a - 1).

At nu = 1/2, m(1) = 1/(1 + b): randomized response. m is the minimum of two increasing linear
functions that are at least 0 at 0, so it is nondecreasing and concave. A pair with a smaller m is a
post-processing of one with a larger m': with probability m/m' report the outcome of the larger
pair, else report the outcome 0. So the largest shift is the worst.

Staircase noise, L2 sensitivity. t -> log(1 + k t) and u -> m(sqrt u) are nondecreasing and concave,
so D_a is concave in u = s^2, and over d coordinates with sum s_i^2 <= S^2 the equal split is the
worst: d D_a(S/sqrt d). But m is linear near 0, so this grows like sqrt d. With steps as wide as the
clipping norm, the variance that a budget needs is about 2 sqrt d times that of Gaussian noise: 66
times at d = 1000 and 2000 times at d = 10^6.

Reference: Geng and Viswanath 2016 (the staircase mechanism).
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
_LOG_ROUNDING = 2.0**-40  # The sums are over logarithms of up to a few thousand.


def largest_loss_mass(epsilon: float, nu: float, shift: float) -> float:
    """Return the probability that the privacy loss of staircase noise is `epsilon`, rounded up.

    The density of the noise falls by the factor e^-epsilon at the distances nu, 1 + nu, 2 + nu, ...
    from 0, in units of the step. For a shift by `shift` <= 1 steps the loss log(dP/dQ) is epsilon,
    0 or -epsilon; the result is P(loss = epsilon), called m in this module. A shift outside [0, 1]
    raises `ParameterError`.
    """
    parameter_rules.step_epsilon("epsilon", epsilon)
    parameter_rules.inner_fraction("nu", nu)
    if not 0.0 <= shift <= 1.0:
        raise ParameterError(
            f"shift must be between 0 and 1 step, got {shift!r}; beyond one step use "
            "PureDp(ceil(shift) * epsilon), or a wider step"
        )
    b, gap = math.exp(-epsilon), -math.expm1(-epsilon)
    exact = (gap * min(shift, 2.0 * nu) + b * shift) / (2.0 * (nu + b * (1.0 - nu)))
    return min(exact * (1.0 + _STAIRCASE_ROUNDING), 1.0 / (1.0 + b) + 2.0**-52, 1.0)


def staircase_pair(epsilon: float, nu: float, shift: float, adjacency: Adjacency) -> FinitePair:
    """Return the dominating pair of scalar staircase noise for a shift of at most `shift` steps.

    `epsilon` and `nu` are those of `largest_loss_mass`, which gives m. The three outcomes have the
    losses epsilon, 0 and -epsilon, in this order. Rounded toward privacy: m is rounded up, and so
    is the ratio of the two outer atoms, so that the privacy profile sup P - x Q, which is
    m (1 - x b) for 1 <= x <= 1/b, b = e^-epsilon, and symmetric, is nowhere too low.
    """
    mass = largest_loss_mass(epsilon, nu, shift)
    least = mass * math.exp(-epsilon) * (1.0 - _STAIRCASE_ROUNDING)
    first = (mass, max(0.0, 1.0 - mass - least), least)
    return FinitePair(first=first, second=first[::-1], adjacency=adjacency)


def staircase_renyi(order: float, epsilon: float, nu: float, shift: float) -> float:
    """Return D_a of scalar staircase noise for a shift of `shift` steps: exact, rounded up.

    D_a is the Renyi divergence of order a = `order` > 1 between the noise and the shifted noise; it
    is the same in both directions. `epsilon` is the logarithm of the ratio of adjacent steps of the
    density, and `nu` the distance of the first step from 0 (`largest_loss_mass`). A shift outside
    [0, 1] raises `ParameterError`.
    """
    mass = largest_loss_mass(epsilon, nu, shift)
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
    """Return D_a of staircase noise on every coordinate, for an L2 shift of at most one step.

    D_a is the Renyi divergence of order a = `order`, `shift` the largest Euclidean distance of
    neighbors in steps, and d = `dimension`. The value d D_a(shift/sqrt d), where D_a(s) is that of
    one coordinate shifted by s (`staircase_renyi`), is the worst case and is attained, the same in
    both directions, and rounded up. For large d it grows like sqrt d. A shift outside [0, 1] raises
    `ParameterError`.
    """
    if not 0.0 <= shift <= 1.0:
        raise ParameterError(f"shift must be between 0 and 1 step, got {shift!r}; widen the step")
    each = staircase_renyi(order, epsilon, nu, shift / math.sqrt(dimension))
    return dimension * each * (1.0 + _STAIRCASE_ROUNDING)


@lru_cache(maxsize=256)
def l2_staircase_event(
    epsilon: float, nu: float, shift: float, dimension: int, adjacency: Adjacency
) -> RenyiCurve | PureDp:
    """Return the event of staircase noise on every coordinate with an L2 shift of `shift` steps.

    `shift` is the largest Euclidean distance of neighbors, in steps; `epsilon` and `nu` are those
    of `largest_loss_mass`. Up to one step the event is the Renyi curve of the worst split of the
    shift over the d = `dimension` coordinates. Beyond one step the worst split is not known, and
    every step that a coordinate begins is charged with epsilon, as `PureDp`: with shifts s_i of the
    coordinates, at most sum ceil(s_i) <= sum (1 + s_i) <= d + sqrt d shift of them. So use steps at
    least as wide as the L2 sensitivity.
    """
    if shift > 1.0:
        steps = dimension + math.ceil(math.sqrt(dimension) * shift * (1.0 + _STAIRCASE_ROUNDING))
        return PureDp(epsilon=steps * epsilon, adjacency=adjacency)

    def bound(order: float) -> float:
        return product_staircase_renyi_l2(order, epsilon, nu, shift, dimension)

    return renyi_curve(bound, adjacency)


_ROUNDING = 2.0**-50


def laplace_renyi(shift: float, dimension: int, order: float) -> float:
    """Return the worst D_a of Laplace noise on d = `dimension` coordinates, rounded up.

    D_a is the Renyi divergence of order a = `order` > 1 between the noise and the shifted noise, in
    both directions, for all shifts of Euclidean norm S = `shift`, in units of the noise scale. The
    worst shift moves all coordinates by S/sqrt d. The result is at most a S^2/2 and S sqrt d (up to
    rounding), which are bounds as well.
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
        # Near 0 the two terms cancel; the rounding error of that is added.
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
    """Return the event of Laplace noise on every coordinate, for neighbors in `domain`.

    The noise scale is noise_multiplier times radius/records for a ball, and noise_multiplier times
    (upper - lower) for a box. The shift of the event (sensitivity/scale) is multiplied by
    1 + `headroom`. A ball gives one `LaplaceNoise`. Every coordinate of a box is charged as a
    release of its own: `LaplaceNoise` repeated `domain.dimension` times.
    """
    match domain:
        case L1Ball() | L2Ball():
            shift = domain.relative_sensitivity(adjacency) / noise_multiplier
            return LaplaceNoise(
                shift=shift * (1.0 + headroom),
                # In L1 norm a shift of a single coordinate is the worst, in any dimension.
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
