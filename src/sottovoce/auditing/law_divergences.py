"""Exact Renyi divergences of declared laws, computed apart from the accountants."""

import math

import numpy as np

from sottovoce.mechanisms.mechanism import (
    FiniteLaw,
    GaussianLaw,
    JointLaw,
    LaplaceLaw,
    Law,
    StaircaseLaw,
)
from sottovoce.privacy.divergences import finite_renyi, log_sum_exp


def renyi_of(first: Law, second: Law, order: float) -> float:
    """The exact Renyi divergence of two laws; for products it adds up over coordinates."""
    match first, second:
        case FiniteLaw(), FiniteLaw():
            rows = zip(first.table, second.table, strict=True)
            return math.fsum(finite_renyi(p, q, order) for p, q in rows)
        case JointLaw(), JointLaw():
            if not np.array_equal(first.points, second.points):
                return math.inf
            return finite_renyi(first.pmf, second.pmf, order)
        case GaussianLaw(), GaussianLaw():
            shift = float(np.linalg.norm(first.centre - second.centre)) / first.stddev
            return order * shift**2 / 2.0
        case LaplaceLaw(), LaplaceLaw():
            shifts = np.abs(first.centre - second.centre) / first.scale
            return math.fsum(_laplace_renyi(float(shift), order) for shift in shifts)
        case StaircaseLaw(), StaircaseLaw():
            noise = first.noise
            shifts = np.abs(first.centre - second.centre) / noise.step
            return math.fsum(
                _staircase_renyi(noise.epsilon, noise.nu, float(shift), order) for shift in shifts
            )
        case _:
            return math.inf


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
