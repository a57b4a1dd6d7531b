"""Exact Renyi divergences of declared laws, computed apart from the accountants."""

import functools
import math
from collections.abc import Sequence

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.mechanisms.mechanism import (
    FiniteLaw,
    GaussianLaw,
    JointLaw,
    LaplaceLaw,
    Law,
    StaircaseLaw,
)
from sottovoce.privacy.divergences import finite_renyi, log_sum_exp


def renyi_of(first: Law, second: Law, orders: Sequence[float]) -> list[float]:
    """The exact Renyi divergences of two laws; for products they add up over coordinates."""
    match first, second:
        case FiniteLaw(), FiniteLaw():
            return _renyi_of_product(first.table, second.table, orders)
        case JointLaw(), JointLaw():
            if not np.array_equal(first.points, second.points):
                return [math.inf] * len(orders)
            return [finite_renyi(first.pmf, second.pmf, order) for order in orders]
        case GaussianLaw(), GaussianLaw():
            shift = float(np.linalg.norm(first.centre - second.centre)) / first.stddev
            return [order * shift**2 / 2.0 for order in orders]
        case LaplaceLaw(), LaplaceLaw():
            shifts = np.abs(first.centre - second.centre) / first.scale
            return [math.fsum(_laplace_renyi(float(x), order) for x in shifts) for order in orders]
        case StaircaseLaw(), StaircaseLaw():
            noise = first.noise
            shifts = np.abs(first.centre - second.centre) / noise.step
            return [
                math.fsum(
                    _staircase_renyi(noise.epsilon, noise.nu, float(x), order) for x in shifts
                )
                for order in orders
            ]
        case _:
            return [math.inf] * len(orders)


def _renyi_of_product(p: Vector, q: Vector, orders: Sequence[float]) -> list[float]:
    """The sum over rows of log( sum p^a q^(1-a) ) / (a - 1), for all orders a at once."""
    if np.any(p[q == 0.0] > 0.0):
        return [math.inf] * len(orders)
    a = np.asarray(orders)[:, None, None]
    weights = np.where(q > 0.0, q, 1.0)
    with np.errstate(divide="ignore"):
        ratios = np.log1p((p - q) / weights)  # exact where p and q are close
    # The sum of q (r^a - 1 - a (r - 1)) for r = p/q has no negative term, so nothing cancels; it
    # is taken where no power is large, and elsewhere the logarithm of the sum itself.
    powers = np.minimum(a * ratios, 30.0)
    near = np.log1p((q * (np.expm1(powers) - a * np.expm1(ratios))).sum(axis=2))
    top = np.max(a * ratios, axis=2, keepdims=True)
    far = top[..., 0] + np.log((q * np.exp(a * ratios - top)).sum(axis=2))
    found = np.where(top[..., 0] > 30.0, far, near)
    return [math.fsum(row) / (order - 1.0) for row, order in zip(found, orders, strict=True)]


@functools.lru_cache(maxsize=4096)
def _staircase_renyi(epsilon: float, nu: float, shift: float, order: float) -> float:
    """D_a of staircase noise: summed over every stretch on which both densities are constant."""
    reach = math.ceil(60.0 / epsilon) + 2
    edges = (np.arange(reach)[:, None] + np.array([0.0, nu])).ravel()
    marks = np.concatenate([edges, -edges, edges + shift, shift - edges])
    marks = np.unique(marks.round(12))  # edges that differ by rounding are one
    middles, widths = (marks[1:] + marks[:-1]) / 2.0, np.diff(marks)
    levels = [np.floor(np.abs(at) + 1.0 - nu) for at in (middles, middles - shift)]
    decay = math.exp(-epsilon)
    top = (1.0 - decay) / (2.0 * (nu + decay * (1.0 - nu)))
    logs = np.log(top * widths) - epsilon * (order * levels[0] + (1.0 - order) * levels[1])
    return log_sum_exp(logs) / (order - 1.0)


def _laplace_renyi(shift: float, order: float) -> float:
    """D_a of Laplace noise, `shift` scales apart (Mironov 2017, proposition 6)."""
    a = order
    weights = a / (2.0 * a - 1.0), (a - 1.0) / (2.0 * a - 1.0)
    excess = weights[0] * math.expm1(min(700.0, (a - 1.0) * shift))
    excess += weights[1] * math.expm1(-a * shift)
    if (a - 1.0) * shift > 700.0:
        return shift + math.log(weights[0]) / (a - 1.0)
    return math.log1p(excess) / (a - 1.0)
