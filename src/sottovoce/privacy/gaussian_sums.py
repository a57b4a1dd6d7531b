"""Gaussian noise that dominates secure sums.

Statement. If the logits of neighbors move by at most S in Euclidean norm, the sums (`SummedBits`)
are dominated by Gaussian noise with mu = kappa S/2: at every epsilon their delta is at most that of
the noise, in both orders and under adaptive composition. For n clients and a small logit bound Z,
kappa is 1.00 to 1.02 times 1/sqrt(n), and 1/sqrt(n) is the central limit.

Proof in short (docs/explanation/privacy.md, section 35). Every bit of another client is a fair coin
with probability p = 2/(1 + e^Z); reveal all that is not a fair coin. The two laws of a sum are then
h (1 + c v) and h (1 + c' v), where v is the mean of N fair signs, N - 1 ~ Bin(n - 1, p) is known,
c = tanh(z/2) and c' = tanh(z'/2) for the logits z and z' of the protected client. With
A = e^eps >= 1,

    delta = E (1 - A + (c - A c') v)_+ = K g(t),    g(t) = E (v - t)_+,    A = 1 + K t,

    K = |c - A c'| = (c - c')/(1 + t c')   up to the signs of c and c'.

1. Let B(x) = E (G - x)_+ for a standard normal G, and let sigma(t) be the least sigma with
   g(t) <= sigma B(t/sigma), which does not fall with sigma. Then K g(t) <= m B((A - 1)/m) if
   m >= K sigma(t).
2. Gaussian noise with mu has at least the delta m B((A - 1)/m) for all A >= 1, where
   m = sqrt(2 pi) erf(mu/sqrt 8): the density of the lognormal e^(mu G - mu^2/2) crosses that of
   1 + m G exactly once above 1, from below.
3. So mu(s) = sqrt 8 erfinv(R s/sqrt(8 pi)) suffices for a coordinate that moves by s, where
   R >= sigma(t) K/(s/2) for all t and s. mu(s)/s grows with s; let kappa/2 be its value at the
   largest s. The squares of mu(s) <= kappa s/2 then add up to at most (kappa S/2)^2.

Sums of rounded Gaussian noise (`SummedNoise`) differ by a factor of at most e^excess from
post-processed Gaussian noise, and a slightly larger mu covers that factor.

g is bounded on a grid, where it is linear between points, and beyond it by Chernoff's bound. On a
cell of either kind the least sigma that suffices for the whole cell is computed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.privacy.binomial import pmf_window
from sottovoce.privacy.events import SummedBits, SummedNoise

_LOG_OUTSIDE = 600.0  # Counts of a total mass of e^-600 are not listed.
_LOG_LOST = 690.0  # Masses of altogether e^-690 are lost where float64 ends.
_EVERYTHING = 1e9  # As a logarithm of the mass that is not listed: all counts are.
_MAX_LISTED = 1000  # Up to so many clients the worst laws of the others are listed.
_LAWS = 500  # About twice the most laws that are listed.
_REACH = 33.0  # The grid ends so many standard deviations from 0; e^-600 is negligible there.
_POINTS_PER_STDDEV = 24
_FAR_RATIO = 1.02  # Ratio of the ends of a cell beyond the grid.
_MOVES = 64  # Cells of the move of a logit.
# Buckets of the number of fair coins are a quarter of a standard deviation wide, or 1e-4 of it.
_BUCKETS_PER_STDDEV, _BUCKET_WIDTH = 4.0, 1e-4
_LEAST_LOGIT_BOUND = 1e-6  # Smaller bounds count as this; a larger bound is always sound.
_MAX_LOGIT_BOUND = 30.0  # Beyond it hardly any bit is a fair coin, so sums hide nothing.
_BOUNDS_PER_OCTAVE = 32  # To so many bounds per octave the bound of many clients is rounded up.
_LEAST_SHIFT = 1e-100  # Smaller shifts count as this.
_MASS_ERROR = 1e-7  # Relative error of a listed mass, a product of two with an error of 1e-8.
_ROUNDING = 1e-7  # Relative rounding of mu: the bisection and the functions used.
_LEAST_SIGMA, _LARGEST_SIGMA = 1e-6, 2.0  # 1/sqrt(2^31) = 2e-5, and one sign has 1.2534.
_BISECTIONS = 48
_ROOT_8 = math.sqrt(8.0)


@lru_cache(maxsize=1024)
def gaussian_mu_of_sum(event: SummedBits | SummedNoise) -> float:
    """Return mu such that Gaussian noise with this mu dominates the sums, rounded up.

    mu is the distance of the means in standard deviations, as in `GaussianNoise`. It is never above
    the mu that dominates the protected client's messages themselves.
    """
    match event:
        case SummedBits():
            return _mu_of_bits(event)
        case SummedNoise():
            return _mu_of_noise(event)
        case _:
            assert_never(event)


def _mu_of_noise(event: SummedNoise) -> float:
    """Return mu' with erf(mu'/sqrt 8) = erf(m/sqrt 8) + e^(2 excess) - 1, m = mu/sqrt(clients)."""
    from scipy.special import erfcinv, erfinv

    mu = event.mu / math.sqrt(event.clients)
    if event.clients == 1 or event.excess > 1.0:
        return event.mu
    added = math.expm1(2.0 * event.excess)
    if mu < 1.0:
        reach = math.erf(mu / _ROOT_8) + added
        raised = _ROOT_8 * float(erfinv(reach)) if reach < 1.0 else math.inf
    else:
        rest = math.erfc(mu / _ROOT_8) - added * (1.0 + _ROUNDING)
        raised = _ROOT_8 * float(erfcinv(rest)) if rest > 1e-300 else math.inf
    raised *= 1.0 + _ROUNDING
    # Otherwise the densities might cross above 1 (see the proof).
    proved = 2.0 * event.excess**2 <= mu * mu * (event.excess + math.log(raised / mu))
    return min(event.mu, raised) if proved else event.mu


def _mu_of_bits(event: SummedBits) -> float:
    shift = max(event.shift, _LEAST_SHIFT)
    visible = shift * math.sqrt(2.0 * math.pi) / 4.0 * (1.0 + _ROUNDING)
    if event.clients == 1 or event.logit_bound > _MAX_LOGIT_BOUND:
        return visible
    bound = max(event.logit_bound, _LEAST_LOGIT_BOUND)
    if event.clients > _MAX_LISTED:  # Calibration tries many bounds, and each takes a while.
        steps = math.ceil(_BOUNDS_PER_OCTAVE * math.log2(bound) - 1e-9)
        bound = max(bound, 2.0 ** (steps / _BOUNDS_PER_OCTAVE))
    farthest = min(shift, bound if event.against_zero else 2.0 * bound)
    cells = _cells(event.clients, bound)
    slopes = _slopes(cells.ends, farthest / 2.0, bound, against_zero=event.against_zero)
    reach = float(np.max(slopes * cells.sigmas)) * farthest / _ROOT_8 / math.sqrt(math.pi)
    if not reach < 1.0:
        return visible
    from scipy.special import erfinv

    # For small arguments erfinv is a line; its error there would be relative to 1.
    inverse = float(erfinv(reach)) if reach > 1e-8 else reach * math.sqrt(math.pi) / 2.0
    return min(visible, _ROOT_8 * inverse * shift / farthest * (1.0 + _ROUNDING))


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """Cells of t that cover [0, 1]: right ends, and a sigma that suffices for the whole cell."""

    ends: Vector
    sigmas: Vector


@lru_cache(maxsize=64)
def _cells(clients: int, bound: float) -> _Cells:
    if clients <= _MAX_LISTED:
        grid, g = _worst_others(clients, bound)
        cells = _Cells(grid[1:], _sigmas_on_grid(grid, g))
    else:
        cells = _cells_of_coins(clients, bound)
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
        means = (with_one - without)[kept] / (2.0 * masses[kept])
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


def _cells_of_coins(clients: int, bound: float) -> _Cells:
    chance, rest = 2.0 / (1.0 + math.exp(bound)), math.tanh(bound / 2.0)
    grid, masses = _law_of_means(clients, chance, rest)
    above = np.cumsum(masses[::-1])[::-1][1:]  # The slope of g is -P(v > t).
    g = np.append(np.cumsum((np.diff(grid) * above)[::-1])[::-1], 0.0)
    sigmas, top = _sigmas_on_grid(grid, g), float(grid[-2])
    count = math.ceil(-math.log(top) / math.log(_FAR_RATIO))
    far = np.append(np.geomspace(top, 1.0, count + 1)[:-1], 1.0)
    far[0] = top
    beyond = _sigmas_beyond(far, clients, chance)
    return _Cells(np.append(grid[1:-1], far[1:]), np.append(sigmas[:-1], beyond))


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


def _slopes(ends: Vector, half: float, bound: float, *, against_zero: bool) -> Vector:
    """Return upper bounds on K/(s/2) for all moves s <= 2 `half`, at each t of `ends`.

    With t = tanh tau, y = s/2 and m the middle of the two logits,

        K = 2 sinh(y) cosh(tau)/(cosh(m + tau) + cosh(y - tau)),

    which is largest at m = -tau, but m >= y - Z; with `against_zero` at m = -y. The bound is
    evaluated cell by cell of y. It does not fall with t, so it holds for smaller t as well.
    """
    tau = np.arctanh(np.minimum(ends, 1.0 - 2.0**-53))[:, None]
    edges = np.linspace(0.0, half, _MOVES + 1)
    low, high = edges[:-1], edges[1:]
    apart = np.cosh(np.clip(tau, low, high) - tau)
    middle = apart if against_zero else np.cosh(np.maximum(0.0, low - bound + tau))
    slopes = 2.0 * np.sinh(high) / high * np.cosh(tau) / (middle + apart)
    return np.asarray(slopes.max(axis=1))


def rounding_excess(stddev: float, clients: int, *, dimension: int) -> float:
    """Return the `excess` of `SummedNoise` for rounded Gaussian noise, rounded up.

    `stddev` is the standard deviation of the noise of one message in grid steps. The sum of n
    messages is compared with rounded noise n - 1 times in each coordinate. Each time the factor is
    a sum of e^(-(k-t)^2/(2c^2)) over integers k, normalized, with c^2 >= stddev^2/2, which lies
    within theta of 1, theta = 2r/(1 - r) with r = e^(-pi^2 stddev^2) (Poisson summation).
    """
    ratio = math.exp(-((math.pi * stddev) ** 2))
    theta = 2.0 * ratio / (1.0 - ratio) if ratio < 0.5 else 1.0
    if theta >= 1.0:
        return 1e9  # No bound; the messages then count as if they were seen.
    return -math.log1p(-theta) * (clients - 1) * dimension * (1.0 + _ROUNDING)
