"""How far the likelihood ratio of a secure sum spreads, as the stddev of a Gaussian above it.

For the v and g(t) = E (v - t)_+ of `gaussian_sums`, sigma(t) is a standard deviation with
g(t) <= E (sigma G - t)_+ for a standard normal G. [0, 1], where t lies, is divided into cells; each
gets a sigma that suffices for all of it. g is bounded on a grid by its chords, and beyond the grid
by Chernoff's bound. Proof: docs/explanation/privacy.md, section 35.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.privacy.binomial import pmf_window

_LOG_OUTSIDE = 600.0  # Counts of a total mass of e^-600 are not listed.
_LOG_LOST = 690.0  # Masses of altogether e^-690 are lost where float64 ends.
_EVERYTHING = 1e9  # As a logarithm of the mass that is not listed: all counts are.
MAX_LISTED = 1000  # Up to so many clients the worst laws of the others are listed.
_LAWS = 500  # About twice the most laws that are listed.
_REACH = 33.0  # The grid ends so many standard deviations from 0; e^-600 is negligible there.
_POINTS_PER_STDDEV = 24
_FAR_RATIO = 1.02  # Ratio of the ends of a cell beyond the grid.
# Buckets of the number of fair coins are a quarter of a standard deviation wide, or 1e-4 of it.
_BUCKETS_PER_STDDEV, _BUCKET_WIDTH = 4.0, 1e-4
_MASS_ERROR = 1e-7  # Relative error of a listed mass, a product of two with an error of 1e-8.
_LEAST_SIGMA, _LARGEST_SIGMA = 1e-6, 2.0  # 1/sqrt(2^31) = 2e-5, and one sign has 1.2534.
_BISECTIONS = 48


@dataclass(frozen=True, slots=True, eq=False)
class SumCells:
    """Cells of t that cover [0, 1]: right ends, and a sigma that suffices for the whole cell."""

    ends: Vector
    sigmas: Vector


@lru_cache(maxsize=64)
def sum_cells(clients: int, bound: float) -> SumCells:
    """Return the cells for sums over `clients` clients with logits within `bound` of 0."""
    if clients <= MAX_LISTED:
        grid, g = _worst_others(clients, bound)
        cells = SumCells(grid[1:], _sigmas_on_grid(grid, g))
    else:
        cells = cells_of_coins(clients, bound)
    for values in (cells.ends, cells.sigmas):
        values.setflags(write=False)
    return cells


def _worst_others(clients: int, bound: float) -> tuple[Vector, Vector]:
    """Return points from 0 to 1 and upper bounds on g there, whatever the other clients send.

    j of the others have the logit Z, the rest -Z. By symmetry only j <= (n - 1)/2 is listed, with v
    and -v. Of many clients j is known up to a few clients only, whose bits are revealed.
    """
    up, down = 1.0 / (1.0 + math.exp(-bound)), 1.0 / (1.0 + math.exp(bound))
    stddev = 1.0 / math.sqrt(4.0 * up * down * clients)
    grid = np.linspace(0.0, 1.0, 1 + math.ceil(_POINTS_PER_STDDEV / stddev))
    g, width = np.zeros(len(grid)), 1 + clients // _LAWS
    for first in range(0, (clients - 1) // 2 + 1, width):
        last = min(first + width - 1, clients - 1)
        high = pmf_window(first, up, down, _EVERYTHING)[1]
        low = pmf_window(clients - 1 - last, down, up, _EVERYTHING)[1]
        others = np.pad(np.convolve(high, low), 1)
        without, with_one = others[1:], others[:-1]
        masses = (without + with_one) / 2.0
        kept = masses > 0.0
        # B is log-concave, so v does not fall, but for rounding.
        means = np.maximum.accumulate((with_one - without)[kept] / (2.0 * masses[kept]))
        masses = masses[kept] * (1.0 + _MASS_ERROR)
        for values, weights in ((means, masses), (-means[::-1], masses[::-1])):
            g = np.maximum(g, _expected_excess(values, weights, grid))
    return grid, g + 4.0 * math.exp(-_LOG_LOST) * (1.0 - grid)


def _expected_excess(values: Vector, masses: Vector, points: Vector) -> Vector:
    """Return E (v - t)_+ at each point t >= 0, from increasing values of v: a sum of positives."""
    above = np.append(np.cumsum(masses[::-1])[::-1], 0.0)  # Index k: the mass from value k on.
    at_values = np.cumsum((np.diff(values) * above[1:-1])[::-1])[::-1]
    at_values = np.concatenate([at_values, [0.0, 0.0]])
    ends = np.append(values, 1.0)
    following = np.searchsorted(values, points, side="right")
    return np.asarray(
        at_values[following] + np.maximum(0.0, ends[following] - points) * above[following]
    )


def cells_of_coins(clients: int, bound: float) -> SumCells:
    """Return the cells if everything that is not a fair coin is revealed, for many clients."""
    chance, rest = 2.0 / (1.0 + math.exp(bound)), math.tanh(bound / 2.0)
    grid, masses = _law_of_means(clients, chance, rest)
    above = np.cumsum(masses[::-1])[::-1][1:]  # The slope of g is -P(v > t).
    g = np.append(np.cumsum((np.diff(grid) * above)[::-1])[::-1], 0.0)
    sigmas, top = _sigmas_on_grid(grid, g), float(grid[-2])
    count = math.ceil(-math.log(top) / math.log(_FAR_RATIO))
    far = np.append(np.geomspace(top, 1.0, count + 1)[:-1], 1.0)
    far[0] = top
    beyond = _sigmas_beyond(far, clients, chance)
    return SumCells(np.append(grid[1:-1], far[1:]), np.append(sigmas[:-1], beyond))


def _law_of_means(clients: int, chance: float, rest: float) -> tuple[Vector, Vector]:
    """Return points from 0 to 1 and masses of |v|/2 there, above the true law in convex order.

    The number of coins is rounded down to the lower end of its bucket, and every value is spread to
    the ends of its cell with its mean kept.
    """
    first, pmf = pmf_window(clients - 1, chance, rest, _LOG_OUTSIDE)
    mean, spread = (clients - 1) * chance, math.sqrt((clients - 1) * chance * rest)
    width = math.floor(max(1.0, spread / _BUCKETS_PER_STDDEV, _BUCKET_WIDTH * mean))
    starts = np.arange(0, len(pmf), width)
    weights = np.add.reduceat(pmf, starts)
    stddev = 1.0 / math.sqrt(mean + 1.0)
    top = min(0.99, _REACH * stddev)
    grid = np.append(np.linspace(0.0, top, 1 + math.ceil(_POINTS_PER_STDDEV * top / stddev)), 1.0)
    masses = np.zeros(len(grid))
    for coins, weight in zip((first + starts).tolist(), weights.tolist(), strict=True):
        masses += weight * _spread_signs(coins + 1, grid)
    masses *= (1.0 + _MASS_ERROR) / 2.0
    masses[-1] += 4.0 * math.exp(-_LOG_OUTSIDE)
    return grid, masses


def _spread_signs(signs: int, grid: Vector) -> Vector:
    """Return the masses on the grid of the absolute mean of so many fair signs."""
    first, pmf = pmf_window(signs, 0.5, 0.5, _LOG_OUTSIDE)
    values = np.abs(2.0 * (first + np.arange(len(pmf))) - signs) / signs
    cell = np.minimum(np.searchsorted(grid, values, side="right") - 1, len(grid) - 2)
    share = (values - grid[cell]) / (grid[cell + 1] - grid[cell])
    masses = np.bincount(cell, (1.0 - share) * pmf, minlength=len(grid))
    masses += np.bincount(cell + 1, share * pmf, minlength=len(grid))
    return np.asarray(masses)


def _sigmas_on_grid(grid: Vector, g: Vector) -> Vector:
    """Return for each cell a sigma with g(t) <= sigma B(t/sigma) everywhere in it.

    g is convex, so it lies below its chord; sigma B(t/sigma) is convex too, hence above each of its
    tangents. The tangent with the slope of the chord is used, or the one at the end of the cell
    that comes nearest to it.
    """
    from scipy.special import ndtr, ndtri

    left, right = grid[:-1], grid[1:]
    slopes = np.clip((g[:-1] - g[1:]) / (right - left), 1e-320, 0.5)
    quantiles = -ndtri(slopes)

    def suffices(sigma: Vector) -> NDArray[np.bool_]:
        touched = np.clip(sigma * quantiles, left, right)
        value, slope = sigma * np.exp(_log_loss(touched / sigma)), -ndtr(-touched / sigma)
        at_left, at_right = (value + slope * (end - touched) for end in (left, right))
        return np.asarray((at_left >= g[:-1]) & (at_right >= g[1:]))

    return _least_sigmas(suffices, len(left))


def _sigmas_beyond(ends: Vector, clients: int, chance: float) -> Vector:
    """Return such a sigma for each cell between `ends`, in (0, 1], by Chernoff's bound.

    With psi(t) = t atanh t + log(1 - t^2)/2, n = `clients` and p = `chance`,

        g(t) <= (1 - p + p e^-psi)^n/(e atanh(t) n p).

    Its logarithm, with atanh at the left end, is concave and lies below its tangent in the middle;
    that of sigma B(t/sigma) is concave too and lies above its chord.
    """
    left, right = ends[:-1], ends[1:]
    middle = (left + right) / 2.0
    psi = middle * np.arctanh(middle) + np.log1p(-middle * middle) / 2.0
    left_over = chance * np.expm1(-psi)  # (1 - p + p e^-psi) - 1
    value = clients * np.log1p(left_over)
    value -= 1.0 + np.log(np.arctanh(left)) + math.log(clients * chance)
    slope = -clients * chance * np.exp(-psi) / (1.0 + left_over) * np.arctanh(middle)
    # Rounding is relative to the size of the terms.
    value += 1e-12 * (1.0 + np.abs(value) + np.abs(slope))
    at_left, at_right = (value + slope * (end - middle) for end in (left, right))

    def suffices(sigma: Vector) -> NDArray[np.bool_]:
        low, high = (np.log(sigma) + _log_loss(end / sigma) for end in (left, right))
        return np.asarray((low >= at_left) & (high >= at_right))

    return _least_sigmas(suffices, len(left))


def _least_sigmas(suffices: Callable[[Vector], NDArray[np.bool_]], cells: int) -> Vector:
    """Return the least sigma of each cell that suffices, rounded up; infinity if none does."""
    low, high = np.full(cells, _LEAST_SIGMA), np.full(cells, _LARGEST_SIGMA)
    found = suffices(high)
    for _ in range(_BISECTIONS):
        middle = np.sqrt(low * high)
        enough = suffices(middle)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(found, high, np.inf)


def _log_loss(x: Vector) -> Vector:
    """Return log B(x) for x >= 0, or slightly less; B(x) = E (G - x)_+ = phi(x) - x Phi(-x)."""
    from scipy.special import erfcx

    safe = np.maximum(x, 30.0)
    series = np.log1p(-3.0 / safe**2) - 2.0 * np.log(safe)  # B > phi (1/x^2 - 3/x^4)
    mills = math.sqrt(math.pi / 2.0) * erfcx(np.minimum(x, 30.0) / math.sqrt(2.0))
    near = np.log1p(-np.minimum(x, 30.0) * mills) - 1e-12
    log_density = -x * x / 2.0 - math.log(2.0 * math.pi) / 2.0
    return np.asarray(log_density + np.where(x < 30.0, near, series))
