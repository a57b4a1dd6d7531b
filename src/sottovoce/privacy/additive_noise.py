"""Laplace noise: its Renyi divergence, and which shift of a vector is worst.

One coordinate that moves by s scales, k = 2a - 1:

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
"""

import math
from typing import assert_never

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, L1Ball, L2Ball
from sottovoce.privacy.events import LaplaceNoise, Repeated

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
