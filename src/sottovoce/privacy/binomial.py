"""Binomial laws for up to 2^31 coins, with errors that are known.

scipy's `bdtr` is wrong in the fifth digit at 1e9 coins; `betainc` errs by about 1e-11 where it is
boost's. Whatever the library does, a tail is held between the bounds of Zubkov and Serov,

    C(k) <= P(X <= k) <= C(k+1),   C(k) = Phi( sign(k - np) sqrt(2 n KL(k/n || p)) ),

which lie one step of the lattice apart.

Reference: Zubkov and Serov 2013, theorem 1.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.core.domains import Vector

# Relative; far above what was measured against 30 digits, far below what matters.
TAIL_ERROR = 1e-8
# Standard deviations; outside lies less than OUTSIDE of a fair binomial (Hoeffding).
_REACH = 12.5
OUTSIDE = 2.0 * math.exp(-(_REACH**2) / 2.0)


def binomial_cdf(counts: ArrayLike, coins: ArrayLike, chance: float) -> Vector:
    """P(X <= k) for X ~ Bin(n, chance), with a relative error of `TAIL_ERROR` at most."""
    from scipy.special import betainc

    k, n = np.broadcast_arrays(
        np.asarray(counts, dtype=np.float64), np.asarray(coins, dtype=np.float64)
    )
    inner = (k >= 0.0) & (k < n)
    safe_k, safe_n = np.where(inner, k, 0.0), np.where(inner, n, 1.0)
    value = betainc(safe_n - safe_k, safe_k + 1.0, 1.0 - chance)
    low, high = (_normal_bound(safe_k + step, safe_n, chance) for step in (0.0, 1.0))
    value = np.fmin(np.fmax(value, low * (1.0 - 1e-5)), high * (1.0 + 1e-5))  # and never NaN
    return np.asarray(np.where(inner, value, np.where(k < 0.0, 0.0, 1.0)))


def _normal_bound(k: Vector, n: Vector, chance: float) -> Vector:
    """C(k), with C(0) = (1-p)^n and C(n) = 1 - p^n."""
    from scipy.special import ndtr, rel_entr

    divergence = rel_entr(k, n * chance) + rel_entr(n - k, n * (1.0 - chance))
    middle = ndtr(np.sign(k - n * chance) * np.sqrt(2.0 * np.maximum(0.0, divergence)))
    none = np.exp(n * math.log1p(-chance)) if chance < 1.0 else np.zeros_like(n)
    return np.asarray(np.where(k <= 0.0, none, np.where(k >= n, 1.0 - chance**n, middle)))


def fair_pmf(coins: int) -> tuple[int, Vector]:
    """The first count and the pmf of Bin(n, 1/2) on all counts but `OUTSIDE`, mass 1 in all.

    Relative error below 1e-9: ratios of neighbours are exact to the last place, and add up.
    """
    first = max(0, math.floor((coins - _REACH * math.sqrt(coins)) / 2.0))
    counts = np.arange(first, coins - first, dtype=np.float64)
    # log b(x+1)/b(x) = log((n-x)/(x+1)), which is near 0 where it matters.
    steps = np.log1p((coins - 1.0 - 2.0 * counts) / (counts + 1.0))
    # Summed from the middle outwards, where nothing large has piled up yet; the rest is symmetric.
    middle = (len(steps) + 1) // 2
    right = np.concatenate([[0.0], np.cumsum(steps[middle:])])
    left = right[:0:-1] if coins % 2 == 0 else right[::-1]
    pmf = np.exp(np.concatenate([left, right]))
    return first, np.asarray(pmf / pmf.sum())


def pmf_window(coins: int, chance: float, rest: float, log_outside: float) -> tuple[int, Vector]:
    """The first count and the pmf of Bin(n, chance) on all counts but e^-log_outside, mass 1.

    `rest` is 1 - chance, which the caller knows to full precision. Relative error below 1e-8.
    """
    if chance <= 0.0 or coins == 0:
        return 0, np.ones(1)
    mean, part = coins * chance, (log_outside + math.log(2.0)) / 3.0
    # Bernstein's inequality: t^2/(2 (variance + t/3)) is at least this exponent.
    reach = part + math.sqrt(part * part + 6.0 * part * mean * rest)
    first, last = max(0, math.floor(mean - reach)), min(coins, math.ceil(mean + reach))
    counts = np.arange(first, last, dtype=np.float64)
    # log b(x+1)/b(x), which is near 0 where it matters; summed from the mode outwards.
    steps = np.log1p((mean - counts - rest) / ((counts + 1.0) * rest))
    mode = min(last, max(first, round(mean))) - first
    right = np.concatenate([[0.0], np.cumsum(steps[mode:])])
    left = -np.cumsum(steps[:mode][::-1])[::-1]
    pmf = np.exp(np.concatenate([left, right]))
    return first, np.asarray(pmf / pmf.sum())


def lower_buckets(coins: int, chance: float) -> tuple[Vector, Vector]:
    """Buckets of X ~ Bin(n, chance) by their lower ends, and upper bounds on P(X < end).

    For a function that falls with X: taken at the ends, with these weights, its mean only grows.
    """
    # Rounded down, and 1 - chance up, which makes X smaller: the safe side.
    chance = max(0.0, 1.0 - math.nextafter(1.0 - chance * (1.0 - 2.0**-48), 2.0))
    if chance == 0.0 or coins == 0:
        return np.zeros(1), np.zeros(1)
    mean = coins * chance
    spread = math.sqrt(mean * (1.0 - chance)) + 1.0
    low, high = max(0.0, mean - 13.0 * spread), min(float(coins), mean + 4.0 * spread)
    # A bucket costs at most its width: a twelfth of X's spread, or 2e-4 of X where that is more.
    width = max(1.0, spread / 12.0, 2e-4 * mean)
    even = np.arange(low, high + width, width)
    ends = np.concatenate([[0.0], np.geomspace(1.0, max(1.0, low), 24), even])
    ends = np.unique(np.minimum(np.floor(ends), coins))
    below = binomial_cdf(ends - 1.0, float(coins), chance) * (1.0 + TAIL_ERROR)
    below = np.minimum(1.0, np.where(ends > 0.0, below + 1e-300, 0.0))
    below = np.maximum.accumulate(below)
    ends.setflags(write=False)
    below.setflags(write=False)
    return ends, below
