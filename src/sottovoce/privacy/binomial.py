"""Binomial laws for up to 2^31 coins, with known error bounds.

scipy's `bdtr` is wrong in the fifth digit at 1e9 coins, and `betainc` has an error of about 1e-11
where it is implemented by boost. Whatever the library returns, a tail is clipped to the bounds of
Zubkov and Serov (up to a relative 1e-5),

    C(k) <= P(X <= k) <= C(k+1),   C(k) = Phi( sign(k - np) sqrt(2 n KL(k/n || p)) ),

which lie one step of the lattice apart.

Reference: Zubkov and Serov 2013, theorem 1.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.core.domains import Vector

# Bound on the relative error of a tail: far above the error that was measured against 30 digits,
# and far below what changes an epsilon.
TAIL_ERROR = 1e-8
# In standard deviations. A fair binomial has mass of at most OUTSIDE beyond it (Hoeffding).
_REACH = 12.5
OUTSIDE = 2.0 * math.exp(-(_REACH**2) / 2.0)


def binomial_cdf(counts: ArrayLike, coins: ArrayLike, chance: float) -> Vector:
    """Return P(X <= k) for X ~ Bin(n, chance), with a relative error of at most `TAIL_ERROR`.

    `counts` (k) and `coins` (n) are broadcast against each other. The result is 0 for k < 0 and 1
    for k >= n.
    """
    from scipy.special import betainc

    k, n = np.broadcast_arrays(
        np.asarray(counts, dtype=np.float64), np.asarray(coins, dtype=np.float64)
    )
    inner = (k >= 0.0) & (k < n)
    safe_k, safe_n = np.where(inner, k, 0.0), np.where(inner, n, 1.0)
    value = betainc(safe_n - safe_k, safe_k + 1.0, 1.0 - chance)
    low, high = (_normal_bound(safe_k + step, safe_n, chance) for step in (0.0, 1.0))
    # `fmin` and `fmax` also replace a NaN by the bound.
    value = np.fmin(np.fmax(value, low * (1.0 - 1e-5)), high * (1.0 + 1e-5))
    return np.asarray(np.where(inner, value, np.where(k < 0.0, 0.0, 1.0)))


def _normal_bound(k: Vector, n: Vector, chance: float) -> Vector:
    """Return C(k), with C(0) = (1-p)^n and C(n) = 1 - p^n."""
    from scipy.special import ndtr, rel_entr

    divergence = rel_entr(k, n * chance) + rel_entr(n - k, n * (1.0 - chance))
    middle = ndtr(np.sign(k - n * chance) * np.sqrt(2.0 * np.maximum(0.0, divergence)))
    none = np.exp(n * math.log1p(-chance)) if chance < 1.0 else np.zeros_like(n)
    return np.asarray(np.where(k <= 0.0, none, np.where(k >= n, 1.0 - chance**n, middle)))


def fair_pmf(coins: int) -> tuple[int, Vector]:
    """Return the first listed count and the pmf of Bin(n, 1/2), n = `coins`, from there on.

    Counts of a total mass of at most `OUTSIDE` are not listed, the same number at both ends. The
    pmf is normalized to 1. Its relative error is below 1e-9: ratios of adjacent values are exact to
    the last place, and their errors add up.
    """
    first = max(0, math.floor((coins - _REACH * math.sqrt(coins)) / 2.0))
    counts = np.arange(first, coins - first, dtype=np.float64)
    # log b(x+1)/b(x) = log((n-x)/(x+1)), which is near 0 where most of the mass is.
    steps = np.log1p((coins - 1.0 - 2.0 * counts) / (counts + 1.0))
    # Summed from the middle outwards, where the sums are still small; the rest is symmetric.
    middle = (len(steps) + 1) // 2
    right = np.concatenate([[0.0], np.cumsum(steps[middle:])])
    left = right[:0:-1] if coins % 2 == 0 else right[::-1]
    pmf = np.exp(np.concatenate([left, right]))
    return first, np.asarray(pmf / pmf.sum())


def pmf_window(coins: int, chance: float, rest: float, log_outside: float) -> tuple[int, Vector]:
    """Return the first listed count and the pmf of Bin(n, chance), n = `coins`, from there on.

    Counts of a total mass of at most e^-log_outside are not listed. The pmf is normalized to 1.
    `rest` is 1 - chance, above 0, which the caller knows to full precision. The relative error is
    below 1e-8.
    """
    if chance <= 0.0 or coins == 0:
        return 0, np.ones(1)
    mean, part = coins * chance, (log_outside + math.log(2.0)) / 3.0
    # Bernstein's inequality: t^2/(2 (variance + t/3)) is at least this exponent.
    reach = part + math.sqrt(part * part + 6.0 * part * mean * rest)
    first, last = max(0, math.floor(mean - reach)), min(coins, math.ceil(mean + reach))
    counts = np.arange(first, last, dtype=np.float64)
    # log b(x+1)/b(x) is near 0 where most of the mass is; summed from the mode outwards.
    steps = np.log1p((mean - counts - rest) / ((counts + 1.0) * rest))
    mode = min(last, max(first, round(mean))) - first
    right = np.concatenate([[0.0], np.cumsum(steps[mode:])])
    left = -np.cumsum(steps[:mode][::-1])[::-1]
    pmf = np.exp(np.concatenate([left, right]))
    return first, np.asarray(pmf / pmf.sum())


def lower_buckets(coins: int, chance: float) -> tuple[Vector, Vector]:
    """Return the lower ends of buckets of X ~ Bin(n, chance), and upper bounds on P(X < end).

    n is `coins`. The ends increase from 0, where the bound is 0; both arrays are read-only. The
    weight of a bucket is the next bound (1 after the last) minus its own. For a function that
    decreases with X, the mean over the lower ends with these weights is at least the true mean.
    """
    # Rounding `chance` down makes X stochastically smaller, which is the safe side.
    chance = max(0.0, 1.0 - math.nextafter(1.0 - chance * (1.0 - 2.0**-48), 2.0))
    if chance == 0.0 or coins == 0:
        return np.zeros(1), np.zeros(1)
    mean = coins * chance
    spread = math.sqrt(mean * (1.0 - chance)) + 1.0
    low, high = max(0.0, mean - 13.0 * spread), min(float(coins), mean + 4.0 * spread)
    # A bucket's width, the error that it may add to X, is a twelfth of the standard deviation of
    # X, or 2e-4 of X where that is more.
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
