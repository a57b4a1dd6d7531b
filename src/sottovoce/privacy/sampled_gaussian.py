"""Renyi divergence of sampled Gaussian noise at orders between whole ones.

With Q = N(0, 1), r = e^(mu x - mu^2/2) and y = 1 - q + q r,

    e^((a-1) D_a) = E_Q y^a

in the direction (mix || Q), the larger one (Mironov, Talwar and Zhang 2019, theorem 5). Up to a
place t the law of log y is rounded up to a grid (`connect_dots`); above it y <= r (q + (1-q)/r_t),
which leaves at most (q + (1-q)/r_t)^a e^(a (a-1) mu^2/2) Phi(a mu - t).
"""

import math
from functools import lru_cache

import numpy as np

from sottovoce.privacy.loss_distributions import LossLaw, connect_dots
from sottovoce.privacy.loss_pairs import MAX_SAMPLING_RATE, GaussianPair, SampledPair

# E_Q y^a is decided around x = a mu: up to 16 no mass there vanishes in float64, and the grid stays
# small. The chord between whole orders serves beyond.
_LARGEST_PLACE = 16.0
_LEAST_MU, _LEAST_RATE = 1e-3, 1e-6
_REACH = 12.0  # standard deviations further on both sides
_TOP = _LARGEST_PLACE + _REACH
_WIDTH = 0.02  # of a cell, in standard deviations


def sampled_gaussian_log_excess(mu: float, rate: float, order: float) -> float:
    """log(e^((a-1) D_a) - 1), rounded up; infinity where another bound is better."""
    inside = mu >= _LEAST_MU and order * mu <= _LARGEST_PLACE
    if not (inside and _LEAST_RATE <= rate <= MAX_SAMPLING_RATE):
        return math.inf
    from scipy.special import log_ndtr

    top = _TOP - 1e-2  # the grid's last edge is a little below the last dot
    share = rate + (1.0 - rate) * math.exp(-_log_ratio(mu, top))
    beyond = order * math.log(share) + order * (order - 1.0) * mu * mu / 2.0
    beyond += float(log_ndtr(order * mu - top))
    moment = np.logaddexp(_law(mu, rate).log_moment(order - 1.0), beyond + 1e-9)
    # Sums of some thousand positive terms, each right to some units in the last place.
    moment = float(moment) + 2.0**-44
    return math.log(math.expm1(moment)) if moment < 40.0 else moment


def _log_ratio(mu: float, place: float) -> float:
    return mu * place - mu * mu / 2.0


@lru_cache(maxsize=64)
def _law(mu: float, rate: float) -> LossLaw:
    """The loss of the sampled pair on dots that are evenly spaced in x."""
    cells = math.ceil((_TOP + _REACH) / _WIDTH)
    logs = mu * np.linspace(-_REACH, _TOP, cells + 1) - mu * mu / 2.0
    small = np.minimum(logs, 1.0)
    low = np.log1p(rate * np.expm1(small))
    large = np.maximum(logs, 1.0)
    high = large + np.log(rate + (1.0 - rate) * np.exp(-large))
    dots = np.unique(np.where(logs <= 1.0, low, high))
    return connect_dots(SampledPair(GaussianPair(mu), rate), dots)
