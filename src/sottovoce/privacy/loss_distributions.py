"""Privacy loss distributions on a grid: rounded up, composed by FFT, converted to delta.

Every step is on the private side, rounding included: at every epsilon a law on the grid has at
least the delta of the pair that it represents.

References: Sommer, Meiser and Mohammadi 2019; Koskela, Jalko and Honkela 2020 (loss distributions
and FFT); Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022 (connect the dots).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.privacy.divergences import log_sum_exp
from sottovoce.privacy.loss_pairs import LossPair

_LARGEST_LOSS = 2e6  # Larger losses count as infinite.
_SEARCH = np.geomspace(1e-12, _LARGEST_LOSS, 400)
_SEARCH_EDGES = np.concatenate((-_SEARCH[::-1], [0.0], _SEARCH))
# Relative rounding for each level of a transform, worst case (Higham 2002, section 24.1).
FFT_ROUNDING = 16.0 * 2.0**-53
_LARGEST_EXPONENT = 700.0
_NEGLIGIBLE = 45.0  # e^-45, even a million times, is below the rounding errors.
LOG_OUTSIDE = 22.0  # A window leaves out e^-22 of a tilted law on each side.
_LARGEST_TRANSFORM = 2**22


@dataclass(frozen=True, slots=True, eq=False)
class LossLaw:
    """The law of a privacy loss under P: masses at finite losses, and one at an infinite loss.

    The loss is log(dP/dQ). The mass of a finite loss under Q is e^-loss times the mass under P.
    Masses may sum to more than 1, because they are rounded up.
    """

    losses: Vector
    masses: Vector
    infinite: float

    def log_moment(self, tilt: float) -> float:
        """Return K(t) = log sum mass e^(t loss), over the finite losses, at t = `tilt`.

        Without an infinite loss it is t D_(1+t)(P || Q), D the Renyi divergence.
        """
        return self.log_moments([tilt])[0]

    def log_moments(self, tilts: Iterable[float]) -> list[float]:
        """Return K(t) = log sum mass e^(t loss), over the finite losses, at each t of `tilts`."""
        logs = self.logs()
        return [log_sum_exp(logs + tilt * self.losses) for tilt in tilts]

    def logs(self) -> Vector:
        """Return the natural logarithms of the masses of the finite losses; -inf for mass 0."""
        with np.errstate(divide="ignore"):
            logs: Vector = np.log(self.masses)
        return logs

    def support(self) -> "LossLaw":
        """Return the same law without losses of mass 0."""
        some = self.masses > 0.0
        return LossLaw(self.losses[some], self.masses[some], self.infinite)

    def variance(self) -> float:
        """Return the variance, under P, of the finite losses, given that the loss is finite.

        0 if no finite loss has mass.
        """
        total = float(np.sum(self.masses))
        if not total > 0.0:
            return 0.0
        mean = float(np.sum(self.masses * self.losses)) / total
        return float(np.sum(self.masses * (self.losses - mean) ** 2)) / total


def connect_dots(pair: LossPair, dots: Vector) -> LossLaw:
    """Return the smallest law on `dots` that dominates the pair, up to rounding, which is upward.

    `dots` are increasing losses log(dP/dQ). A law dominates the pair (P, Q) if its privacy profile
    H(x) = sup P - x Q, x = e^epsilon, is nowhere below that of the pair. The P and Q masses p, q of
    a bin (y, y'] become masses a at y and b at y' with the same sums,

        a + b = p,  a e^-y + b e^-y' = q,   so   a = (q e^y' - p)/(e^(y'-y) - 1).

    The profile of the result is the chord of the old profile between dots, so it lies above it,
    because profiles are convex. Mass below the first dot moves up to it; mass above the last
    dot counts as an infinite loss.

    Rounding. Mass at a higher loss, and more mass, only raise the profile. So it is enough that
    neither b nor a + b is too small. With s = accuracy (1 + |y|) the masses are accurate to s, and
    a is computed with 4 s taken from q and 4 s added to p, which covers both errors, those of e^y'
    and those of the sums. The edges may be wrong by s. They are lowered by s, so no loss in a bin
    lies above y', and losses down to y - 2 s are covered too: the chord, extended to e^-y (1 + 2
    s), falls below the profile by at most 2 s times its slope times e^-y, for which 2 s of the 4 s
    taken from q compensate.
    """
    slack = pair.accuracy * (1.0 + np.abs(dots))
    first, second = pair.masses(dots - slack)
    first = first * (1.0 + 4.0 * np.append(slack, slack[-1]))
    p, q, gap = first[1:-1], second[1:-1], np.diff(dots)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scaled = q * np.exp(np.minimum(dots[1:], _LARGEST_EXPONENT)) * (1.0 - 4.0 * slack[1:])
        lower = (scaled - p) / np.expm1(np.minimum(gap, _LARGEST_EXPONENT))
    # Denormal masses, and losses for which e^y' overflows, are rounded all the way up to y'.
    accurate = (q > 1e-290) & (dots[1:] <= _LARGEST_EXPONENT) & np.isfinite(lower)
    lower = np.where(accurate, np.clip(lower, 0.0, p), 0.0)
    masses = np.zeros(len(dots))
    masses[0] = first[0]
    masses[1:] += p - lower
    masses[:-1] += lower
    return LossLaw(dots, masses, min(1.0, float(first[-1]) + len(dots) * 1e-307))


@lru_cache(maxsize=256)
def loss_range(pair: LossPair, tail: float) -> tuple[float, float]:
    """Return losses (low, high) outside which the pair has P mass of about `tail` on each side.

    Infinite losses are not counted. The range need not be exact: `grid_law` rounds up what lies
    outside it.
    """
    low, high = -_LARGEST_LOSS, _LARGEST_LOSS
    edges = _SEARCH_EDGES
    for _ in range(2):
        masses, _q = pair.masses(edges)
        below, above = np.cumsum(masses)[:-1], np.cumsum(masses[::-1])[::-1][1:]
        at_low = int(np.searchsorted(below, tail, side="right")) - 1
        at_high = int(np.sum(above > above[-1] + tail))
        low, low_end = (edges[max(0, at_low)], edges[min(len(edges) - 1, at_low + 1)])
        high, high_start = (
            edges[min(len(edges) - 1, at_high)],
            edges[max(0, min(len(edges) - 1, at_high) - 1)],
        )
        edges = np.unique(
            np.concatenate((np.linspace(low, low_end, 64), np.linspace(high_start, high, 64)))
        )
    return float(low), float(max(high, low))


@lru_cache(maxsize=256)
def coarse_law(pair: LossPair, tail: float) -> LossLaw:
    """Return a law on a few thousand dots that dominates the pair, for planning a finer grid.

    The dots are spaced evenly and geometrically, over the range that `loss_range` gives for `tail`.
    """
    low, high = loss_range(pair, tail)
    reach = max(abs(low), abs(high), 1e-12)
    powers = np.geomspace(1e-7 * reach, reach, 600)
    # Wide enough that a single loss lies below the last dot, which is lowered by the edge error.
    width = max(high - low, 2e-9 * (1.0 + reach))
    dots = np.concatenate(
        (-powers, [0.0], powers, np.linspace(low - 1e-3 * width, high + 1e-3 * width, 1000))
    )
    inside = (dots >= low - 0.01 * width) & (dots <= high + 0.01 * width)
    return connect_dots(pair, np.unique(dots[inside]))


@dataclass(frozen=True, slots=True, eq=False)
class GridLaw:
    """A law of the privacy loss at (start + i) * step, where i is the index of a mass in `law`."""

    start: int
    step: float
    law: LossLaw


@lru_cache(maxsize=64)
def grid_law(pair: LossPair, step: float, tail: float) -> GridLaw:
    """Return the smallest law on integer multiples of `step` that dominates the pair.

    The grid reaches over the range that `loss_range` gives for `tail`: losses below it move up to
    its first point, and those above it count as infinite.
    """
    low, high = loss_range(pair, tail)
    start, stop = math.floor(low / step), math.ceil(high / step) + 1
    law = connect_dots(pair, np.arange(start, stop + 1, dtype=np.float64) * step)
    some = np.flatnonzero(law.masses)
    if len(some):  # Ends without mass are cut off, because the largest loss bounds epsilon.
        cut = slice(some[0], some[-1] + 1)
        law = LossLaw(law.losses[cut], law.masses[cut], law.infinite)
    return GridLaw(start + int(some[0]) if len(some) else start, step, law)


def grid_step(wanted: float) -> float:
    """Return the largest step, at most `wanted`, with three significant bits.

    Its integer multiples are exact floats.
    """
    mantissa, exponent = math.frexp(wanted)
    return math.ldexp(math.floor(8.0 * mantissa), exponent - 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositionTilts:
    """The tilts of a composition: the exponents t in masses e^(t loss) and in Chernoff bounds.

    Attributes:
        low: Tilt whose Chernoff bound gives the lower end of the window.
        middle: Tilt of the masses, at which delta is decided.
        high: Tilt whose Chernoff bound gives the upper end of the window.
        top: Tilt whose Chernoff bound limits the mass above the window.
        top_mass: The P mass that may lie above the window.
    """

    low: float
    middle: float
    high: float
    top: float
    top_mass: float

    def window(self, parts: Sequence[tuple[GridLaw, int]]) -> tuple[float, float]:
        """Return the ends (low, high) of a window of composed losses, by Chernoff bounds.

        Outside it lies little of the tilted mass, and above it at most `top_mass` of the P mass of
        the composition of `parts`, each a law and how often it is composed.
        """
        low, middle, high, top = (
            math.fsum(count * part.law.log_moment(tilt) for part, count in parts)
            for tilt in (self.low, self.middle, self.high, self.top)
        )
        return (
            (middle - low - LOG_OUTSIDE) / (self.middle - self.low),
            max(
                (high - middle + LOG_OUTSIDE) / (self.high - self.middle),
                (top - math.log(self.top_mass)) / self.top,
            ),
        )


class TiltedComposition:
    """Laws on one grid, each composed with itself as often as its count says.

    Each law is tilted: its masses are multiplied by e^(t loss - K(t)). The tilted masses sum to
    about 1 and are centered where delta is decided. The rounding error of the FFT, which is
    relative to the largest mass, thereby becomes relative to the Renyi bound e^(K - t eps), so that
    small deltas can be computed.

    Wrapping. Sums of losses are computed modulo the size of the window, which begins at `start`.
    Mass below or above the window appears at another place within it.

    Rounding, in l2 norm. A transform of length N is accurate to g = FFT_ROUNDING log2(N),
    relatively. The transform X of masses x has |X| <= 1 and norm sqrt(N) |x|. So its T-th power is
    wrong by at most T g sqrt(N) |x|, which includes the rounding of polar powers (a few T 2^-53).
    Products add these errors, and the inverse transform turns them into sum T g |x| + g.
    Cauchy-Schwarz carries the error over to delta. Masses, tilts and scales have errors relative to
    themselves, and so have their T-fold products: `_log_slack`.
    """

    def __init__(
        self, parts: Sequence[tuple[GridLaw, int]], tilt: float, low: float, high: float
    ) -> None:
        """Set up a window around the losses between `low` and `high`; `_compose` fills it."""
        step = parts[0][0].step
        least = sum(count * part.start for part, count in parts)
        most = sum(count * (part.start + len(part.law.losses) - 1) for part, count in parts)
        start = max(least, math.floor(low / step) - 2)
        stop = min(most, max(start, math.ceil(high / step)) + 2)
        size = transform_size(stop - start + 1)
        self.start, self.step, self.tilt, self.size = start, step, tilt, size
        self.floor = -math.inf if start == least else start * step
        self.top, self.most = (start + size - 1) * step, most * step
        self._rounding = math.inf

    def _compose(self, parts: Sequence[tuple[GridLaw, int]]) -> None:
        size = self.size
        if size > _LARGEST_TRANSFORM:
            return
        level = FFT_ROUNDING * math.log2(2 * size)
        self.log_scale, self._rounding, growth, slack = 0.0, level, 0.0, 0.0
        spectrum: NDArray[np.complex128] = np.ones(size // 2 + 1, dtype=np.complex128)
        for part, count in parts:
            logs = part.law.logs() + self.tilt * part.law.losses
            moment = log_sum_exp(logs)
            tilted = np.exp(logs - moment)
            places = (part.start + np.arange(len(tilted))) % size
            folded = np.bincount(places, weights=tilted, minlength=size)
            transformed = np.fft.rfft(folded)
            spectrum *= polar_power(transformed, float(count))
            norm = float(np.linalg.norm(folded))
            reach = self.tilt * float(np.max(np.abs(part.law.losses[tilted > 0.0]), initial=0.0))
            self.log_scale += count * moment
            self._rounding += count * level * norm
            growth += count * (
                max(0.0, float(np.sum(folded)) - 1.0) + level * math.sqrt(size) * norm
            )
            slack += count * 2.0**-51 * (1000.0 + reach + abs(moment))
        self._rounding *= math.exp(min(growth, _LARGEST_EXPONENT))
        self._log_slack = slack
        masses = np.fft.irfft(spectrum, size)
        self.tilted = np.maximum(0.0, np.roll(masses, -(self.start % size)))
        self._mass = float(np.sum(self.tilted))


class ComposedLaw(TiltedComposition):
    """The law of the privacy loss of a composition, for upper bounds on its delta.

    Mass above the window (at most e^(K(s) - s top) of the P mass, for any s > 0) is added to delta.
    Mass below it does not contribute at the epsilons of the window. Both also appear elsewhere
    within the window, which can only raise delta.
    """

    def __init__(
        self,
        parts: Sequence[tuple[GridLaw, int]],
        tilts: "CompositionTilts",
        reach_down_to: float = math.inf,
    ) -> None:
        low, high = tilts.window(parts)
        super().__init__(parts, tilts.middle, min(low, reach_down_to), high)
        self.wrapped = 0.0 if self.top >= self.most else chernoff(parts, tilts.top, self.top)
        survival = sum(
            count * math.log1p(-min(part.law.infinite, 1 - 2**-53)) for part, count in parts
        )
        self.infinite = min(1.0, -math.expm1(survival) * (1.0 + 2.0**-48))
        if self.infinite < 1.0:
            self._compose(parts)

    @cached_property
    def _weights(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """e^(-t g) and 1 - e^(-g) at gaps g = 0, h, 2h, ...; `_beyond` covers larger gaps."""
        size = len(self.tilted)
        size = min(size, math.ceil(_NEGLIGIBLE / max(self.tilt * self.step, 1e-300)) + 1)
        gaps = np.arange(size) * self.step
        return np.exp(-self.tilt * gaps), -np.expm1(-gaps)

    @property
    def _beyond(self) -> float:
        """An upper bound on the weights of gaps above _NEGLIGIBLE/t, per unit of mass."""
        return math.exp(-_NEGLIGIBLE) * math.sqrt(len(self.tilted))

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on the delta of the composition at `epsilon`.

        It is 1 below the window, and if the window is too large to be computed.
        """
        if epsilon >= self.most:
            return self.infinite  # No finite loss is larger.
        epsilon = min(epsilon, self.top)  # Delta does not increase with epsilon.
        if epsilon < self.floor or not math.isfinite(self._rounding):
            return 1.0
        above = max(0, math.floor(epsilon / self.step) + 1 - self.start)
        nearest = (self.start + above) * self.step  # The smallest loss above epsilon.
        gap = max(0.0, nearest - epsilon)
        decay, lost = self._weights
        size = min(len(decay), len(self.tilted) - above)
        # 1 - e^-(gap + g) = e^-gap (1 - e^-g) + (1 - e^-gap), without cancellation.
        weights = lost[:size] * math.exp(-gap)
        weights += -math.expm1(-gap)
        weights *= decay[:size]
        total = float(np.sum(weights * self.tilted[above : above + size]))
        total += self._rounding * (float(np.linalg.norm(weights)) + self._beyond) + 1e-300
        total += (2.0**-51 * (abs(epsilon) + abs(nearest)) + self._beyond) * self._mass
        reach = abs(self.log_scale) + self.tilt * (abs(nearest) + self.step)
        log_factor = self.log_scale - self.tilt * nearest + self._log_slack + 2.0**-49 * reach
        log_delta = math.log(total) + log_factor
        if not log_delta < 0.0:
            return 1.0
        return min(1.0, math.exp(log_delta) * (1.0 + 2.0**-40) + self.wrapped + self.infinite)


def transform_size(least: int) -> int:
    """Return the smallest even FFT length >= `least` that is 1, 3 or 5 times a power of 2.

    A factor of 3 or 5 makes butterflies of 3 or 5 points, whose error is at most 13 or 23 times
    2^-53 if summed directly, (r + 2) sqrt(2 r). That is less than FFT_ROUNDING allows for log2(3)
    or log2(5) levels.
    """
    sizes: list[int] = [odd * 2 ** max(1, math.ceil(math.log2(least / odd))) for odd in (1, 3, 5)]
    return min(sizes)


def polar_power(values: NDArray[np.complex128], exponent: float) -> NDArray[np.complex128]:
    """Return values**exponent, computed in polar form; powers of modulus below 2^-100 become 0.

    The values are the transform of masses whose sum is about 1. The omitted powers are below the
    rounding error, because the largest power is that of the sum.
    """
    squares = values.real**2 + values.imag**2
    counts = np.flatnonzero(squares > 2.0 ** (-200.0 / exponent))
    logs = 0.5 * exponent * np.log(squares[counts])
    powers = np.zeros_like(values)
    powers[counts] = np.exp(logs + 1j * exponent * np.angle(values[counts]))
    return powers


def chernoff(parts: Sequence[tuple[GridLaw, int]], tilt: float, loss: float) -> float:
    """Return an upper bound on the P mass of the composed finite losses above `loss`.

    It is Chernoff's bound e^(K(s) - s loss), at most 1, with s = `tilt` > 0 and K(s) the sum of the
    log moments of `parts`, each a law and how often it is composed.
    """
    moments = [count * part.law.log_moment(tilt) for part, count in parts]
    reach = [
        count * tilt * float(np.max(np.abs(part.law.losses), initial=0.0)) for part, count in parts
    ]
    log_mass = math.fsum(moments) - tilt * loss
    rounding = 2.0**-45 * (
        math.fsum(map(abs, moments)) + tilt * abs(loss) + sum(count for _, count in parts)
    )
    rounding += 2.0**-51 * math.fsum(reach)
    return math.exp(min(0.0, log_mass + rounding))
