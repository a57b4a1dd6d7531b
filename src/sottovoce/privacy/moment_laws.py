"""Two random variables whose moments bound those of sampled bits, for the moments accountant.

W = dP/dQ is the likelihood ratio of all releases with a contribution (law P) to all releases
without it (law Q). The products are over rounds, each with sampling rate q:

    E_Q (W - s)_+^k <= E (W_G - s)_+^k    W_G = prod (1 - q + q e^(mu g - mu^2/2)), k = 3 or 5
    E_Q (s - W)_+^2 <= E (s - W*)_+^2     W* = prod (1 - q + q X*)

g is standard normal. X* is e^(m^2) with probability e^(-m^2) and 0 otherwise, so its mean is 1.
`sottovoce.privacy.moment_comparison` turns these moments into a delta.

Each inequality holds only for the moment that it names. Neither W_G nor W* dominates W: its
hockey-stick divergences can be smaller than those of the bits. So these classes are no `LossPair`
and have no method `delta`. Proofs: docs/explanation/privacy.md, section 29.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.privacy.divergences import log_sum_exp
from sottovoce.privacy.loss_distributions import (
    LOG_OUTSIDE,
    GridLaw,
    TiltedComposition,
    grid_law,
    loss_range,
)
from sottovoce.privacy.loss_pairs import PAIR_ACCURACY, GaussianPair, LossPair, SampledPair

LEAST_REACH = 9.0  # The grid ends at about g = k mu + reach; the k-th moment concentrates at k mu.
LARGEST_PLACE = 24.0  # Largest k mu for which the moment is computed.
_LAST_PLACE = 36.0  # Largest g on a grid: up to here no normal mass underflows in float64.
_LARGEST_GRID = 2**20
_LOW_TILTS, _HIGH_TILTS = (0.3, 0.6, 0.8, 0.9, 0.95), (1.05, 1.1, 1.2, 1.5, 2.0, 3.0)
_NEGLIGIBLE = 45.0


@dataclass(frozen=True, slots=True)
class Rounds:
    """`count` equal rounds, each of which samples the contribution with probability `rate`.

    `size` is mu for `ForwardLaw`. For `ReverseLaw` it is m, where m^2 is at least the Renyi
    divergence D_2 of one round without its sampling.
    """

    rate: float
    size: float
    count: int

    def gaussian_pair(self) -> LossPair:
        """Return the pair of Gaussian noise of mu = `size`, sampled at `rate`, for one round.

        The law with the contribution is P. dP/dQ is one factor of W_G (`ForwardLaw`).
        """
        noise = GaussianPair(self.size)
        return noise if self.rate == 1.0 else SampledPair(noise, self.rate)


class ForwardLaw(TiltedComposition):
    """The distribution of the loss log W_G on a grid, for bounds on E (W_G - s)_+^k with s >= 0.

    W_G is the product over `rounds` of 1 - q + q e^(mu g - mu^2/2), with sampling rate q = `rate`,
    mu = `size` and, under Q, independent standard normal g. E is under Q. P is the law with density
    W_G relative to Q; the grid has its masses, tilted (`TiltedComposition`). `power` is k, 3 or 5.
    Rounding to the grid can only raise the expectation: it is an f-divergence with f(0) = 0, hence
    no smaller for a distribution with a larger privacy profile.

    Mass beyond a grid must not count as an infinite loss, because its moment would be infinite.
    Two terms are added to the expectation instead:

    * prod (S + r)^T - prod S^T for the losses of single rounds beyond their grid. Each entry of
      `rounds` is a factor: T is its `count`, S the k-th moment of a round's factor of W_G within
      its grid, and r at least the k-th moment beyond it.
    * e^(K(t) - (t - k + 1) top) for composed losses above the largest loss of the window, `top`.
      It holds for every t > k - 1, where K(t) is the log of the mean of e^(t loss) under P.
    """

    def __init__(
        self,
        rounds: Sequence[Rounds],
        power: int,
        *,
        step: float,
        tilt: float,
        reach_down_to: float,
        reach: float = LEAST_REACH,
    ) -> None:
        if power not in (3, 5):
            raise ParameterError(f"the power must be 3 or 5, got {power}; use one of these")
        self.power = power
        parts, beyond = [], []
        for one in rounds:
            law = _grid(one, power, step, reach)
            parts.append((law, one.count))
            log_ratio = _log_beyond(one, power, law) - law.law.log_moment(power - 1.0)
            beyond.append(one.count * math.log1p(math.exp(min(log_ratio, 700.0))))
        middle = max(tilt, power - 1.0)
        at_middle = _log_moment(parts, middle)
        lows = [middle * share for share in _LOW_TILTS]
        low = max((at_middle - _log_moment(parts, t) - LOG_OUTSIDE) / (middle - t) for t in lows)
        highs = [(middle * share, _log_moment(parts, middle * share)) for share in _HIGH_TILTS]
        high = min((value - at_middle + LOG_OUTSIDE) / (t - middle) for t, value in highs)
        super().__init__(parts, middle, min(low, reach_down_to), high)
        self._compose(parts)
        above = min(value - (t - power + 1.0) * self.top for t, value in highs)
        self._log_outside = -math.inf if self.top >= self.most else above + 1e-9 * (1 + abs(above))
        if (grown := math.fsum(beyond)) > 0.0:
            log_beyond = math.log(math.expm1(grown)) if grown < 700.0 else math.inf
            log_beyond += _log_moment(parts, power - 1.0) + 1e-6
            self._log_outside = float(np.logaddexp(self._log_outside, log_beyond))

    def log_moment(self, log_s: float) -> float:
        """Return an upper bound on log E (W_G - s)_+^k, where s = e^`log_s` and k = `power`.

        The bound is infinite if `log_s` is below the smallest loss of the window, or if the window
        is too large to be computed.

        The expectation is under Q, where W_G = e^loss. With t = `tilt` and K = `log_scale`, the
        stored mass of a loss is m = P(loss) e^(t loss - K), and Q(loss) = P(loss) e^-loss. So the
        expectation is the sum over all losses above log s of

            e^K m e^(-(t - k + 1) loss) (1 - s e^-loss)^k

        The smallest of these losses is factored out of the exponents, so that nothing overflows.
        Bounds on rounding errors and on what lies outside the grids are added.
        """
        if log_s < self.floor or not math.isfinite(self._rounding):
            return math.inf
        extra = self.tilt - self.power + 1.0
        above = min(self.size, max(0, math.floor(log_s / self.step) + 1 - self.start))
        decay, lost, cut = self._weights
        size = min(len(decay), self.size - above)
        nearest = (self.start + above) * self.step
        gap = max(0.0, nearest - log_s)
        # 1 - e^-(gap + g) = e^-gap (1 - e^-g) + (1 - e^-gap), without cancellation.
        base = lost[:size] * math.exp(-gap)
        base += -math.expm1(-gap)
        weights = base * base * base
        if self.power == 5:
            weights *= base * base
        weights *= decay[:size]
        total = float(weights @ self.tilted[above : above + size]) * (1.0 + 2.0**-40)
        norm = float(np.linalg.norm(weights)) + cut * math.sqrt(self.size)
        total += self._rounding * norm + 1e-300
        reach = abs(log_s) + abs(nearest) + 1.0
        total += (cut + 2.0**-50 * self.power * reach) * self._mass
        scale = self.log_scale - extra * nearest
        slack = self._log_slack + 2.0**-49 * (abs(self.log_scale) + extra * reach)
        return float(np.logaddexp(math.log(total) + scale + slack, self._log_outside)) + 2.0**-45

    @cached_property
    def _weights(self) -> tuple[Vector, Vector, float]:
        """e^(-(t-k+1) g) and 1 - e^-g at g = 0, h, 2h, ..., and a bound on the former beyond.

        g is the distance of a loss from the smallest loss above log s, and h the step of the grid.
        """
        extra = self.tilt - self.power + 1.0
        size = min(self.size, math.ceil(_NEGLIGIBLE / max(extra * self.step, 1e-300)) + 1)
        gaps = np.arange(size) * self.step
        cut = math.exp(-_NEGLIGIBLE) if size < self.size else 0.0
        return np.exp(-extra * gaps), -np.expm1(-gaps), cut


def _grid(rounds: Rounds, power: int, step: float, reach: float) -> GridLaw:
    from scipy.special import ndtr

    reach = min(reach, _LAST_PLACE - power * rounds.size)
    tail = rounds.rate * float(ndtr(-(power - 1.0) * rounds.size - reach))
    return grid_law(rounds.gaussian_pair(), step, 10.0 ** math.floor(math.log10(max(tail, 1e-300))))


def fits_grid(rounds: Rounds, step: float) -> bool:
    """Return whether the losses of one round fit a grid of this step with at most 2^20 points.

    The losses are those of `Rounds.gaussian_pair`, without tails of P mass 1e-40.
    """
    reach = loss_range(rounds.gaussian_pair(), 1e-40)
    return (reach[1] - reach[0]) / step <= _LARGEST_GRID


def _log_beyond(rounds: Rounds, power: int, grid: GridLaw) -> float:
    """Return an upper bound on log E_Q[y^k; y beyond the grid], y = 1 - q + q e^(mu g - mu^2/2).

    The expectation is sum_j C(k, j) (1-q)^(k-j) q^j e^(j (j-1) mu^2/2) Phi(j mu - x), where x is
    the last g on the grid.
    """
    from scipy.special import log_ndtr

    q, mu = rounds.rate, rounds.size
    # Edges may lie below the last dot by up to twice the accuracy of the pairs.
    last = float(grid.law.losses[-1])
    last -= 4.0 * PAIR_ACCURACY * (1.0 + abs(last))
    if last <= 0.0:
        place = -math.inf
    elif last > 1.0:
        place = (last + math.log1p(-(1.0 - q) * math.exp(-last)) - math.log(q)) / mu + mu / 2.0
    else:
        place = math.log1p(math.expm1(last) / q) / mu + mu / 2.0
    place -= 1e-9 * (1.0 + abs(place))
    logs = [
        math.log(math.comb(power, j))
        + (math.log1p(-q) * (power - j) if j < power else 0.0)
        + j * math.log(q)
        + j * (j - 1.0) * mu * mu / 2.0
        + float(log_ndtr(j * mu - place))
        for j in range(power + 1)
        if q < 1.0 or j == power
    ]
    return log_sum_exp(np.array(logs)) + 1e-9


def _log_moment(parts: Sequence[tuple[GridLaw, int]], tilt: float) -> float:
    """Return an upper bound on K(t) = log of the mean of e^(t loss), over losses on the grids."""
    moments = [count * part.law.log_moment(tilt) for part, count in parts]
    reach = [count * tilt * float(np.max(np.abs(part.law.losses))) for part, count in parts]
    rounding = 2.0**-45 * (math.fsum(map(abs, moments)) + sum(count for _, count in parts))
    return math.fsum(moments) + rounding + 2.0**-51 * math.fsum(reach)


# --- The reverse direction: the contribution is in the second neighbor.

_LARGEST_COUNT = 2**24
_WINDOW = 12.5  # In standard deviations of a binomial law; `_two_point_power` adds a constant.
_CELLS = 4096
_LARGEST_SQUARE = 600.0


class ReverseLaw:
    """The distribution of W* times an independent e^(mu g - mu^2/2), as a list of values of W*.

    W* is the product over `rounds` of 1 - q + q X*, with sampling rate q; X* is e^(m^2) with
    probability e^(-m^2) and 0 otherwise, m = `size`. The second factor is the likelihood ratio of
    the Gaussian noise that bounds the releases without sampling. `mu` is 0 if there are none.
    """

    def __init__(self, rounds: Sequence[Rounds], mu: float) -> None:
        atoms = [_two_point_power(one) for one in rounds]
        self.mu = mu
        self.at_zero = math.fsum(zero for _, _, zero in atoms)
        logs, masses = atoms[0][:2]
        if len(atoms) > 1:
            logs, masses = _product([one[:2] for one in atoms])
        self._values, self._masses = np.exp(np.minimum(logs, 700.0)), masses

    def moment(self, s: float) -> float:
        """Return an upper bound on E (s - W)_+^2, where W is W* e^(mu g - mu^2/2) and s > 0."""
        from scipy.special import ndtr

        if self.mu == 0.0:
            short = np.maximum(0.0, s - self._values + 2.0**-50 * s)
            total = float(self._masses @ (short * short))
        else:
            w, mu = np.maximum(self._values, 1e-300), self.mu
            place = (math.log(s) - np.log(w)) / mu + mu / 2.0
            first, last = s * s * ndtr(place), w * w * np.exp(mu * mu) * ndtr(place - 2.0 * mu)
            middle = 2.0 * s * w * ndtr(place - mu)
            error = 2.0**-45 * (1.0 + np.abs(place)) * (first + middle + last)
            total = float(self._masses @ (np.maximum(0.0, first - middle + last) + error))
        return (total + self.at_zero * s * s) * (1.0 + 2.0**-40)


def countable(rounds: Sequence[Rounds], mu: float) -> bool:
    """Return whether `ReverseLaw` can be computed for these arguments without overflow.

    It can if each kind of rounds has a count of at most 2^24, and if the squares of all sizes and
    of `mu` are at most 600.
    """
    sizes = [one.size for one in rounds] + [mu]
    few = all(one.count <= _LARGEST_COUNT for one in rounds)
    return few and all(size * size <= _LARGEST_SQUARE for size in sizes)


def _two_point_power(rounds: Rounds) -> tuple[Vector, Vector, float]:
    """Return the logs of the values w of W* for T equal rounds, their masses, and the mass at 0.

    w = (1-q)^(T-n) (1-q+q e^(m^2))^n, where n is binomial with T trials of probability e^(-m^2).
    Values of n far from its mean are not listed; their mass counts as mass at w = 0. w is rounded
    down and masses are rounded up, because (s - w)_+^2 decreases with w.
    """
    from scipy.special import gammaln

    m2, count, q = rounds.size**2, rounds.count, rounds.rate
    log_hit, log_miss = -m2, math.log(-math.expm1(-m2))
    mean = count * math.exp(-m2)
    width = _WINDOW * math.sqrt(mean * -math.expm1(-m2)) + 2.0 * _WINDOW**2
    first, last = max(0, math.floor(mean - width)), min(count, math.ceil(mean + width))
    hits = np.arange(first, last + 1, dtype=np.float64)
    misses = count - hits
    terms = (
        np.full(len(hits), gammaln(count + 1.0)),
        -gammaln(hits + 1.0),
        -gammaln(misses + 1.0),
        hits * log_hit,
        misses * log_miss,
    )
    size = sum(np.abs(term) for term in terms)
    masses = np.exp(sum(terms) + 2.0**-48 * (1.0 + size))
    up, down = hits * math.log1p(q * math.expm1(m2)), misses * math.log1p(-q)
    logs = up + down - 2.0**-49 * (1.0 + up - down)
    outside = 0.0
    if first > 0 or last < count:
        # Bernstein: farther than x from the mean lies at most 2 e^(-x^2/(2 (variance + x/3))).
        variance = mean * -math.expm1(-m2)
        outside = 2.0 * math.exp(-(width**2) / (2.0 * (variance + width / 3.0)))
    return logs, masses, outside


def _product(atoms: Sequence[tuple[Vector, Vector]]) -> tuple[Vector, Vector]:
    """Return the product of independent factors on a common grid of log w.

    Each mass is divided between the two grid values around it so that the mean of w is kept, which
    can only raise the mean of a convex function. All sums are of positive terms.
    """
    step = max(float(np.max(logs) - np.min(logs)) for logs, _ in atoms) / _CELLS
    step = max(step, 1e-12)
    start, total = 0.0, np.ones(1)
    for logs, masses in atoms:
        low = float(np.min(logs))
        places = np.floor((logs - low) / step).astype(np.int64)
        inside = (logs - low) - places * step
        # The share is rounded toward the lower value, on which the decreasing function is larger.
        upper = np.clip(np.expm1(inside) / math.expm1(step) * (1.0 - 2.0**-30) - 2.0**-40, 0.0, 1.0)
        size = int(np.max(places)) + 2
        law = np.bincount(places, weights=masses * (1.0 - upper), minlength=size)
        law += np.bincount(places + 1, weights=masses * upper, minlength=size)
        total = np.convolve(total, law) * (1.0 + 2.0**-38)
        start += low
    logs = start + np.arange(len(total), dtype=np.float64) * step
    slack = 2.0**-45 * (1.0 + abs(start) + len(total) * step)
    return np.asarray(logs - slack), np.asarray(total)
